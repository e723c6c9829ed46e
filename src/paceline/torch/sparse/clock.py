"""Where does the time of a GPU go? To its kernels, and to waiting: for rows that are copied, or for this machine.

The GPU runs what was handed to it while Python goes on, so events on the GPU time it. They are read after they have
happened, and nothing waits for them. In Triton's interpreter, where everything happens at once, this machine's clock is
enough.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

from paceline.telemetry.records import GpuChunk
from paceline.torch.model import torch

MILLI = 1e-3
# The time between events is in numbers of 32 bits, so the anchor should not be long ago.
ANCHORED_SECONDS = 10.0


class Spent(NamedTuple):
    """Totals, as `GpuChunk` has them."""

    seconds: float = 0.0
    rows: int = 0
    launches: int = 0
    kernels: float = 0.0
    input: float = 0.0
    bus: float = 0.0
    copies: float = 0.0
    copied_bytes: int = 0

    def plus(self, **more: Any) -> Spent:
        return self._replace(**{name: getattr(self, name) + value for name, value in more.items()})


class Clock(Protocol):
    """The stopwatch of a GPU. The thread that trains uses it; any may take what was recorded."""

    def begin(self) -> None:
        """Some launches follow."""

    def launched(self, rows: int = 0) -> None:
        """A part was handed to the GPU: a launch that trains on some rows, or what else belongs to it."""

    def end(self) -> None:
        """All launches were handed over."""

    def pause(self) -> None:
        """Training stops for a while, in which the GPU waits for nothing."""

    def copying(self, num_bytes: int) -> Any:
        """A context in which rows are copied, on the current stream; its value is for `awaits`."""

    def awaits(self, copy: Any) -> None:
        """The next part needs what was copied then."""

    def take(self) -> list[GpuChunk]:
        """A chunk of what has happened since the last call; none if no row was trained on."""


def make_clock(device: Any) -> Clock:
    """The clock of a device."""
    if device.type == "cuda":
        return EventClock(partial(torch.cuda.Event, enable_timing=True))
    return WallClock()


class _Totals:
    """What was spent so far, and what of it was reported."""

    def __init__(self) -> None:
        self.spent = self._before = Spent()

    def take(self) -> list[GpuChunk]:
        now, before = self.spent, self._before
        if now.rows == before.rows:
            return []
        self._before = now
        # Sums of floats may differ in the last digit.
        grown: dict[str, Any] = {name: max(0, getattr(now, name) - getattr(before, name)) for name in Spent._fields}
        return [GpuChunk(time=time.perf_counter(), rank=0, **grown)]


class WallClock:
    """For kernels that have run when their launch returns."""

    def __init__(self) -> None:
        self._totals = _Totals()
        # The end of what was timed last, and how long rows were copied since.
        self._last: float | None = None
        self._copied = 0.0

    def begin(self) -> None:
        now, spent = time.perf_counter(), self._totals.spent
        if self._last is not None:
            waited = now - self._last
            bus = min(waited, self._copied)
            self._totals.spent = spent.plus(seconds=waited, input=waited - bus, bus=bus)
        self._last, self._copied = now, 0.0

    def launched(self, rows: int = 0) -> None:
        now, last = time.perf_counter(), self._last
        assert last is not None
        spent = self._totals.spent
        self._totals.spent = spent.plus(seconds=now - last, kernels=now - last, rows=rows, launches=int(rows > 0))
        self._last = now

    def end(self) -> None:
        """Nothing is left to be read."""

    def pause(self) -> None:
        self._last = None

    @contextmanager
    def copying(self, num_bytes: int) -> Iterator[None]:
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        self._copied += seconds
        self._totals.spent = self._totals.spent.plus(copies=seconds, copied_bytes=num_bytes)

    def awaits(self, copy: Any) -> None:
        pass

    def take(self) -> list[GpuChunk]:
        return self._totals.take()


class _Copy(NamedTuple):
    """The events before and after a copy."""

    first: Any
    last: Any
    num_bytes: int


class _Part(NamedTuple):
    """What was handed over at a time: the event after it, the rows it trains on, the copy that it needed, if any, and
    when the GPU was first expected to work on it, if nothing came before.
    """

    event: Any
    submitted: float
    rows: int
    awaited: _Copy | None
    expected: float | None


class EventClock:
    """For a GPU, which begins with a part as soon as it was handed over, the one before is done and its rows are there.

    Events are translated to this machine's time. It waited for one event, the anchor, and knows how much later each of
    the others came.
    """

    def __init__(self, make_event: Callable[[], Any]) -> None:
        self._make_event = make_event
        self._totals = _Totals()
        self._parts: deque[_Part] = deque()
        self._copies: deque[_Copy] = deque()
        self._awaited: _Copy | None = None
        # When the GPU was first expected to work after a pause, until the next part is handed over.
        self._expected: float | None = None
        self._is_paused = True
        self._anchor: tuple[Any, float] | None = None
        # When the last part that was read was done.
        self._done = 0.0
        self._reading = threading.Lock()

    def begin(self) -> None:
        if self._is_paused:
            self._is_paused, self._expected = False, time.perf_counter()
        if self._anchor is None:
            anchor = self._record()
            anchor.synchronize()
            self._anchor = anchor, time.perf_counter()

    def launched(self, rows: int = 0) -> None:
        part = _Part(self._record(), time.perf_counter(), rows, self._awaited, self._expected)
        self._awaited = self._expected = None
        self._parts.append(part)

    def end(self) -> None:
        # Here the GPU has something to do. Without this, events would pile up between two records of a long run.
        self._read_all()

    def pause(self) -> None:
        self._is_paused = True

    @contextmanager
    def copying(self, num_bytes: int) -> Iterator[_Copy]:
        copy = _Copy(self._record(), self._make_event(), num_bytes)
        yield copy
        copy.last.record()
        self._copies.append(copy)

    def awaits(self, copy: Any) -> None:
        self._awaited = copy

    def take(self) -> list[GpuChunk]:
        self._read_all()
        return self._totals.take()

    def _record(self) -> Any:
        event = self._make_event()
        event.record()
        return event

    def _read_all(self) -> None:
        """Add up what has happened."""
        with self._reading:
            while self._parts and self._parts[0].event.query():
                self._read(self._parts.popleft())
            while self._copies and self._copies[0].last.query():
                copy = self._copies.popleft()
                seconds = float(copy.first.elapsed_time(copy.last)) * MILLI
                self._totals.spent = self._totals.spent.plus(copies=seconds, copied_bytes=copy.num_bytes)

    def _read(self, part: _Part) -> None:
        """Add a part, and the time before it in which the GPU waited: for the copy until that was done, and otherwise
        for this machine.
        """
        before = self._done if part.expected is None else part.expected
        copied = before if part.awaited is None else max(before, self._time_of(part.awaited.last))
        ended = max(before, self._time_of(part.event))
        began = min(ended, max(copied, part.submitted))
        bus = min(copied, began) - before
        self._done = ended
        self._totals.spent = self._totals.spent.plus(
            seconds=ended - before, rows=part.rows, launches=int(part.rows > 0), kernels=ended - began, bus=bus,
            input=began - before - bus,
        )  # fmt: skip
        assert self._anchor is not None
        if ended - self._anchor[1] > ANCHORED_SECONDS:
            self._anchor = part.event, ended

    def _time_of(self, event: Any) -> float:
        assert self._anchor is not None
        anchor, seconds = self._anchor
        return seconds + float(anchor.elapsed_time(event)) * MILLI
