from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from paceline.data.pipeline import AHEAD, MOST_THREADS, parse_in_order


def slow_when_even(number: int) -> int:
    time.sleep(0.002 if number % 2 == 0 else 0)
    return -number


def test_results_come_in_order() -> None:
    assert list(parse_in_order(iter(range(60)), slow_when_even)) == [-i for i in range(60)]


def test_the_first_error_is_raised_in_its_turn() -> None:
    def parse(number: int) -> int:
        if number in (5, 6):
            raise ValueError(number)
        return slow_when_even(number)

    results = parse_in_order(iter(range(60)), parse)
    assert [next(results) for _ in range(5)] == [0, -1, -2, -3, -4]
    with pytest.raises(ValueError, match="5"):
        next(results)


def test_an_error_of_the_reader_comes_after_what_was_read() -> None:
    def chunks() -> Iterator[int]:
        yield from range(3)
        raise OSError("gone")

    results = parse_in_order(chunks(), slow_when_even)
    assert [next(results) for _ in range(3)] == [0, -1, -2]
    with pytest.raises(OSError, match="gone"):
        next(results)


def test_reading_runs_only_so_far_ahead() -> None:
    read = 0

    def chunks() -> Iterator[int]:
        nonlocal read
        for number in range(1000):
            read += 1
            yield number

    results = parse_in_order(chunks(), lambda number: number)
    next(results)
    time.sleep(0.05)
    assert read <= MOST_THREADS + AHEAD + 3
    results.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("paceline-")]
