"""What keeps a run going? The coordinator: it sets the next stop, lets the backend train up to it, and does what is
due.

Between two stops lies a *segment*: all workers train, then all are paused at a boundary. Evaluations and the end of a
run happen only there, so they see a state that training has really been in.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import psutil

from paceline.config import tree_of
from paceline.data.datasets import AnyDataset
from paceline.data.rows import NO_LIMIT
from paceline.errors import DataError, InterruptedRunError, PacelineError, RunError
from paceline.files import without_disk_errors
from paceline.models.metrics import Quality
from paceline.models.model import Parameters
from paceline.models.registry import find
from paceline.run_folder import RunFolder
from paceline.settings import RunConfig, without_old_settings
from paceline.telemetry.gather_facts import facts_kept, facts_of
from paceline.telemetry.recorder import Journal
from paceline.training.backend import Backend, Due, LostShardError, Snapshot, Tally
from paceline.training.checkpoint import Checkpoint, Handed, Progress, has_checkpoint, load_checkpoint, save_checkpoint
from paceline.training.checks import check_losses

STOPPING = (signal.SIGINT, signal.SIGTERM)
STANDSTILL_SECONDS = 10.0
CHECKPOINT = "a new checkpoint"
EVALUATIONS_RECORDED = 1_000


class Status(NamedTuple):
    """How far a run is, for progress displays: `share` of it is done, 0 to 1."""

    rows: int
    seconds: float
    share: float
    train_loss: float
    quality: Quality | None


Watch = Callable[[Status], None]
# Called with one line about each problem that was solved on the way.
Notice = Callable[[str], None]


class Coordinator:
    """One run: its backend, how far it is, and the loop over segments."""

    def __init__(self, config: RunConfig, dataset: AnyDataset, backend: Backend, watch: Watch, notice: Notice) -> None:
        self.config = config
        self.dataset = dataset
        self.backend = backend
        self.watch = without_disk_errors(watch)
        self.notice = without_disk_errors(notice)
        self.progress = Progress()
        self.quality: Quality | None = None
        self.began = 0.0
        # Called with every line of `metrics.jsonl`.
        self.evaluated: Callable[[dict[str, Any]], None] = lambda _line: None
        # The account of an interrupted run before it was resumed.
        self.account_before: dict[str, Any] = {}
        self._peak_memory_bytes = 0
        self._roles: list[dict[str, Any]] = []
        self._recoveries_told = 0
        self._num_evaluated = 0
        # Lines of `metrics.jsonl` for which there was no room yet, and what else there was none for.
        self._unwritten: list[dict[str, Any]] = []
        self._refused: set[str] = set()
        self._moved_to = 0
        self._moved_at = 0.0
        self._journal: Journal
        self._interrupted = False
        self._segment_began = 0.0
        self._last_saved = 0.0
        self._num_rows = dataset.split("train").rows
        self._last_position = config.epochs * self._num_rows or NO_LIMIT

    # -- state that outlives the process

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint. Call it before `make_ready`."""
        made_by = without_old_settings(checkpoint.made_by)
        for name, now in self._made_by().items():
            if made_by.get(name) != now:
                raise DataError(
                    f"the checkpoint was made with another `{name}`: {made_by.get(name)}, now {now}",
                    "resume as the run began, or train a new one",
                )
        self.progress = checkpoint.progress
        self.backend.restore(checkpoint.progress, checkpoint.states)

    def _made_by(self) -> dict[str, Any]:
        """What must stay the same during a run: the data, and all settings but when to stop, test and save."""
        free = {"data", "run", "address", "epochs", "steps", "seconds", "test_every", "checkpoint_every"}
        made_by = {n: v for n, v in tree_of(self.config).items() if n not in free}
        if self.backend.model.fingerprint:
            made_by["module"] = self.backend.model.fingerprint
        return {"data": self.dataset.fingerprint} | made_by

    def _save(self, run: RunFolder, progress: Progress, snapshot: Snapshot) -> None:
        """Write a checkpoint of a snapshot."""
        progress = msgspec.structs.replace(progress, handed=snapshot.handed)
        save_checkpoint(run.path / "checkpoints", progress, self._made_by(), snapshot.states)
        self._last_saved = time.perf_counter()
        self._refused.discard(CHECKPOINT)

    def _save_if_possible(self, run: RunFolder, progress: Progress, snapshot: Snapshot) -> None:
        """Write a checkpoint. If the disk is full, the one before stands, and the next one is tried in time."""
        with self._goes_on_without(CHECKPOINT):
            self._save(run, progress, snapshot)
        self._last_saved = time.perf_counter()

    def _save_at_the_end(self, run: RunFolder) -> str:
        """Write a checkpoint of a run that must stop; what became of it."""
        told = "a checkpoint is saved"

        def keep(snapshot: Snapshot) -> None:
            nonlocal told
            try:
                self._save(run, self.progress, snapshot)
            except PacelineError as error:
                told = f"no checkpoint is saved: {error.message}"

        self.backend.snapshot(keep)
        return told

    @contextmanager
    def _goes_on_without(self, what: str) -> Iterator[None]:
        """A full disk costs what is written meanwhile, and one line, but not the training."""
        try:
            yield
        except PacelineError as error:
            if what not in self._refused:
                self._refused.add(what)
                self.notice(f"{error.message}; training goes on without {what}")

    def _write_metrics(self, run: RunFolder) -> None:
        if self._unwritten:
            with self._goes_on_without("new lines there"):
                run.add_metrics(*self._unwritten)
                self._unwritten.clear()

    def parameters(self) -> Parameters:
        """All values in the input's order; those that are trained must be numbers."""
        found, layout = self.backend.parameters(self.progress.position), self.backend.model.layout
        trained = [] if found.table is None else [found.table.rows]
        if layout.dense is not None:
            # Values that are not trained may be infinite on purpose.
            trained.append(found.dense[: layout.dense.num_trained])
        self._check(0.0 if all(np.isfinite(values).all() for values in trained) else math.nan)
        return found

    def _check(self, losses: float) -> None:
        """Raise unless losses are numbers."""
        at = self.progress
        check_losses(losses, at.position, 0, at.clock, self.config.optimizer.rate_after(at.position))

    # -- the run

    def make_ready(self) -> None:
        """Start the backend; again if a shard is lost meanwhile."""
        while True:
            try:
                return self.backend.make_ready()
            except LostShardError as lost:
                self.notice(f"{lost.message}; starting again")

    def train(self, run: RunFolder) -> Parameters:
        """Train to the end, leaving metrics and checkpoints in `run`; the parameters in the input's order.

        `InterruptedRunError` if the user stops it.
        """
        self.began = time.time()
        self._last_saved = time.perf_counter()
        self._write_roles(run)
        self._journal = Journal(run.path, self.notice)
        facts = facts_of(find(self.config.model), self.dataset, self.backend.model.layout.table)
        try:
            with facts_kept(run.path, facts, self.config, self.dataset):
                return self._train(run)
        finally:
            self._journal.add(self.backend.records())
            self._write_metrics(run)

    def _train(self, run: RunFolder) -> Parameters:
        lost: LostShardError | None = None
        while True:
            try:
                # A second shard may be lost while the run returns because of the first.
                if lost is not None:
                    self._return_to_checkpoint(run, lost)
                    lost = None
                while not self._finished() or self.progress.position > self.progress.tested:
                    self._advance(run)
                return self.parameters()
            except LostShardError as error:
                if why := self.backend.failing():
                    raise RunError(f"{error.message}, and {why}", _how_to_resume(run)) from None
                lost = error

    def _advance(self, run: RunFolder) -> None:
        """Do what is due, then train for one segment."""
        if self.progress.position > self.progress.tested and self._test_due():
            self._evaluate(run)
        done = self._finished() and self.progress.position == self.progress.tested
        why = "" if done else self.backend.failing()
        if why or self._interrupted:
            saved = self._save_at_the_end(run)
            stop, what = (RunError, f"{why}: stopped") if why else (InterruptedRunError, "interrupted")
            raise stop(f"{what} after {self.progress.position:,} rows; {saved}", _how_to_resume(run))
        if not self._finished():
            # Segments may be too short for a checkpoint to come due while workers train.
            if self._checkpoint_due():
                self.backend.snapshot(partial(self._save_if_possible, run, self.progress))
            self._run_segment(run)

    def _run_segment(self, run: RunFolder) -> None:
        """Train up to the next evaluation or an earlier stop."""
        base = self.progress
        self._segment_began = time.perf_counter()

        def keep(snapshot: Snapshot) -> None:
            self._save_if_possible(run, self._after(base, snapshot.tally), snapshot)

        try:
            tally = self.backend.run_segment(self._next_test(), partial(self._look_around, run), keep)
        except LostShardError:
            # The time that was lost is part of what training took.
            self.progress = self._after(base, Tally(base.position, base.clock, 0.0, 0, 0))
            raise
        self.progress = self._after(base, tally)
        self.measure_memory()

    def remember_quality(self, run: RunFolder) -> None:
        """Take the metrics of the last evaluation from the run's folder."""
        last = run.metrics[-1] if run.metrics else {}
        self.quality = None
        if "test_loss" in last:
            found = {name: last[f"test_{name}"] for name in find(self.config.model).task.metrics}
            self.quality = {name: math.nan if value is None else value for name, value in found.items()}

    def _write_roles(self, run: RunFolder) -> None:
        """Keep `roles.json` current, and tell of roles that were lost and are back."""
        recoveries = self.backend.account()["recoveries"]
        for back in recoveries[self._recoveries_told :]:
            self.notice("{role} {rank} was lost ({cause}); back on node {node} after {seconds:.1f} s".format(**back))
        self._recoveries_told = len(recoveries)
        if (roles := self.backend.roles()) != self._roles:
            self._roles = roles
            with self._goes_on_without("it"):
                run.write_json("roles.json", roles)

    def _after(self, base: Progress, tally: Tally) -> Progress:
        """Where a run that was at `base` when the segment began is by this tally."""
        seconds, lead = time.perf_counter() - self._segment_began, max(base.largest_lead, tally.largest_lead)
        return Progress(
            position=tally.position, tested=base.tested, clock=tally.clock, train_seconds=base.train_seconds + seconds,
            losses=base.losses + tally.losses, loss_rows=base.loss_rows + tally.rows, largest_lead=lead,
        )  # fmt: skip

    def _look_around(self, run: RunFolder, tally: Tally) -> Due:
        """While workers train: what is due? Also updates the run's files and the progress display."""
        self._write_roles(run)
        if self._journal.due():
            self._journal.add(self.backend.records())
        at = self._after(self.progress, tally)
        self._notice_standstill(tally)
        self._tell(at)
        self.measure_memory()
        if self._must_stop() or (self.config.seconds and at.train_seconds >= self.config.seconds):
            return Due.STOP
        return Due.SNAPSHOT if self._checkpoint_due() else Due.NOTHING

    def _must_stop(self) -> bool:
        return self._interrupted or bool(self.backend.failing())

    def _notice_standstill(self, tally: Tally) -> None:
        """Say who waits for whom if nothing has moved for long: the run may be slow, or may need help."""
        now = time.perf_counter()
        if tally.rows != self._moved_to or self._moved_at < self._segment_began:
            self._moved_to, self._moved_at = tally.rows, now
        elif now - self._moved_at > STANDSTILL_SECONDS and (waits := self.backend.waits()):
            self.notice(f"nothing has moved for {STANDSTILL_SECONDS:g} s: {'; '.join(waits)}")
            self._moved_at = now

    def _return_to_checkpoint(self, run: RunFolder, lost: LostShardError) -> None:
        """Take the backend and the run's files back to the newest checkpoint, or to where this process began."""
        seconds = self.progress.train_seconds
        folder = run.path / "checkpoints"
        if has_checkpoint(folder):
            self.restore(load_checkpoint(folder))
        else:
            self.progress = Progress()
            self.backend.restore(self.progress, None)
        self.progress = msgspec.structs.replace(self.progress, train_seconds=max(seconds, self.progress.train_seconds))
        self._unwritten = [line for line in self._unwritten if line["rows"] <= self.progress.tested]
        run.cut_metrics(self.progress.tested)
        self.remember_quality(run)
        self.notice(f"{lost.message}; back to {self.progress.position:,} rows")
        self.backend.make_ready()

    def _finished(self) -> bool:
        # Rows that were handed out before a cut and are not in all shards yet: they come first.
        return not any(self.progress.handed.open) and self._share(self.progress) >= 1

    def _share(self, at: Progress) -> float:
        """How much of the run is done by then: at least 1 at its end."""
        steps, seconds = self.config.steps or math.inf, self.config.seconds or math.inf
        return max(at.position / self._last_position, at.clock / steps, at.train_seconds / seconds)

    def _test_due(self) -> bool:
        is_there = self.progress.position >= self._next_test()
        return not any(self.progress.handed.open) and (is_there or self._finished())

    def _next_test(self) -> int:
        every = self.config.test_every
        return (self.progress.tested // every + 1) * every if every else NO_LIMIT

    def _checkpoint_due(self) -> bool:
        every = self.config.checkpoint_every
        return every > 0 and time.perf_counter() - self._last_saved >= every

    def _evaluate(self, run: RunFolder) -> None:
        """Evaluate the model on the held-out rows, and add a line to the metrics."""
        at = self.progress
        line: dict[str, Any] = {
            "rows": at.position,
            "steps": at.clock,
            "epoch": at.position / self._num_rows,
            "seconds": at.train_seconds,
            "train_loss": at.train_loss,
        }
        # On a GPU the losses have not been checked before.
        self._check(float(at.losses))
        if self.dataset.split("test").rows:
            quality = self.backend.evaluate(at.position, stop=self._must_stop)
            if quality is None:
                return
            self._check(quality["loss"])
            self.quality = quality
            line |= {f"test_{name}": value for name, value in quality.items()}
        evaluated = {name: _json_number(value) for name, value in line.items()}
        self._unwritten.append(evaluated)
        self._write_metrics(run)
        # What was recorded goes with it. After very many evaluations, it is written only at intervals.
        if self._journal.due() or self._num_evaluated < EVALUATIONS_RECORDED:
            self._journal.add(self.backend.records())
        self._num_evaluated += 1
        with self._goes_on_without("TensorBoard files"):
            self.evaluated(evaluated)
        self._tell(at)
        self.progress = msgspec.structs.replace(at, tested=at.position, losses=0.0, loss_rows=0, handed=Handed())

    def _tell(self, at: Progress) -> None:
        self.watch(Status(at.position, at.train_seconds, min(1.0, self._share(at)), at.train_loss, self.quality))

    def measure_memory(self) -> None:
        """Update the peak of this process's private memory: without mapped data."""
        memory = psutil.Process().memory_info()
        private = memory.rss - getattr(memory, "shared", 0)
        self._peak_memory_bytes = max(self._peak_memory_bytes, private)

    def account(self) -> dict[str, Any]:
        """What the run cost: its backend's account, the memory of this process, and the account before a resume."""
        account = self.backend.account()
        account["peak_memory_bytes"] += self._peak_memory_bytes
        if before := self.account_before:
            wire = account["wire"]
            for name in ("bytes_sent", "bytes_received", "refused"):
                wire[name] += before["wire"][name]
            wire["bytes_per_row"] = (wire["bytes_sent"] + wire["bytes_received"]) / max(1, self.progress.position)
            account["restarts"] = {name: n + before["restarts"][name] for name, n in account["restarts"].items()}
            account["recoveries"] = before["recoveries"] + account["recoveries"]
        return account

    @contextmanager
    def interrupts(self) -> Iterator[None]:
        """Inside, the first Ctrl-C stops the run at the next boundary, and the second ends the process at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        if getattr(signal.getsignal(signal.SIGINT), "asked", False):
            raise KeyboardInterrupt  # it came while something was loaded that swallowed it

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


def _how_to_resume(run: RunFolder) -> str:
    return f"`paceline resume {run.path}` continues it"


def _end_at_once(_signal: int, _frame: FrameType | None) -> None:
    os._exit(130)


def _json_number(value: Any) -> Any:
    """JSON has no NaN: the AUC of rows with one label, say, is null."""
    return None if isinstance(value, float) and not np.isfinite(value) else value
