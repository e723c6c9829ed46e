"""Which part of a run stands for all of it, and is it long enough?

In the first second, or the first record of a shorter run, memory is touched for the first time. In the first epoch
rows may come from a disk, and later ones find them in memory: if that makes a difference, only the later ones count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from paceline.diagnosis.topology import by_rank, mean_of
from paceline.telemetry.records import GpuChunk, NodeProbe, ShardChunk, StepSample, WorkerChunk

# A first epoch that is slower by this factor does not count.
DIFFERS = 1.1
# Reading at least this much, and several times as much as later, counts as reading the rows from a disk.
DISK_BYTES_PER_SECOND, TIMES_MORE = 1e6, 4.0
FEWEST_STEPS = 20
FEWEST_SECONDS = 1.0
# Time before the steady part of a run.
LEAD_IN_SECONDS = 2.0

Chunk = TypeVar("Chunk", WorkerChunk, ShardChunk, GpuChunk)


class Steady(NamedTuple):
    """What counts of a run, from `since` on.

    `left_out` are the seconds at the beginning of which nothing counts. `first_epoch` are the rows per second of a
    first epoch that does not count, otherwise 0. `from_disk` are the bytes per second that the first epoch read from a
    disk, if it read its rows from there. `only_first`: there is no other. `needed_seconds` is how long the run should
    have trained, 0 if it was long enough.
    """

    chunks: list[WorkerChunk]
    since: float
    left_out: float
    first_epoch: float
    from_disk: float
    only_first: bool
    needed_seconds: float

    def samples(self, samples: Sequence[StepSample]) -> list[StepSample]:
        """The sampled steps of that part; all, if a worker has none there."""
        late = [sample for sample in samples if sample.time >= self.since]
        return late if {one.rank for one in late} == {one.rank for one in samples} else list(samples)

    def of(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """The chunks of shards or GPUs of that part; all steady ones, if one of these has none there."""
        found = without_first(chunks)
        late = [chunk for chunk in found if chunk.time - chunk.seconds >= self.since]
        return late if {one.rank for one in late} == {one.rank for one in found} else found


def without_first(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Chunks without each role's first one, in which memory is touched for the first time; all if there are few."""
    return [chunk for own in by_rank(chunks).values() for chunk in (own[1:] if len(own) > 2 else own)]


def measured_rate(chunks: Sequence[WorkerChunk]) -> float:
    """Rows per second of all workers together."""
    return sum(
        sum(chunk.rows for chunk in own) / max(1e-9, sum(chunk.seconds for chunk in own))
        for own in by_rank(chunks).values()
    )


def steady_part(chunks: Sequence[WorkerChunk], probes: Sequence[NodeProbe], num_rows: int) -> Steady:
    """What counts of a run over `num_rows` rows per epoch; 0 if that is not known."""
    found, ended = without_first(chunks), _end_of_first_epoch(chunks, num_rows)
    before = [chunk for chunk in found if chunk.time <= ended]
    after = [chunk for chunk in chunks if chunk.time - chunk.seconds >= ended]
    since = first = 0.0
    complete = by_rank(before).keys() == by_rank(after).keys() == by_rank(chunks).keys()
    if complete and measured_rate(after) >= DIFFERS * measured_rate(before):
        found, since, first = after, ended, measured_rate(before)
    return Steady(
        chunks=found,
        since=since,
        left_out=max(
            (own[0].time for rank, own in by_rank(chunks).items() if own[0] is not by_rank(found)[rank][0]), default=0.0
        ),
        first_epoch=first,
        from_disk=_read_first(probes, ended),
        only_first=bool(num_rows) and not after,
        needed_seconds=_needed_seconds(found),
    )


def _end_of_first_epoch(chunks: Sequence[WorkerChunk], num_rows: int) -> float:
    """When all rows had been trained on once; infinite if they never were, or their number is not known."""
    trained = 0
    for chunk in sorted(chunks, key=lambda chunk: chunk.time):
        trained += chunk.rows
        if trained >= num_rows > 0:
            return chunk.time
    return math.inf


def _read_first(probes: Sequence[NodeProbe], ended: float) -> float:
    """Bytes per second read from disks until then, if that is much, and much more than later; otherwise 0."""
    parts = [probe for probe in probes if probe.time <= ended], [probe for probe in probes if probe.time > ended]
    before, after = (
        mean_of(part, [probe.disk_read_bytes_per_second for probe in part]) if part else 0.0 for part in parts
    )
    return before if before >= max(DISK_BYTES_PER_SECOND, TIMES_MORE * after) else 0.0


def _needed_seconds(chunks: Sequence[WorkerChunk]) -> float:
    """How long a run must train to have enough steps in its steady part; 0 if this one has."""
    totals = [
        (sum(chunk.steps for chunk in own), sum(chunk.seconds for chunk in own)) for own in by_rank(chunks).values()
    ]
    if all(steps >= FEWEST_STEPS and seconds >= FEWEST_SECONDS for steps, seconds in totals):
        return 0.0
    longest = max(FEWEST_STEPS * seconds / steps for steps, seconds in totals)
    return math.ceil(LEAD_IN_SECONDS + max(2 * FEWEST_SECONDS, 1.5 * longest))
