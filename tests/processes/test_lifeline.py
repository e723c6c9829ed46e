"""The process's side of a lifeline, in real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from paceline.errors import ConfigError, DataError, PacelineError, RunError
from paceline.processes.control import ControlServer
from paceline.processes.messages import Failed, ProcessSpec, Ready, encode
from paceline.processes.roles import Loss, Role
from tests.processes.fakes import TOKEN, News, Ping, Pong, control_server
from tests.ray_cluster import ROOT
from tests.wire.hostile import harassed
from tests.wire.serving import wait_until

Start = Callable[[str, ControlServer], "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def begin(name: str, control: ControlServer) -> subprocess.Popen[bytes]:
        spec = ProcessSpec(role="worker", rank=0, coordinator=control.server.address, token=TOKEN, loopback=True)
        words = [sys.executable, "-m", "tests.processes.workers", name, encode(spec).hex()]
        path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
        started.append(subprocess.Popen(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def test_a_process_connects_beside_hostile_clients(start: Start) -> None:
    role = Role("worker", 0)
    with control_server(role) as control, harassed(control.server.address):
        wait_until(lambda: control.server.refused > 10)
        start("sleeps", control)
        assert control.events.get(timeout=30) == (role, Ready(address="127.0.0.1"))
        assert role.incarnation == 0


def test_orders_are_sorted_and_repetitions_dropped(start: Start) -> None:
    role = Role("worker", 0)
    with control_server(role, kinds=[Pong, News]) as control:
        start("echoes", control)
        assert control.events.get(timeout=30).what == Ready(address="127.0.0.1")
        for order in (News(text="a"), News(text="a"), Ping(number=1), Ping(number=1), News(text="b"), News(text="a")):
            control.say(role, order)
        heard = [control.events.get(timeout=5).what for _ in range(6)]
        assert [one for one in heard if isinstance(one, News)] == [News(text=text) for text in "aba"]
        assert [one for one in heard if isinstance(one, Pong)] == [Pong(number=2)] * 2
        assert Failed(kind="data", message="the end", hint="begin again") in heard
        wait_until(lambda: role.doing == "works")
        assert role.num_bytes == (1, 2)
        assert role.peak_memory_bytes > 1_000_000


def test_a_process_is_lost_when_killed_and_ends_with_its_coordinator(start: Start) -> None:
    role = Role("worker", 0)
    with control_server(role) as control:
        first = start("sleeps", control)
        assert isinstance(control.events.get(timeout=30).what, Ready)
        assert role.pid == first.pid
        first.kill()
        assert isinstance(control.events.get(timeout=5).what, Loss)
        second = start("sleeps", control)
        assert isinstance(control.events.get(timeout=30).what, Ready)
        assert role.pid == second.pid
    assert second.wait(timeout=10) == 0


@pytest.mark.parametrize(
    ("error", "kind"), [(DataError("x", "y"), "data"), (ConfigError("x", "y"), "config"), (RunError("x", "y"), "run")]
)
def test_what_is_said_about_an_error(error: PacelineError, kind: str) -> None:
    assert Failed.of(error) == Failed(kind=kind, message="x", hint="y")


def test_a_bug_names_its_place() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        _ = 1 // int("0")
    failed = Failed.of(caught.value)
    assert failed.kind == "run"
    assert failed.message.startswith("ZeroDivisionError: ")
    assert "(test_lifeline.py, line " in failed.message
