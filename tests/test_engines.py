"""Opening an engine while the caller does something else."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from paceline import engines
from paceline.engines import ProcessRequest, open_engine
from paceline.errors import ConfigError, UsageError
from tests.processes.fakes import FakeEngine

REQUESTS = [ProcessRequest("module:function")] * 2


class TestOpening:
    @pytest.fixture(autouse=True)
    def _fake(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loaded_by: list[threading.Thread] = []
        self.opened: list[tuple[str, Sequence[ProcessRequest], threading.Thread]] = []
        self.engine = FakeEngine()
        self.may_open = threading.Event()

        def make(address: str, requests: Sequence[ProcessRequest]) -> FakeEngine:
            assert self.may_open.wait(5)
            if address == "nowhere":
                raise UsageError("no Ray answers at `nowhere`")
            self.opened.append((address, requests, threading.current_thread()))
            return self.engine

        def load(name: str) -> object:
            assert name == "ray"
            self.loaded_by.append(threading.current_thread())
            return make

        monkeypatch.setattr(engines, "_load", load)

    def test_it_opens_on_its_own_thread_and_is_closed(self) -> None:
        here = threading.current_thread()
        with open_engine("ray", "somewhere", REQUESTS) as pending:
            pending.start()
            assert self.loaded_by == [here]
            self.may_open.set()
            assert pending.get() is self.engine
            assert pending.get() is self.engine
            ((address, requests, thread),) = self.opened
            assert (address, requests) == ("somewhere", REQUESTS)
            assert thread is not here
            assert thread.is_alive()  # what it started would end with it
        assert self.engine.closed
        assert not thread.is_alive()

    def test_nothing_is_opened_that_nobody_needs(self) -> None:
        with open_engine("ray", "", REQUESTS):
            pass
        assert self.loaded_by == []

    def test_what_goes_wrong_is_said_when_it_is_needed(self) -> None:
        self.may_open.set()
        with open_engine("ray", "nowhere", REQUESTS) as pending:
            pending.start()
            with pytest.raises(UsageError, match="no Ray answers"):
                pending.get()


def test_threads_are_not_processes() -> None:
    with open_engine("local", "", REQUESTS) as pending, pytest.raises(ConfigError, match="`local` does not start"):
        pending.get()
