"""What must hold while a run trains? Losses are numbers, and the keys of one update can be numbered."""

from __future__ import annotations

import math
from typing import Any

from paceline.errors import ConfigError, DivergedError
from paceline.parameters.layout import Layout
from paceline.parameters.scratch import MOST_KEYS
from paceline.settings import RunConfig
from paceline.training.pace import Pace


def check_losses(losses: Any, position: int, rank: int, clock: int, rate: float) -> None:
    """Raise unless a sum of losses is finite. On a GPU it is not known yet: evaluations check it."""
    if isinstance(losses, float) and not math.isfinite(losses):
        raise DivergedError(
            f"the loss is no longer a number: worker {rank}, by step {clock}, in the rows from {position:,} on, "
            f"learning rate {rate:g}",
            f"--learning-rate {rate / 10:g}, or another --optimizer; check the data for huge values",
        )


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
