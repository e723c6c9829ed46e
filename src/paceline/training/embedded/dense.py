"""How does a dense model train inside one process? Its values are one array, and every step reads and writes them all.

In sync the threads add up the gradients rank by rank, each for its part of the values, and so come to the same bits
whatever their number, and the same as shards on a cluster. At other paces whoever has a gradient applies it, one after
the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from paceline.config import RunConfig
from paceline.data.images.dataset import ImageDataset, ImageReader
from paceline.data.rows import ClockRows, Clocks, EpochOrder, Piece, QueueRows, RowFeed
from paceline.errors import ConfigError
from paceline.kernels.dense import add_to
from paceline.kernels.gate import passes, slowest, tick
from paceline.machine import num_cores
from paceline.models.dense import ClassQuality, DenseModel, build_model, evaluate_classes, num_values
from paceline.parameters.optimizers.dense import DenseRule, UpdateCount, num_planes
from paceline.parameters.optimizers.sgd import rate_at
from paceline.telemetry.meter import COMPUTE, INPUT, WAIT, WorkerMeter
from paceline.training.checkpoint import Handed, Progress
from paceline.training.crew import Snapshot
from paceline.training.embedded.crew import EmbeddedCrew, Thread
from paceline.training.embedded.worker import check_losses
from paceline.training.pace import Gate, Pace

Floats = NDArray[np.float32]


def count_updates(config: RunConfig, num_rows: int) -> UpdateCount:
    """What counts a run's updates; in sync one stands for all workers' batches."""
    workers = config.workers if Pace.of(config.pace).fold == "mean" else 1
    return UpdateCount(num_rows, config.batch_size * workers)


class DenseTable:
    """All values of a model and what its optimizer remembers of them: `planes` [width, values]."""

    def __init__(self, config: RunConfig, model: DenseModel, num_rows: int, num_workers: int) -> None:
        size = num_values(model)
        check_room(4 * size * (num_planes(config.optimizer) + 2 * num_workers), size)
        self.planes: Floats = np.zeros((num_planes(config.optimizer), size), np.float32)
        self._rule = DenseRule(config.optimizer, model.num_trained, count_updates(config, num_rows))

    @property
    def values(self) -> Floats:
        values: Floats = self.planes[0]
        return values

    @property
    def states(self) -> Floats:
        """As checkpoints have them, [values, width]; shares memory."""
        return self.planes.T

    def begin(self, values: Floats) -> None:
        """Stand where a run begins."""
        self.planes[0], self.planes[1:] = values, 0

    def load(self, states: Floats, start: int = 0) -> None:
        """Put states [n, width] in place from value `start` on."""
        self.planes[:, start : start + len(states)] = states.T

    def part(self, start: int, stop: int) -> Floats:
        """States [n, width] of the values from `start` to `stop`, as they go over a wire."""
        return np.ascontiguousarray(self.planes[:, start:stop].T)

    def copy_of_values(self) -> Floats:
        return self.values.copy()

    def make_sums(self, count: int) -> Floats:
        """Room for so many gradients."""
        return np.zeros((count, self.planes.shape[1]), np.float32)

    def copy_values_to(self, own: Floats) -> None:
        np.copyto(own, self.values)

    def add(self, total: Floats, more: Floats, first: int, stop: int) -> None:
        """Add a gradient to another, from `first` to `stop`."""
        add_to(total[first:stop], more[first:stop])

    def apply(self, sums: Floats, rows: int, trained: int, first: int, stop: int) -> None:
        """Update the values from `first` to `stop` by gradients whose sums [values] over the rows are given."""
        self._rule.apply(self.planes[:, first:stop], sums[first:stop], rows, trained, first)


def make_table(config: RunConfig, model: DenseModel, num_rows: int, num_workers: int) -> Any:
    """Where the values of a run live that so many workers of this process train: in memory, or on a GPU."""
    if config.device == "cpu":
        return DenseTable(config, model, num_rows, num_workers)
    from paceline.torch.table import TorchTable

    return TorchTable(config, model, count_updates(config, num_rows))


def check_room(needed_bytes: int, num: int) -> None:
    """Refuse a model for which there is not enough memory."""
    available = psutil.virtual_memory().available
    if needed_bytes > available:
        raise ConfigError(
            f"a model of {num:,} values needs {needed_bytes / 1e9:.1f} GB, {available / 1e9:.1f} GB are free",
            "fewer --workers, a smaller model, or --optimizer sgd, which needs the least",
        )


class SyncThread:
    """One thread of pace sync: it computes its workers' gradients, and folds and applies its part of all."""

    def __init__(self, part: int, ranks: list[int], feed: ClockRows, reader: ImageReader, model: DenseModel,
                 table: Any, gate: Gate, config: RunConfig, sums: Any, rows: NDArray[np.int64],
                 handed_in: NDArray[np.int64]) -> None:  # fmt: skip
        """`sums` [workers, values] and `rows` [workers] are what all workers of a clock come to."""
        self.losses: Any = 0.0
        self.rows = 0
        self.meter = WorkerMeter(ranks[0], sharing=ranks)
        self._part = part
        self._ranks = ranks
        self._feed = feed
        self._reader = reader
        self._model = model
        self._table = table
        self._gate = gate
        self._settings = config.optimizer
        self._sums = sums
        self._rows = rows
        self._handed_in = handed_in
        size, parts = sums.shape[1], len(handed_in)
        self._first, self._stop = size * part // parts, size * (part + 1) // parts

    def run(self) -> None:
        """Train until there are no rows before the next stop."""
        self.meter.restart()
        while (clocks := self._feed.take(self._ranks, 1)) is not None:
            self._train(clocks)
            self.meter.end_step(len(clocks.positions), 1)
        self.meter.pause()
        for rank in self._ranks:
            self._gate.leave(rank)

    def warm_up(self) -> None:
        """Load or compile the loops; changes nothing."""
        rows = self._reader.between(0, 0)
        self._model.gradient(self._table.values, rows, self._sums[self._ranks[0]], (0, 0))
        warm_up(self._table, self._gate)

    def _train(self, clocks: Clocks) -> None:
        """One clock: all workers' gradients, then one update."""
        gate, clock = self._gate, int(self._gate.clocks[self._ranks[0], 0])
        self._wait(gate.clocks, clock)
        losses: Any = 0.0
        for place, rank in enumerate(self._ranks):
            positions = clocks.positions[clocks.starts[place] : clocks.starts[place + 1]]
            self._rows[rank] = len(positions)
            if not len(positions):
                continue
            rows = self._reader.batch(positions)
            self.meter.mark(INPUT)
            losses += self._model.gradient(self._table.values, rows, self._sums[rank], (rank, int(positions[0])))
            self.meter.mark(COMPUTE)
        tick(self._handed_in, self._part, clock + 1)
        self._wait(self._handed_in, clock + 1)
        self._fold(clocks.trained)
        for rank in self._ranks:
            tick(gate.clocks, rank, clock + 1)
        self.meter.mark(COMPUTE)
        self.losses += losses
        self.rows += len(clocks.positions)
        if isinstance(losses, float):
            check_losses(
                losses, clocks.trained, self._ranks[0], self._feed.clock, rate_at(self._settings, clocks.trained)
            )  # fmt: skip

    def _fold(self, trained: int) -> None:
        """Apply the mean of all workers' gradients to the own part of the values."""
        there = [rank for rank in range(len(self._rows)) if self._rows[rank]]
        total = self._sums[there[0]]
        for rank in there[1:]:
            self._table.add(total, self._sums[rank], self._first, self._stop)
        self._table.apply(total, int(self._rows.sum()), trained, self._first, self._stop)

    def _wait(self, clocks: NDArray[np.int64], clock: int) -> None:
        """Until all threads are at this clock."""
        gate = self._gate
        while not passes(clocks, clock, 0, gate.spins, self._handed_in, self._part):
            gate.nap()
        self.meter.mark(WAIT)


class FreeThread:
    """One worker at any other pace: it applies each gradient as it has it."""

    def __init__(self, rank: int, feed: QueueRows, reader: ImageReader, model: DenseModel, table: Any,
                 gate: Gate, config: RunConfig, applying: threading.Lock) -> None:  # fmt: skip
        self.losses: Any = 0.0
        self.rows = 0
        self.meter = WorkerMeter(rank)
        self._rank = rank
        self._feed = feed
        self._reader = reader
        self._model = model
        self._table = table
        self._gate = gate
        self._settings = config.optimizer
        self._applying = applying
        self._sums = table.make_sums(1)[0]
        # Others change the values while this worker computes.
        self._own = table.make_sums(1)[0] if model.holds_values and config.workers > 1 else None

    def run(self) -> None:
        """Draw batches and train until there are no rows before the next stop."""
        self.meter.restart()
        while (piece := self._feed.take(self._rank, most=1)) is not None:
            self._train(piece)
            self.meter.end_step(piece.stop - piece.start, 1)
        self.meter.pause()
        self._gate.leave(self._rank)

    def warm_up(self) -> None:
        """Load or compile the loops; changes nothing."""
        self._model.gradient(self._table.values, self._reader.between(0, 0), self._sums, (0, 0))
        warm_up(self._table, self._gate)

    def _train(self, piece: Piece) -> None:
        gate, table = self._gate, self._table
        clock = int(gate.clocks[self._rank, 0])
        while not passes(gate.clocks, clock, gate.staleness, gate.spins, gate.leads, self._rank):
            gate.nap()
        gate.leads[self._rank, 0] = max(gate.leads[self._rank, 0], clock - slowest(gate.clocks))
        self.meter.mark(WAIT)
        rows = self._reader.between(piece.start, piece.stop)
        self.meter.mark(INPUT)
        values = table.values
        if self._own is not None:
            table.copy_values_to(self._own)
            values = self._own
        losses = self._model.gradient(values, rows, self._sums, (self._rank, piece.start))
        self.meter.mark(COMPUTE)
        with self._applying:
            self.meter.mark(WAIT)
            table.apply(self._sums, rows.num_rows, piece.start, 0, len(self._sums))
        tick(gate.clocks, self._rank, clock + 1)
        self.meter.mark(COMPUTE)
        self.losses += losses
        self.rows += rows.num_rows
        self._check(losses, piece.start)

    def _check(self, losses: Any, trained: int) -> None:
        # On a GPU they are not known yet; evaluations look at them.
        if isinstance(losses, float):
            check_losses(losses, trained, self._rank, self._feed.clock, rate_at(self._settings, trained))


def warm_up(table: Any, gate: Gate) -> None:
    """Load the loops that every pace needs; changes nothing."""
    sums = table.make_sums(1)[0]
    table.add(sums, sums, 0, 0)
    table.apply(sums, 1, 0, 0, 0)
    slowest(gate.clocks)
    passes(gate.clocks, 0, gate.staleness, 0, gate.leads, 0)
    tick(gate.clocks, 0, int(gate.clocks[0, 0]))


class DenseCrew(EmbeddedCrew):
    """The workers and the values of a dense model in one process."""

    def __init__(self, config: RunConfig, dataset: ImageDataset) -> None:
        self._model = build_model(config, dataset.shape, dataset.classes)
        super().__init__(config, dataset.split("train").rows, 1 if self._model.shares_threads else num_cores())
        self._dataset = dataset
        self._table = make_table(config, self._model, dataset.split("train").rows, config.workers)
        self._models: list[DenseModel] = []
        self.restore(Progress(), None)

    @property
    def model(self) -> DenseModel:
        return self._model

    def restore(self, progress: Progress, states: Floats | None) -> None:
        self._from = progress
        if states is None:
            self._table.begin(self._model.initial(self._config.seed))
        else:
            self._table.load(states)

    def snapshot(self) -> Snapshot:
        return Snapshot(self._tally(), self._table.states, Handed())

    def evaluate(self, rows: int, stop: Callable[[], bool]) -> ClassQuality | None:
        return evaluate_classes(self._model, self._table.values, self._dataset, "test", stop)

    def weights(self, rows: int) -> Floats:
        values: Floats = self._table.copy_of_values()
        return values

    def close(self) -> None:
        super().close()
        for model in {id(model): model for model in (self._model, *self._models)}.values():
            model.close()

    def _make_readers(self, order: EpochOrder) -> list[Any]:
        count = self._engine.num_threads
        if self._config.device == "cpu":
            return [ImageReader(self._dataset, order) for _ in range(count)]
        from paceline.torch.table import make_readers

        return make_readers(self._config, self._dataset, order, count)

    def _make_threads(self) -> tuple[RowFeed, Sequence[Thread]]:
        config, dataset, num_threads = self._config, self._dataset, self._engine.num_threads
        order = EpochOrder([block.rows for block in dataset.split("train").blocks], config.seed)
        readers = self._make_readers(order)
        self._models = [
            self._model,
            *(build_model(config, dataset.shape, dataset.classes) for _ in range(num_threads - 1)),
        ]
        self._model.use_threads(num_cores() // num_threads)
        tools = list(zip(readers, self._models, strict=True))
        if self._fold == "each":
            queue, applying = self._rows(QueueRows), threading.Lock()
            return queue, [
                FreeThread(rank, queue, *tools[rank], self._table, self._gate, config, applying)
                for rank in range(num_threads)
            ]
        clocks = self._rows(ClockRows)
        sums = self._table.make_sums(config.workers)
        rows = np.zeros(config.workers, np.int64)
        return clocks, [
            SyncThread(
                part,
                self._ranks(part),
                clocks,
                *tools[part],
                self._table,
                self._gate,
                config,
                sums,
                rows,
                self._handed_in,
            )
            for part in range(num_threads)
        ]
