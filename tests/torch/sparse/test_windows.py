"""Which rows are on the GPU: all, or windows of blocks that follow each other in the order of an epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.data.rows import EpochOrder
from paceline.data.sparse.batch import Batch
from paceline.torch.model import torch
from paceline.torch.sparse.rows import NO_COLUMNS, PackedTensors, RowShape, pack, shape_of, tensors_of
from paceline.torch.sparse.windows import ResidentRows, StreamedRows, Window

SIZES = [70, 32, 1, 33, 64]
FIRST = np.cumsum(SIZES) - np.array(SIZES)
CPU = torch.device("cpu")


def blocks() -> tuple[list[PackedTensors], RowShape]:
    """Row r of all has the key r."""
    packed = []
    for first, size in zip(FIRST.tolist(), SIZES, strict=True):
        rows = Batch.from_lists([0] * size, [[first + i] for i in range(size)], [[1.0]] * size)
        packed.append(pack(rows, NO_COLUMNS, sum(SIZES)))
    shape = shape_of(packed, NO_COLUMNS, sum(SIZES))
    return [tensors_of(block, shape, pinned=False) for block in packed], shape


def keys_of(window: Window, start: int, stop: int) -> list[int]:
    """The keys of the rows of a launch, each of which has one, in order."""
    plan, found = window.plan(start, stop), {}
    starts, sizes, places = (tensor.tolist() for tensor in window.tensors)
    for run in range(plan.first, plan.first + plan.num_runs):
        end = plan.last if run == plan.first + plan.num_runs - 1 else sizes[run]
        for j in range(plan.skip if run == plan.first else 0, end):
            found[places[run] - plan.base + j] = int(window.rows.keys[int(window.rows.starts[starts[run] + j])])
    assert sorted(found) == [*range(stop - start)]
    return [found[place] for place in sorted(found)]


def rows_of_epoch(order: EpochOrder, epoch: int) -> list[int]:
    return [int(FIRST[block] + row) for block, rows in order.between(200 * epoch, 200 * epoch + 200) for row in rows]


def make(kind: str, order: EpochOrder) -> Any:
    return ResidentRows(*blocks(), order, CPU) if kind == "resident" else StreamedRows(*blocks(), order, CPU, int(kind))


@pytest.mark.parametrize("kind", ["resident", "1", "70", "1000"])
@pytest.mark.parametrize("step", [1, 7, 32, 45, 1000])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_row_is_trained_on_once_per_epoch(kind: str, step: int, shuffle: bool) -> None:
    order = EpochOrder(SIZES, seed=5, shuffle=shuffle)
    rows = make(kind, order)
    for epoch in range(2):
        found: list[int] = []
        for first in range(0, 200, step):
            start, stop = 200 * epoch + first, 200 * epoch + min(first + step, 200)
            while start < stop:
                window = rows.window(start, stop)
                assert window.start <= start < window.stop
                until = min(stop, window.stop)
                found += keys_of(window, start, until)
                rows.look_ahead(start)
                start = until
        assert found == rows_of_epoch(order, epoch)


@pytest.mark.parametrize("kind", ["resident", "1", "70", "1000"])
def test_a_batch_of_sync_is_in_one_launch(kind: str) -> None:
    order = EpochOrder(SIZES, seed=5)
    rows = make(kind, order)
    found: list[int] = []
    for start in range(200, 400, 90):
        stop = min(start + 90, 400)
        window = rows.whole(start, stop)
        assert window.start <= start
        assert window.stop >= stop
        found += keys_of(window, start, stop)
        rows.look_ahead(start)
    assert found == rows_of_epoch(order, 1)


def test_only_the_window_in_use_and_the_next_are_kept() -> None:
    order = EpochOrder(SIZES, seed=5)
    rows = StreamedRows(*blocks(), order, CPU, 1)
    for start in range(200):
        window = rows.window(start, 200)
        rows.look_ahead(start)
        assert sorted(rows._ready) == [window.start, window.stop]


def test_training_may_begin_anywhere() -> None:
    """As after a checkpoint."""
    order = EpochOrder(SIZES, seed=5)
    window = StreamedRows(*blocks(), order, CPU, 70).window(333, 400)
    assert keys_of(window, 333, window.stop) == rows_of_epoch(order, 1)[133 : window.stop - 200]


def test_what_was_copied_ahead_is_not_copied_again() -> None:
    """Also if a batch does not end with a window."""
    copied, order = [], EpochOrder(SIZES, seed=5)
    rows = StreamedRows(*blocks(), order, CPU, 1)
    copy = rows._copy
    rows._copy = lambda *found: copied.append(found) or copy(*found)  # type: ignore[method-assign, func-returns-value]
    for start in range(0, 200, 20):
        rows.whole(start, start + 20)
        rows.look_ahead(start)
    windows = [found[0] for found in copied if len(found) == 1]
    assert windows == sorted({*windows})
    assert len(windows) == len(SIZES) + 1


def test_a_batch_across_windows_copies_no_more_than_it_needs() -> None:
    copied, order = [0], EpochOrder([20] * 50, seed=5)
    packed = [pack(Batch.from_lists([0] * 20, [[1]] * 20, [[1.0]] * 20), NO_COLUMNS, 9) for _ in range(50)]
    shape = shape_of(packed, NO_COLUMNS, 9)
    rows = StreamedRows([tensors_of(block, shape, pinned=False) for block in packed], shape, order, CPU, 200)
    copy = rows._copy

    def count(*found: int) -> Any:
        window = copy(*found)
        copied[0] += window.window.stop - window.window.start
        return window

    rows._copy = count  # type: ignore[method-assign, assignment]
    for start in range(0, 1000, 25):
        rows.whole(start, start + 25)
        rows.look_ahead(start)
    # Four batches cross the end of a window, and need two blocks each; 200 rows are those of the next epoch.
    assert copied[0] <= 1000 + 200 + 8 * 20
