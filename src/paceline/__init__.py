"""paceline: distributed training by stochastic gradient descent, at any pace.

>>> import paceline
>>> sorted(paceline.__all__)
['Batch', 'BlockMatrix', 'PacelineError', 'PacelineWarning', 'Run', 'TrainedModel', 'load', 'train']
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import PacelineError, PacelineWarning
from paceline.version import VERSION

if TYPE_CHECKING:
    from paceline.api import Run
    from paceline.data.sparse.batch import Batch
    from paceline.matrices.matrix import BlockMatrix
    from paceline.models.trained import TrainedModel

__version__ = VERSION
__all__ = ["Batch", "BlockMatrix", "PacelineError", "PacelineWarning", "Run", "TrainedModel", "load", "train"]


def train(recipe: str | Path | None = None, *, settings: Iterable[str] = (), **flags: Any) -> Run:
    """Train with the command's flags as keywords (`batch_size=1000` for `--batch-size 1000`); returns the `Run`.

    `settings` are `--set` arguments. Raises a `PacelineError` where the command would print one.
    """
    from paceline.config import read_config
    from paceline.training.cluster.placement import engine_for

    config = read_config(Path(recipe) if recipe else None, flags, settings)
    with engine_for(config) as engine:
        from paceline import run

        folder = run.train(config, engine)
    from paceline.api import Run

    return Run(folder.path)


def load(run: str | Path, *, allow_code: bool = False) -> TrainedModel:
    """The trained model of a run folder: `predict_proba` and `tensors`, and `weights` and `bias` if it is linear.

    A model of your own needs its code, which is imported and run only with `allow_code`: a run folder that somebody
    else made can name any module.
    """
    from paceline.models.trained import load_model

    return load_model(Path(run), allow_code=allow_code)


def __getattr__(name: str) -> Any:
    """`Batch`, `BlockMatrix`, `Run` and `TrainedModel` without importing the compiler before it is needed."""
    homes = {
        "Batch": "paceline.data.sparse.batch",
        "BlockMatrix": "paceline.matrices.matrix",
        "TrainedModel": "paceline.models.trained",
        "Run": "paceline.api",
    }
    if name not in homes:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(homes[name]), name)
