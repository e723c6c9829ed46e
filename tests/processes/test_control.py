"""The coordinator's side of the lifelines, over real connections."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from paceline.errors import DataError
from paceline.processes import control as controls
from paceline.processes.messages import Beat, Failed, Ready, Report, decode, encode
from paceline.processes.roles import Loss, Role
from paceline.telemetry.records import NodeProbe
from paceline.wire.frames import HEADER, MAGIC, VERSION, Kind, LostConnectionError, SilentPeerError
from tests.processes.fakes import News, Ping, Pong, control_server, hello_of, joined, say
from tests.wire.serving import wait_until

BEAT = Beat(doing="counts", bytes_sent=3, bytes_received=4, memory_bytes=100)


def test_a_signal_does_not_make_waiting_for_events_endless() -> None:
    """Ctrl-C may come at the very end of a wait and be handled after it: then the time is over, too."""
    with control_server() as control:
        rescue = threading.Timer(20, control.events.put, ["nothing came"])
        rescue.start()
        before = signal.signal(signal.SIGALRM, lambda *_: time.sleep(0.1))
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        try:
            with pytest.raises(queue.Empty):
                control.events.get(timeout=0.05)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            rescue.cancel()


def test_a_role_over_two_incarnations() -> None:
    role = Role("worker", 0)
    with control_server(role) as control:
        first = joined(control, role, Ready(address="here:1", data="abc"), BEAT)
        event = control.events.get(timeout=5)
        assert event == (role, Ready(address="here:1", data="abc"))
        wait_until(lambda: role.doing == "counts")
        assert (role.name, role.address, role.pid, role.incarnation) == ("worker 0 on node node-a", "here:1", 7, 0)
        first.close()
        lost, loss = control.events.get(timeout=5)
        assert lost is role
        assert isinstance(loss, Loss)
        assert (loss.because, loss.silent) == ("its process ended", False)
        with joined(control, role, BEAT, pid=8):
            wait_until(lambda: role.num_bytes == (6, 8))
            assert (role.pid, role.incarnation, role.peak_memory_bytes) == (8, 1, 100)


def test_a_silent_role_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(controls, "TICK_SECONDS", 0.05)
    role = Role("shard", 1)
    with control_server(role) as control, joined(control, role) as process:
        _, loss = control.events.get(timeout=5)
        assert isinstance(loss, Loss)
        assert loss.silent
        assert "no heartbeat for 0.2 s" in loss.because
        assert time.monotonic() - loss.since >= 0.2
        with pytest.raises(LostConnectionError):
            process.receive(silence_seconds=5)


def test_own_messages_are_answered_or_become_events() -> None:
    role = Role("worker", 0)
    asked: list[Any] = []

    def answer(who: Role, ping: Ping) -> Pong | None:
        asked.append((who, ping.number))
        return Pong(number=ping.number + 1) if ping.number else None

    with control_server(role, kinds=[News], answers={Ping: answer}) as control:
        with joined(control, role, Ping(number=0), Ping(number=4), News(text="snow")) as process:
            assert decode(process.receive(silence_seconds=5), Pong) == Pong(number=5)
            assert control.events.get(timeout=5) == (role, News(text="snow"))
            assert asked == [(role, 0), (role, 4)]
            before = control.message_bytes
            control.say(role, Pong(number=9))
            assert decode(process.receive(silence_seconds=5), Pong) == Pong(number=9)
            assert control.message_bytes > before > 0
        control.say(Role("worker", 5), Pong(number=1))  # nobody hears it, and nothing breaks


def test_a_role_that_says_more_than_can_be_acted_on_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes count, so that few large messages are as bad as many small ones."""
    monkeypatch.setattr(controls, "MOST_EVENT_BYTES", 10 << 20)
    role, news = Role("worker", 0), News(text="s" * (1 << 20))
    with control_server(role, kinds=[News]) as control:
        with joined(control, role, *[news] * 11) as process, pytest.raises(LostConnectionError):
            process.receive(silence_seconds=5)
        events = [control.events.get(timeout=5).what for _ in range(11)]
        assert events[:10] == [news] * 10
        assert isinstance(events[10], Loss)
        assert control.events.num_bytes == 0
        with joined(control, role, News(text="snow")):
            assert control.events.get(timeout=5) == (role, News(text="snow"))


def test_processes_that_come_and_go_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each says hello, with another version, and is lost."""
    monkeypatch.setattr(controls, "MOST_EVENT_BYTES", 1 << 20)
    role = Role("worker", 0)
    with control_server(role) as control:
        for _ in range(20):
            with (
                joined(control, role, paceline="v" * 100_000) as process,
                suppress(LostConnectionError, SilentPeerError),
            ):
                process.receive(silence_seconds=0.05)
            wait_until(lambda: role.peer is None)
        assert 1 << 20 <= control.events.num_bytes < (1 << 20) + 200_000
        kinds = {type(control.events.get().what) for _ in range(len(control.events))}
    assert kinds == {Failed, Loss}


def test_a_process_says_hello_once() -> None:
    role = Role("worker", 0)
    with control_server(role) as control, joined(control, role, hello_of(role, paceline="0.0.9")) as process:
        with pytest.raises(LostConnectionError):
            process.receive(silence_seconds=5)
        assert isinstance(control.events.get(timeout=5).what, Loss)


@pytest.mark.parametrize(("kind", "length"), [(Kind.MESSAGE, (4 << 20) + 1), (Kind.STEP, 1), (Kind.CHUNK, 1)])
def test_the_control_server_reads_no_frame_that_is_too_long(kind: Kind, length: int) -> None:
    """The announcement is enough: nothing of the body needs to come."""
    role = Role("worker", 0)
    with control_server(role) as control, joined(control, role) as process:
        process.stream.socket.sendall(HEADER.pack(MAGIC, VERSION, kind, 0, length))
        with pytest.raises(LostConnectionError):
            process.receive(silence_seconds=5)


def test_records_that_are_not_taken_make_room_for_newer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "MOST_RECORD_BYTES", 1 << 20)
    role = Role("worker", 0)

    def probe(number: int) -> Report:
        found = NodeProbe(time=0.0, node="", seconds=number, cores=[0.5] * 10_000, memory_bytes=1, memory_total_bytes=2)
        return Report(now=1.0, records=[found])

    with control_server(role) as control, joined(control, role, *map(probe, range(50)), BEAT):
        wait_until(lambda: role.doing == "counts")
        assert control._records.num_bytes <= 1 << 20
        kept = [record.seconds for record in control.take_records() if isinstance(record, NodeProbe)]
        assert kept == list(range(50 - len(kept), 50))
        assert 5 < len(kept) < 12
        assert control._records.num_bytes == 0


def test_other_versions_are_told_apart() -> None:
    role = Role("worker", 0)
    with control_server(role) as control, joined(control, role, paceline="0.0.9"):
        _, failed = control.events.get(timeout=5)
        assert isinstance(failed, Failed)
        assert failed.kind == "config"
        assert "paceline 0.0.9 with Python" in failed.message
        assert failed.hint == "install the same versions on node node-a"


def test_a_role_that_is_not_known_is_hung_up_on() -> None:
    with control_server(Role("worker", 0)) as control, joined(control, Role("worker", 1)) as process:
        with pytest.raises(LostConnectionError):
            process.receive(silence_seconds=5)
        assert not control.events


@pytest.mark.parametrize("damage", ["not UTF-8", "nested", "another kind", "cut"])
def test_a_message_that_cannot_be_read_ends_its_connection_alone(damage: str) -> None:
    good = encode(BEAT)
    content = {
        "not UTF-8": good.replace(b"counts", b"cou\xffts"),
        "nested": good.replace(b"\xa6counts", b"\x91" * 100_000 + b"\x01"),
        "another kind": encode(Pong(number=1)),
        "cut": good[:-1],
    }[damage]
    assert content != good
    roles = [Role("worker", 0), Role("worker", 1)]
    with control_server(*roles) as control, joined(control, roles[1], BEAT) as other:
        with joined(control, roles[0]) as process:
            process.send(Kind.MESSAGE, 0, content)
            with pytest.raises(LostConnectionError):
                process.receive(silence_seconds=5)
        role, loss = control.events.get(timeout=5)
        assert role is roles[0]
        assert isinstance(loss, Loss)
        say(other, Ready())
        assert control.events.get(timeout=5) == (roles[1], Ready())


def test_a_failure_may_name_a_file_that_is_not_utf8() -> None:
    name = os.fsdecode(b"/data/caf\xe9")
    failed = Failed.of(DataError(f"`{name}` is empty", f"see {name}"))
    assert "caf" in failed.message
    assert encode(failed)
    with pytest.raises(FileNotFoundError) as caught:
        os.stat(name)
    assert encode(Failed.of(caught.value))


def test_a_second_process_takes_the_place_of_the_first() -> None:
    role = Role("worker", 0)
    with control_server(role) as control, joined(control, role) as first:
        # Connections are served in any order: the second comes when the first is known.
        wait_until(lambda: role.incarnation == 0)
        with joined(control, role, Ready()):
            with pytest.raises(LostConnectionError):
                first.receive(silence_seconds=5)
            assert control.events.get(timeout=5) == (role, Ready())
            assert not control.events  # it was not lost


def test_one_role_probes_each_node_and_times_are_the_coordinators() -> None:
    roles = [Role("worker", 0), Role("worker", 1)]

    def probe(now: float) -> Report:
        found = NodeProbe(time=now - 2, node="", seconds=1, cores=[0.5], memory_bytes=1, memory_total_bytes=2)
        return Report(now=now, records=[found])

    with (
        control_server(*roles) as control,
        joined(control, roles[0], probe(1e6)) as first,
        joined(control, roles[1], probe(2e6), BEAT) as second,
    ):
        wait_until(lambda: roles[1].doing == "counts" and len(control._records) > 0)
        (record,) = control.take_records()
        assert isinstance(record, NodeProbe)
        assert record.node == "node-a"
        assert record.time == pytest.approx(time.perf_counter() - 2, abs=1)
        first.close()
        wait_until(lambda: roles[0].peer is None)
        say(second, probe(2e6))
        wait_until(lambda: len(control._records) == 1)
