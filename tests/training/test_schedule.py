"""When a run evaluates and ends."""

from __future__ import annotations

import pytest

from paceline.data.rows import NO_LIMIT
from paceline.settings import RunConfig
from paceline.training.checkpoint import Handed, Progress
from paceline.training.schedule import Schedule

ROWS = 1_000
OPEN = Handed(open=[[(1, 0, 10)]])


@pytest.mark.parametrize(
    ("config", "at", "share"),
    [
        (RunConfig(epochs=2), Progress(position=500), 0.25),
        (RunConfig(epochs=0, steps=8), Progress(position=500, clock=2), 0.25),
        (RunConfig(epochs=0, seconds=4.0), Progress(position=500, train_seconds=1.0), 0.25),
        # What ends first, ends the run.
        (RunConfig(epochs=10, steps=4), Progress(position=500, clock=4), 1.0),
    ],
)
def test_how_much_is_done(config: RunConfig, at: Progress, share: float) -> None:
    assert Schedule(config, ROWS).share(at) == pytest.approx(share)
    assert Schedule(config, ROWS).is_over(at) == (share >= 1)


def test_a_run_is_done_when_its_end_is_evaluated() -> None:
    schedule = Schedule(RunConfig(epochs=1), ROWS)
    at = Progress(position=ROWS)
    assert schedule.is_over(at)
    assert schedule.test_due(at)
    assert not schedule.is_done(at)
    assert schedule.is_done(Progress(position=ROWS, tested=ROWS))


def test_evaluations_on_the_way() -> None:
    schedule = Schedule(RunConfig(epochs=1, test_every=300), ROWS)
    assert [schedule.next_test(Progress(tested=tested)) for tested in (0, 300, 310)] == [300, 600, 600]
    assert [schedule.test_due(Progress(position=position)) for position in (0, 299, 300)] == [False, False, True]
    assert not schedule.test_due(Progress(position=310, tested=310))
    assert Schedule(RunConfig(epochs=1), ROWS).next_test(Progress()) == NO_LIMIT


def test_rows_that_some_shard_lacks_come_first() -> None:
    """A cluster may be cut when all rows are handed out but some are not in: the run is not over then."""
    schedule = Schedule(RunConfig(epochs=1), ROWS)
    at = Progress(position=ROWS, handed=OPEN)
    assert not schedule.is_over(at)
    assert not schedule.test_due(at)
