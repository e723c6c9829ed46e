"""Each row is read once an epoch, whoever reads and wherever reading is paused."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data.rows import NO_LIMIT, ClockRows, EpochOrder, Piece, QueueRows


@given(blocks=st.lists(st.integers(1, 200), min_size=1, max_size=8), seed=st.integers(0, 2**40), data=st.data())
@settings(max_examples=60, deadline=None)
def test_an_epoch_holds_each_row_once(blocks: list[int], seed: int, data: st.DataObject) -> None:
    order, total = EpochOrder(blocks, seed), sum(blocks)
    epoch = data.draw(st.integers(0, 5))
    cuts = sorted({0, total, *data.draw(st.lists(st.integers(0, total), max_size=6))})
    seen: Counter[tuple[int, int]] = Counter()
    for start, stop in zip(cuts, cuts[1:], strict=False):
        for segment in order.segments(Piece(epoch * total + start, epoch * total + stop, 0)):
            seen.update((segment.block, row) for row in segment.rows.tolist())
    assert seen == Counter({(b, r): 1 for b, rows in enumerate(blocks) for r in range(rows)})


def test_order_depends_on_seed_and_epoch_alone() -> None:
    def rows(seed: int, epoch: int) -> list[tuple[int, int]]:
        order = EpochOrder([1000, 1000, 500], seed)
        piece = Piece(2500 * epoch, 2500 * (epoch + 1), 0)
        return [(s.block, r) for s in order.segments(piece) for r in s.rows.tolist()]

    assert rows(1, 0) == rows(1, 0)
    assert rows(1, 0) != rows(1, 1)
    assert rows(1, 0) != rows(2, 0)
    # Runs of 32 rows stay together, for speed; beyond that neighbours are strangers.
    steps = Counter(np.diff([r for b, r in rows(1, 0) if b == 0]).tolist())
    assert steps[1] > 900
    assert sum(count for step, count in steps.items() if step != 1) > 25


FEEDS = st.sampled_from([ClockRows, QueueRows])


@given(
    kind=FEEDS, num_rows=st.integers(1, 500), workers=st.integers(1, 9), batch=st.integers(1, 120),
    epochs=st.integers(1, 3), seed=st.integers(0, 1000), stops=st.lists(st.integers(1, 1500), max_size=4),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_every_position_is_handed_out_once(
    kind: type[ClockRows | QueueRows], num_rows: int, workers: int, batch: int, epochs: int, seed: int, stops: list[int]
) -> None:
    """Workers draw in a random order, legs end at random places, someone pauses at random: nothing is lost."""
    rng = np.random.default_rng(seed)
    last = epochs * num_rows
    feed = kind(num_rows, workers, batch, position=0, last=last, last_clock=NO_LIMIT, clock=0)
    got: list[Piece] = []
    for until in [*sorted(stops), NO_LIMIT, NO_LIMIT]:
        feed.open(until)
        out_of_rows: set[int] = set()
        while len(out_of_rows) < workers:
            rank = int(rng.integers(workers))
            if until != NO_LIMIT and rng.random() < 0.02:
                feed.pause()
            piece = feed.take(rank)
            if piece is None:
                out_of_rows.add(rank)
            else:
                assert rank not in out_of_rows or kind is QueueRows
                got.append(piece)
        assert sum(p.stop - p.start for p in got) == feed.position
    positions = [i for p in got for i in range(p.start, p.stop)]
    assert sorted(positions) == list(range(last))
    for piece in got:
        assert piece.stop - piece.start <= batch or kind is QueueRows
        assert piece.start == piece.stop or piece.start // num_rows == (piece.stop - 1) // num_rows


def test_sync_ranks_take_slices_of_the_clock() -> None:
    feed = ClockRows(10, 2, 3, position=0, last=20, last_clock=NO_LIMIT, clock=0)
    feed.open(NO_LIMIT)
    taken = [[feed.take(rank) for _ in range(3)] for rank in (0, 1)]
    assert [[(p.start, p.stop, p.trained) for p in pieces if p] for pieces in taken] == [
        [(0, 3, 0), (6, 8, 6), (10, 13, 10)],
        [(3, 6, 0), (8, 10, 6), (13, 16, 10)],
    ]


def test_a_rank_may_get_no_rows_of_the_last_clock() -> None:
    feed = ClockRows(7, 4, 1, position=4, last=7, last_clock=NO_LIMIT, clock=1)
    feed.open(NO_LIMIT)
    pieces = [feed.take(rank) for rank in range(4)]
    assert [p.stop - p.start for p in pieces if p] == [0, 1, 1, 1]


@pytest.mark.parametrize("kind", [ClockRows, QueueRows])
def test_steps_are_clocks_of_the_furthest_worker(kind: type[ClockRows | QueueRows]) -> None:
    feed = kind(10_000, 3, 10, position=0, last=NO_LIMIT, last_clock=40, clock=0)
    feed.open(NO_LIMIT)
    while any([feed.take(rank) is not None for rank in range(3)]):
        assert feed.clock <= 40
    assert feed.clock == 40
