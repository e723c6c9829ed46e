"""paceline: distributed training by stochastic gradient descent, at any pace.

>>> import paceline
>>> [name for name in sorted(paceline.__all__) if name.islower()]
['compare', 'evaluate', 'export', 'info', 'load', 'plan', 'predict', 'prepare', 'resume', 'sweep', 'top', 'train']
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from paceline.errors import PacelineError, PacelineWarning
from paceline.version import VERSION

if TYPE_CHECKING:
    from paceline.api import (
        Run,
        compare,
        evaluate,
        export,
        info,
        load,
        plan,
        predict,
        prepare,
        resume,
        sweep,
        top,
        train,
    )
    from paceline.data.sparse.batch import Batch
    from paceline.matrices.matrix import BlockMatrix
    from paceline.models.trained import TrainedModel
    from paceline.options import PrepareOptions, RawOptions, RowOptions, TrainOptions
    from paceline.training.coordinator import Status

__version__ = VERSION
__all__ = [
    "Batch", "BlockMatrix", "PacelineError", "PacelineWarning", "PrepareOptions", "RawOptions", "RowOptions", "Run",
    "Status", "TrainOptions", "TrainedModel",
    "compare", "evaluate", "export", "info", "load", "plan", "predict", "prepare", "resume", "sweep", "top", "train",
]  # fmt: skip

_HOMES = {
    "Batch": "paceline.data.sparse.batch",
    "BlockMatrix": "paceline.matrices.matrix",
    "PrepareOptions": "paceline.options",
    "RawOptions": "paceline.options",
    "RowOptions": "paceline.options",
    "Status": "paceline.training.coordinator",
    "TrainOptions": "paceline.options",
    "TrainedModel": "paceline.models.trained",
}


def __getattr__(name: str) -> Any:
    """Everything but errors, without importing the compiler before it is needed."""
    if name not in __all__:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    found = getattr(import_module(_HOMES.get(name, "paceline.api")), name)
    globals()[name] = found
    return found
