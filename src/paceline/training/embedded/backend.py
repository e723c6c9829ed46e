"""How does a run train inside one process? Workers are threads, and parameters are memory that all of them see."""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from paceline.data.blocks.dataset import Split
from paceline.data.blocks.reader import EpochBlocks, Reader
from paceline.data.rows import ClockRows, Clocks, EpochOrder, Piece, QueueRows, RowFeed
from paceline.engines.local import LocalEngine
from paceline.kernels.gate import LINE, UNBOUNDED
from paceline.kernels.private import with_room_ahead
from paceline.kernels.steps import ClockGate
from paceline.machine import num_cores
from paceline.models.metrics import Quality
from paceline.models.model import Model, Parameters, TableView
from paceline.parameters.keyed import KeyedStore, PrivateCopies, TableValues
from paceline.parameters.scratch import Pushes
from paceline.parameters.store import DenseValues, Floats, TableStore
from paceline.settings import RunConfig
from paceline.telemetry.facts import GpuFacts
from paceline.telemetry.meter import WorkerReport
from paceline.telemetry.probes import NodeProber
from paceline.telemetry.records import AnyRecord, GpuChunk, LeftOut, NodeProbe, WorkerChunk
from paceline.training.backend import Due, Keep, Look, Snapshot, Tally
from paceline.training.checkpoint import Handed, Progress, States
from paceline.training.checks import check_updates
from paceline.training.dense_store import make_dense_store
from paceline.training.embedded.compiled_steps import BatchSteps, CompiledClockSteps, RowSteps
from paceline.training.embedded.gpu_steps import GpuClockSteps, GpuRowSteps
from paceline.training.embedded.loops import StepLoop, Steps, draw_clocks, draw_pieces
from paceline.training.embedded.plain_steps import PlainClockSteps, PlainSteps, PlainWorker, make_workers
from paceline.training.evaluate import evaluate
from paceline.training.feeds import make_feed, make_order
from paceline.training.pace import Gate, Pace

PRIVATE_HOT_KEYS = 16_384
# Per worker: what it uses all the time should stay in the caches of its core.
PRIVATE_BYTES = 2 << 20
# At pace N all of them are merged every time, so there are fewer, and only if many rows lie between two merges.
PRIVATE_HOT_KEYS_AT_PACE_N = 4096
FEWEST_ROWS_BETWEEN_MERGES = 256


class ModelBuilder(Protocol):
    """What makes the model of a run: the model's entry, as a rule."""

    def build(self, config: RunConfig, dataset: Any, rows_per_update: int) -> Model:
        """The model to train on this dataset; an update takes this many rows."""


class EmbeddedBackend:
    """The workers of one run on threads of this process, and its parameters in their memory."""

    def __init__(self, config: RunConfig, dataset: Any, builder: ModelBuilder) -> None:
        pace = Pace.of(config.pace)
        self._config = config
        self._dataset = dataset
        self._num_rows = dataset.split("train").rows
        self._fold = pace.fold
        self.model = builder.build(config, dataset, pace.rows_per_update(config.workers, config.batch_size))
        first = self.model.compute()
        # One thread per worker, but in sync no more than help, where it makes no difference.
        most_threads = config.workers
        if pace.fold == "mean":
            most_threads = min(config.workers, 1 if first.use_threads else num_cores())
        self._engine = LocalEngine(most_threads)
        self._computes = [first, *(self.model.compute() for _ in range(most_threads - 1))]
        if first.use_threads is not None:
            first.use_threads(num_cores() // most_threads)
        self._gate = Gate(config.workers, pace.staleness, most_threads)
        self._handed_in = np.zeros((most_threads, LINE), np.int64)
        layout = self.model.layout
        self._table: TableStore | None = None
        self._keyed: KeyedStore | None = None
        self._dense: DenseValues | None = None
        self._private: PrivateCopies | None = None
        self._gpu: Any = None
        self._gpu_facts: GpuFacts | None = None
        if layout.table is not None and config.device != "cpu":
            from paceline.torch.sparse.training import SparseTraining

            self._gpu = SparseTraining(self.model, dataset, config.resident)
            self._table = self._gpu.table
        elif layout.table is not None:
            check_updates(config, dataset, layout)
            hot, clocks = self._num_private(pace)
            self._private = PrivateCopies(
                layout.table, config.workers, hot, config.batch_size, self.model.curvature or 0.0, clocks
            )
            self._table = self._keyed = KeyedStore(
                layout.table, private_rows=self._private.num_rows, hot_keys=dataset.manifest.hot_keys
            )
            if self._private.num_hot:
                self._private.watch(dataset.block("train", 0))
        if layout.dense is not None:
            self._dense = make_dense_store(layout.dense, config.device, config.workers)
        self._feed: RowFeed
        self._loops: Sequence[StepLoop[Any]]
        self._reports: list[WorkerReport] = []
        self._prober = NodeProber()
        self.restore(Progress(), None)

    # -- parameters

    def _num_private(self, pace: Pace) -> tuple[int, int]:
        """How many keys each worker has its own copies of, and at pace N after how many clocks it merges them.

        They pay if workers write the same few weights all the time.
        """
        config, table = self._config, self.model.layout.table
        if pace.fold == "mean" or config.workers == 1 or self.model.curvature is None:
            return 0, 0
        if table is None or not table.can_merge:
            return 0, 0
        clocks, most = 0, PRIVATE_HOT_KEYS
        if pace.staleness < UNBOUNDED:
            clocks, most = pace.staleness // 2, PRIVATE_HOT_KEYS_AT_PACE_N
            if config.batch_size == 1 or clocks * config.batch_size < FEWEST_ROWS_BETWEEN_MERGES:
                return 0, 0
        hot = min(most, PRIVATE_BYTES // (4 * table.width), len(self._dataset.manifest.hot_keys))
        return (hot, clocks) if hot and PrivateCopies.can_be_named(table, config.workers, hot) else (0, 0)

    def restore(self, progress: Progress, states: States | None) -> None:
        self._from = progress
        if states is None and self._dense is not None:
            self._dense.begin(self.model.initial())
        if states is not None and states.table is not None and self._table is not None:
            self._table.load(0, states.table)
            self._table.rearrange(self._dataset.key_order.to_blocks)
        if states is not None and states.dense is not None and self._dense is not None:
            self._dense.load(0, states.dense)
        if self._private is not None and self._keyed is not None:
            # Copies of hot keys begin as the table does.
            self._private.settle(self._keyed, progress.position)

    def snapshot(self, keep: Keep) -> None:
        table, dense = (None if store is None else store.states for store in (self._table, self._dense))
        if table is not None:
            # In place, and back again: a copy would take as much memory as the table.
            self._dataset.key_order.to_input(table)
        try:
            keep(Snapshot(self._tally(), States(table, dense), Handed()))
        finally:
            if table is not None:
                self._dataset.key_order.to_blocks(table)

    def hand_over(self, rows: int) -> tuple[States, Parameters]:
        """All states after `rows` rows, and the values in them, in the input's order. Nothing can be trained after it:
        the states are not copied.
        """
        table, dense = self._table, self._dense
        states, view = None, None
        if table is not None:
            table.rearrange(self._dataset.key_order.to_input)
            states = table.states
            view = TableView.of_values(table.read(0, table.size, rows), table.layout)
        values = None if dense is None else dense.read(0, dense.size, rows)
        return States(states, None if dense is None else dense.states), Parameters(view, values)

    def hand_over_table(self, rows: int) -> tuple[Floats, TableValues]:
        """Like `hand_over`, for a model of a table alone: its states, and its values without a copy of them all."""
        table = self._table
        assert table is not None
        table.rearrange(self._dataset.key_order.to_input)
        return table.states, TableValues(table, rows)

    def evaluate(self, split: Split, rows: int, stop: Callable[[], bool]) -> Quality | None:
        table, dense = self._keyed, self._dense
        if self._gpu is not None:
            # Not at the top: it loads what reads models, which other runs do without until their end.
            from paceline.training.scorers import GpuScorer

            scorer = GpuScorer(self.model.output, self._gpu.scorer, rows)
            return evaluate(scorer, Parameters(), self._dataset, split, num_cores(), stop)
        view = None if table is None else TableView(table.rules_at(rows), table.table, table.layout)
        parameters = Parameters(view, None if dense is None else dense.values)
        return evaluate(self.model, parameters, self._dataset, split, min(self._config.workers, num_cores()), stop)

    def parameters(self, rows: int) -> Parameters:
        table, dense = self._table, self._dense
        view = None
        if table is not None:
            values = table.read(0, table.size, rows)
            self._dataset.key_order.to_input(values.reshape(table.size, table.dim))
            view = TableView.of_values(values, table.layout)
        return Parameters(view, None if dense is None else dense.read(0, dense.size, rows).copy())

    # -- the run

    def make_ready(self) -> None:
        make = self._free_loops if self._fold == "each" else self._clock_loops
        self._feed, self._loops = make()
        self._loops[0].steps.warm_up()
        if self._gpu is not None:
            self._gpu_facts = self._gpu.facts(self._config.batch_size)
        self._reports = [WorkerReport(loop.meter) for loop in self._loops]

    def _free_loops(self) -> tuple[RowFeed, list[StepLoop[Piece]]]:
        """One loop per worker, whose gradients are applied as they arrive."""
        config, model, gate, table = self._config, self.model, self._gate, self._keyed
        feed, order = make_feed(QueueRows, config, self._num_rows, self._from), make_order(config, self._dataset)
        steps: Sequence[Steps[Piece]]
        if self._gpu is not None:
            self._gpu.load_rows(order, with_columns=True)
            steps = [GpuRowSteps(self._gpu, config.batch_size)]
        elif model.make_kernel is None:
            applying, workers = threading.Lock(), self._plain_workers(order, alone=config.workers == 1)
            steps = [PlainSteps(rank, worker, gate, applying) for rank, worker in enumerate(workers)]
        else:
            assert table is not None
            assert self._private is not None
            blocks, longest = EpochBlocks(self._dataset, order), self._dataset.longest_row
            copies = [with_room_ahead(self._private.of(rank), longest) for rank in range(config.workers)]
            kind = RowSteps if config.batch_size == 1 and model.train_rows is not None else BatchSteps
            steps = [kind(blocks, model, table, own, gate.view(rank)) for rank, own in enumerate(copies)]
        return feed, [
            StepLoop([rank], feed, partial(draw_pieces, feed, rank, one.most, config), one, gate, gate.leads[rank],
                     config.optimizer, partial(self._leave, rank))
            for rank, one in enumerate(steps)
        ]  # fmt: skip

    def _clock_loops(self) -> tuple[RowFeed, list[StepLoop[Clocks]]]:
        """In sync, one loop for the workers of each thread."""
        config, model, gate, table = self._config, self.model, self._gate, self._keyed
        feed = make_feed(ClockRows, config, self._num_rows, self._from)
        handed_in, order = self._handed_in, make_order(config, self._dataset)
        ends = [config.workers * part // len(handed_in) for part in range(len(handed_in) + 1)]
        ranks = [list(range(*some)) for some in pairwise(ends)]
        steps: Sequence[Steps[Clocks]]
        if self._gpu is not None:
            self._gpu.load_rows(order, with_columns=False)
            steps = [GpuClockSteps(self._gpu)]
        elif model.make_kernel is None:
            workers = self._plain_workers(order, alone=True)
            steps = [PlainClockSteps(part, ranks[part], one, gate, handed_in) for part, one in enumerate(workers)]
        else:
            assert table is not None
            longest = config.batch_size * self._dataset.longest_row
            pushes = Pushes.make(config.workers, len(ranks), longest, table.layout)
            blocks = EpochBlocks(self._dataset, order)
            gates = [ClockGate(gate.clocks, handed_in, part, gate.spins) for part in range(len(ranks))]
            steps = [
                CompiledClockSteps(np.array(own), blocks, model, table, one, config.batch_size, pushes)
                for own, one in zip(ranks, gates, strict=True)
            ]
        return feed, [
            StepLoop(own, feed, partial(draw_clocks, feed, own, one.most), one, gate, waits, config.optimizer,
                     partial(gate.leave, own))
            for own, one, waits in zip(ranks, steps, handed_in, strict=True)
        ]  # fmt: skip

    def _leave(self, rank: int) -> None:
        """A worker has no more rows."""
        if self._private is not None and self._keyed is not None:
            self._private.show(self._keyed, rank, self._feed.position)
        self._gate.leave([rank])

    def _plain_workers(self, order: EpochOrder, alone: bool) -> list[PlainWorker]:
        config, readers = self._config, self._make_readers(order)
        batch_nonzeros = 0 if self._keyed is None else config.batch_size * self._dataset.longest_row
        return make_workers(self._computes, readers, self._keyed, self._dense, config.workers, batch_nonzeros, alone)

    def _make_readers(self, order: EpochOrder) -> list[Any]:
        dataset, count = self._dataset, self._engine.num_threads
        if self._config.device == "cpu":
            return [Reader(dataset, order) for _ in range(count)]
        from paceline.torch.resident import make_readers

        return make_readers(self._config, dataset, order, count)

    def run_segment(self, until: int, look: Look, keep: Keep) -> Tally:
        feed, loops = self._feed, self._loops
        self._handed_in[:, 0] = feed.clock
        self._gate.enter(feed.clock)
        for loop in loops:
            loop.losses, loop.rows = 0.0, 0
        feed.open(until)
        due: set[Due] = set()

        def poll() -> None:
            due.add(look(self._tally()))
            if due - {Due.NOTHING}:
                feed.pause()

        def give_up() -> None:
            feed.pause()
            self._gate.break_up()

        self._engine.run(lambda thread: loops[thread].run(), poll, give_up)
        if self._gpu is not None:
            self._gpu.clock.pause()
        if self._private is not None and self._keyed is not None:
            self._private.settle(self._keyed, feed.position)
        if Due.SNAPSHOT in due:
            self.snapshot(keep)
        return self._tally()

    def failing(self) -> str:
        return ""

    def roles(self) -> list[dict[str, Any]]:
        names = [("coordinator", 0), ("shard", 0), *(("worker", rank) for rank in range(self._config.workers))]
        return [{"role": role, "rank": rank, **self._engine.own_place(), "incarnation": 0} for role, rank in names]

    def waits(self) -> list[str]:
        return []

    def gpu_facts(self) -> GpuFacts | None:
        return self._gpu_facts

    def account(self) -> dict[str, Any]:
        return {
            "wire": {"bytes_sent": 0, "bytes_received": 0, "bytes_per_row": 0.0, "refused": 0},
            "restarts": {"workers": 0, "shards": 0},
            "recoveries": [],
            "peak_memory_bytes": 0,
        }

    def records(self) -> list[AnyRecord]:
        found = [*self._prober.take(), *(record for report in self._reports for record in report.take())]
        if self._gpu is not None:
            found += self._gpu.clock.take()
        for record in found:
            if isinstance(record, WorkerChunk | GpuChunk | NodeProbe | LeftOut):
                record.node = platform.node()
        return found

    def close(self) -> None:
        self._engine.close()
        # They refer back to this object. Without them, the rows and the table are freed at once.
        self._loops = []

    def _tally(self) -> Tally:
        losses, rows = float(sum(loop.losses for loop in self._loops)), sum(loop.rows for loop in self._loops)
        return Tally(self._feed.position, self._feed.clock, losses, rows, self._gate.largest_lead)
