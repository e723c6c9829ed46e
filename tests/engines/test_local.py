"""Threads that run together and end together."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Iterator

import pytest

from paceline.engines.local import LocalEngine


@pytest.fixture
def engine() -> Iterator[LocalEngine]:
    engine = LocalEngine(num_threads=3)
    yield engine
    engine.close()


def test_every_thread_runs_at_once(engine: LocalEngine) -> None:
    together = threading.Barrier(3, timeout=10)
    seen: list[int] = []

    def work(thread: int) -> None:
        together.wait()
        seen.append(thread)

    for _ in range(2):
        engine.run(work, poll=lambda: None, give_up=lambda: None)
    assert sorted(seen) == [0, 0, 1, 1, 2, 2]


def test_the_first_failure_ends_the_others_and_is_raised(engine: LocalEngine) -> None:
    given_up = threading.Event()

    def work(thread: int) -> None:
        if thread == 1:
            raise ValueError("first")
        assert given_up.wait(10)
        raise RuntimeError("only because another failed")

    with pytest.raises(ValueError, match="first"):
        engine.run(work, poll=lambda: None, give_up=given_up.set)


def wait_for(event: threading.Event) -> None:
    event.wait(10)


def test_a_failing_poll_ends_the_threads(engine: LocalEngine) -> None:
    given_up = threading.Event()

    def poll() -> None:
        raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        engine.run(lambda _: wait_for(given_up), poll, given_up.set)
    assert time.monotonic() - began < 5


def test_its_place_is_this_process(engine: LocalEngine) -> None:
    assert engine.own_place() == {"node": platform.node(), "address": "", "pid": os.getpid()}
