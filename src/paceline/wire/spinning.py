"""How does a role wait for a frame that comes soon? It spins, because being woken up takes longer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Spinner(Generic[T]):
    """Spins for a while before its caller goes to sleep, and knows how much processor time that took."""

    def __init__(self, ready: Callable[[], T]) -> None:
        self._ready = ready
        self.spun = 0
        """Nanoseconds so far. Nothing was missed meanwhile: a role that waits has nothing better to do."""

    def spin(self, seconds: float) -> T:
        """What `ready` finds, which may be nothing after that many seconds; gives way to others that can run."""
        found = (ready := self._ready)()
        if not found:
            began, until = time.thread_time_ns(), time.perf_counter() + seconds
            while not found and time.perf_counter() < until:
                os.sched_yield()
                found = ready()
            self.spun += time.thread_time_ns() - began
        return found
