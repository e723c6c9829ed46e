"""What would another number of workers, pace or batch size give on threads of one process?

Threads share caches and memory and, in sync, wait for each other in every step. One run cannot tell what others of them
would cost. `paceline doctor` trains with several numbers of workers at several paces, and a run keeps what it found:
the ratio of two of those speeds is the prediction. Without it, or for steps that are very different from those, there
is only a range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from paceline.diagnosis.changes import Range
from paceline.diagnosis.evidence import Evidence
from paceline.telemetry.ceilings import TrainingSpeed

# A run whose speed is within this factor of what `doctor` measured at the same settings has the same ratios.
ALIKE = 2.0
# What is known without a measurement: more workers gain between a part and all of what as many cores could. A step of
# sync takes up to this many times as long as one without a fold; larger batches gain up to this much.
LEAST_SHARE_OF_CORES = 0.4
FOLD, LARGER_BATCHES = 1.6, 1.3
# Single rows have a loop of their own at async, which is up to this many times faster than that of small batches.
SINGLE_ROWS = 1.5


class EmbeddedSetup(NamedTuple):
    """How an embedded run trains."""

    pace: str | int
    workers: int
    batch_size: int


def setup_of(evidence: Evidence) -> EmbeddedSetup:
    """The settings of a run."""
    config = evidence.config
    return EmbeddedSetup(config.pace, config.workers, config.batch_size)


def embedded_gain(evidence: Evidence, setup: EmbeddedSetup) -> Range:
    """How many times faster an embedded run would be."""
    before, cores = setup_of(evidence), evidence.topology.cores[0]
    ideal = min(setup.workers, cores) / min(before.workers, cores)
    ceilings = evidence.facts.ceilings
    speeds = [speed_of(ceilings.training if ceilings else [], one, cores) for one in (before, setup)]
    if not all(speeds):
        return _guess(before, setup, ideal)
    gain = speeds[1] / speeds[0]
    if 1 / ALIKE <= evidence.rows_per_second / speeds[0] <= ALIKE:
        return Range(gain, gain)
    return Range(min(gain, ideal), max(gain, ideal))


def slower_in_larger_batches(evidence: Evidence, times: int) -> float:
    """How many times longer a row takes in batches of `times` as many rows while all cores compute; 1 if that is not
    known, or steps get cheaper: what a step takes besides its rows is counted elsewhere.
    """
    ceilings, size = evidence.facts.ceilings, evidence.config.batch_size
    if ceilings is None or not evidence.facts.traits.compiled_steps:
        return 1.0
    cores = max(evidence.topology.cores)
    now, then = (
        speed_of(ceilings.training, EmbeddedSetup("async", math.ceil(cores), rows), cores)
        for rows in (size, times * size)
    )
    return max(1.0, now / then) if now and then else 1.0


def _guess(before: EmbeddedSetup, after: EmbeddedSetup, ideal: float) -> Range:
    """A range that holds on most machines."""
    least = 1 + LEAST_SHARE_OF_CORES * (ideal - 1)
    low, high = min(least, ideal), max(least, ideal)
    if before.pace == "sync" != after.pace:
        high *= FOLD
    elif after.pace == "sync" != before.pace:
        low /= FOLD
    if before.batch_size == 1 < after.batch_size and "sync" not in (before.pace, after.pace):
        low /= SINGLE_ROWS
    elif after.batch_size > before.batch_size:
        high *= LARGER_BATCHES
    return Range(low, high)


def speed_of(training: Sequence[TrainingSpeed], setup: EmbeddedSetup, cores: float) -> float:
    """Rows per second at these settings, between and beyond those that were measured; 0 if too few were.

    >>> found = [TrainingSpeed(pace="sync", workers=w, batch_size=100, rows_per_second=1e6 * w) for w in (1, 2)]
    >>> found += [TrainingSpeed(pace="sync", workers=w, batch_size=200, rows_per_second=1e6 * w) for w in (1, 2)]
    >>> [round(speed_of(found, EmbeddedSetup("sync", workers, 400), cores=2)) for workers in (1, 2, 4)]
    [1000000, 2000000, 2000000]
    """
    kind = setup.pace if isinstance(setup.pace, str) and not setup.pace.isdigit() else "4"
    # Steps of one row each have a loop of their own.
    own = [one for one in training if one.pace == kind and (one.batch_size == 1) == (setup.batch_size == 1)]
    counts = sorted({one.workers for one in training})
    by_count = [[one for one in own if one.workers == count] for count in counts]
    if not counts or min(map(len, by_count)) < (1 if setup.batch_size == 1 else 2):
        return 0.0
    workers = min(float(setup.workers), cores)
    times = []
    for count, measured in zip(counts, by_count, strict=True):
        points = sorted((one.batch_size, count * one.batch_size / one.rows_per_second) for one in measured)
        times.append((float(count), _between([(float(x), y) for x, y in points], setup.batch_size)))
    # More workers than were tried share cores as those did.
    reached = min(workers, times[-1][0])
    return reached * setup.batch_size / _between(times, reached)


def _between(points: Sequence[tuple[float, float]], at: float) -> float:
    """The value on straight lines through points, continued at both ends but never below a tenth of the nearest."""
    if len(points) == 1:
        (only, value) = points[0]
        return value * at / only
    last = len(points) - 2
    place = min(last, max(0, sum(x <= at for x, _ in points) - 1))
    (left, low), (right, high) = points[place : place + 2]
    value = low + (high - low) * (at - left) / (right - left)
    return max(value, min(low, high) / 10)
