"""Clients that do not belong to the run."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator

from paceline.wire.streams import split_address

PER_SECOND = 200
IDLE = 66


@contextlib.contextmanager
def harassed(*addresses: str, attack: str = "idle") -> Iterator[None]:
    """While this lasts, 200 hostile clients per second connect to each address, beside 66 that do so at once.

    They stay and say nothing (`idle`), go at once (`leaving`), or give a wrong answer (`wrong`).
    """
    over = threading.Event()
    threads = [threading.Thread(target=_harass, args=(address, attack, over)) for address in addresses]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(10)


def _harass(address: str, attack: str, over: threading.Event) -> None:
    begin, count = time.monotonic(), 0
    clients: deque[socket.socket] = deque()
    while not over.wait(0.005):
        while count < IDLE + (time.monotonic() - begin) * PER_SECOND:
            count += 1
            with contextlib.suppress(OSError):
                client = socket.create_connection(split_address(address), 1.0)
                clients.append(client)
                if attack == "wrong":
                    client.sendall(bytes(64))
                elif attack == "leaving":
                    client.close()
            if len(clients) > 300:
                clients.popleft().close()
    for client in clients:
        client.close()
