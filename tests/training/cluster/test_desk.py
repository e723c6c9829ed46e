"""The coordinator's side of the lifelines."""

from __future__ import annotations

import queue
import signal
import threading
import time

import pytest

from paceline.matrices.cluster.desk import Desk as MatrixDesk
from paceline.training.cluster.desk import Desk
from paceline.wire.server import Server

TOKEN = b"t" * 32


def training_desk() -> Desk:
    return Desk(Server("127.0.0.1", 0, TOKEN, None), [], lambda *_: None, str)


def matrix_desk() -> MatrixDesk:
    return MatrixDesk("127.0.0.1", TOKEN, [], str)


@pytest.mark.parametrize("make", [training_desk, matrix_desk])
def test_a_signal_does_not_make_waiting_for_events_endless(make: object) -> None:
    """Ctrl-C may come at the very end of a wait, and be seen to after it: then the time is over, too."""
    assert callable(make)
    desk = make()
    rescue = threading.Timer(20, desk.events.put, ["nothing came"])
    rescue.start()
    before = signal.signal(signal.SIGALRM, lambda *_: time.sleep(0.1))
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    try:
        with pytest.raises(queue.Empty):
            desk.events.get(timeout=0.05)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        rescue.cancel()
        desk.close()
