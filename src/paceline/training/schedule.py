"""When does a run evaluate its model, and when is it over? Both follow from its settings and how far it is."""

from __future__ import annotations

import math
from typing import NamedTuple

from paceline.data.rows import NO_LIMIT
from paceline.settings import RunConfig
from paceline.training.checkpoint import Progress


class Schedule(NamedTuple):
    """The end and the evaluations of a run on this many training rows.

    >>> schedule = Schedule(RunConfig(epochs=2, test_every=700), num_rows=1_000)
    >>> [schedule.next_test(Progress(tested=tested)) for tested in (0, 700)]
    [700, 1400]
    >>> schedule.share(Progress(position=500))
    0.25
    """

    config: RunConfig
    num_rows: int

    def share(self, at: Progress) -> float:
        """How much of the run is done by then: at least 1 at its end."""
        last_position = self.config.epochs * self.num_rows or NO_LIMIT
        steps, seconds = self.config.steps or math.inf, self.config.seconds or math.inf
        return max(at.position / last_position, at.clock / steps, at.train_seconds / seconds)

    def is_over(self, at: Progress) -> bool:
        """Whether all is trained. Rows that were handed out before a cut and that some shard lacks come first."""
        return not any(at.handed.open) and self.share(at) >= 1

    def is_done(self, at: Progress) -> bool:
        """Whether all is trained, and evaluated after that."""
        return self.is_over(at) and at.position <= at.tested

    def next_test(self, at: Progress) -> int:
        """The position of the next evaluation during training."""
        every = self.config.test_every
        return (at.tested // every + 1) * every if every else NO_LIMIT

    def test_due(self, at: Progress) -> bool:
        """Whether an evaluation is due, during training or at its end."""
        if any(at.handed.open) or at.position <= at.tested:
            return False
        return at.position >= self.next_test(at) or self.is_over(at)
