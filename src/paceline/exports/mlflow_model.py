"""A trained model as a folder that MLflow loads and serves. It holds the model's own files, and no pickle."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from paceline.data.sparse import feature_counts, names
from paceline.errors import UsageError
from paceline.models.trained import TrainedModel, load_model
from paceline.version import VERSION

# The files of a model that were read, and can be nothing else; and all.
READ = ("model.json", "model.safetensors")
FILES = (*READ, names.FILE, feature_counts.FILE)


def import_mlflow() -> Any:
    """MLflow, or the error that it is missing."""
    try:
        with warnings.catch_warnings():
            # MLflow warns of its own code.
            warnings.simplefilter("ignore")
            import mlflow.pyfunc
    except ImportError:
        raise UsageError("this needs MLflow, which is not installed", "pip install 'paceline[mlflow]'") from None
    return mlflow


def write_mlflow(model: TrainedModel, run: Path, path: Path) -> None:
    """Write a new folder."""
    extra = "[torch]" if model.entry.module else ""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory(prefix="paceline-") as scratch:
        warnings.simplefilter("ignore")
        import_mlflow().pyfunc.save_model(
            path, loader_module=__name__, data_path=str(_folder_of(run / "model", Path(scratch, "model"))),
            pip_requirements=[f"paceline{extra}=={VERSION}"],
            metadata={"model": model.info.model, "model_sha256": model.info.sha256},
        )  # fmt: skip


def _folder_of(model: Path, folder: Path) -> Path:
    """A new folder that leads to the files that are the model. Whatever else the folder of a run holds stays there: the
    state of the optimizer, and links that someone may have put into it, which MLflow would follow.
    """
    folder.mkdir()
    for name in FILES:
        if (model / name).is_file() and (name in READ or not (model / name).is_symlink()):
            (folder / name).symlink_to((model / name).resolve())
    return folder


class ServedModel:
    """A trained model as MLflow calls it."""

    def __init__(self, model: TrainedModel) -> None:
        self._model = model

    def predict(self, rows: Any, params: dict[str, Any] | None = None) -> Any:
        """The probability of each class [rows, classes]; for losses without probabilities, what they predict [rows]."""
        scores, output = self._model.decision_function(rows), self._model.model.output
        found = output.probabilities(scores)
        return (
            np.stack([1 - found, found], axis=1) if output.task.column == "probability" and found.ndim == 1 else found
        )


def _load_pyfunc(path: str) -> ServedModel:
    """What MLflow calls with the folder of the model's files. Who loads such a folder lets it name code, anyway."""
    return ServedModel(load_model(Path(path).parent, allow_code=True))
