"""A worker's batch of a model with a table: its rows, its keys as they go to the shards, and the values they get.

What goes to a shard and comes back is one array: the values of its keys [keys, dim], then its range of the dense values
of the model, if it has any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data.blocks.reader import Reader
from paceline.kernels.exchange import deal_keys, pack_order, pick, put, unpack_order
from paceline.kernels.numbering import number_keys
from paceline.kernels.steps import gradient_of
from paceline.models.model import Compute, Model, Step
from paceline.parameters.parts import DENSE, Part
from paceline.parameters.scratch import Scratch
from paceline.wire.frames import BadFrameError

Floats = NDArray[np.float32]


class NumberedBatch:
    """One batch, read and numbered: its distinct keys in the order in which they go to the shards.

    Without `compute`, the model's compiled loop computes the gradient.
    """

    def __init__(self, reader: Reader[Any], model: Model, compute: Compute | None, scratch: Scratch, rank: int,
                 num_shards: int, ascending: bool) -> None:  # fmt: skip
        layout, table = model.layout, model.layout.table
        assert table is not None
        self.number = 0
        self.trained = 0
        self.count = 0
        self.rows: Any
        self.ends = np.zeros(num_shards + 1, np.int64)
        self._reader = reader
        self._compute = compute
        self._kernel: Any = None
        self._compiled: Any = None
        if compute is None:
            assert model.make_kernel is not None
            self._kernel = model.make_kernel()
            self._compiled = gradient_of(self._kernel)
        self._scratch = scratch
        self._local = np.zeros(0, np.uint32)
        self._rank = rank
        self.columns, self._dim = table.columns, table.dim
        self._num_shards = num_shards
        self._num_keys = table.num_keys
        self._keys_per_shard = table.features // num_shards + 1
        self._ascending = ascending
        # One shard has all keys in the order of their numbers: nothing needs to be moved there and back.
        self._in_order = num_shards == 1 and not ascending
        # Where the dense values of each shard end.
        self._num_dense = 0 if layout.dense is None else layout.dense.num_values
        dense = Part(DENSE, self._num_dense, 1, 1, num_shards)
        self._dense_ends = [0, *(dense.of(shard).stop for shard in range(num_shards))]
        self._dense: Floats = np.zeros(0 if self._in_order else self._num_dense, np.float32)
        self._make_room(0)

    def read(self, now: Callable[[], int], number: int, start: int, stop: int, trained: int) -> int:
        """Fill in batch `number`, the rows at positions `start` to `stop`, and number its keys.

        Returns `now()` between the two.
        """
        self.number, self.trained, self._start = number, trained, start
        self.rows = self._reader.between(start, stop)
        read_at = now()
        self._number_keys()
        return read_at

    def _number_keys(self) -> None:
        """Find the distinct keys of the rows, and where they belong."""
        # The tables that number keys are shared by all batches: they stay in the near caches.
        tables = self._scratch.room_for(self.rows.num_nonzeros)
        if self.rows.num_nonzeros > len(self._local):
            self._local = np.zeros(len(tables.local), np.uint32)
            if self._in_order:
                self._make_room(len(tables.distinct))
        distinct = self._indices if self._in_order else tables.distinct
        self.count = 0
        if self.rows.num_rows:
            self.count = number_keys(
                self.rows.keys, self._scratch.bias, tables.slots, tables.direct, tables.turn, distinct, self._local
            )
        if self._in_order:
            self.ends[1] = self.count
            return
        if self.count > len(self._numbers):
            self._make_room(self.count + self.count // 4)
        distinct = distinct[: self.count]
        if self._ascending:
            packed = self._packed[: self.count]
            pack_order(distinct, self._num_shards, self._keys_per_shard, packed)
            packed.sort()
            unpack_order(packed, self._num_shards, self._keys_per_shard, self._numbers, self._indices, self.ends)
        else:
            deal_keys(distinct, self._num_shards, self._numbers, self._indices, self.ends)

    def indices(self, shard: int) -> Any:
        """The indices at a shard of the keys that it holds."""
        return self._indices[self.ends[shard] : self.ends[shard + 1]]

    def num_values(self, shard: int) -> int:
        """How many values go to a shard and come back."""
        num_dense = self._dense_ends[shard + 1] - self._dense_ends[shard]
        size: int = self._dim * (self.ends.item(shard + 1) - self.ends.item(shard)) + num_dense
        return size

    def pick_from(self, shard: int, all_values: Floats) -> Floats:
        """What `put` takes, out of all values of a shard."""
        size, indices = self.num_values(shard), self.indices(shard)
        num_dense = size - len(indices) * self._dim
        num_keys = len(range(shard, self._num_keys, self._num_shards))
        if len(all_values) != num_keys * self._dim + num_dense:
            raise BadFrameError(f"{len(all_values)} values of {num_keys} keys and {num_dense} dense values")
        picked = np.empty(size, np.float32)
        pick(self.columns, all_values, indices, picked)
        picked[size - num_dense :] = all_values[len(all_values) - num_dense :]
        return picked

    def put(self, shard: int, values: Floats) -> None:
        """Store what a shard sent, for the next `gradient`."""
        if self._in_order:
            self._weights = values
            return
        first, stop = self.ends[shard], self.ends[shard + 1]
        put(self.columns, values, self._numbers[first:stop], self._weights)
        if self._num_dense:
            self._dense[self._dense_ends[shard] : self._dense_ends[shard + 1]] = values[(stop - first) * self._dim :]

    def gradient(self) -> float:
        """Add the gradients up from the values that were put, for `pick`; the sum of the losses."""
        rows, size = self.rows, self.count * self._dim
        if self._compute is None:
            # Without a `Step`, which would take a tenth of the time of a small batch.
            losses: float = self._compiled(
                self._kernel, rows.offsets, self._local, rows.values, rows.labels, rows.weights, rows.fields,
                self._weights[:size], self._sums,
            )  # fmt: skip
            return losses
        dense = self._weights[size:] if self._in_order else self._dense
        dense_sums = self._sums[size : size + self._num_dense]
        turn = self._rank, self._start
        step = Step(rows, turn, self._local, self._weights[:size], self._sums[:size], dense, dense_sums)
        return float(self._compute.gradient(step))

    def pick(self, shard: int) -> Floats:
        """The sums for a shard, which stay as they are until the next `gradient`."""
        size = self.count * self._dim
        if self._in_order:
            return self._sums[: size + self._num_dense]
        first, stop = self.ends[shard], self.ends[shard + 1]
        from_, to = self._dense_ends[shard], self._dense_ends[shard + 1]
        picked = self._outgoing[first * self._dim + from_ : stop * self._dim + to]
        pick(self.columns, self._sums, self._numbers[first:stop], picked)
        if self._num_dense:
            picked[(stop - first) * self._dim :] = self._sums[size + from_ : size + to]
        return picked

    def _make_room(self, num_keys: int) -> None:
        num_moved = 0 if self._in_order else num_keys
        num_sums = num_keys * self._dim + self._num_dense
        self._weights = np.zeros(num_moved * self._dim, np.float32)
        self._sums = np.zeros(num_sums, np.float32)
        self._outgoing = np.zeros(0 if self._in_order else num_sums, np.float32)
        self._numbers = np.zeros(num_moved, np.uint32)
        self._indices = np.zeros(num_keys, self._scratch.buffers.distinct.dtype)
        self._packed = np.zeros(num_keys if self._ascending else 0, np.uint64)
