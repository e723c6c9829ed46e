"""What keeps a run going? The coordinator sets the next stop, lets the backend train up to it, and does what is due.

Between two stops lies a *segment*: all workers train, then all are paused at a boundary. Evaluations and the end of a
run happen only there, so they see a state that training has really been in.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import psutil

from paceline.config import settings_of_run, tree_of
from paceline.data.blocks.dataset import Split
from paceline.data.datasets import AnyDataset
from paceline.errors import DataError, DivergedError, InterruptedRunError, RunError
from paceline.files import translated_disk_errors, without_disk_errors
from paceline.models.label_statistics import baseline_in_training
from paceline.models.metrics import Quality
from paceline.models.model import Parameters
from paceline.models.registry import find, resume_command
from paceline.models.start import Training, features_of
from paceline.run_folder import RunFolder, flat
from paceline.settings import RunConfig
from paceline.telemetry.gather_facts import facts_kept, facts_of
from paceline.training.backend import Backend, Due, LostShardError, Snapshot, Tally
from paceline.training.best import Best, BestModel, as_json
from paceline.training.checkpoint import Checkpoint, Handed, Progress, States, has_checkpoint, load_checkpoint
from paceline.training.checks import check_losses
from paceline.training.judge import is_good, refuse_diverged, why_worse
from paceline.training.run_writer import RunWriter
from paceline.training.schedule import Schedule
from paceline.training.start import Tensors, Trained, describe, memory_of, save_memory

STANDSTILL_SECONDS = 10.0
HELD_OUT: tuple[Split, ...] = ("validation", "test")


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
        # Of a run on data with validation rows.
        self.validation: Quality | None = None
        self.best: BestModel | None = None
        # Of a run without held-out rows.
        self.training: Quality | None = None
        # Why the run ended, if it has diverged and a good model is kept from before.
        self.diverged = ""
        self.began = 0.0
        # Called with every line of `metrics.jsonl`.
        self.evaluated: Callable[[dict[str, Any]], None] = lambda _line: None
        # The account of an interrupted run before it was resumed.
        self.account_before: dict[str, Any] = {}
        self._peak_memory_bytes = 0
        self._moved_to = 0
        self._moved_at = 0.0
        self._files: RunWriter
        self._interrupted = False
        self._segment_began = 0.0
        self._schedule = Schedule(config, dataset.split("train").rows)

    # -- state that outlives the process

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint. Call it before `make_ready`."""
        settings = {name: value for name, value in checkpoint.made_by.items() if name != "module"}
        before = flat(checkpoint.made_by | tree_of(settings_of_run(settings)))
        for name, now in flat(self._made_by()).items():
            if before.get(name) != now:
                raise DataError(
                    f"the checkpoint was made with another `{name}`: {before.get(name)}, now {now}",
                    "resume with the data and settings that the run began with, or start a new run",
                )
        for damage in checkpoint.damaged:
            self.notice(f"{damage}; continuing from the one before, after {checkpoint.progress.position:,} rows")
        self.progress = checkpoint.progress
        self.backend.restore(checkpoint.progress, checkpoint.states)

    def begin(self) -> None:
        """Begin with the parameters of the model that the run starts from, if there is one. Before `make_ready`."""
        if self.config.start_from:
            self.backend.restore(self.progress, self._first_states())

    def _first_states(self) -> States | None:
        """The states that the run begins with; None for those of a new model."""
        if not self.config.start_from:
            return None
        from paceline.training.start import starting_states

        return starting_states(self.config, self.dataset, self.backend.model, self.notice)

    def _made_by(self) -> dict[str, Any]:
        """What must stay the same during a run: the data, and all settings but when to stop, test and save."""
        free = {"data", "run", "address", "epochs", "steps", "seconds", "test_every", "checkpoint_every"}
        free |= {"early_stopping", "save_optimizer", "track", "chosen"}
        made_by = {n: v for n, v in tree_of(self.config).items() if n not in free}
        if self.backend.model.fingerprint:
            made_by["module"] = self.backend.model.fingerprint
        return {"data": self.dataset.fingerprint} | made_by

    def trained(self) -> Trained:
        """The model as it is now, with what its optimizer remembers, unless that is not to be kept."""
        parameters, memory = self.parameters(), None
        if self.config.save_optimizer:
            found: list[Tensors] = []
            self.backend.snapshot(lambda snapshot: found.append(memory_of(snapshot.states, self.backend.model.layout)))
            memory = found[0]
        return Trained(parameters, memory)

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

    def train(self, run: RunFolder) -> Trained | None:
        """Train to the end, leaving metrics and checkpoints in `run`; the last model, unless a better one is kept.

        `InterruptedRunError` if the user stops it.
        """
        self.began = time.time()
        self._files = RunWriter(run, self.backend, self._made_by(), self.notice)
        if self.dataset.split("validation").rows:
            self.best = BestModel(run)
        self._files.write_roles()
        facts = facts_of(
            find(self.config.model), self.backend.model.output.task.metrics, self.dataset,
            self.backend.model.layout.table, self.backend.gpu_facts(),
        )  # fmt: skip
        try:
            with facts_kept(run.path, facts, self.config, self.dataset):
                return self._train_and_judge(run)
        finally:
            self._files.finish()

    def _train_and_judge(self, run: RunFolder) -> Trained | None:
        """Train to the end. Raise if the run has diverged and kept no good model before; say so if a constant would
        have been better.
        """
        best, model, config = self.best, self.backend.model, self.config
        try:
            trained = self._train()
            refuse_diverged(run.metrics, model, config)
        except DivergedError as error:
            if best is None or not is_good(best.found, model):
                if best is not None:
                    best.discard()
                raise
            self.diverged = error.message
            self.notice(f"{error.message}; a good model is kept from before (to train on: {error.hint})")
            trained = None
        if worse := why_worse(run.metrics, best, model, config.optimizer.learning_rate):
            self.notice(worse)
        return trained

    def _train(self) -> Trained | None:
        lost: LostShardError | None = None
        while True:
            try:
                # A second shard may be lost while the run returns because of the first.
                if lost is not None:
                    self._return_to_checkpoint(lost)
                    lost = None
                while not (self._schedule.is_done(self.progress) or self._stops_early()):
                    self._advance()
                return self.trained() if self.best is None or self.best.found is None else None
            except LostShardError as error:
                if why := self.backend.failing():
                    raise RunError(f"{error.message}, and {why}", self._how_to_resume()) from None
                lost = error

    def _advance(self) -> None:
        """Do what is due, then train for one segment."""
        if self._schedule.test_due(self.progress):
            self._evaluate()
        if self._stops_early():
            return
        why = "" if self._schedule.is_done(self.progress) else self.backend.failing()
        if why or self._interrupted:
            saved = self._files.save_at_the_end(self.progress)
            stop, what = (RunError, f"{why}: stopped") if why else (InterruptedRunError, "interrupted")
            raise stop(f"{what} after {self.progress.position:,} rows; {saved}", self._how_to_resume())
        if not self._schedule.is_over(self.progress):
            # Segments may be too short for a checkpoint to come due while workers train.
            if self._checkpoint_due():
                self.backend.snapshot(partial(self._files.save, self.progress))
            self._run_segment()

    def _stops_early(self) -> bool:
        """Whether too many evaluations in a row were not better than the best one."""
        patience = self.config.early_stopping
        return bool(patience) and self.best is not None and self.best.later >= patience

    def save(self, trained: Trained, folder: Path) -> str:
        """Save a model; returns the checksum of its parameters."""
        # Not needed to begin.
        from paceline.models.trained import save_model

        training = self._training()
        if trained.memory is not None:
            with self._files.continuing_without("the state of the optimizer"):
                checksum = save_memory(folder, trained.memory)
                training |= {"optimizer": describe(self.backend.model.layout), "checksum": checksum}
        info = self.dataset.model_info | {"training": training} | self._keep_features(folder)
        return save_model(folder, self.backend.model, trained.parameters, self.config.model, info)

    def _keep_features(self, folder: Path) -> dict[str, Any]:
        """Write what is known about the features to the folder of a model: what `model.json` says about that."""
        before = None
        if self.config.start_from:
            with suppress(DataError):  # the model was removed meanwhile
                before = features_of(Path(self.config.start_from))
        with translated_disk_errors(folder):
            folder.mkdir(exist_ok=True)
        return self.dataset.keep_features(folder, before)

    def _training(self) -> dict[str, Any]:
        """What `model.json` says about the training until now, for runs that start from the model."""
        model, start, at, labels = self.backend.model, self.config.start, self.progress, self.dataset.labels
        units, dense = model.label_units, model.layout.dense
        weights = () if units.class_weights is None else units.class_weights.tolist()
        found: dict[str, Any] = msgspec.to_builtins(Training(
            rows=start.rows + at.position, updates=0 if dense is None else dense.update_number(at.position) - 1,
            labels=labels.kind, class_names=labels.names, scales=units.scales, class_weights=tuple(weights),
        ))  # fmt: skip
        return found

    def _run_segment(self) -> None:
        """Train up to the next evaluation or an earlier stop."""
        base = self.progress
        self._segment_began = time.perf_counter()

        def keep(snapshot: Snapshot) -> None:
            self._files.save(self._after(base, snapshot.tally), snapshot)

        try:
            tally = self.backend.run_segment(self._schedule.next_test(base), self._look_around, keep)
        except LostShardError:
            # The time that was lost is part of what training took.
            self.progress = self._after(base, Tally(base.position, base.clock, 0.0, 0, 0))
            raise
        self.progress = self._after(base, tally)
        self.measure_memory()

    def remember_quality(self, run: RunFolder) -> None:
        """Take the metrics of the last evaluation from the run's folder."""
        last = run.metrics[-1] if run.metrics else {}
        self.quality, self.validation = (self._measured(last, split) for split in HELD_OUT[::-1])
        self.training = None if self.quality or self.validation else self._measured(last, "train")
        if self.best is not None:
            self.best.recall()

    def _measured(self, line: dict[str, Any], split: str) -> Quality | None:
        """The metrics of a split in a line of `metrics.jsonl`."""
        if f"{split}_loss" not in line:
            return None
        # Older versions measured less.
        names = [name for name in self.backend.model.output.task.metrics if f"{split}_{name}" in line]
        found = {name: line[f"{split}_{name}"] for name in names}
        return {name: math.nan if value is None else value for name, value in found.items()}

    def _after(self, base: Progress, tally: Tally) -> Progress:
        """Where a run that was at `base` when the segment began is by this tally."""
        seconds, lead = time.perf_counter() - self._segment_began, max(base.largest_lead, tally.largest_lead)
        # The mean over rows counts each as much as its weight says.
        weight = self.dataset.split("train").mean_weight
        return Progress(
            position=tally.position, tested=base.tested, clock=tally.clock, train_seconds=base.train_seconds + seconds,
            losses=base.losses + tally.losses / weight, loss_rows=base.loss_rows + tally.rows, largest_lead=lead,
        )  # fmt: skip

    def _look_around(self, tally: Tally) -> Due:
        """While workers train: what is due? Also updates the run's files and the progress display."""
        self._files.write_roles()
        self._files.write_telemetry()
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
        """Say who waits for whom if no progress for long: the run may be slow, or may need help."""
        now = time.perf_counter()
        if tally.rows != self._moved_to or self._moved_at < self._segment_began:
            self._moved_to, self._moved_at = tally.rows, now
        elif now - self._moved_at > STANDSTILL_SECONDS and (waits := self.backend.waits()):
            self.notice(f"no progress for {STANDSTILL_SECONDS:g} s: {'; '.join(waits)}")
            self._moved_at = now

    def _return_to_checkpoint(self, lost: LostShardError) -> None:
        """Take the backend and the run's files back to the newest checkpoint, or to where this process began."""
        seconds = self.progress.train_seconds
        folder = self._files.run.path / "checkpoints"
        if has_checkpoint(folder):
            self.restore(load_checkpoint(folder))
        else:
            self.progress = Progress()
            self.backend.restore(self.progress, self._first_states())
        self.progress = msgspec.structs.replace(self.progress, train_seconds=max(seconds, self.progress.train_seconds))
        self._files.cut_metrics(self.progress.tested)
        self.remember_quality(self._files.run)
        self.notice(f"{lost.message}; back to {self.progress.position:,} rows")
        self.backend.make_ready()

    def _checkpoint_due(self) -> bool:
        return self._files.checkpoint_due(self.config.checkpoint_every)

    def _evaluate(self) -> None:
        """Evaluate the model on the held-out rows, and add a line to the metrics."""
        at = self.progress
        line: dict[str, Any] = {
            "rows": at.position,
            "steps": at.clock,
            "epoch": at.position / self._schedule.num_rows,
            "seconds": at.train_seconds,
            "train_loss": at.train_loss,
        }
        # On a GPU the losses have not been checked before.
        self._check(float(at.losses))
        found: dict[str, Quality] = {}
        for split in HELD_OUT:
            if self.dataset.split(split).rows:
                quality = self.backend.evaluate(split, at.position, stop=self._must_stop)
                if quality is None:
                    return
                self._check(quality["loss"])
                found[split] = quality
                line |= {f"{split}_{name}": value for name, value in quality.items()}
        self.quality, self.validation = found.get("test"), found.get("validation")
        if not found:
            baseline = baseline_in_training(self.backend.model, self.dataset)
            self.training = {"loss": at.train_loss} | ({} if baseline is None else {"baseline_loss": baseline})
            line |= {f"train_{name}": value for name, value in self.training.items()}
        self._keep_if_best(at)
        evaluated = {name: _json_number(value) for name, value in line.items()}
        self._files.add_metrics(evaluated)
        with self._files.continuing_without("TensorBoard files"):
            self.evaluated(evaluated)
        self._tell(at)
        self.progress = msgspec.structs.replace(at, tested=at.position, losses=0.0, loss_rows=0, handed=Handed())

    def _keep_if_best(self, at: Progress) -> None:
        """Keep the model as it is now if no other one was better on the validation rows."""
        best, validation = self.best, self.validation
        if best is not None and validation is not None and best.is_beaten(at.position, validation["loss"]):
            trained = self.trained()
            found = Best(rows=at.position, validation=as_json(validation), test=as_json(self.quality))
            with self._files.continuing_without("the best model"):
                best.keep(found, partial(self.save, trained))

    def _tell(self, at: Progress) -> None:
        self.watch(
            Status(at.position, at.train_seconds, min(1.0, self._schedule.share(at)), at.train_loss, self.quality)
        )

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
                wire[name] += before["wire"].get(name, 0)
            wire["bytes_per_row"] = (wire["bytes_sent"] + wire["bytes_received"]) / max(1, self.progress.position)
            account["restarts"] = {name: n + before["restarts"].get(name, 0) for name, n in account["restarts"].items()}
            account["recoveries"] = before["recoveries"] + account["recoveries"]
        return account

    def _how_to_resume(self) -> str:
        return f"`{resume_command(self._files.run.path, self.config.model)}` continues it"

    def interrupt(self) -> None:
        """Stop the run at the next boundary."""
        self._interrupted = True


def _json_number(value: Any) -> Any:
    """JSON has no NaN: the AUC of rows with one label, say, is null."""
    return None if isinstance(value, float) and not np.isfinite(value) else value
