"""Ports for tests that must know one before something listens there."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

# Below the ports that Linux gives to outgoing connections, and above those of Ray's workers. A client that tries a port
# before anyone listens there may otherwise be given that port for its own end, connect to itself and so occupy it.
FIRST, LAST = 20_000, 32_000


def free_ports(count: int = 1) -> int:
    """The first of `count` ports in a row that are free on loopback, and that no connection takes by chance.

    Tests that run at the same time, whatever their seeds, most probably get different ones.
    """
    drawn = random.SystemRandom()
    for _ in range(1000):
        first = drawn.randrange(FIRST, LAST - count)
        with suppress(OSError):
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
            return first
    raise RuntimeError(f"no {count} free ports in a row from {FIRST} to {LAST}")
