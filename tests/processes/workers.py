"""Supervised processes for tests: `python -m tests.processes.workers NAME SPEC`."""

from __future__ import annotations

import sys
import time

from paceline.errors import DataError
from paceline.processes.lifeline import Lifeline, run_supervised
from paceline.processes.messages import ProcessSpec, Ready
from tests.processes.fakes import News, Ping, Pong


def sleeps(spec: ProcessSpec, lifeline: Lifeline, host: str) -> None:
    lifeline.say(Ready(address=host))
    time.sleep(60)


def echoes(spec: ProcessSpec, lifeline: Lifeline, host: str) -> None:
    """Answers pings while it listens, says three orders back, and fails."""
    lifeline.on(Ping, lambda ping: lifeline.say(Pong(number=ping.number + 1)))
    lifeline.status = lambda: ("works", 1, 2)
    lifeline.say(Ready(address=host))
    for _ in range(3):
        lifeline.say(lifeline.orders.get())
    lifeline.beat()
    raise DataError("the end", "begin again")


if __name__ == "__main__":
    work = {"sleeps": sleeps, "echoes": echoes}[sys.argv[1]]
    run_supervised(bytes.fromhex(sys.argv[2]), "a", "10.0.0.1", ProcessSpec, Ping | News, work)
