"""What must hold while a run trains? Losses are numbers, and the keys of one update can be numbered."""

from __future__ import annotations

import math
from typing import Any

from paceline.errors import ConfigError, DivergedError
from paceline.parameters.layout import Layout
from paceline.parameters.scratch import MOST_KEYS
from paceline.settings import RunConfig
from paceline.training.pace import Pace

# How many times the loss of a constant prediction a run must have to count as diverged.
TIMES_WORSE = 10


def check_losses(losses: Any, position: int, rank: int, clock: int, rate: float) -> None:
    """Raise unless a sum of losses is finite. On a GPU it is not known yet: evaluations check it."""
    if isinstance(losses, float) and not math.isfinite(losses):
        raise DivergedError(
            f"the loss is no longer a number: worker {rank}, by step {clock}, in the rows from {position:,} on, "
            f"learning rate {rate:g}",
            f"--learning-rate {rate / 10:g}, or another --optimizer; check the data for huge values",
        )


def has_diverged(loss: float, baseline: float, start: float, before: float | None = None) -> bool:
    """Whether a run that ends with this loss has diverged: it is far worse than predicting a constant, and not falling.

    `start` is the loss that training began with: the baseline is 0 if all labels are the same. `before` is the loss of
    the evaluation before, if there was one.

    >>> has_diverged(526.0, 0.6, 0.7), has_diverged(526.0, 0.6, 0.7, before=600.0), has_diverged(3.0, 0.6, 0.7)
    (True, False, False)
    """
    # Some losses are below 0.
    limit = baseline + (TIMES_WORSE - 1) * max(abs(baseline), abs(start))
    return loss > limit and (before is None or not loss < before)


def check_updates(config: RunConfig, dataset: Any, layout: Layout) -> None:
    """Refuse a configuration whose updates may have more distinct keys than can be numbered."""
    if layout.table is not None:
        rows = Pace.of(config.pace).rows_per_update(config.workers, config.batch_size)
        nonzeros = min(rows, dataset.split("train").rows) * dataset.longest_row
        most = min(nonzeros, layout.table.features) + 1
        if most > MOST_KEYS:
            raise ConfigError(
                f"an update of {rows:,} rows may have {most:,} distinct keys; the limit is {MOST_KEYS:,}",
                f"--batch-size {max(1, config.batch_size * MOST_KEYS // most)}, or fewer workers",
            )
