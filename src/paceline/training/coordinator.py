"""Who keeps a run going? The coordinator: it sets the next stop, lets the workers run there, and sees to what is due.

Between two stops lies a *leg*: all workers train, then all are paused at a boundary. Evaluations, checkpoints and the
end of a run happen only there, so the state that they see is one that training has really been in.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import psutil
from numpy.typing import NDArray

from paceline.config import RunConfig
from paceline.data.blocks import Dataset
from paceline.data.reader import RowReader
from paceline.data.rows import NO_LIMIT, ClockRows, EpochOrder, QueueRows, RowFeed
from paceline.engines.local import LocalEngine
from paceline.errors import ConfigError, DataError, InterruptedRunError
from paceline.kernels.gate import LINE
from paceline.machine import num_cores
from paceline.models.logistic import MOST_KEYS, LogisticScratch, Quality
from paceline.optimizers import rules_at
from paceline.run_folder import Run
from paceline.training.checkpoint import Checkpoint, Progress, save_checkpoint
from paceline.training.evaluate import Scorer, evaluate
from paceline.training.lockstep import LockstepThread, Pushes
from paceline.training.pace import Gate, Pace
from paceline.training.shard import Shard
from paceline.training.worker import Worker, check_losses

PRIVATE_HOT_KEYS = 16_384
STOPPING = (signal.SIGINT, signal.SIGTERM)


class Status(NamedTuple):
    """How far a run is, for whoever watches: `share` of it done, 0 to 1."""

    rows: int
    seconds: float
    share: float
    train_loss: float
    quality: Quality | None


Watch = Callable[[Status], None]


class Thread(Protocol):
    """What one thread of the engine does in a leg."""

    losses: float
    rows: int

    def run(self) -> None:
        """Train until there are no rows before the next stop."""

    def warm_up(self) -> None:
        """Load or compile the loops; changes nothing."""


class Coordinator:
    """One run in this process: the roles, wired together, and the loop over legs."""

    def __init__(self, config: RunConfig, dataset: Dataset, engine: LocalEngine, watch: Watch) -> None:
        pace = Pace.of(config.pace)
        train = dataset.split("train")
        self.config = config
        self.dataset = dataset
        self.engine = engine
        self.watch = watch
        self.progress = Progress()
        self.quality: Quality | None = None
        self.peak_memory_bytes = 0
        self._fold = pace.fold
        self._interrupted = False
        self._leg_began = 0.0
        self._last_saved = 0.0
        self.began = 0.0
        _check_clock_size(config, dataset)
        self._gate = Gate(config.workers, pace.staleness, engine.num_threads)
        self._handed_in = np.zeros((engine.num_threads, LINE), np.int64)
        # Private copies pay where workers write the same few weights with every row, and pace N must see every clock.
        shares_hot_keys = config.pace == "async" and config.batch_size == 1 and config.workers > 1
        num_private = min(PRIVATE_HOT_KEYS, len(dataset.manifest.hot_keys)) if shares_hot_keys else 0
        self.shard = Shard(config.optimizer, dataset.features, config.workers, num_private)
        self._order = EpochOrder([block.rows for block in train.blocks], config.seed)
        self._last_position = config.epochs * train.rows if config.epochs else NO_LIMIT
        self._feed: RowFeed
        self._threads: Sequence[Thread]

    # -- state that outlives the process

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint. Before `make_ready`."""
        for name, now in self._made_by().items():
            if checkpoint.made_by.get(name) != now:
                raise DataError(
                    f"the checkpoint was made with another `{name}`: {checkpoint.made_by.get(name)}, now {now}",
                    "resume as the run began, or train a new one",
                )
        self.progress = checkpoint.progress
        self.shard.states[:] = checkpoint.states
        self.dataset.key_order.to_blocks(self.shard.states)

    def _made_by(self) -> dict[str, Any]:
        """What a run must not change on the way: all settings but when to stop, test and save; and the data."""
        free = {"data", "run", "epochs", "steps", "seconds", "test_every", "checkpoint_every"}
        settings = msgspec.to_builtins(self.config)
        return {"data": self.dataset.fingerprint} | {n: v for n, v in settings.items() if n not in free}

    def _save(self, run: Run) -> None:
        """Write a checkpoint of this moment. Only between legs."""
        order, states = self.dataset.key_order, self.shard.states
        order.to_input(states)
        try:
            save_checkpoint(run.path / "checkpoints", self.progress, self._made_by(), states)
        finally:
            order.to_blocks(states)
        self._last_saved = time.perf_counter()

    def parameters(self) -> NDArray[np.float32]:
        """All weights in the input's order, the bias last; they must be numbers."""
        weights = self.dataset.key_order.to_input(self.shard.weights(self.progress.position))
        check_losses(0.0 if np.isfinite(weights).all() else math.nan, self.progress.position, 0, self.progress.clock,
                     self.config.optimizer.learning_rate)  # fmt: skip
        return weights

    # -- the run

    def make_ready(self) -> None:
        """Wire the roles up and compile their loops where this machine has not yet. After `restore`, before `train`."""
        self._feed, self._threads = self._make_threads()
        self._threads[0].warm_up()

    def train(self, run: Run) -> None:
        """Train to the end, leaving metrics and checkpoints in `run`; `InterruptedRunError` if the user stops it."""
        feed = self._feed
        self.began = time.time()
        self._last_saved = time.perf_counter()
        while True:
            if self.progress.position > self.progress.tested and self._test_due(feed):
                self._evaluate(run)
            if self._interrupted:
                self._save(run)
                raise InterruptedRunError(
                    f"interrupted after {self.progress.position:,} rows; a checkpoint is saved",
                    f"`paceline resume {run.path}` goes on",
                )
            if self._finished(feed):
                return
            if self._checkpoint_due():
                self._save(run)
            self._run_leg(feed, self._threads, self._next_test())

    def _run_leg(self, feed: RowFeed, threads: Sequence[Thread], until: int) -> None:
        """Let all workers train up to a boundary at or after `until`, or to one that `_look_around` asks for."""
        self._handed_in[:, 0] = feed.clock
        self._gate.enter(feed.clock)
        feed.open(until)
        self._leg_began = time.perf_counter()

        def give_up() -> None:
            feed.pause()
            self._gate.break_up()

        self.engine.run(lambda thread: threads[thread].run(), lambda: self._look_around(feed, threads), give_up)
        self.shard.settle()
        old = self.progress
        self.progress = Progress(
            position=feed.position,
            tested=old.tested,
            clock=feed.clock,
            train_seconds=old.train_seconds + time.perf_counter() - self._leg_began,
            losses=old.losses + sum(thread.losses for thread in threads),
            loss_rows=old.loss_rows + feed.position - old.position,
            largest_lead=max(old.largest_lead, self._gate.largest_lead),
        )
        for thread in threads:
            thread.losses, thread.rows = 0.0, 0
        self.measure_memory()

    def _look_around(self, feed: RowFeed, threads: Sequence[Thread]) -> None:
        """While workers train: pause them where time is up, and tell who watches how far they are."""
        seconds = self.progress.train_seconds + time.perf_counter() - self._leg_began
        time_is_up = self.config.seconds and seconds >= self.config.seconds
        if self._interrupted or time_is_up or self._checkpoint_due():
            feed.pause()
        rows = self.progress.loss_rows + sum(thread.rows for thread in threads)
        losses = self.progress.losses + sum(thread.losses for thread in threads)
        self._tell(feed.position, feed.clock, seconds, losses / rows if rows else float("nan"))
        self.measure_memory()

    def _finished(self, feed: RowFeed) -> bool:
        return (
            self.progress.position >= self._last_position
            or (self.config.steps > 0 and feed.clock >= self.config.steps)
            or (self.config.seconds > 0 and self.progress.train_seconds >= self.config.seconds)
        )

    def _test_due(self, feed: RowFeed) -> bool:
        return self.progress.position >= self._next_test() or self._finished(feed)

    def _next_test(self) -> int:
        every = self.config.test_every
        return (self.progress.tested // every + 1) * every if every else NO_LIMIT

    def _checkpoint_due(self) -> bool:
        every = self.config.checkpoint_every
        return every > 0 and time.perf_counter() - self._last_saved >= every

    def _evaluate(self, run: Run) -> None:
        """Measure the held-out rows and add a line to the metrics."""
        at = self.progress
        line: dict[str, Any] = {
            "rows": at.position,
            "steps": at.clock,
            "epoch": at.position / self._order.num_rows,
            "seconds": at.train_seconds,
            "train_loss": at.losses / at.loss_rows,
        }
        if self.dataset.split("test").rows:
            rules = rules_at(self.config.optimizer, at.position)
            scorer = Scorer(rules, self.shard.table, self.shard.bias, self.shard.bias)
            threads = min(self.config.workers, num_cores())
            quality = evaluate(scorer, self.dataset, "test", threads, stop=lambda: self._interrupted)
            if quality is None:
                return
            check_losses(quality.loss, at.position, 0, at.clock, float(rules.keys.rate))
            self.quality = quality
            line |= {f"test_{name}": value for name, value in self.quality._asdict().items()}
        run.add_metrics({name: _json_number(value) for name, value in line.items()})
        self._tell(at.position, at.clock, at.train_seconds, line["train_loss"])
        self.progress = Progress(
            position=at.position,
            tested=at.position,
            clock=at.clock,
            train_seconds=at.train_seconds,
            largest_lead=at.largest_lead,
        )

    def _tell(self, rows: int, clock: int, seconds: float, train_loss: float) -> None:
        shares = [rows / self._last_position]
        if self.config.steps:
            shares.append(clock / self.config.steps)
        if self.config.seconds:
            shares.append(seconds / self.config.seconds)
        self.watch(Status(rows, seconds, min(1.0, max(shares)), train_loss, self.quality))

    def measure_memory(self) -> None:
        """Note this process's private memory if it is the most so far: what it owns, mapped data left out."""
        memory = psutil.Process().memory_info()
        private = memory.rss - getattr(memory, "shared", 0)
        self.peak_memory_bytes = max(self.peak_memory_bytes, private)

    # -- wiring

    def _make_threads(self) -> tuple[RowFeed, Sequence[Thread]]:
        """What hands rows out, and what runs on the engine's threads: in sync each takes several workers, else one."""
        config, dataset, num_threads = self.config, self.dataset, self.engine.num_threads
        rows = (self._order.num_rows, config.workers, config.batch_size)
        limits = {
            "position": self.progress.position,
            "clock": self.progress.clock,
            "last": self._last_position,
            "last_clock": config.steps or NO_LIMIT,
        }
        readers = [RowReader(dataset, self._order) for _ in range(num_threads)]
        scratches = [LogisticScratch(dataset.features, dataset.key_dtype) for _ in range(num_threads)]
        if self._fold == "each":
            queue = QueueRows(*rows, **limits)
            return queue, [
                Worker(rank, queue, readers[rank], scratches[rank], self.shard, self._gate, config)
                for rank in range(num_threads)
            ]
        clocks = ClockRows(*rows, **limits)
        pushes = Pushes.make(config.workers, config.batch_size * dataset.longest_row, dataset.key_dtype)
        return clocks, [
            LockstepThread(
                part, list(range(part, config.workers, num_threads)), clocks, readers[part], scratches[part],
                self.shard, self._gate, config, pushes, self._handed_in,
            )
            for part in range(num_threads)
        ]  # fmt: skip

    @contextmanager
    def interrupts(self) -> Iterator[None]:
        """Meanwhile the first Ctrl-C stops the run at the next boundary, and the second ends the process at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def interrupt(_signal: int, _frame: FrameType | None) -> None:
            self._interrupted = True
            for number in STOPPING:
                signal.signal(number, _end_at_once)

        before = {number: signal.signal(number, interrupt) for number in STOPPING}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _check_clock_size(config: RunConfig, dataset: Dataset) -> None:
    """Refuse updates that may have more distinct keys than can be numbered."""
    rows = config.batch_size * (config.workers if config.pace == "sync" else 1)
    most = min(min(rows, dataset.split("train").rows) * dataset.longest_row, dataset.features) + 1
    if most > MOST_KEYS:
        raise ConfigError(
            f"an update of {rows:,} rows may have {most:,} distinct keys; {MOST_KEYS:,} is the most",
            f"--batch-size {max(1, config.batch_size * MOST_KEYS // most)}, or fewer workers",
        )


def _end_at_once(_signal: int, _frame: FrameType | None) -> None:
    os._exit(130)


def _json_number(value: Any) -> Any:
    """JSON has no NaN: the AUC of rows with one label, say, is null."""
    return None if isinstance(value, float) and not np.isfinite(value) else value
