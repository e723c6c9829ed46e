"""Where does the time of a GPU go? To its kernels, and to waiting: for rows that are copied, or for this machine.

A piece of work is some launches that follow each other. The GPU runs them while Python goes on, so events on the GPU
time them. They are read after they have happened, and nothing waits for them. In Triton's interpreter, where everything
happens at once, this machine's clock is enough.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from paceline.telemetry.records import GpuChunk
from paceline.torch.model import torch

MILLI = 1e-3


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

    def begin(self, rows: int, launches: int) -> None:
        """A piece begins. The GPU has nothing to do, because its plans have just been copied."""

    def launched(self) -> None:
        """A part of the piece was handed to the GPU."""

    def end(self) -> None:
        """All of the piece was."""

    def pause(self) -> None:
        """Training stops for a while; the next piece follows none."""

    def copying(self, num_bytes: int) -> Any:
        """A context in which rows are copied, on the current stream; its value is for `awaits`."""

    def awaits(self, copy: Any) -> None:
        """The next piece needs what was copied then."""

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
        self._piece = (0, 0)

    def begin(self, rows: int, launches: int) -> None:
        now, spent = time.perf_counter(), self._totals.spent
        if self._last is not None:
            waited = now - self._last
            bus = min(waited, self._copied)
            self._totals.spent = spent.plus(seconds=waited, input=waited - bus, bus=bus)
        self._last, self._copied, self._piece = now, 0.0, (rows, launches)

    def launched(self) -> None:
        now, last = time.perf_counter(), self._last
        assert last is not None
        self._totals.spent = self._totals.spent.plus(seconds=now - last, kernels=now - last)
        self._last = now

    def end(self) -> None:
        rows, launches = self._piece
        self._totals.spent = self._totals.spent.plus(rows=rows, launches=launches)

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


@dataclass
class _Piece:
    """A piece of work: an event at its beginning and after each of its parts. `submitted` is when each part was handed
    over and `followed` when the next piece began, both in seconds since the beginning; that one needed `awaited`.
    """

    rows: int
    launches: int
    first: Any
    began: float
    parts: list[Any] = field(default_factory=list)
    submitted: list[float] = field(default_factory=list)
    is_over: bool = False
    followed: float | None = None
    awaited: _Copy | None = None

    def has_happened(self) -> bool:
        return bool((self.parts[-1] if self.parts else self.first).query())

    def seconds_until(self, event: Any) -> float:
        return float(self.first.elapsed_time(event)) * MILLI


class EventClock:
    """For a GPU, which begins with a part as soon as that was handed over and the one before is done."""

    def __init__(self, make_event: Callable[[], Any]) -> None:
        self._make_event = make_event
        self._totals = _Totals()
        self._pieces: deque[_Piece] = deque()
        # The piece that has no successor yet.
        self._open: _Piece | None = None
        self._copies: deque[_Copy] = deque()
        self._awaited: _Copy | None = None
        self._reading = threading.Lock()

    def begin(self, rows: int, launches: int) -> None:
        piece = _Piece(rows, launches, self._record(), time.perf_counter())
        if (before := self._open) is not None:
            before.followed, before.awaited, before.is_over = piece.began - before.began, self._awaited, True
        self._awaited, self._open = None, piece
        self._pieces.append(piece)

    def launched(self) -> None:
        piece = self._open
        assert piece is not None
        piece.submitted.append(time.perf_counter() - piece.began)
        piece.parts.append(self._record())

    def end(self) -> None:
        # Here the GPU has something to do. Without this, events would pile up between two records of a long run.
        self._read_all()

    def pause(self) -> None:
        if self._open is not None:
            self._open.is_over, self._open = True, None

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
            while self._pieces and self._pieces[0].is_over and self._pieces[0].has_happened():
                self._totals.spent = _read(self._pieces.popleft(), self._totals.spent)
            while self._copies and self._copies[0].last.query():
                copy = self._copies.popleft()
                seconds = float(copy.first.elapsed_time(copy.last)) * MILLI
                self._totals.spent = self._totals.spent.plus(copies=seconds, copied_bytes=copy.num_bytes)


def _read(piece: _Piece, spent: Spent) -> Spent:
    """Add a piece, and the time until the next one, in which the GPU waits: for the copy if it takes as long, and
    otherwise for this machine.
    """
    done = kernels = waited = 0.0
    for event, submitted in zip(piece.parts, piece.submitted, strict=True):
        ended = max(done, piece.seconds_until(event))
        began = min(max(done, submitted), ended)
        kernels, waited, done = kernels + ended - began, waited + began - done, ended
    after = max(0.0, (piece.followed or 0.0) - done)
    bus = 0.0 if piece.awaited is None else min(after, max(0.0, piece.seconds_until(piece.awaited.last) - done))
    return spent.plus(
        seconds=done + after, rows=piece.rows, launches=piece.launches, kernels=kernels, input=waited + after - bus,
        bus=bus,
    )  # fmt: skip
