"""Which rows does a run read, in which order, and where does its feed of them begin and end?"""

from __future__ import annotations

from typing import Any, TypeVar

from paceline.data.rows import NO_LIMIT, ClockRows, EpochOrder, QueueRows
from paceline.settings import RunConfig
from paceline.training.checkpoint import Progress

Feed = TypeVar("Feed", ClockRows, QueueRows)


def make_feed(kind: type[Feed], config: RunConfig, num_rows: int, at: Progress) -> Feed:
    """Hands out the rows of a run, from where it continues to its last epoch or clock."""
    return kind(
        num_rows, config.workers, config.batch_size, position=at.position, clock=at.clock,
        last=config.epochs * num_rows if config.epochs else NO_LIMIT, last_clock=config.steps or NO_LIMIT,
    )  # fmt: skip


def make_order(config: RunConfig, dataset: Any) -> EpochOrder:
    """The order in which a run reads the training rows of a dataset."""
    return EpochOrder([block.rows for block in dataset.split("train").blocks], config.seed, config.shuffle)
