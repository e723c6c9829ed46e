"""Asking again for a batch gives the same rows, also after a return to a cut."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data.rows import NO_LIMIT, ClockRows, QueueRows
from paceline.training.checkpoint import Handed
from paceline.training.cluster.leases import ClockLeases, LeaseSizes, QueueLeases

ROWS, WORKERS, BATCH = 103, 3, 10
NOWHERE = {"position": 0, "clock": 0, "last": NO_LIMIT, "last_clock": NO_LIMIT}


def queue_leases(position: int = 0, handed: Handed | None = None) -> QueueLeases:
    feed = QueueRows(ROWS, WORKERS, BATCH, **{**NOWHERE, "position": position})
    return QueueLeases(feed, LeaseSizes(WORKERS, BATCH), BATCH, handed or Handed(), WORKERS)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_cut_loses_and_repeats_nothing(data: st.DataObject) -> None:
    """Take, cut anywhere (each shard on its own), restore, take the rest: every row is applied once at every shard."""
    leases = queue_leases()
    leases.begin_segment()
    leases.feed.open(ROWS)
    batches: list[list[tuple[int, int]]] = [[] for _ in range(WORKERS)]
    for rank in data.draw(st.lists(st.integers(0, WORKERS - 1), max_size=20)):
        got = leases.take(rank, len(batches[rank]) + 1)
        if got is not None:
            batches[rank] += [(int(start), int(stop)) for start, stop, _ in got]
    applied = [[data.draw(st.integers(0, len(mine))) for mine in batches] for _ in range(2)]
    rows = [
        sum(stop - start for mine, done in zip(batches, shard, strict=True) for start, stop in mine[:done])
        for shard in applied
    ]
    handed = leases.handed(applied, rows)
    handed = msgspec.json.decode(msgspec.json.encode(handed), type=Handed)
    seen = [np.zeros(ROWS, int) for _ in applied]
    for visits, shard in zip(seen, applied, strict=True):
        for mine, done in zip(batches, shard, strict=True):
            for start, stop in mine[:done]:
                visits[start:stop] += 1

    restored = queue_leases(leases.feed.position, handed)
    segment = restored.begin_segment()
    assert segment.done == [min(shard[rank] for shard in applied) for rank in range(WORKERS)]
    restored.feed.open(ROWS)
    again = restored.handed(applied, rows)
    assert again.open == handed.open
    for rank in range(WORKERS):
        batch = segment.done[rank] + 1
        while (got := restored.take(rank, batch)) is not None:
            for start, stop, _ in got:
                for visits, shard in zip(seen, applied, strict=True):
                    if batch > shard[rank]:
                        visits[start:stop] += 1
                batch += 1
    for visits in seen:
        assert visits.tolist() == [1] * ROWS


def test_clocks_go_on_from_where_the_segment_was_cut() -> None:
    """Who was ahead at the cut is ahead after it: the bound counts from the same batches."""
    leases = queue_leases()
    leases.begin_segment()
    leases.feed.open(ROWS)
    for rank in range(WORKERS):
        leases.take(rank, 1)
    handed = leases.handed([[1, 0, 0]], [10])
    segment = queue_leases(leases.feed.position, handed).begin_segment()
    assert segment.bases == [0, 0, 0]
    assert segment.done == [1, 0, 0]


def test_in_sync_a_batch_is_a_clock() -> None:
    feed = ClockRows(ROWS, WORKERS, BATCH, **NOWHERE)
    leases = ClockLeases(feed, LeaseSizes(WORKERS, BATCH), WORKERS)
    feed.open(ROWS)
    first = leases.take(1, 1)
    assert first is not None
    assert first[0].tolist() == [10, 20, 0]
    repeated = leases.take(1, 1)
    assert repeated is not None
    assert repeated[0].tolist() == first[0].tolist()
    assert leases.begin_segment().bases == [feed.clock] * WORKERS


def test_leases_grow_while_they_are_used_up_soon() -> None:
    now = [0.0]
    sizes = LeaseSizes(1, 100, lambda: now[0])
    seen = []
    for seconds in (0.1, 0.1, 0.1, 0.5, 0.5, 2.0, 2.0):
        now[0] += seconds
        seen.append(sizes.next(0))
    assert seen == [2, 4, 8, 8, 8, 4, 2]
