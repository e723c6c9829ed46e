"""How does a role wait for a frame that comes soon? It looks for it, because being woken up takes longer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Looker:
    """Looks for a while before its caller goes to sleep, and knows how much of the processor that took."""

    def __init__(self) -> None:
        self.processor = 0
        """Nanoseconds so far. Nothing was missed meanwhile: whoever waits has nothing better to do."""

    def look(self, ready: Callable[[], T], seconds: float) -> T:
        """What `ready` finds, which may be nothing after so much time; gives way to whoever else can run."""
        found = ready()
        if not found:
            began, until = time.thread_time_ns(), time.perf_counter() + seconds
            while not found and time.perf_counter() < until:
                os.sched_yield()
                found = ready()
            self.processor += time.thread_time_ns() - began
        return found
