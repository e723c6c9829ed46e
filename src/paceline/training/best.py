"""Which of the models that a run has evaluated is the best one, on the validation rows? It is kept, not the last one.

`best.json` of the run folder says which evaluation it was; the model itself is in a folder of its own, `best-<rows>`,
until the run ends and it becomes `model/`. `best.json` names a complete model at any moment, so a run that was killed
continues with it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from paceline.errors import BAD_TEXT, DataError
from paceline.files import read_file, translated_disk_errors
from paceline.models.metrics import Quality
from paceline.run_folder import RunFolder

FILE = "best.json"
Metrics = dict[str, float | None]


class Best(msgspec.Struct, frozen=True, kw_only=True):
    """The best evaluation: after how many rows, its metrics on validation and test rows, and its model's checksum."""

    rows: int
    validation: Metrics
    test: Metrics
    model_sha256: str = ""


class BestModel:
    """Keeps the best model of a run."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self.found = self._read()
        self.recall()

    def recall(self) -> None:
        """Count the evaluations after the best one, in the metrics of the run."""
        found = self.found
        self.later = 0 if found is None else sum(line["rows"] > found.rows for line in self._run.metrics)

    def is_beaten(self, rows: int, loss: float) -> bool:
        """Whether this loss on the validation rows is the lowest so far; else it counts as a later evaluation."""
        found = self.found
        if found is None or loss < (found.validation["loss"] or 0.0):
            return True
        self.later += rows > found.rows
        return False

    def keep(self, best: Best, save: Callable[[Path], str]) -> None:
        """Keep a better model. `save` writes it to a folder, and returns its checksum."""
        before = self.found
        best = msgspec.structs.replace(best, model_sha256=save(self._folder(best.rows)))
        self._run.write_json(FILE, msgspec.to_builtins(best))
        self.found, self.later = best, 0
        if before is not None and before.rows != best.rows:
            shutil.rmtree(self._folder(before.rows), ignore_errors=True)

    def becomes_the_model(self) -> None:
        """Move the best model to where the model of a run is. A run that was killed may have done so before."""
        assert self.found is not None
        kept, model = self._folder(self.found.rows), self._run.path / "model"
        if kept.is_dir():
            shutil.rmtree(model, ignore_errors=True)
            with translated_disk_errors(model):
                kept.replace(model)

    def discard(self) -> None:
        """Remove the best model: it is not worth keeping."""
        if self.found is not None:
            path = self._run.path / FILE
            with translated_disk_errors(path):
                path.unlink(missing_ok=True)
            shutil.rmtree(self._folder(self.found.rows), ignore_errors=True)
            self.found = None

    def _folder(self, rows: int) -> Path:
        return self._run.path / f"best-{rows}"

    def _read(self) -> Best | None:
        path = self._run.path / FILE
        if not path.is_file():
            return None
        try:
            return msgspec.json.decode(read_file(path, "train again"), type=Best)
        except BAD_TEXT as error:
            raise DataError(f"`{path}` is broken: {error}", "train again") from None


def as_json(quality: Quality | None) -> dict[str, Any]:
    """Metrics as JSON has them: without NaN, the AUC of rows with one label, say."""
    return {name: value if value == value else None for name, value in (quality or {}).items()}
