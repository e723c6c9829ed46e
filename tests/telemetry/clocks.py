"""Clocks that go as a test says."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from paceline.telemetry import meter, recorder


class FakeClock:
    """Nanoseconds since some beginning, and those of a processor by thread; both stand still unless moved on."""

    def __init__(self) -> None:
        self.now = 1_000_000_000_000
        self.processors: dict[int, int] = {}

    def pass_by(self, nanoseconds: int, processor: int = 0) -> None:
        """Time passes, and this thread uses some processor time."""
        self.now += nanoseconds
        thread = threading.get_ident()
        self.processors[thread] = self.processors.get(thread, 0) + processor

    def sleep_until(self, seconds: float) -> None:
        """Time passes until `seconds` after the beginning."""
        self.now = 1_000_000_000_000 + round(seconds * 1e9)

    def as_module(self) -> SimpleNamespace:
        """What the code under test takes for the module `time`."""
        return SimpleNamespace(
            perf_counter_ns=lambda: self.now,
            perf_counter=lambda: self.now * 1e-9,
            thread_time_ns=lambda: self.processors.get(threading.get_ident(), 0),
            thread_time=lambda: self.processors.get(threading.get_ident(), 0) * 1e-9,
            pthread_getcpuclockid=lambda thread: thread,
            clock_gettime=lambda thread: self.processors.get(thread, 0) * 1e-9,
            monotonic=time.monotonic,
        )


@contextmanager
def fake_clock() -> Iterator[FakeClock]:
    """While it lasts, meters and journals see this clock alone."""
    clock = FakeClock()
    module = clock.as_module()
    with pytest.MonkeyPatch.context() as patch:
        for user in (meter, recorder):
            patch.setattr(user, "time", module)
        patch.setattr(meter, "_now", module.perf_counter_ns, raising=False)
        yield clock
