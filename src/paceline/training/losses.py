"""Is the loss still a number?"""

from __future__ import annotations

import math
from typing import Any

from paceline.errors import DivergedError


def check_losses(losses: Any, position: int, rank: int, clock: int, rate: float) -> None:
    """Raise unless a sum of losses is finite. On a GPU it is not known yet: evaluations check it."""
    if isinstance(losses, float) and not math.isfinite(losses):
        raise DivergedError(
            f"the loss is no longer a number: worker {rank}, by step {clock}, in the rows from {position:,} on, "
            f"learning rate {rate:g}",
            f"--learning-rate {rate / 10:g}, or --optimizer adagrad; check the data for huge values",
        )
