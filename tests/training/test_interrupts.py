"""The first Ctrl-C asks, the second ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from paceline.training.interrupts import on_interrupt, remember_interrupts

TWICE = """
import signal
from paceline.training.interrupts import on_interrupt
with on_interrupt(lambda: print("asked", flush=True)):
    signal.raise_signal(signal.SIGTERM)
    print("still here", flush=True)
    signal.raise_signal(signal.SIGINT)
    print("never")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_handlers_are_put_back(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    asked: list[bool] = []
    with on_interrupt(lambda: asked.append(True)):
        assert not asked
        signal.raise_signal(number)
        assert asked == [True]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def test_the_second_signal_ends_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split("\n")) == (130, ["asked", "still here", ""])
    assert "interrupted twice: ended at once, without saving a checkpoint" in done.stderr


def test_a_signal_before_it_that_was_swallowed_is_not_lost() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        remember_interrupts()
        with on_interrupt(lambda: None):
            pass
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), on_interrupt(lambda: None):
            pytest.fail("entered")
        remember_interrupts()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_on_another_thread_handlers_stay_as_they_are() -> None:
    """Only the main thread may set them."""
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def inside() -> None:
        with on_interrupt(lambda: None):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [before]
