"""The gate lets a worker begin a clock if, and only if, the slowest is not too far behind."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.kernels.gate import GONE, LINE, WAITED, passes, slowest, tick

Lines = np.ndarray[Any, np.dtype[np.int64]]


def lines(numbers: list[int]) -> Lines:
    """One cache line for each number; everything else on it is noise, which must not matter."""
    found = np.full((len(numbers), LINE), -99, np.int64)
    found[:, 0] = numbers
    return found


CLOCKS = st.lists(st.one_of(st.integers(0, 50), st.just(int(GONE))), min_size=1, max_size=9)


@given(clocks=CLOCKS, clock=st.integers(0, 50), staleness=st.one_of(st.integers(0, 10), st.just(1 << 60)))
def test_it_is_open_within_the_bound_and_shut_beyond(clocks: list[int], clock: int, staleness: int) -> None:
    shared, waited = lines(clocks), np.zeros((2, LINE), np.int64)
    assert slowest(shared) == min(clocks)
    is_open = clock - min(clocks) <= staleness
    assert passes(shared, clock, staleness, 5_000, waited, 1) == is_open
    # Only the worker that was kept waiting notes that it was, and in its own place.
    assert (waited[1, WAITED] > 0) == (not is_open)
    waited[1, WAITED] = 0
    assert not waited.any()
    assert shared.tolist() == lines(clocks).tolist()


def test_waiting_adds_up() -> None:
    shared, waited = lines([0, 1]), np.zeros((1, LINE), np.int64)
    seen = []
    for _ in range(3):
        assert not passes(shared, 1, 0, 20_000, waited, 0)
        seen.append(int(waited[0, WAITED]))
    assert 0 < seen[0] < seen[1] < seen[2]


def test_a_tick_is_one_workers_clock_alone() -> None:
    shared = lines([4, 5, 6])
    tick(shared, 1, 17)
    assert shared.tolist() == lines([4, 17, 6]).tolist()
    tick(shared, 0, int(GONE))
    assert slowest(shared) == 6


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_threads_never_see_a_larger_lead(staleness: int) -> None:
    """Clocks only grow, so what a worker sees after it passed is its lead then, or less."""
    workers, steps = 3, 60
    shared, waited = lines([0] * workers), np.zeros((workers, LINE), np.int64)
    leads: list[list[int]] = [[] for _ in range(workers)]

    def work(rank: int) -> None:
        for clock in range(steps):
            while not passes(shared, clock, staleness, 50, waited, rank):
                pass
            leads[rank].append(clock - slowest(shared))
            tick(shared, rank, clock + 1)
        tick(shared, rank, int(GONE))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(mine) for mine in leads] == [steps] * workers
    assert max(max(mine) for mine in leads) <= staleness
