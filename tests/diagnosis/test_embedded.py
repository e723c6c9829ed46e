"""Predictions for threads of one process come from what the machine was seen to do."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from paceline.diagnosis.embedded import EmbeddedSetup, embedded_gain, speed_of
from paceline.diagnosis.evidence import gather_evidence
from paceline.telemetry.ceilings import TrainingSpeed
from paceline.telemetry.facts import write_facts
from tests.diagnosis.folders import ROWS, ceilings, make_embedded


def speeds(pace: str, workers: int, seconds_per_row: float, seconds_per_step: float = 0.0) -> list[TrainingSpeed]:
    return [
        TrainingSpeed(pace=pace, workers=workers, batch_size=size,
                      rows_per_second=workers * size / (size * seconds_per_row + seconds_per_step))
        for size in (100, 1000)
    ]  # fmt: skip


MEASURED = [
    *speeds("sync", 1, 1e-6), *speeds("sync", 4, 2e-6, 1e-4), *speeds("4", 1, 1e-6), *speeds("4", 4, 1e-6),
    *speeds("async", 1, 5e-7),
]  # fmt: skip


@pytest.mark.parametrize(
    ("setup", "cores", "rows_per_second"),
    [
        (EmbeddedSetup("sync", 1, 100), 4, 1e6),
        (EmbeddedSetup("sync", 4, 100), 4, 4 / 3e-6),
        # A step of 500 rows: those, and what a step takes whatever its size.
        (EmbeddedSetup("sync", 4, 500), 4, 4 / 2.2e-6),
        (EmbeddedSetup("sync", 4, 4000), 4, 4 / 2.025e-6),
        # Between one worker and four; and more than there are cores.
        (EmbeddedSetup("sync", 2, 1000), 4, 2 / (1e-6 + (2.1e-6 - 1e-6) / 3)),
        (EmbeddedSetup("sync", 16, 1000), 4, 4 / 2.1e-6),
        (EmbeddedSetup(8, 1, 100), 4, 1e6),
        # Single rows were not measured, nor was async with four workers.
        (EmbeddedSetup("async", 1, 1), 4, 0.0),
        (EmbeddedSetup("async", 1, 100), 4, 0.0),
    ],
)
def test_between_and_beyond_what_was_measured(setup: EmbeddedSetup, cores: float, rows_per_second: float) -> None:
    assert speed_of(MEASURED, setup, cores) == pytest.approx(rows_per_second)


def test_steps_unlike_those_that_were_measured_are_given_a_range(tmp_path: Path) -> None:
    """The run trains 100,000 rows per second with each worker."""
    run = make_embedded(tmp_path / "run", cores=4, ranks=((0,),), pace="sync")
    for times, known in ((1.0, True), (20.0, False)):
        training = [*speeds("sync", 1, 1e-5 / times), *speeds("sync", 4, 2e-5 / times)]
        found = msgspec.structs.replace(ceilings(1e9), training=training)
        write_facts(run.path, msgspec.structs.replace(run.facts, ceilings=found))
        gain = embedded_gain(gather_evidence(run), EmbeddedSetup("sync", 4, ROWS))
        assert gain.low == pytest.approx(2.0)
        assert gain.is_known == known
        assert known or gain.high == pytest.approx(4.0)


@pytest.mark.parametrize(("before", "most"), [(1, 1.0), (100, 1.3)])
def test_single_rows_are_not_expected_to_gain_from_batches(tmp_path: Path, before: int, most: float) -> None:
    """Without measurements of the machine. The default run must not be told to give its own loop up."""
    run = make_embedded(tmp_path / "run")
    recorded = gather_evidence(run)
    evidence = recorded._replace(config=msgspec.structs.replace(recorded.config, batch_size=before))
    gain = embedded_gain(evidence, EmbeddedSetup("async", 2, 4 * before))
    assert gain.high == pytest.approx(most)
    assert (gain.likely < 1.0) == (before == 1)
