"""What does a run write to its folder while it trains? Checkpoints, metrics, telemetry and the list of its roles.

What a full disk refuses is missing, and the user is told once, but the training continues.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from paceline.errors import PacelineError
from paceline.run_folder import RunFolder
from paceline.telemetry.recorder import Journal
from paceline.training.backend import Backend, Snapshot
from paceline.training.checkpoint import Progress, save_checkpoint

CHECKPOINT = "a new checkpoint"
EVALUATIONS_RECORDED = 1_000


class RunWriter:
    """Writes to the folder `run` what a backend does. `made_by` is what a checkpoint's successor must match."""

    def __init__(
        self, run: RunFolder, backend: Backend, made_by: dict[str, Any], notice: Callable[[str], None]
    ) -> None:
        self.run = run
        self._backend = backend
        self._made_by = made_by
        self._notice = notice
        self._journal = Journal(run.path, notice)
        self._last_saved = time.perf_counter()
        self._num_evaluated = 0
        self._roles: list[dict[str, Any]] = []
        self._num_recoveries_told = 0
        # Lines of `metrics.jsonl` that the disk had no room for yet, and what the user knows to be missing.
        self._unwritten: list[dict[str, Any]] = []
        self._missing: set[str] = set()

    @contextmanager
    def continuing_without(self, what: str) -> Iterator[None]:
        """Survive a full disk inside; tell the user once that `what` is missing."""
        try:
            yield
        except PacelineError as error:
            if what not in self._missing:
                self._missing.add(what)
                self._notice(f"{error.message}; training continues without {what}")

    def checkpoint_due(self, every: float) -> bool:
        """Whether `every` seconds have passed since the last checkpoint; never if 0."""
        return every > 0 and time.perf_counter() - self._last_saved >= every

    def save(self, progress: Progress, snapshot: Snapshot) -> None:
        """Write a checkpoint. If the disk is full, the previous one stays, and the next one is tried when it is due."""
        with self.continuing_without(CHECKPOINT):
            self._save(progress, snapshot)
            self._missing.discard(CHECKPOINT)
        self._last_saved = time.perf_counter()

    def save_at_the_end(self, progress: Progress) -> str:
        """Write a checkpoint of a run that must stop. Returns a clause that tells the user what happened."""
        told = "a checkpoint is saved"

        def keep(snapshot: Snapshot) -> None:
            nonlocal told
            try:
                self._save(progress, snapshot)
            except PacelineError as error:
                told = f"no checkpoint is saved: {error.message}"

        self._backend.snapshot(keep)
        return told

    def _save(self, progress: Progress, snapshot: Snapshot) -> None:
        progress = msgspec.structs.replace(progress, handed=snapshot.handed)
        save_checkpoint(self.run.path / "checkpoints", progress, self._made_by, snapshot.states)

    def add_metrics(self, line: dict[str, Any]) -> None:
        """Add an evaluation's line to the metrics, and write the telemetry recorded until now."""
        self._unwritten.append(line)
        self._write_metrics()
        # After many evaluations, telemetry is written only at intervals.
        self.write_telemetry(at_once=self._num_evaluated < EVALUATIONS_RECORDED)
        self._num_evaluated += 1

    def _write_metrics(self) -> None:
        if self._unwritten:
            with self.continuing_without("new lines there"):
                self.run.add_metrics(*self._unwritten)
                self._unwritten.clear()

    def cut_metrics(self, tested: int) -> None:
        """Forget evaluations after `tested` rows."""
        self._unwritten = [line for line in self._unwritten if line["rows"] <= tested]
        self.run.cut_metrics(tested)

    def write_telemetry(self, at_once: bool = False) -> None:
        """Write what the backend has recorded, if it is time or `at_once`."""
        if self._journal.due() or at_once:
            self._journal.add(self._backend.records())

    def write_roles(self) -> None:
        """Update `roles.json`, and tell the user about roles that were lost and are back."""
        recoveries = self._backend.account()["recoveries"]
        for back in recoveries[self._num_recoveries_told :]:
            self._notice("{role} {rank} was lost ({cause}); back on node {node} after {seconds:.1f} s".format(**back))
        self._num_recoveries_told = len(recoveries)
        if (roles := self._backend.roles()) != self._roles:
            with self.continuing_without("it"):
                self.run.write_json("roles.json", roles)
                self._roles = roles

    def finish(self) -> None:
        """Write what is left."""
        self.write_telemetry(at_once=True)
        self._write_metrics()
