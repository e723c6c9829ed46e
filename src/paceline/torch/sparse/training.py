"""How does a run train a model over sparse rows on a GPU? Its table and its rows are there, and launches train on them.

At pace async, every row of a launch is an update of its own, and thousands of them are computed at the same time. In
sync, a launch computes the gradient of a batch, which is added up in a fixed order: the same seed gives the same bits
on the same kind of GPU.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from paceline.data.rows import RUN_ROWS, EpochOrder
from paceline.data.sparse.batch import Batch
from paceline.imports import import_from
from paceline.machine import num_cores
from paceline.telemetry.facts import GpuFacts
from paceline.torch.gpu_ceiling import ceiling_of
from paceline.torch.model import torch
from paceline.torch.sparse.clock import make_clock
from paceline.torch.sparse.launch import Launch, Loops, make_hot
from paceline.torch.sparse.rows import (
    MOST_HOT,
    NO_COLUMNS,
    Packed,
    Planned,
    RowShape,
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
from paceline.torch.sparse.triton_ import find_device
from paceline.torch.sparse.windows import ResidentRows, StreamedRows, Window, Windows

# The first launches of a run are small: a launch trains on at most this share of the rows before it, so that the
# steps of AdaGrad and FTRL have become small enough before many threads take them at the same time. And small data
# learns little if all of it is computed at the same time, so an epoch has at least this many launches.
SHARE_OF_ROWS_BEFORE = 8
FEWEST_LAUNCHES = 32
# Programs that have several runs add up more before they touch memory, but the processors should have something to do
# that many times over.
MOST_RUNS_PER_PROGRAM, WAVES = 4, 2
# Of the GPU's free memory, rows may take this share; the rest is for what a step needs.
SHARE_FOR_ROWS = 0.8
# What is noted of a row besides: where its list begins.
STARTS_BYTES = 8
# The curvature of a loss that does not say its own: that of the softmax loss by one score.
CURVATURE = 0.25


class _Loaded(NamedTuple):
    """Training rows on the GPU, and what the kernels need to know about them."""

    rows: Windows
    shape: RowShape
    hot: Any


class _Step(NamedTuple):
    """A launch on `num_rows` rows from position `start` on, with this many runs per program."""

    plan: Planned
    start: int
    num_rows: int
    per_program: int

    @property
    def num_programs(self) -> int:
        return -(-self.plan.num_runs // self.per_program)

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
        self._processors = 1
        if self.device.type == "cuda":
            self._processors = torch.cuda.get_device_properties(self.device).multi_processor_count
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
        first = self._block(0)
        columns = choose_columns(first, self._num_hot, self._loops.most_bits) if with_columns else NO_COLUMNS
        with ThreadPoolExecutor(num_cores(), thread_name_prefix="paceline-pack") as threads:
            count = len(self._dataset.split("train").blocks)
            packed = list(threads.map(lambda index: pack(self._block(index), columns, self._features), range(count)))
            shape, streamed = shape_of(packed, columns, self._features), not self._fits(packed)
            pinned = streamed and self.device.type == "cuda"
            blocks = list(threads.map(lambda block: tensors_of(block, shape, pinned), packed))
        rows: Windows = (
            StreamedRows(blocks, shape, order, self.device, clock=self.clock) if streamed
            else ResidentRows(blocks, shape, order, self.device)
        )  # fmt: skip
        self._some_rows, self._streamed = packed[0], streamed
        if with_columns:
            self._most_rows //= FEWEST_LAUNCHES
        layout, curvature = self.table.layout, self._model.curvature
        hot = make_hot(first, columns, layout.bias_key, CURVATURE if curvature is None else curvature, self._num_hot,
                       self.device)  # fmt: skip
        self._loaded = _Loaded(rows, shape, hot)

    def warm_up(self) -> None:
        """Compile or load the kernels; changes nothing, because the launches have no rows."""
        windows, shape, hot = self._rows
        window, rules = windows.window(0, 1), self.table.rules_at(0)
        runs = window.runs(plans_on_gpu([Planned(0, 0, 0, 0, 0)], self.device)[0])
        losses = torch.zeros(4, device=self.device)
        for per_program in (1, MOST_RUNS_PER_PROGRAM):
            launch = Launch(rules, 1.0, per_program, 1, losses)
            self._loops.train(self.table, window.rows, shape, runs, hot, launch)
        launch = Launch(rules, 0.0, 1, 1, losses)
        moves = torch.empty((1, self._loops.columns), device=self.device)
        self._loops.measure(self.table, window.rows, shape, runs, launch, moves, False)

    def facts(self, batch_size: int) -> GpuFacts:
        """What the diagnosis of a run needs to know, once the rows are there; measures the GPU if nobody has."""
        rows, layout = self._some_rows, self.table.layout
        per_launch = max(1, min(batch_size, self._most_rows))
        by_flags = narrower_tables(layout)
        return GpuFacts(
            ceiling=ceiling_of(self.device),
            streamed=self._streamed,
            bytes_per_row=bytes_per_row(rows, per_launch, layout.width),
            fewer_bytes={flags: bytes_per_row(rows, per_launch, width) for flags, width in by_flags.items()},
            most_rows=self._most_rows,
        )

    def train(self, start: int, stop: int, batch_size: int) -> Any:
        """An update by each of the rows at positions `start` up to `stop`, of one epoch, in launches of at most
        `batch_size` rows; the sum of their losses.
        """
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
        _, shape, hot = self._rows
        steps = [self._step(window.plan(*piece), *piece) for piece in self._pieces(start, stop, batch_size)]
        plans = plans_on_gpu([step.plan for step in steps], self.device)
        losses, at = torch.zeros(sum(step.num_losses for step in steps), device=self.device), 0
        at_once = self._processors * self._loops.programs_per_processor * RUN_ROWS
        self.clock.begin()
        for step, plan in zip(steps, plans, strict=True):
            in_flight = float(min(step.num_rows, at_once * step.per_program))
            launch = Launch(
                self.table.rules_at(step.start), in_flight, step.per_program, step.num_programs, losses[at:]
            )
            self._loops.train(self.table, window.rows, shape, window.runs(plan), hot, launch)
            self.clock.launched(step.num_rows)
            at += step.num_losses
        self.clock.end()
        return losses.sum(dtype=torch.float64)

    def update(self, start: int, stop: int) -> Any:
        """One update by the mean gradient of the rows at positions `start` up to `stop`; the sum of their losses."""
        rows, shape, _ = self._rows
        window = rows.whole(start, stop)
        plan = window.plan(start, stop)
        found = window.runs(plans_on_gpu([plan], self.device)[0])
        losses = torch.zeros(plan.num_runs, device=self.device)
        launch = Launch(self.table.rules_at(start), 0.0, 1, plan.num_runs, losses)
        moves = torch.empty((stop - start, self._loops.columns), device=self.device)
        self.clock.begin()
        self._loops.measure(self.table, window.rows, shape, found, launch, moves, False)
        self.clock.launched()
        keys, sums = sums_by_key(
            self.table, window.rows, shape, found, plan.num_runs, moves, self._loops.second, self.clock.launched
        )
        self.clock.launched()
        self.table.apply(keys, sums, stop - start, start)
        self.clock.launched(stop - start)
        self.clock.end()
        rows.look_ahead(start)
        return losses.sum(dtype=torch.float64)

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

    def _step(self, plan: Planned, start: int, stop: int) -> _Step:
        """Programs have more runs where there is work enough for all processors. The compiler knows how many, so there
        are only two numbers of them.
        """
        at_once = self._processors * self._loops.programs_per_processor
        many = plan.num_runs >= WAVES * MOST_RUNS_PER_PROGRAM * at_once
        return _Step(plan, start, stop - start, MOST_RUNS_PER_PROGRAM if many else 1)

    def _fits(self, blocks: list[Packed]) -> bool:
        """Whether rows stay on the GPU: beside the table, with room for what a step needs."""
        needed = sum(array.nbytes for block in blocks for array in block if array is not None)
        needed += STARTS_BYTES * sum(len(block.labels) for block in blocks)
        if self.device.type != "cuda":
            return self._share > 0
        return bool(needed <= self._share * SHARE_FOR_ROWS * torch.cuda.mem_get_info(self.device)[0])
