"""A trained model as a folder that MLflow loads and serves. It holds the model's own files, and no pickle."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import UsageError
from paceline.models.trained import TrainedModel, load_model
from paceline.version import VERSION


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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_mlflow().pyfunc.save_model(
            path, loader_module=__name__, data_path=str(run / "model"),
            pip_requirements=[f"paceline{extra}=={VERSION}"],
            metadata={"model": model.info.model, "model_sha256": model.info.sha256},
        )  # fmt: skip


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
