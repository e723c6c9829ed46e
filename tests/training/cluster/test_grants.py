"""Whoever asks again for a batch gets the same rows, also after a return to a cut."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data.rows import NO_LIMIT, ClockRows, QueueRows
from paceline.training.checkpoint import Handed
from paceline.training.cluster.grants import ClockGrants, GrantSizes, QueueGrants

ROWS, WORKERS, BATCH = 103, 3, 10
NOWHERE = {"position": 0, "clock": 0, "last": NO_LIMIT, "last_clock": NO_LIMIT}


def queue_grants(position: int = 0, handed: Handed | None = None) -> QueueGrants:
    feed = QueueRows(ROWS, WORKERS, BATCH, **{**NOWHERE, "position": position})
    return QueueGrants(feed, GrantSizes(WORKERS, BATCH), BATCH, handed or Handed(), WORKERS)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_cut_loses_and_repeats_nothing(data: st.DataObject) -> None:
    """Take, cut anywhere (each shard on its own), restore, take the rest: every row is applied once at every shard."""
    grants = queue_grants()
    grants.begin_leg()
    grants.feed.open(ROWS)
    batches: list[list[tuple[int, int]]] = [[] for _ in range(WORKERS)]
    for rank in data.draw(st.lists(st.integers(0, WORKERS - 1), max_size=20)):
        got = grants.take(rank, len(batches[rank]) + 1)
        if got is not None:
            batches[rank] += [(int(start), int(stop)) for start, stop, _ in got]
    applied = [[data.draw(st.integers(0, len(mine))) for mine in batches] for _ in range(2)]
    rows = [
        sum(stop - start for mine, done in zip(batches, shard, strict=True) for start, stop in mine[:done])
        for shard in applied
    ]
    handed = grants.handed(applied, rows)
    handed = msgspec.json.decode(msgspec.json.encode(handed), type=Handed)
    seen = [np.zeros(ROWS, int) for _ in applied]
    for visits, shard in zip(seen, applied, strict=True):
        for mine, done in zip(batches, shard, strict=True):
            for start, stop in mine[:done]:
                visits[start:stop] += 1

    restored = queue_grants(grants.feed.position, handed)
    leg = restored.begin_leg()
    assert leg.done == [min(shard[rank] for shard in applied) for rank in range(WORKERS)]
    restored.feed.open(ROWS)
    again = restored.handed(applied, rows)
    assert again.open == handed.open
    for rank in range(WORKERS):
        batch = leg.done[rank] + 1
        while (got := restored.take(rank, batch)) is not None:
            for start, stop, _ in got:
                for visits, shard in zip(seen, applied, strict=True):
                    if batch > shard[rank]:
                        visits[start:stop] += 1
                batch += 1
    for visits in seen:
        assert visits.tolist() == [1] * ROWS


def test_clocks_go_on_from_where_the_leg_was_cut() -> None:
    """Who was ahead at the cut is ahead after it: the bound counts from the same batches."""
    grants = queue_grants()
    grants.begin_leg()
    grants.feed.open(ROWS)
    for rank in range(WORKERS):
        grants.take(rank, 1)
    handed = grants.handed([[1, 0, 0]], [10])
    leg = queue_grants(grants.feed.position, handed).begin_leg()
    assert leg.bases == [0, 0, 0]
    assert leg.done == [1, 0, 0]


def test_in_sync_a_batch_is_a_clock() -> None:
    feed = ClockRows(ROWS, WORKERS, BATCH, **NOWHERE)
    grants = ClockGrants(feed, GrantSizes(WORKERS, BATCH), WORKERS)
    feed.open(ROWS)
    first = grants.take(1, 1)
    assert first is not None
    assert first[0].tolist() == [10, 20, 0]
    repeated = grants.take(1, 1)
    assert repeated is not None
    assert repeated[0].tolist() == first[0].tolist()
    assert grants.begin_leg().bases == [feed.clock] * WORKERS


def test_grants_grow_while_they_are_used_up_soon() -> None:
    now = [0.0]
    sizes = GrantSizes(1, 100, lambda: now[0])
    seen = []
    for seconds in (0.1, 0.1, 0.1, 0.5, 0.5, 2.0, 2.0):
        now[0] += seconds
        seen.append(sizes.next(0))
    assert seen == [2, 4, 8, 8, 8, 4, 2]
