"""How does a run train inside one process? Workers are threads, the shard is memory that they all see."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from paceline.config import RunConfig
from paceline.data.rows import NO_LIMIT, ClockRows, EpochOrder, QueueRows, RowFeed
from paceline.data.sparse.dataset import Dataset
from paceline.data.sparse.reader import RowReader
from paceline.engines.local import LocalEngine
from paceline.errors import ConfigError
from paceline.kernels.gate import LINE
from paceline.machine import num_cores
from paceline.models.dense import DenseModel
from paceline.models.logistic import MOST_KEYS, LogisticScratch, Quality
from paceline.parameters.optimizers import rules_at
from paceline.parameters.table import Shard
from paceline.telemetry.meter import WorkerMeter, WorkerReport
from paceline.telemetry.probes import NodeProber
from paceline.telemetry.records import AnyRecord, LeftOut, NodeProbe, WorkerChunk
from paceline.training.checkpoint import Handed, Progress
from paceline.training.crew import Due, Keep, Look, Snapshot, Tally
from paceline.training.embedded.lockstep import LockstepThread, Pushes
from paceline.training.embedded.worker import Worker
from paceline.training.evaluate import Scorer, evaluate
from paceline.training.pace import Gate, Pace

PRIVATE_HOT_KEYS = 16_384

R = TypeVar("R", ClockRows, QueueRows)


class Thread(Protocol):
    """What one thread of the engine does in a leg."""

    losses: float
    rows: int
    meter: WorkerMeter

    def run(self) -> None:
        """Train until there are no rows before the next stop."""

    def warm_up(self) -> None:
        """Load or compile the loops; changes nothing."""


class EmbeddedCrew:
    """The workers of one process on its threads, whatever they train. `SparseCrew` and `DenseCrew` say what."""

    def __init__(self, config: RunConfig, num_rows: int, most_threads: int) -> None:
        pace = Pace.of(config.pace)
        self._config = config
        self._num_rows = num_rows
        self._fold = pace.fold
        # One thread a worker, but in sync no more than help, where it makes no difference.
        in_step = pace.fold == "mean"
        self._engine = LocalEngine(config.workers, min(config.workers, most_threads) if in_step else config.workers)
        self._gate = Gate(config.workers, pace.staleness, self._engine.num_threads)
        self._handed_in = np.zeros((self._engine.num_threads, LINE), np.int64)
        self._from = Progress()
        self._feed: RowFeed
        self._threads: Sequence[Thread]
        self._reports: list[WorkerReport] = []
        self._prober = NodeProber()

    @property
    def model(self) -> DenseModel | None:
        return None

    def _make_threads(self) -> tuple[RowFeed, Sequence[Thread]]:
        """What hands rows out, and what runs on the engine's threads: in sync each takes several workers, else one."""
        raise NotImplementedError

    def _settle(self) -> None:
        """All workers are paused: make the parameters what they should be."""

    def snapshot(self) -> Snapshot:
        raise NotImplementedError

    def make_ready(self) -> None:
        self._feed, self._threads = self._make_threads()
        self._threads[0].warm_up()
        self._reports = [WorkerReport(thread.meter) for thread in self._threads]

    def run_leg(self, until: int, look: Look, keep: Keep) -> Tally:
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
        self._settle()
        if Due.SNAPSHOT in due:
            keep(self.snapshot())
        return self._tally()

    def roles(self) -> list[dict[str, Any]]:
        return self._engine.roles()

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

    def _tally(self) -> Tally:
        feed, threads = self._feed, self._threads
        return Tally(
            position=feed.position,
            clock=feed.clock,
            losses=float(sum(thread.losses for thread in threads)),
            rows=sum(thread.rows for thread in threads),
            largest_lead=self._gate.largest_lead,
        )

    def _rows(self, kind: type[R]) -> R:
        """What hands rows out, from where the run goes on."""
        config = self._config
        return kind(
            self._num_rows, config.workers, config.batch_size, position=self._from.position, clock=self._from.clock,
            last=config.epochs * self._num_rows if config.epochs else NO_LIMIT,
            last_clock=config.steps or NO_LIMIT,
        )  # fmt: skip

    def _ranks(self, part: int) -> list[int]:
        """The workers that a thread takes through each clock in sync."""
        return list(range(part, self._config.workers, self._engine.num_threads))


class SparseCrew(EmbeddedCrew):
    """Logistic regression: a table that compiled loops of all threads see."""

    def __init__(self, config: RunConfig, dataset: Dataset) -> None:
        check_clock_size(config, dataset)
        super().__init__(config, dataset.split("train").rows, num_cores())
        self._dataset = dataset
        # Private copies pay where workers write the same few weights with every row, and pace N must see every clock.
        shares_hot_keys = config.pace == "async" and config.batch_size == 1 and config.workers > 1
        num_private = min(PRIVATE_HOT_KEYS, len(dataset.manifest.hot_keys)) if shares_hot_keys else 0
        self._shard = Shard(config.optimizer, dataset.features, config.workers, num_private)

    def restore(self, progress: Progress, states: NDArray[np.float32] | None) -> None:
        self._from = progress
        if states is not None:
            self._shard.states[:] = states

    def snapshot(self) -> Snapshot:
        return Snapshot(self._tally(), self._shard.states, Handed())

    def evaluate(self, rows: int, stop: Callable[[], bool]) -> Quality | None:
        rules = rules_at(self._config.optimizer, rows)
        scorer = Scorer(rules, self._shard.table, self._shard.bias, self._shard.bias)
        return evaluate(scorer, self._dataset, "test", min(self._config.workers, num_cores()), stop)

    def weights(self, rows: int) -> NDArray[np.float32]:
        return self._shard.weights(rows)

    def _settle(self) -> None:
        self._shard.settle()

    def _make_threads(self) -> tuple[RowFeed, Sequence[Thread]]:
        config, dataset, num_threads = self._config, self._dataset, self._engine.num_threads
        order = EpochOrder([block.rows for block in dataset.split("train").blocks], config.seed)
        readers = [RowReader(dataset, order) for _ in range(num_threads)]
        scratches = [LogisticScratch(dataset.features, dataset.key_dtype) for _ in range(num_threads)]
        if self._fold == "each":
            queue = self._rows(QueueRows)
            return queue, [
                Worker(rank, queue, readers[rank], scratches[rank], self._shard, self._gate, config)
                for rank in range(num_threads)
            ]
        clocks = self._rows(ClockRows)
        pushes = Pushes.make(config.workers, config.batch_size * dataset.longest_row, dataset.key_dtype)
        return clocks, [
            LockstepThread(
                part, self._ranks(part), clocks, readers[part], scratches[part], self._shard, self._gate, config,
                pushes, self._handed_in,
            )
            for part in range(num_threads)
        ]  # fmt: skip


def check_clock_size(config: RunConfig, dataset: Dataset) -> None:
    """Refuse updates that may have more distinct keys than can be numbered."""
    rows = config.batch_size * (config.workers if config.pace == "sync" else 1)
    most = min(min(rows, dataset.split("train").rows) * dataset.longest_row, dataset.features) + 1
    if most > MOST_KEYS:
        raise ConfigError(
            f"an update of {rows:,} rows may have {most:,} distinct keys; {MOST_KEYS:,} is the most",
            f"--batch-size {max(1, config.batch_size * MOST_KEYS // most)}, or fewer workers",
        )
