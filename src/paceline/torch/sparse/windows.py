"""Which training rows are on the GPU, and when? All of them if they fit; otherwise a window that moves on.

A window is some blocks that follow each other in the order of an epoch. While the GPU trains on one, the next one is
copied: from memory that is pinned, on a stream of its own, so that the bus and the processors work at the same time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.data.rows import RUN_ROWS, BlockRuns, EpochOrder
from paceline.torch.model import torch
from paceline.torch.sparse.bits import copied
from paceline.torch.sparse.clock import Clock, make_clock
from paceline.torch.sparse.rows import GpuRows, PackedTensors, Planned, RowShape, Runs, to_gpu

# A window's copy should take much longer than starting it.
WINDOW_ROWS = 1 << 20


class Window(NamedTuple):
    """The rows at positions `start` up to `stop`, on the GPU. Their runs, in order, end at the places `ends`, counted
    from `start`, and have these `sizes`; `tensors` are the starts, sizes and places of the runs, on the GPU.
    """

    rows: GpuRows
    start: int
    stop: int
    ends: NDArray[np.int64]
    sizes: NDArray[np.int32]
    tensors: tuple[Any, Any, Any]

    def plan(self, start: int, stop: int) -> Planned:
        """Which runs have the rows at positions `start` up to `stop`."""
        low, high = start - self.start, stop - self.start
        a = int(np.searchsorted(self.ends, low, side="right"))
        b = int(np.searchsorted(self.ends, high, side="left")) + 1
        begin, last = int(self.ends[a] - self.sizes[a]), int(self.ends[b - 1] - self.sizes[b - 1])
        return Planned(a, b - a, low - begin, high - last, low)

    def runs(self, plan: Any) -> Runs:
        """The runs of a plan that is on the GPU."""
        return Runs(*self.tensors, plan)


class Windows(Protocol):
    """The training rows of a run."""

    def window(self, start: int, stop: int) -> Window:
        """The window that has position `start`; it may end before `stop`."""

    def whole(self, start: int, stop: int) -> Window:
        """A window that has all positions from `start` up to `stop`."""

    def look_ahead(self, start: int) -> None:
        """Begin to bring the window after the one that has position `start`, if it is not on the GPU."""


class _Copied(NamedTuple):
    """A window whose copy has begun, what tells that it is done, and what the clock knows of it."""

    window: Window
    done: Any
    timed: Any


class ResidentRows:
    """Training rows that are all on the GPU."""

    def __init__(self, blocks: Sequence[PackedTensors], shape: RowShape, order: EpochOrder, device: Any) -> None:
        rows, sizes = to_gpu(blocks, shape, device), np.array([len(block.labels) for block in blocks])
        first = dict(enumerate((np.cumsum(sizes) - sizes).tolist()))
        self._num_rows = order.num_rows

        def window_of(epoch: int) -> Window:
            at, found = epoch * order.num_rows, []
            while at < (epoch + 1) * order.num_rows:
                found.append(order.runs_at(at))
                at = found[-1].stop
            return _window(rows, found, epoch * order.num_rows, first, device)

        # A cache of a method would keep this object until the next garbage collection.
        self._epoch = lru_cache(2)(window_of)

    def window(self, start: int, stop: int) -> Window:
        window: Window = self._epoch(start // self._num_rows)
        return window

    whole = window

    def look_ahead(self, start: int) -> None:
        """All rows are there."""


class StreamedRows:
    """Training rows of which a few blocks at a time are on the GPU."""

    def __init__(
        self, blocks: Sequence[PackedTensors], shape: RowShape, order: EpochOrder, device: Any,
        window_rows: int = WINDOW_ROWS, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self._blocks = blocks
        self._shape = shape
        self._order = order
        self._device = device
        self._window_rows = window_rows
        self._clock = clock or make_clock(device)
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        # The window that is trained on, and the one after it.
        self._ready: dict[int, _Copied] = {}
        # When the launches on the last windows are done.
        self._trained: deque[Any] = deque()

    def window(self, start: int, stop: int) -> Window:
        ready = self._find(start)
        if ready is None:
            first = self._block_start(start)
            ready = self._copy(first)
            self._ready = {first: ready}
        self._ready = {first: other for first, other in self._ready.items() if first >= ready.window.start}
        self._wait_for(ready)
        return ready.window

    def look_ahead(self, start: int) -> None:
        ready = self._find(start)
        if ready is not None and ready.window.stop not in self._ready:
            self._wait_for_room()
            self._ready[ready.window.stop] = self._copy(ready.window.stop)

    def _wait_for_room(self) -> None:
        """Wait until the GPU has trained on the window before last. Otherwise this machine would copy more and more
        windows ahead, whose memory is in use until they were trained on.
        """
        if self._stream is None:
            return
        trained = torch.cuda.Event()
        trained.record(torch.cuda.current_stream(self._device))
        self._trained.append(trained)
        if len(self._trained) > 1:
            self._trained.popleft().synchronize()

    def _find(self, start: int) -> _Copied | None:
        """The window that has a position, if its copy has begun."""
        return next((one for one in self._ready.values() if one.window.start <= start < one.window.stop), None)

    def whole(self, start: int, stop: int) -> Window:
        window = self.window(start, stop)
        if stop <= window.stop:
            return window
        first = self._block_start(start)
        larger = self._copy(first, stop - first)
        self._wait_for(larger)
        return larger.window

    def _block_start(self, position: int) -> int:
        """The position where the block with the row at a position begins."""
        found = self._order.runs_at(position)
        return found.stop - len(self._blocks[found.block].labels)

    def _copy(self, start: int, least_rows: int = 0) -> _Copied:
        """Begin to copy the window whose first block begins at `start`, which ends with the epoch at the latest. With
        `least_rows`, it has no more blocks than these rows need.
        """
        wanted, end = least_rows or self._window_rows, (start // self._order.num_rows + 1) * self._order.num_rows
        found, at = [], start
        while at < end and (at == start or at - start < wanted):
            found.append(self._order.runs_at(at))
            at = found[-1].stop
        blocks = [self._blocks[runs.block] for runs in found]
        sizes = [len(block.labels) for block in blocks]
        first = {runs.block: sum(sizes[:i]) for i, runs in enumerate(found)}
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            with self._clock.copying(sum(block.num_bytes for block in blocks)) as timed:
                rows = to_gpu(blocks, self._shape, self._device)
            window, done = _window(rows, found, start, first, self._device), None
            if self._stream is not None:
                done = torch.cuda.Event()
                done.record(self._stream)
        return _Copied(window, done, timed)

    def _wait_for(self, ready: _Copied) -> None:
        """Let what comes next on the GPU wait for the copy, and keep the memory until it has been used."""
        self._clock.awaits(ready.timed)
        if ready.done is None:
            return
        current = torch.cuda.current_stream(self._device)
        current.wait_event(ready.done)
        for tensor in (*ready.window.rows, *ready.window.tensors):
            tensor.record_stream(current)


def _window(
    rows: GpuRows, found: Sequence[BlockRuns], start: int, first: Mapping[int, int], device: Any
) -> Window:  # fmt: skip
    """The window of blocks that begin at these rows (`first`, by block), in this order, from position `start` on."""
    starts, sizes, at = [], [], start
    for block, end, runs in found:
        of_block = runs * RUN_ROWS
        starts.append(first[block] + of_block)
        sizes.append(np.minimum(end - at - of_block, RUN_ROWS))
        at = end
    all_starts, all_sizes = np.concatenate(starts), np.concatenate(sizes).astype(np.int32)
    ends = np.cumsum(all_sizes, dtype=np.int64)
    tensors = [copied(torch.from_numpy(array), device) for array in (all_starts, all_sizes, ends - all_sizes)]
    return Window(rows, start, at, ends, all_sizes, (tensors[0], tensors[1], tensors[2]))
