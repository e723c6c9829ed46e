"""What does an estimator learn from?"""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray

from paceline.data.labels import Labels
from paceline.sklearn.learned import Doubles


class Sample(NamedTuple):
    """Checked rows to learn from: a matrix, and per row its target, a number or that of a class, and maybe a weight."""

    matrix: Any
    targets: NDArray[Any]
    labels: Labels
    weights: Doubles | None
