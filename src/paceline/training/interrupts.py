"""What does Ctrl-C do to a run? The first stops it at the next boundary, the second ends the process immediately."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM)
# Set by a Ctrl-C or SIGTERM before training began.
_early = threading.Event()


def remember_interrupts() -> None:
    """Let Ctrl-C and SIGTERM raise `KeyboardInterrupt`, and remember them for `on_interrupt`: libraries may swallow the
    exception while they load.
    """
    _early.clear()

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        _early.set()
        raise KeyboardInterrupt

    for number in STOPPING:
        signal.signal(number, interrupt)


def raise_early_interrupt() -> None:
    """Raise the `KeyboardInterrupt` of a Ctrl-C or SIGTERM that a library has swallowed."""
    if _early.is_set():
        raise KeyboardInterrupt


@contextmanager
def on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Inside, the first Ctrl-C or SIGTERM calls `stop`, and the second ends the process immediately."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    raise_early_interrupt()

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        stop()
        for number in STOPPING:
            signal.signal(number, _end_immediately)

    before = {number: signal.signal(number, interrupt) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_immediately(_signal: int, _frame: FrameType | None) -> None:
    # Not through Python's buffers, which the interrupted code may be using.
    with suppress(OSError):
        os.write(2, b"\nerror: interrupted twice: ended at once, without saving a checkpoint\n")
    os._exit(130)
