"""Starting, losing and replacing roles, with an engine that starts nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from paceline.errors import ConfigError, DataError, DivergedError, PacelineError, RunError
from paceline.processes import supervisor as supervisors
from paceline.processes.control import ControlServer, Event
from paceline.processes.messages import Beat, Failed, ProcessSpec, Ready, decode
from paceline.processes.roles import Loss, Role
from paceline.processes.supervisor import Limits, Supervisor
from paceline.wire.connection import connect
from paceline.wire.frames import LostConnectionError, RefusedError
from paceline.wire.handshake import new_token
from paceline.wire.server import Server
from tests.processes.fakes import TOKEN, FakeEngine, News, control_server, joined
from tests.wire.serving import wait_until

LIMITS = Limits(start_seconds=0.2, back_seconds=0.2, ready_seconds=0.4)
GONE = Loss(since=0.0, because="its process ended", silent=False)


@pytest.fixture
def control() -> Iterator[ControlServer]:
    with control_server(Role("shard", 0), Role("worker", 0), Role("worker", 1), kinds=[News]) as control:
        yield control


def supervise(engine: FakeEngine, control: ControlServer, **options: Any) -> Supervisor:
    return Supervisor(engine, control, partial(ProcessSpec, token=TOKEN), LIMITS, **options)


def events_after(supervisor: Supervisor, *events: Event) -> list[Event]:
    for event in events:
        supervisor.control.events.put(event)
    return list(supervisor.events())


def test_every_role_is_begun_and_waited_for(control: ControlServer) -> None:
    engine = FakeEngine()
    supervisor = supervise(engine, control)
    assert [(number, spec.role, spec.rank) for number, spec in engine.begun] == [
        (0, "shard", 0), (1, "worker", 0), (2, "worker", 1),
    ]  # fmt: skip
    assert engine.begun[0][1].coordinator == control.server.address
    processes = [joined(control, role, Ready(address=f"here:{role.rank}")) for role in control.roles]
    supervisor.wait_until_ready(lambda: [*supervisor.events()].clear())
    assert all(role.ready for role in supervisor.roles)
    places = supervisor.places()
    assert [(place["role"], place["rank"]) for place in places] == [
        ("coordinator", 0), ("shard", 0), ("worker", 0), ("worker", 1),
    ]  # fmt: skip
    assert places[2] == {"role": "worker", "rank": 0, "node": "node-a", "address": "here:0", "pid": 7, "incarnation": 0}
    for process in processes:
        process.close()


@pytest.mark.parametrize("why", ["failure", "no room", "slow"])
def test_a_role_that_does_not_start(control: ControlServer, why: str) -> None:
    engine = FakeEngine()
    supervisor = supervise(engine, control)
    if why == "failure":
        engine.failures[2] = "no module named paceline"
    elif why == "no room":
        engine.reasons = dict.fromkeys(range(3), "the cluster has no room for it")
    for role in control.roles[:2] if why == "failure" else []:
        control.events.put(Event(role, Ready()))
    if why == "slow":
        for role in control.roles:
            role.incarnation, role.doing = 0, "reads the data"
    said = {"failure": r"worker 1 did not start in 0 s: no module", "no room": "shard 0 did not start in 0 s: the clus",
            "slow": "shard 0 did not start in 0 s: reads the data"}  # fmt: skip
    began = time.monotonic()
    with pytest.raises(RunError, match=said[why]):
        supervisor.wait_until_ready(lambda: [*supervisor.events()].clear())
    assert (time.monotonic() - began > 0.4) == (why == "slow")


def test_strangers_are_named_if_a_role_does_not_start(control: ControlServer) -> None:
    supervisor = supervise(FakeEngine(), control)
    for _ in range(2):
        with pytest.raises(RefusedError):
            connect(control.server.address, new_token(), None)
    wait_until(lambda: control.server.refused == 2)
    said = f"shard 0 did not start in 0 s: has not started; 2 connections to {control.server.address} were refused"
    with pytest.raises(RunError, match=said):
        supervisor.wait_until_ready(lambda: [*supervisor.events()].clear())


def test_strangers_at_a_shard_are_named_if_a_worker_does_not_start(control: ControlServer) -> None:
    supervisor = supervise(FakeEngine(), control)
    shard = control.roles[0]
    beat = Beat(doing="serves", bytes_sent=0, bytes_received=0, memory_bytes=1, refused=7)
    with joined(control, shard, Ready(address="here:5"), beat):
        wait_until(lambda: shard.refused == 7)
        with pytest.raises(RunError, match=r"worker 0 did not start .*; 7 connections to here:5 were refused"):
            supervisor.wait_until_ready(lambda: [*supervisor.events()].clear())


def test_a_lost_role_is_replaced_and_counted(control: ControlServer) -> None:
    engine = FakeEngine()
    supervisor = supervise(engine, control)
    worker = control.roles[2]
    worker.ready, worker.pid = True, 42
    loss = Loss(time.monotonic() - 3, "it sent no heartbeat for 5 s", silent=True)
    assert events_after(supervisor, Event(worker, loss)) == [(worker, loss)]
    assert engine.ended == [(2, 42)]
    assert [number for number, _ in engine.begun] == [0, 1, 2, 2]
    assert not worker.ready
    assert supervisor.restarts == {"workers": 1, "shards": 0}
    assert supervisor.recoveries == []
    wait_until(lambda: supervisor.overdue() == [(worker, loss)])
    events_after(supervisor, Event(worker, Ready()))
    assert supervisor.overdue() == []
    assert worker.ready
    (recovery,) = supervisor.recoveries
    assert 3 < recovery.pop("seconds") < 8
    assert recovery == {"role": "worker", "rank": 1, "node": "", "cause": loss.because}


def test_in_a_lost_cluster_nothing_comes_back(control: ControlServer) -> None:
    engine, worker = FakeEngine(), control.roles[0]
    supervisor = supervise(engine, control)
    engine.loss = "the head no longer answers"
    with pytest.raises(RunError, match=f"{worker.name} did not start in 0 s"):
        supervisor.wait_until_ready(lambda: None)
    loss = GONE._replace(since=time.monotonic())
    events_after(supervisor, Event(worker, loss))
    assert [role for role, _ in supervisor.overdue()] == [worker]


def test_an_ended_process_is_not_ended_again(control: ControlServer) -> None:
    engine = FakeEngine()
    events_after(supervise(engine, control), Event(control.roles[0], GONE))
    assert engine.ended == []


def test_too_many_losses_end_the_run(control: ControlServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisors, "MOST_RESTARTS", 1)
    supervisor = supervise(FakeEngine(), control)
    losses = [Event(control.roles[1], GONE)] * 5
    with pytest.raises(RunError, match=r"worker 0 was lost \(its process ended\), after too many others"):
        events_after(supervisor, *losses)
    assert supervisor.restarts["workers"] == 5


@pytest.mark.parametrize(
    ("kind", "started", "error"),
    [("data", False, DataError), ("config", False, ConfigError), ("data", True, RunError), ("run", False, RunError),
     ("diverged", True, DivergedError)],
)  # fmt: skip
def test_what_a_role_reports_is_raised(
    control: ControlServer, kind: str, started: bool, error: type[PacelineError]
) -> None:
    supervisor = supervise(FakeEngine(), control)
    supervisor.started = started
    with pytest.raises(error, match="it broke") as caught:
        events_after(supervisor, Event(control.roles[0], Failed(kind=kind, message="it broke", hint="mend it")))
    assert type(caught.value) is error
    assert caught.value.hint == "mend it"
    assert caught.value.message.startswith("shard 0: ") == (kind != "diverged")


class TestEnginesThatRestartAll:
    def start(self, control: ControlServer, then: Callable[[Role, Loss], None] | None) -> tuple[FakeEngine, Supervisor]:
        engine = FakeEngine(restarts="all")
        return engine, supervise(engine, control, start_over=then)

    def test_one_loss_is_a_return_to_the_checkpoint(self, control: ControlServer) -> None:
        returned: list[Any] = []
        engine, supervisor = self.start(control, lambda *what: returned.append(what))
        for role in control.roles:
            role.ready = True
        worker, others = control.roles[1], [control.roles[0], control.roles[2]]
        # All other connections break too.
        events_after(supervisor, *(Event(role, GONE) for role in [worker, *others]))
        assert returned == [(worker, GONE)]
        assert supervisor.restarts == {"workers": 1, "shards": 0}
        assert [number for number, _ in engine.begun] == [0, 1, 2, 0, 1, 2]
        assert not any(role.ready for role in control.roles)
        events_after(supervisor, *(Event(role, Ready()) for role in control.roles))
        causes = [recovery["cause"] for recovery in supervisor.recoveries]
        with_it = "worker 0 was lost, and all were restarted"
        assert causes == [with_it, "its process ended", with_it]
        events_after(supervisor, Event(others[0], GONE))
        assert len(returned) == 2

    def test_a_job_without_checkpoints_refuses_them(self, control: ControlServer) -> None:
        with pytest.raises(ConfigError, match="restarts all processes when one ends"):
            self.start(control, None)


def test_roles_hear_the_farewell_before_they_are_ended() -> None:
    engine, role = FakeEngine(), Role("worker", 0)
    heard: list[News] = []
    control = ControlServer(Server("127.0.0.1", 0, TOKEN, None), [role], engine.name_of)
    supervisor = supervise(engine, control)
    with joined(control, role, Ready()) as process:
        assert [event.what for event in supervisor.events(5)] == [Ready()]
        engine.close = lambda: heard.append(decode(process.receive(5), News))  # type: ignore[method-assign]
        supervisor.close(News(text="the end"))
        assert heard == [News(text="the end")]
        with pytest.raises(LostConnectionError):
            process.receive(5)
