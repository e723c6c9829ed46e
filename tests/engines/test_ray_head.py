"""Ray's head is greeted, and lost when it no longer answers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from paceline.engines import ray_head
from paceline.engines.ray_head import HeadWatch

SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


class Head:
    """Answers greetings unless it is `silent`."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        self.silent = False
        self.greeted = 0
        self._kept: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connected, _ = self.server.accept()
            except OSError:
                return
            self.greeted += 1
            if self.silent:
                self._kept.append(connected)
            else:
                with connected:
                    connected.recv(1000)
                    connected.sendall(SETTINGS)

    def close(self) -> None:
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        self._thread.join()
        for connected in self._kept:
            connected.close()


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    monkeypatch.setattr(ray_head, "PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(ray_head, "ANSWER_SECONDS", 0.05)
    head = Head()
    yield head
    if head.server.fileno() >= 0:
        head.close()


def wait_until_lost(watch: HeadWatch) -> None:
    deadline = time.monotonic() + 10
    while not watch.lost:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("how", ["silent", "gone"])
def test_one_that_no_longer_answers_is_lost(head: Head, how: str) -> None:
    watch = HeadWatch(head.address)
    deadline = time.monotonic() + 10
    while head.greeted < 8 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not watch.lost
    if how == "silent":
        head.silent = True
    else:
        head.close()
    wait_until_lost(watch)
    watch.close()


def test_a_pause_is_not_a_loss(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([True, False, False, False, True, False, False, True, False, False, False, False])
    asked: list[bool] = []

    def greet(_address: str) -> bool:
        asked.append(next(answers))
        return asked[-1]

    monkeypatch.setattr(ray_head, "greet", greet)
    watch = HeadWatch(head.address)
    wait_until_lost(watch)
    watch.close()
    assert len(asked) == 12
    watch.close()
