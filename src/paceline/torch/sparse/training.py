"""How does a run train a model over sparse rows on a GPU? Its table and its rows are there, and launches train on them.

At pace async, every row of a launch is an update of its own, and thousands of them are computed at the same time. In
sync, a launch computes the gradient of a batch, which is added up in a fixed order: the same seed gives the same bits
on the same kind of GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import psutil

from paceline.data.rows import RUN_ROWS, EpochOrder
from paceline.data.sparse.batch import Batch
from paceline.errors import ConfigError
from paceline.imports import import_from
from paceline.machine import num_cores
from paceline.telemetry.facts import GpuFacts
from paceline.torch.gpu_ceiling import ceiling_of
from paceline.torch.model import torch
from paceline.torch.sparse.clock import make_clock
from paceline.torch.sparse.launch import Launch, Loops, make_hot, programs_at_a_time
from paceline.torch.sparse.rows import (
    MOST_HOT,
    NO_COLUMNS,
    PackedTensors,
    Planned,
    RowShape,
    bytes_on_gpu,
    choose_columns,
    pack,
    plans_on_gpu,
    shape_of,
    tensors_of,
)
from paceline.torch.sparse.scoring import SparseScorer
from paceline.torch.sparse.segments import sums_by_key
from paceline.torch.sparse.table import GpuTable
from paceline.torch.sparse.traffic import bytes_per_row, narrower_tables
from paceline.torch.sparse.triton_ import find_device, free_memory, using
from paceline.torch.sparse.windows import WINDOW_ROWS, ResidentRows, StreamedRows, Window, Windows

# The first launches of a run are small: a launch trains on at most this share of the rows before it, so that the
# steps of AdaGrad and FTRL have become small enough before many threads take them at the same time. And small data
# learns little if all of it is computed at the same time, so an epoch has at least this many launches.
SHARE_OF_ROWS_BEFORE = 8
FEWEST_LAUNCHES = 32
# Each program has one run of rows. With more, it would touch memory less often, but more rows would start from the
# same weights.
RUNS_PER_PROGRAM = 1
# Of the GPU's free memory, rows may take this share; the rest is for what a step needs. If they are streamed, a window
# takes at most this share.
SHARE_FOR_ROWS, SHARE_FOR_WINDOW = 0.8, 0.05
# What packed rows take here, more or less: labels, lengths and columns, and half of the nonzeros listed.
BYTES_PER_ROW, BYTES_PER_NONZERO = 8, 2
# The curvature of a loss that does not say its own: that of the softmax loss, all of whose scores move with a row.
CURVATURE = 0.5


class _Loaded(NamedTuple):
    """Training rows on the GPU, and what the kernels need to know about them. At pace async, hot keys are columns."""

    rows: Windows
    shape: RowShape
    hot: Any
    with_columns: bool


class _Step(NamedTuple):
    """A launch on `num_rows` rows from position `start` on."""

    plan: Planned
    start: int
    num_rows: int

    @property
    def num_programs(self) -> int:
        return -(-self.plan.num_runs // RUNS_PER_PROGRAM)

    @property
    def num_losses(self) -> int:
        """Those of the next launch begin at a multiple of 16 bytes, or Triton would compile another kernel for it."""
        return -(-self.num_programs // 4) * 4


class SparseTraining:
    """The table of a run and its training rows, on the GPU."""

    def __init__(self, model: Any, dataset: Any, resident: float = 1.0) -> None:
        """Rows stay on the GPU if they take at most this share of its free memory."""
        self.device = find_device()
        self.clock = make_clock(self.device)
        self._share = resident
        self._model, self._dataset = model, dataset
        self._loops: Loops = import_from(model.loops_on_gpu)(model)
        self._features = model.layout.table.features
        # How many programs the GPU works on at the same time: known once the kernel is compiled.
        self._programs = 1
        hot_keys = dataset.manifest.hot_keys
        self.table = GpuTable(model.layout.table, self.device, hot_keys)
        self.scorer = SparseScorer(self._loops, self.table)
        self._num_hot = min(MOST_HOT, len(hot_keys))
        self._loaded: _Loaded | None = None
        # Some of the training rows, whether they are streamed, and the most rows that a launch may have.
        self._some_rows: Any = None
        self._streamed = False
        self._most_rows = dataset.split("train").rows

    def load_rows(self, order: EpochOrder, with_columns: bool) -> None:
        """Bring all training rows to the GPU. Without columns for hot keys, they can be added up in a fixed order."""
        split, first = self._dataset.split("train"), self._block(0)
        check_main_memory(split.rows, split.nonzeros)
        columns = NO_COLUMNS
        if with_columns:
            columns = choose_columns(first, self._num_hot, self._loops.most_bits, self._loops.most_numbers)
        with using(self.device), ThreadPoolExecutor(num_cores(), thread_name_prefix="paceline-pack") as threads:
            count = len(split.blocks)
            packed = list(threads.map(lambda index: pack(self._block(index), columns, self._features), range(count)))
            shape, self._some_rows = shape_of(packed, columns, self._features), packed[0]
            needed = sum(bytes_on_gpu(block, shape) for block in packed)
            self._streamed = not self._fits(needed)
            pinned = self._streamed and self.device.type == "cuda"

            def convert(index: int) -> PackedTensors:
                # The rows need not be in memory twice.
                block, packed[index] = packed[index], self._some_rows
                with using(self.device):
                    return tensors_of(block, shape, pinned)

            blocks = list(threads.map(convert, range(count)))
            window_rows = self._window_rows(needed / max(1, split.rows))
            rows: Windows = (
                StreamedRows(blocks, shape, order, self.device, window_rows, self.clock) if self._streamed
                else ResidentRows(blocks, shape, order, self.device)
            )  # fmt: skip
        self._most_rows = split.rows // FEWEST_LAUNCHES if with_columns else split.rows
        layout, curvature = self.table.layout, self._model.curvature
        curvature = CURVATURE if curvature is None else curvature
        weights = self._model.label_units.class_weights
        hot = make_hot(first, columns, layout.bias_key, curvature, weights, self._num_hot, self.device)
        self._loaded = _Loaded(rows, shape, hot, with_columns)

    def warm_up(self) -> None:
        """Compile or load the kernels that training launches; changes nothing."""
        rows, shape, hot, with_columns = self._rows
        with using(self.device):
            if not with_columns:
                self._gradient(0, min(RUN_ROWS, self._dataset.split("train").rows), lambda: None)
                self.table.warm_up()
                return
            window = rows.window(0, 1)
            # It has no rows.
            runs = window.runs(plans_on_gpu([Planned(0, 0, 0, 0, 0)], self.device)[0])
            losses = torch.zeros(4, device=self.device)
            launch = Launch(self.table.rules_at(0), 1.0, 1.0, RUNS_PER_PROGRAM, 1, losses)
            kernel = self._loops.train(self.table, window.rows, shape, runs, hot, launch)
            if self.device.type == "cuda":
                self._programs = programs_at_a_time(kernel, torch.cuda.get_device_properties(self.device))

    def facts(self, batch_size: int) -> GpuFacts:
        """What the diagnosis of a run needs to know, once the rows are there; measures the GPU if nobody has."""
        rows, layout = self._some_rows, self.table.layout
        per_launch = max(1, min(batch_size, self._most_rows))
        by_flags = narrower_tables(layout)
        bytes_now, *fewer_bytes = bytes_per_row(rows, per_launch, [layout.width, *by_flags.values()])
        return GpuFacts(
            ceiling=ceiling_of(self.device),
            streamed=self._streamed,
            bytes_per_row=bytes_now,
            fewer_bytes=dict(zip(by_flags, fewer_bytes, strict=True)),
            most_rows=self._most_rows,
        )

    def train(self, start: int, stop: int, batch_size: int) -> Any:
        """An update by each of the rows at positions `start` up to `stop`, of one epoch, in launches of at most
        `batch_size` rows; the sum of their losses.
        """
        with using(self.device):
            losses = torch.zeros((), dtype=torch.float64, device=self.device)
            while start < stop:
                window = self._rows.rows.window(start, stop)
                until = min(stop, window.stop)
                losses += self._train_in(window, start, until, batch_size)
                # Here, because the GPU has something to do meanwhile.
                self._rows.rows.look_ahead(start)
                start = until
            return losses

    def _train_in(self, window: Window, start: int, stop: int, batch_size: int) -> Any:
        _, shape, hot, _ = self._rows
        steps = [_Step(window.plan(a, b), a, b - a) for a, b in self._pieces(start, stop, batch_size)]
        plans = plans_on_gpu([step.plan for step in steps], self.device)
        losses, at = torch.zeros(sum(step.num_losses for step in steps), device=self.device), 0
        self.clock.begin()
        for step, plan in zip(steps, plans, strict=True):
            programs = min(step.num_programs, self._programs)
            in_flight = min(step.num_rows, programs * RUNS_PER_PROGRAM * RUN_ROWS)
            launch = Launch(
                self.table.rules_at(step.start), float(in_flight), float(programs), RUNS_PER_PROGRAM,
                step.num_programs, losses[at:],
            )  # fmt: skip
            self._loops.train(self.table, window.rows, shape, window.runs(plan), hot, launch)
            self.clock.launched(step.num_rows)
            at += step.num_losses
        self.clock.end()
        return losses.sum(dtype=torch.float64)

    def update(self, start: int, stop: int) -> Any:
        """One update by the mean gradient of the rows at positions `start` up to `stop`; the sum of their losses."""
        with using(self.device):
            self.clock.begin()
            keys, sums, losses = self._gradient(start, stop, self.clock.launched)
            self.clock.launched()
            self.table.apply(keys, sums, stop - start, start)
            self.clock.launched(stop - start)
            self.clock.end()
            self._rows.rows.look_ahead(start)
            return losses

    def _gradient(self, start: int, stop: int, launched: Callable[[], None]) -> tuple[Any, Any, Any]:
        """The distinct keys of some rows, the sums of their gradients, and the sum of the losses. `launched` is called
        after each part.
        """
        rows, shape, _, _ = self._rows
        window = rows.whole(start, stop)
        plan = window.plan(start, stop)
        found = window.runs(plans_on_gpu([plan], self.device)[0])
        losses = torch.zeros(plan.num_runs, device=self.device)
        launch = Launch(self.table.rules_at(start), 0.0, 0.0, 1, plan.num_runs, losses)
        moves = torch.empty((stop - start, self._loops.columns), device=self.device)
        self._loops.measure(self.table, window.rows, shape, found, launch, moves, False)
        launched()
        keys, sums = sums_by_key(
            self.table, window.rows, shape, found, plan.num_runs, moves, self._loops.second, launched
        )
        return keys, sums, losses.sum(dtype=torch.float64)

    @property
    def _rows(self) -> _Loaded:
        assert self._loaded is not None
        return self._loaded

    def _block(self, index: int) -> Batch:
        rows: Batch = self._dataset.block("train", index)
        return rows.slice(0, self._dataset.split("train").blocks[index].rows)

    def _pieces(self, start: int, stop: int, batch_size: int) -> list[tuple[int, int]]:
        """The launches of a piece: they grow with the rows that were trained on before."""
        pieces, before = [], self.table.layout.rows_before
        largest = min(batch_size, self._dataset.split("train").rows // FEWEST_LAUNCHES)
        while start < stop:
            most = max(min(batch_size, RUN_ROWS), min(largest, (before + start) // SHARE_OF_ROWS_BEFORE))
            pieces.append((start, min(stop, start + most)))
            start += most
        return pieces

    def _fits(self, needed: int) -> bool:
        """Whether rows stay on the GPU: beside the table, with room for what a step needs."""
        if self.device.type != "cuda":
            return self._share > 0
        return needed <= self._share * SHARE_FOR_ROWS * free_memory(self.device)

    def _window_rows(self, bytes_per_row: float) -> int:
        """How many rows a window has, if they are streamed."""
        if self.device.type != "cuda":
            return WINDOW_ROWS
        return min(WINDOW_ROWS, 1 + int(SHARE_FOR_WINDOW * free_memory(self.device) / max(1.0, bytes_per_row)))


def check_main_memory(rows: int, nonzeros: int) -> None:
    """Refuse rows that do not fit into this machine's memory, from where they go to the GPU."""
    needed, free = BYTES_PER_ROW * rows + BYTES_PER_NONZERO * nonzeros, psutil.virtual_memory().available
    if needed > free:
        raise ConfigError(
            f"packed for a GPU, {rows:,} rows need about {needed / 1e9:.1f} GB of this machine's memory, of which "
            f"{free / 1e9:.1f} are free",
            "--device cpu, which reads rows from disk",
        )
