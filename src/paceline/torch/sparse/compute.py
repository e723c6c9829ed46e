"""How does a worker of a cluster compute the gradient of a batch on a GPU? It has no table there, only the batch.

The values of the batch's distinct keys, which shards sent, are a small table on the GPU, in which numbers stand for
keys. Gradients are added up key by key in a fixed order (`segments.py`): the same batch gives the same bits on the same
kind of GPU. Shards update the parameters, on their CPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from paceline.imports import import_from
from paceline.models.model import Floats, Step
from paceline.torch.model import torch
from paceline.torch.sparse.launch import Launch, Loops
from paceline.torch.sparse.rows import NO_COLUMNS, all_runs, pack, shape_of, tensors_of, to_gpu
from paceline.torch.sparse.segments import sums_by_key
from paceline.torch.sparse.table import NumberedTable, plain_groups
from paceline.torch.sparse.triton_ import find_device, using
from paceline.torch.sparse.updates import RuleNumbers

# Values alone: nothing is updated here.
NO_RULE = RuleNumbers(0.0, 0.0, 0.0, 0.0)


class GpuCompute:
    """Computes gradients for one worker, on its GPU."""

    use_threads = None
    filled: Callable[[int], None] | None = None
    holds_values = False

    def __init__(self, model: Any, longest_row: int) -> None:
        """Rows have at most `longest_row` nonzeros: kernels are compiled for that once, whatever the batches are."""
        self.device = find_device()
        self._loops: Loops = import_from(model.loops_on_gpu)(model)
        self._groups = plain_groups(model.layout.table)
        self._dim = model.layout.table.dim
        self._longest_row = longest_row
        # Most batches have the same number of rows. A cache of a method would keep this object alive.
        self._runs = lru_cache(4)(partial(all_runs, device=self.device))
        self._make_room(0)

    def gradient(self, step: Step) -> float:
        rows, count = step.rows, step.rows.num_rows
        if not count:
            step.sums[:] = 0
            return 0.0
        with using(self.device):
            return self._gradient(step, rows, count)

    def _gradient(self, step: Step, rows: Any, count: int) -> float:
        table = NumberedTable(self._to_gpu(step.weights), self._dim, self._groups)
        numbered = rows._replace(keys=step.local[: rows.num_nonzeros])
        packed = pack(numbered, NO_COLUMNS, table.layout.features)
        shape = shape_of([packed], NO_COLUMNS, table.layout.features, self._longest_row)
        found = to_gpu([tensors_of(packed, shape, pinned=False)], shape, self.device)
        runs, num_runs = self._runs(count)
        losses = torch.zeros(num_runs, device=self.device)
        launch = Launch((NO_RULE,) * len(self._groups), 0.0, 0.0, 1, num_runs, losses)
        moves = torch.empty((count, self._loops.columns), device=self.device)
        self._loops.measure(table, found, shape, runs, launch, moves, False)
        # All numbers occur, so that the sums are those of all of them, in order.
        _, sums = sums_by_key(table, found, shape, runs, num_runs, moves, self._loops.second)
        self._from_gpu(sums, step.sums)
        return float(losses.sum(dtype=torch.float64))

    def _make_room(self, size: int) -> None:
        """Memory for as many values on both sides, which batches use one after the other."""
        self._here = torch.empty(size, pin_memory=self.device.type == "cuda")
        self._there = torch.empty(size, device=self.device)

    def _to_gpu(self, values: Floats) -> Any:
        if len(values) > len(self._here):
            self._make_room(len(values) + len(values) // 4)
        here = self._here[: len(values)]
        here.numpy()[:] = values
        return self._there[: len(values)].copy_(here, non_blocking=True)

    def _from_gpu(self, sums: Any, out: Floats) -> None:
        """Waits for the GPU."""
        here = self._here[: len(out)]
        here.copy_(sums)
        out[:] = here.numpy()
