"""How are rows scored on a GPU? With a table that is there: that of a run, or that of a trained model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data.sparse.batch import Batch
from paceline.imports import import_from
from paceline.models.model import Floats, Model, TableView
from paceline.torch.model import torch
from paceline.torch.sparse.launch import Launch, Loops
from paceline.torch.sparse.rows import (
    MOST_LISTED_AT_ONCE,
    NO_COLUMNS,
    PackedTensors,
    RowShape,
    all_runs,
    pack,
    shape_of,
    tensors_of,
    to_gpu,
)
from paceline.torch.sparse.table import GpuTable
from paceline.torch.sparse.triton_ import find_device, using

NO_LABELS: NDArray[np.uint8] = np.zeros(0, np.uint8)
# Threads pack rows at the same time, but neither Triton's launcher nor its interpreter is made for several.
LAUNCHING = threading.Lock()


class SparseScorer:
    """Scores rows with the kernels of a model and a table on the GPU. Several threads may use it at once."""

    def __init__(self, loops: Loops, table: GpuTable) -> None:
        self._loops, self._table = loops, table
        self._per_row = () if table.dim == 1 or loops.second else (loops.columns,)

    def scores(self, rows: Batch, trained: int = 0) -> Floats:
        """The scores of rows, [rows] or [rows, classes], by the rules that are in force after `trained` rows."""
        if not rows.num_rows:
            return np.zeros((0, *self._per_row), np.float32)
        features = self._table.layout.features
        # Scores depend on neither labels nor weights, and kernels would be compiled again for each of their types.
        packed = pack(rows, NO_COLUMNS, features)._replace(labels=NO_LABELS, weights=None)
        # As if some rows filled a chunk: other blocks, with other longest rows, then have the same kernel.
        shape = shape_of([packed], NO_COLUMNS, features, MOST_LISTED_AT_ONCE)
        tensors = tensors_of(packed, shape, pinned=False)
        with using(self._table.device):
            with LAUNCHING:
                out = self._launch(tensors, shape, rows.num_rows, trained)
            # This waits for the GPU, while other threads may launch.
            scores: Floats = out.cpu().numpy()
        return scores

    def _launch(self, tensors: PackedTensors, shape: RowShape, num_rows: int, trained: int) -> Any:
        device = self._table.device
        out = torch.zeros((num_rows, *self._per_row), device=device)
        runs, num_runs = all_runs(num_rows, device)
        launch = Launch(self._table.rules_at(trained), 0.0, 0.0, 1, num_runs, out)
        self._loops.measure(self._table, to_gpu([tensors], shape, device), shape, runs, launch, out, True)
        return out


def open_scorer(model: Model) -> Callable[[TableView], SparseScorer]:
    """A function that copies the table of a trained model to the GPU, to score with it; raises without a GPU."""
    device, loops = find_device(), import_from(model.loops_on_gpu)(model)

    def load(view: TableView) -> SparseScorer:
        table = GpuTable(view.layout.plain(), device, hint="--device cpu")
        table.load(0, view.rows)
        return SparseScorer(loops, table)

    return load
