"""paceline: distributed training by stochastic gradient descent, at any pace.

>>> import paceline
>>> sorted(paceline.__all__)
['Batch', 'BlockMatrix', 'Model', 'PacelineError', 'Run', 'load', 'train']
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import PacelineError
from paceline.version import VERSION as __version__  # noqa: F401, N811

if TYPE_CHECKING:
    from paceline.data.sparse.batch import Batch
    from paceline.matrices.matrix import BlockMatrix
    from paceline.run_folder import Run
    from paceline.training.model_files import Model

__all__ = ["Batch", "BlockMatrix", "Model", "PacelineError", "Run", "load", "train"]


def train(recipe: str | Path | None = None, *, settings: Iterable[str] = (), **flags: Any) -> Run:
    """Train with the command's flags as keywords (`batch_size=1000` for `--batch-size 1000`); returns the `Run`.

    `settings` are `--set` arguments. Raises a `PacelineError` where the command would print one.
    """
    from paceline.config import read_config
    from paceline.engines import StartingEngine

    config = read_config(Path(recipe) if recipe else None, flags, settings)
    starting = StartingEngine(config)
    from paceline import run

    return run.train(config, starting)


def load(run: str | Path) -> Any:
    """The trained model of a run folder: a `Model` with `predict_proba`, `weights` and `bias`; of images, an
    `ImageModel` with `predict_proba` and `tensors`.
    """
    from paceline.training.model_files import load_model

    return load_model(Path(run))


def __getattr__(name: str) -> Any:
    """`Batch`, `BlockMatrix`, `Run` and `Model` without importing the compiler before it is needed."""
    homes = {
        "Batch": "paceline.data.sparse.batch",
        "BlockMatrix": "paceline.matrices.matrix",
        "Model": "paceline.training.model_files",
        "Run": "paceline.run_folder",
    }
    if name not in homes:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(homes[name]), name)
