"""How does a run train inside one process? Workers are threads, and parameters are memory that all of them see."""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paceline.data.blocks.reader import Reader
from paceline.data.rows import ClockRows, EpochOrder, QueueRows, RowFeed
from paceline.engines.local import LocalEngine
from paceline.kernels.gate import LINE
from paceline.machine import num_cores
from paceline.models.metrics import Quality
from paceline.models.model import Parameters, TableView
from paceline.models.registry import Entry
from paceline.parameters.keyed import KeyedStore, PrivateCopies
from paceline.parameters.scratch import Pushes
from paceline.settings import RunConfig
from paceline.telemetry.meter import WorkerReport
from paceline.telemetry.probes import NodeProber
from paceline.telemetry.records import AnyRecord, LeftOut, NodeProbe, WorkerChunk
from paceline.training.backend import Due, Keep, Look, Snapshot, Tally
from paceline.training.checkpoint import Handed, Progress, States
from paceline.training.dense_store import make_dense_store
from paceline.training.embedded.compiled_steps import BatchSteps, CompiledClockSteps, RowSteps
from paceline.training.embedded.loops import ClockLoop, FreeLoop
from paceline.training.embedded.plain_steps import Gradients, PlainClockSteps, PlainSteps, PlainWorker, Stores
from paceline.training.evaluate import evaluate
from paceline.training.feeds import make_feed
from paceline.training.pace import Gate, Pace
from paceline.training.update_size import check_updates

PRIVATE_HOT_KEYS = 16_384


class EmbeddedBackend:
    """The workers of one run on threads of this process, and its parameters in their memory."""

    def __init__(self, config: RunConfig, dataset: Any, entry: Entry) -> None:
        pace = Pace.of(config.pace)
        self._config = config
        self._dataset = dataset
        self._num_rows = dataset.split("train").rows
        self._fold = pace.fold
        self.model = entry.build(config, dataset, pace.rows_per_update(config.workers, config.batch_size))
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
        self._stores = self._make_stores()
        self._from = Progress()
        self._feed: RowFeed
        self._threads: Sequence[FreeLoop | ClockLoop]
        self._reports: list[WorkerReport] = []
        self._prober = NodeProber()
        self.restore(Progress(), None)

    # -- parameters

    def _make_stores(self) -> Stores:
        layout, workers = self.model.layout, self._config.workers
        table: KeyedStore | None = None
        self._private: PrivateCopies | None = None
        if layout.table is not None:
            check_updates(self._config, self._dataset, layout)
            self._private = PrivateCopies(layout.table, workers, self._num_private())
            table = KeyedStore(layout.table, private_rows=self._private.num_rows)
        dense = make_dense_store(layout.dense, self._config.device, workers) if layout.dense is not None else None
        return Stores(table, dense)

    def _num_private(self) -> int:
        """Private copies pay if workers write the same few weights with every row; pace N must see every clock."""
        config = self._config
        pays = config.pace == "async" and config.batch_size == 1 and config.workers > 1
        if self.model.train_rows is None or not pays:
            return 0
        return min(PRIVATE_HOT_KEYS, len(self._dataset.manifest.hot_keys))

    def restore(self, progress: Progress, states: States | None) -> None:
        self._from = progress
        table, dense = self._stores
        if states is None:
            if dense is not None:
                dense.begin(self.model.initial())
            return
        if table is not None:
            table.states[:] = self._dataset.key_order.to_blocks(states.table)
        if dense is not None:
            dense.load(0, states.dense)

    def snapshot(self, keep: Keep) -> None:
        table, dense = self._stores
        states = States(None if table is None else table.states, None if dense is None else dense.states)
        if states.table is None:
            keep(Snapshot(self._tally(), states, Handed()))
            return
        # In place, and back again: a copy would take as much memory as the table.
        order = self._dataset.key_order
        order.to_input(states.table)
        try:
            keep(Snapshot(self._tally(), states, Handed()))
        finally:
            order.to_blocks(states.table)

    def evaluate(self, rows: int, stop: Callable[[], bool]) -> Quality | None:
        table, dense = self._stores
        view = None if table is None else TableView(table.rules_at(rows), table.table, table.layout)
        parameters = Parameters(view, None if dense is None else dense.values)
        return evaluate(self.model, parameters, self._dataset, "test", min(self._config.workers, num_cores()), stop)

    def parameters(self, rows: int) -> Parameters:
        table, dense = self._stores
        view = None
        if table is not None:
            values = table.read(0, table.num_keys, rows)
            self._dataset.key_order.to_input(values.reshape(table.num_keys, table.dim))
            view = TableView.of_values(values, table.layout)
        return Parameters(view, None if dense is None else dense.copy_of_values())

    # -- the run

    def make_ready(self) -> None:
        self._feed, self._threads = self._make_threads()
        self._threads[0].warm_up()
        self._reports = [WorkerReport(thread.meter) for thread in self._threads]

    def _make_threads(self) -> tuple[RowFeed, Sequence[FreeLoop | ClockLoop]]:
        """What hands rows out, and what runs on the engine's threads: in sync each takes several workers, else one."""
        if self._fold == "each":
            queue = make_feed(QueueRows, self._config, self._num_rows, self._from)
            steps = self._free_steps()
            return queue, [FreeLoop(rank, queue, steps[rank], self._gate, self._config) for rank in range(len(steps))]
        clocks = make_feed(ClockRows, self._config, self._num_rows, self._from)
        clock_steps = self._clock_steps()
        return clocks, [
            ClockLoop(part, self._ranks(part), clocks, clock_steps[part], self._gate, self._handed_in, self._config)
            for part in range(len(clock_steps))
        ]

    def _free_steps(self) -> list[Any]:
        config, model, gate, table = self._config, self.model, self._gate, self._stores.table
        readers = self._make_readers()
        if model.kernel is None:
            applying, gradients = threading.Lock(), self._make_gradients()
            workers = [PlainWorker(one, self._stores, gradients, config.workers == 1) for one in self._computes]
            return [
                PlainSteps(rank, readers[rank], workers[rank], self._stores, gradients, gate, applying)
                for rank in range(len(readers))
            ]
        assert table is not None
        assert self._private is not None
        if config.batch_size == 1 and model.train_rows is not None:
            return [RowSteps(rank, reader, model, table, self._private, gate) for rank, reader in enumerate(readers)]
        return [BatchSteps(rank, reader, model, table, gate, config.batch_size) for rank, reader in enumerate(readers)]

    def _clock_steps(self) -> list[Any]:
        config, model, gate, table = self._config, self.model, self._gate, self._stores.table
        readers = self._make_readers()
        if model.kernel is None:
            gradients = self._make_gradients()
            return [
                PlainClockSteps(
                    part, self._ranks(part), reader, PlainWorker(self._computes[part], self._stores, gradients, True),
                    self._stores, gradients, gate, self._handed_in,
                )
                for part, reader in enumerate(readers)
            ]  # fmt: skip
        assert table is not None
        pushes = Pushes.make(config.workers, config.batch_size * self._dataset.longest_row, table.layout)
        return [
            CompiledClockSteps(
                part, self._ranks(part), reader, model, table, gate, config.batch_size, pushes, self._handed_in
            )
            for part, reader in enumerate(readers)
        ]

    def _make_gradients(self) -> Gradients:
        longest = self._dataset.longest_row if self._stores.table is not None else 0
        return Gradients.make(self._stores, self._config.workers, self._config.batch_size * longest)

    def _make_readers(self) -> list[Any]:
        dataset, count = self._dataset, self._engine.num_threads
        order = EpochOrder([block.rows for block in dataset.split("train").blocks], self._config.seed)
        if self._config.device == "cpu":
            return [Reader(dataset, order) for _ in range(count)]
        from paceline.torch.resident import make_readers

        return make_readers(self._config, dataset, order, count)

    def run_segment(self, until: int, look: Look, keep: Keep) -> Tally:
        feed, threads = self._feed, self._threads
        self._handed_in[:, 0] = feed.clock
        self._gate.enter(feed.clock)
        for thread in threads:
            thread.losses, thread.rows = 0.0, 0
        feed.open(until)
        due: set[Due] = set()

        def poll() -> None:
            due.add(look(self._tally()))
            if due - {Due.NOTHING}:
                feed.pause()

        def give_up() -> None:
            feed.pause()
            self._gate.break_up()

        self._engine.run(lambda thread: threads[thread].run(), poll, give_up)
        if self._private is not None and self._stores.table is not None:
            self._private.settle(self._stores.table)
        if Due.SNAPSHOT in due:
            self.snapshot(keep)
        return self._tally()

    def roles(self) -> list[dict[str, Any]]:
        names = [("coordinator", 0), ("shard", 0), *(("worker", rank) for rank in range(self._config.workers))]
        return [{"role": role, "rank": rank, **self._engine.own_place(), "incarnation": 0} for role, rank in names]

    def waits(self) -> list[str]:
        return []

    def account(self) -> dict[str, Any]:
        return {
            "wire": {"bytes_sent": 0, "bytes_received": 0, "bytes_per_row": 0.0, "refused": 0},
            "restarts": {"workers": 0, "shards": 0},
            "recoveries": [],
            "peak_memory_bytes": 0,
        }

    def records(self) -> list[AnyRecord]:
        found = [*self._prober.take(), *(record for report in self._reports for record in report.take())]
        for record in found:
            if isinstance(record, WorkerChunk | NodeProbe | LeftOut):
                record.node = platform.node()
        return found

    def close(self) -> None:
        self._engine.close()
        self.model.close()

    def _tally(self) -> Tally:
        feed, threads = self._feed, self._threads
        return Tally(
            position=feed.position,
            clock=feed.clock,
            losses=float(sum(thread.losses for thread in threads)),
            rows=sum(thread.rows for thread in threads),
            largest_lead=self._gate.largest_lead,
        )

    def _ranks(self, part: int) -> list[int]:
        """The workers that a thread takes through each clock in sync."""
        return list(range(part, self._config.workers, self._engine.num_threads))
