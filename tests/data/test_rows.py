"""Each row is read once per epoch, no matter who reads it and where reading is paused."""

from __future__ import annotations

from collections import Counter
from itertools import cycle, pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data.rows import NO_LIMIT, ClockRows, Clocks, EpochOrder, Piece, QueueRows


@given(blocks=st.lists(st.integers(1, 200), min_size=1, max_size=8), seed=st.integers(0, 2**40), data=st.data())
@settings(max_examples=60, deadline=None)
def test_an_epoch_holds_each_row_once(blocks: list[int], seed: int, data: st.DataObject) -> None:
    order, total = EpochOrder(blocks, seed), sum(blocks)
    epoch = data.draw(st.integers(0, 5))
    cuts = sorted({0, total, *data.draw(st.lists(st.integers(0, total), max_size=6))})
    seen: Counter[tuple[int, int]] = Counter()
    for start, stop in pairwise(cuts):
        for block, rows in order.between(epoch * total + start, epoch * total + stop):
            seen.update((block, row) for row in rows.tolist())
    assert seen == Counter({(b, r): 1 for b, count in enumerate(blocks) for r in range(count)})


def test_order_depends_on_seed_and_epoch_alone() -> None:
    def rows(seed: int, epoch: int) -> list[tuple[int, int]]:
        order = EpochOrder([1000, 1000, 500], seed)
        found = order.between(2500 * epoch, 2500 * (epoch + 1))
        return [(block, row) for block, rows in found for row in rows.tolist()]

    assert rows(1, 0) == rows(1, 0)
    assert rows(1, 0) != rows(1, 1)
    assert rows(1, 0) != rows(2, 0)
    # Runs of 32 rows stay together, for speed; beyond that neighbours are strangers.
    steps = Counter(np.diff([r for b, r in rows(1, 0) if b == 0]).tolist())
    assert steps[1] > 900
    assert sum(count for step, count in steps.items() if step != 1) > 25


def positions_of(clocks: Clocks, ranks: list[int]) -> list[int]:
    return [i for clock in range(clocks.num_clocks) for rank in ranks for i in range(*clocks.slice(clock, rank))]


SIZES = {
    "num_rows": st.integers(1, 500), "workers": st.integers(1, 9), "batch": st.integers(1, 120),
    "epochs": st.integers(1, 3), "seed": st.integers(0, 1000), "stops": st.lists(st.integers(1, 1500), max_size=4),
}  # fmt: skip


@given(**SIZES, most=st.integers(1, 200))
@settings(max_examples=100, deadline=None)
def test_the_queue_hands_out_every_position_once(
    num_rows: int, workers: int, batch: int, epochs: int, seed: int, stops: list[int], most: int
) -> None:
    """Workers draw in a random order, segments end at random places, someone pauses at random: nothing is lost."""
    rng, last = np.random.default_rng(seed), epochs * num_rows
    feed = QueueRows(num_rows, workers, batch, position=0, last=last, last_clock=NO_LIMIT, clock=0)
    got: list[Piece] = []
    for until in [*sorted(stops), NO_LIMIT]:
        feed.open(until)
        while (piece := feed.take(int(rng.integers(workers)), most)) is not None:
            got.append(piece)
            if until != NO_LIMIT and rng.random() < 0.02:
                feed.pause()
        assert feed.position < min(until, last) + batch or until == NO_LIMIT
    assert [i for p in got for i in range(p.start, p.stop)] == list(range(last))
    for piece in got:
        assert piece.start // num_rows == (piece.stop - 1) // num_rows


@given(**SIZES, most=st.integers(1, 20), threads=st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_clocks_hand_out_every_position_once(
    num_rows: int, workers: int, batch: int, epochs: int, seed: int, stops: list[int], most: int, threads: int
) -> None:
    """Threads take the clocks of their ranks, some far ahead of others; all come to the same boundary."""
    rng, last, threads = np.random.default_rng(seed), epochs * num_rows, min(threads, workers)
    feed = ClockRows(num_rows, workers, batch, position=0, last=last, last_clock=NO_LIMIT, clock=0)
    positions: list[int] = []
    for until in [*sorted(stops), NO_LIMIT]:
        feed.open(until)
        running = set(range(threads))
        while running:
            thread = int(rng.choice(sorted(running)))
            if until != NO_LIMIT and rng.random() < 0.02:
                feed.pause()
            ranks = list(range(workers * thread // threads, workers * (thread + 1) // threads))
            taken = feed.take(ranks, most)
            if taken is None:
                # Out of rows for now: but others may have gone further, to where this thread must follow.
                running.discard(thread)
                continue
            running = set(range(threads))
            found = positions_of(taken, ranks)
            assert len(found) == taken.rows_of(ranks) <= batch * len(ranks) * taken.num_clocks
            assert len({position // num_rows for position in found}) <= 1
            positions += found
        assert sorted(positions) == list(range(feed.position))
    assert feed.position == last


def slices(feed: ClockRows, ranks: list[int], most: int) -> list[list[int]]:
    taken = feed.take(ranks, most)
    assert taken is not None
    return [list(range(*taken.slice(clock, rank))) for clock in range(taken.num_clocks) for rank in ranks]


def test_sync_ranks_take_slices_of_the_clock() -> None:
    feed = ClockRows(10, 2, 3, position=0, last=20, last_clock=NO_LIMIT, clock=0)
    feed.open(NO_LIMIT)
    assert slices(feed, [0], 5) == [[0, 1, 2], [6, 7]]
    assert slices(feed, [1], 1) == [[3, 4, 5]]
    assert slices(feed, [1], 1) == [[8, 9]]
    assert slices(feed, [0], 1) == [[10, 11, 12]]


def test_a_rank_may_get_no_rows_of_the_last_clock() -> None:
    feed = ClockRows(7, 4, 1, position=4, last=7, last_clock=NO_LIMIT, clock=1)
    feed.open(NO_LIMIT)
    assert slices(feed, [0, 1, 2, 3], 1) == [[], [4], [5], [6]]


def test_steps_are_clocks_of_the_furthest_worker() -> None:
    clocks = ClockRows(10_000, 3, 10, position=0, last=NO_LIMIT, last_clock=40, clock=0)
    clocks.open(NO_LIMIT)
    while clocks.take([0, 1, 2], 7) is not None:
        assert clocks.clock <= 40
    queue = QueueRows(10_000, 3, 10, position=0, last=NO_LIMIT, last_clock=40, clock=0)
    queue.open(NO_LIMIT)
    ranks = cycle(range(3))
    while queue.take(next(ranks), 100) is not None:
        assert queue.clock <= 40
    assert clocks.clock == queue.clock == 40
