"""Where do parameters by key live? In one flat table, of all keys or of those that one shard holds.

In one process the table is memory that every worker reads and writes. Behind its rows there may be space for each
worker's private copies of the hottest keys, which compiled loops use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data.sparse.key_order import moved_keys
from paceline.kernels.fold import add_in
from paceline.kernels.gate import LINE
from paceline.kernels.private import NoCopies, Private, mean_products, merge_all, merge_hidden
from paceline.kernels.tables import (
    KeysOfRows,
    TableArrays,
    apply_gradient,
    fill_normal,
    fill_uniform,
    gather,
    read_all,
)
from paceline.machine import num_cores
from paceline.parameters.layout import Group, Rules, TableLayout
from paceline.parameters.optimizers import state_of
from paceline.parameters.scratch import DIRECT_KEYS, Fold
from paceline.parameters.store import AnyStore, Floats, check_memory

KEYS_PER_LINE = 16
# What a thread draws in some milliseconds.
VALUES_PER_THREAD = 1 << 18
FILLS = {"uniform": fill_uniform, "normal": fill_normal}


class KeyedStore:
    """The rows of every `num_shards`-th key from `shard` on. A key is given by its index among them.

    Only compiled loops over `table` may use it from several threads at once.
    """

    def __init__(
        self, layout: TableLayout, shard: int = 0, num_shards: int = 1, private_rows: int = 0,
        hot_keys: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """`private_rows` more rows are allocated behind them, for `PrivateCopies`. If keys are those of a dataset's
        blocks, `hot_keys` are that dataset's: initial values belong to the input's keys.
        """
        self.layout = layout
        self.size = len(range(shard, layout.num_keys, num_shards))
        self.width, self.dim = layout.width, layout.dim
        self.key_dtype = layout.key_dtype
        # -1 if another shard holds the bias, or there is none.
        self.bias = layout.bias_key // num_shards if layout.bias and layout.bias_key % num_shards == shard else -1
        self._keys_of_rows = _keys_of_rows(hot_keys if layout.is_drawn else (), shard, num_shards)
        self._num_floats = (self.size + private_rows) * self.width
        hint = "prepare the data with fewer features (--hash-bits), or choose --optimizer sgd, which needs the least"
        check_memory(4 * self._num_floats, f"{layout.features:,} features", hint)
        self._num_direct = min(DIRECT_KEYS // num_shards, self.size)
        self._fold = Fold.make(256, self._num_direct, layout)
        self._rules, self._decays = layout.rules_at(0), layout.decays
        self.begin()

    def begin(self) -> None:
        # New memory costs nothing until it is used.
        self.table: Floats = np.zeros(self._num_floats, np.float32)
        rows = self.table[: (self.size - (self.bias >= 0)) * self.width]
        column = 0
        for group in self.layout.groups:
            if group.initial.kind != "zeros":
                self._draw(rows, column, group)
            elif self.bias >= 0 and self.layout.bias_start:
                first = self.bias * self.width + column
                self.table[first : first + group.dim] = state_of(group.optimizer, self.layout.bias_start)
            column += group.width

    def _draw(self, rows: Floats, column: int, group: Group) -> None:
        """Draw initial values of a group's columns, in several threads if they are many."""
        fill, width, count = FILLS[group.initial.kind], self.width, len(rows) // self.width
        seed, scale = np.uint64(self.layout.seed), np.float32(group.initial.scale)
        parts = min(num_cores(), count * group.dim // VALUES_PER_THREAD + 1)
        ends = [count * part // parts for part in range(parts + 1)]

        def draw(start: int, stop: int) -> None:
            of = _part_of(self._keys_of_rows, start, stop)
            fill(rows[start * width : stop * width], width, column, group.dim, of, seed, scale)

        with ThreadPoolExecutor(parts, thread_name_prefix="paceline-draw") as threads:
            list(threads.map(draw, ends[:-1], ends[1:]))

    def rules_at(self, rows: int) -> Rules:
        """The rules in force after `rows` rows, which stay the same unless a rate decays."""
        return self.layout.rules_at(rows) if self._decays else self._rules

    def arrays_at(self, rows: int) -> TableArrays:
        """The table as the loops of whole steps take it, with the rules after `rows` rows."""
        return TableArrays(*self.rules_at(rows), self.table, self.bias)

    @property
    def fold_memory(self) -> Fold:
        """The working memory of `fold`, for compiled loops that do the same."""
        return self._fold

    def gather(self, keys: NDArray[Any], out: Floats) -> None:
        gather(*self._rules, self.table, self.bias, keys, out)

    def apply(self, keys: NDArray[Any], sums: Floats, rows: int, trained: int) -> None:
        if rows:
            apply_gradient(*self.rules_at(trained), self.table, self.bias, keys, sums, rows)

    def fold(self, pushes: Sequence[tuple[NDArray[Any], Floats]], rows: int, trained: int) -> None:
        num_keys = sum(len(keys) for keys, _ in pushes)
        if num_keys > len(self._fold.distinct):
            self._fold = Fold.make(num_keys * 5 // 4, self._num_direct, self.layout)
        fold, count, turn = self._fold, 0, self._fold.next_turn()
        for keys, sums in pushes:
            count = add_in(
                fold.columns, keys, sums, 0, len(keys), fold.slots, fold.direct, turn, fold.distinct, fold.totals, count
            )
        self.apply(fold.distinct[:count], fold.totals, rows, trained)

    def read(self, start: int, count: int, trained: int) -> Floats:
        out = np.empty(count * self.dim, np.float32)
        bias = self.bias - start if start <= self.bias < start + count else -1
        read_all(*self.rules_at(trained), self._rows(start, count), bias, out)
        return out

    @property
    def states(self) -> Floats:
        return self._rows(0, self.size).reshape(self.size, self.width)

    def part(self, start: int, stop: int) -> Floats:
        return self.states[start:stop]

    def load(self, start: int, states: Floats) -> None:
        self.states[start : start + len(states)] = states

    def rearrange(self, change: Callable[[Floats], Any]) -> None:
        """Change the order of the states [size, width] by a function that does it in place."""
        change(self.states)

    def warm_up(self) -> None:
        keys, sums = np.zeros(0, self.key_dtype), np.zeros(0, np.float32)
        self.gather(keys, sums)
        self.apply(keys, sums, 1, 0)
        self.fold([(keys, sums)], 1, 0)

    def _rows(self, start: int, count: int) -> Floats:
        return self.table[start * self.width : (start + count) * self.width]


def _keys_of_rows(hot_keys: Sequence[int], shard: int, num_shards: int) -> KeysOfRows:
    """Which of the input's keys the rows of a shard are for."""
    block_keys, input_keys = moved_keys(np.array(hot_keys, np.uint64))
    own = block_keys % np.uint64(num_shards) == shard
    rows = block_keys[own] // np.uint64(num_shards)
    return KeysOfRows(shard, num_shards, rows.astype(np.int64), input_keys[own])


def _part_of(of: KeysOfRows, start: int, stop: int) -> KeysOfRows:
    """Which keys the rows from `start` to `stop` are for."""
    first, last = np.searchsorted(of.rows, [start, stop])
    return KeysOfRows(of.first + start * of.step, of.step, of.rows[first:last] - start, of.keys[first:last])


class TableValues:
    """The values in a store after `rows` rows, [keys, columns]. A slice of keys is read when asked for."""

    def __init__(self, store: AnyStore, rows: int) -> None:
        self._store, self._rows = store, rows
        self.shape = store.size, store.dim

    def __getitem__(self, keys: slice) -> Floats:
        start, stop, _ = keys.indices(self._store.size)
        return self._store.read(start, stop - start, self._rows).reshape(stop - start, self._store.dim)


class PrivateCopies:
    """Each worker's own copies of the hottest keys and the bias, behind the rows of a store (`kernels/private.py`)."""

    def __init__(
        self, layout: TableLayout, num_workers: int, num_hot: int, batch_size: int = 1, curvature: float = 0.0,
        clocks: int = 0,
    ) -> None:  # fmt: skip
        """At pace N, they are merged every `clocks` clocks."""
        self.num_hot = num_hot
        self._clocks = clocks
        self._num_workers = num_workers
        self._batch_size = batch_size
        self._curvature = curvature
        # A spare cache line between the parts of two workers: arrays need not begin at the start of one.
        self._stride = (-(-(num_hot + 1) // KEYS_PER_LINE) + 1) * KEYS_PER_LINE if num_hot else 0
        self._first = -(-layout.num_keys // KEYS_PER_LINE) * KEYS_PER_LINE if num_hot else 0
        self.num_rows = self._first - layout.num_keys + num_workers * self._stride if num_hot else 0
        self._bases = np.zeros((num_workers, max(1, self._stride) * layout.width), np.float32)
        self._products = np.zeros(num_hot + 1, np.float32)
        self._rows_so_far = np.zeros((num_workers, LINE), np.int64)

    @staticmethod
    def can_be_named(layout: TableLayout, num_workers: int, num_hot: int) -> bool:
        """Whether the integers of keys can name the rows of all copies too, as loops over batches do."""
        last = layout.num_keys + num_workers * (num_hot + 4 * KEYS_PER_LINE)
        return last <= np.iinfo(layout.key_dtype).max

    def watch(self, rows: Any) -> None:
        """Learn from some rows how the hottest keys move together."""
        mean_products(rows.offsets, rows.keys, rows.values, self._products)

    def of(self, rank: int) -> Private:
        """A worker's copies."""
        kind = Private if self.num_hot else NoCopies
        return kind(
            self._first + rank * self._stride, self.num_hot, self._bases[rank], self._rows_so_far[rank],
            self._num_workers, self._batch_size, self._curvature, self._products, self._clocks,
        )  # fmt: skip

    def show(self, store: KeyedStore, rank: int, trained: int) -> None:
        """At pace N, let others see all that a worker has done."""
        if self._clocks:
            merge_hidden(store.arrays_at(trained), self.of(rank))

    def settle(self, store: KeyedStore, trained: int) -> None:
        """Make the rows and all private copies agree. Only while all workers are paused."""
        if not self.num_hot:
            return
        # The first round adds every worker's changes to the table, the second hands each the sum.
        for rank in [*range(self._num_workers)] * 2:
            merge_all(store.arrays_at(trained), self.of(rank))
