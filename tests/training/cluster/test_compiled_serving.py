"""The compiled serving loop answers as Python does, byte for byte, and leaves all else to Python."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest

from paceline.kernels.serving import COUNT
from paceline.parameters.layout import Group, Layout, TableLayout
from paceline.processes.messages import decode, encode
from paceline.settings import OptimizerConfig, RunConfig, WireConfig
from paceline.training.cluster import messages as m
from paceline.training.cluster.role import make_shard
from paceline.training.cluster.shard import ShardService
from paceline.training.cluster.steps import LEAVE, PULL, PUSH, Ask, read_held, read_reply, step_parts
from paceline.wire.coding import KeyWriter
from paceline.wire.connection import Connection, connect
from paceline.wire.frames import HEADER, Kind, WireError, frame_buffers, views_of
from paceline.wire.server import Server
from tests.training.cluster.shards import spec_of
from tests.wire.serving import SECONDS, TOKEN, wait_until

FEATURES = 400
EMPTY: Any = np.empty(0, np.float32)


class Served(NamedTuple):
    """A shard that is served on a thread of its own, and the batches that Python has answered."""

    server: Server
    service: ShardService
    in_python: list[int]

    @property
    def table(self) -> Any:
        return self.service.stores["table"].states


@contextlib.contextmanager
def shard(compiled: bool = True, pace: Any = "async", workers: int = 1, dim: int = 1, optimizer: str = "adagrad",
          features: int = FEATURES, mac: bool = False, **wire: Any) -> Iterator[Served]:  # fmt: skip
    chosen = OptimizerConfig(name=optimizer, l2=0.01)
    config = RunConfig(data="x", pace=pace, workers=workers, engine="ray", optimizer=chosen, wire=WireConfig(**wire))
    layout = Layout(TableLayout(features, (Group("weight", dim, chosen),), seed=3), None)
    server = Server("127.0.0.1", 0, TOKEN, None, mac=mac)
    service = make_shard(spec_of(), config, layout, server)
    loops: list[Any] = [*service.stores.values(), *([service.loop] if service.loop else [])]
    for compiles in loops:
        compiles.warm_up()
    service.clocks.reset(m.Reset(generation=1, applied=[0] * workers, rows=0))
    service.clocks.open(m.Open(bases=[0] * workers, done=[0] * workers))
    in_python: list[int] = []
    step = service._step

    def counted(peer: Any, frame: Any) -> None:
        in_python.append(int(frame.body[:8].view(np.int64)[0]) if len(frame.body) >= 8 else -1)
        step(peer, frame)

    service._step = counted
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            server.serve(service, 0.05, 0.0001, service.loop if compiled else None)
        except BaseException as error:  # noqa: BLE001 (raised by the test's thread)
            failures.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield Served(server, service, in_python)
    finally:
        server.stop()
        thread.join(SECONDS)
        server.close()
    if failures:
        raise failures[0]


class StepClient:
    """A worker's connection to a shard."""

    def __init__(self, served: Served, rank: int = 0, incarnation: int = 0, mac: bool = False) -> None:
        self.connection: Connection = connect(served.server.address, TOKEN, None, mac=mac)
        self.connection.send(Kind.MESSAGE, 0, encode(m.Join(rank=rank, incarnation=incarnation, generation=1)))
        decode(self.connection.receive(SECONDS), m.FromShard)

    def ask(self, flags: int, batch: int, pushed: Any, keys: Any, rows: int = 2) -> None:
        self.connection.send(Kind.STEP, flags, *parts_of(flags, batch, pushed, keys, rows))

    def reply(self) -> tuple[int, bytes]:
        """The next VALUES frame: its batch, and its bytes without the times."""
        while (frame := self.connection.receive(SECONDS)).kind == Kind.HELD:
            pass
        assert frame.kind == Kind.VALUES
        found = read_reply(frame)
        return found.batch, found.data.tobytes()

    def send_bytes(self, data: bytes) -> None:
        far = self.connection.stream.socket
        far.settimeout(SECONDS)
        far.sendall(data)
        far.setblocking(False)

    def is_closed(self) -> bool:
        try:
            self.connection.receive(SECONDS)
        except WireError:
            return True
        return False


def parts_of(flags: int, batch: int, pushed: Any, keys: Any, rows: int = 2) -> Any:
    ask = Ask(flags, batch, 0, 0.25 * rows, rows, np.asarray(pushed, np.float32), np.asarray(keys, np.uint32))
    return step_parts(ask, "float32", KeyWriter(False))


def bytes_of(flags: int, batch: int, pushed: Any, keys: Any) -> bytes:
    return b"".join(views_of(frame_buffers(Kind.STEP, flags, parts_of(flags, batch, pushed, keys), "")[0]))


def tell(served: Served, message: Any) -> Any:
    with connect(served.server.address, TOKEN, None) as connection:
        connection.send(Kind.MESSAGE, 0, encode(message))
        return decode(connection.receive(SECONDS), m.FromShard)


def converse(served: Served, workers: int, in_flight: int, dim: int, steps: int = 30) -> list[tuple[int, bytes]]:
    """Steps of all workers, whose pushes arrive in an order that changes; all replies."""
    chance = np.random.default_rng(5)
    clients = [StepClient(served, rank) for rank in range(workers)]
    keys: dict[tuple[int, int], Any] = {}
    replies = []
    for batch in range(1, steps + 1):
        for rank in chance.permutation(workers).tolist():
            done = batch - in_flight
            # Now and then a larger one, which does not fit, and now and then none.
            count = 0 if batch % 7 == 0 else int(chance.integers(1, 30)) * (5 if batch % 11 == 0 else 1)
            keys[rank, batch] = chance.permutation(FEATURES + 1)[:count]
            pushed = chance.normal(size=len(keys[rank, done]) * dim) if done > 0 else EMPTY
            flags = (LEAVE if batch == steps else PULL) | (PUSH if done > 0 else 0)
            clients[rank].ask(flags, batch, pushed, keys[rank, batch], rows=int(chance.integers(0, 4)))
            if in_flight == 2:
                replies.append(clients[rank].reply())
        if in_flight == 1:
            replies += [client.reply() for client in clients]
    return replies


class TestSameAsPython:
    @pytest.mark.parametrize("dim", [1, 3])
    @pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "ftrl"])
    @pytest.mark.parametrize("pace", ["sync", "async", 2])
    def test_replies_tables_and_counts_have_the_same_bytes(self, pace: Any, optimizer: str, dim: int) -> None:
        found = []
        for compiled in (False, True):
            # One worker where replies depend on the order in which frames of different workers come.
            workers = 3 if pace == "sync" else 1
            with shard(compiled, pace, workers, dim, optimizer) as served:
                replies = converse(served, workers, 2 if pace == "async" else 1, dim)
                found.append((replies, served.table.tobytes(), tell(served, m.Count())))
                assert len(served.in_python) == 30 * workers if not compiled else len(served.in_python) < 10 * workers
        assert found[0] == found[1]

    def test_telemetry_counts_all_requests(self) -> None:
        with shard() as served:
            converse(served, 1, 2, 1)
            requests, queue, service = served.service.clocks.counters
            assert requests == 30
            assert queue > 0
            assert service > 0
            wait_until(lambda: served.service.clocks.spun > 0)


class TestFrames:
    def test_after_the_first_ones_they_do_not_need_python(self) -> None:
        with shard() as served:
            client = StepClient(served)
            for batch in range(1, 50):
                pushed = [1.0, 2.0] if batch > 2 else EMPTY
                client.ask(PULL | (PUSH if batch > 2 else 0), batch, pushed, [1, 2])
                assert client.reply()[0] == batch
            assert served.in_python == [1]

    def test_may_come_in_pieces_and_together(self) -> None:
        with shard() as served:
            client = StepClient(served)
            frames = [bytes_of(PULL, batch, EMPTY, [1, 2]) for batch in (1, 2)]
            frames += [bytes_of(PULL | PUSH, batch, [1.0, 1.0], [1, 2]) for batch in range(3, 9)]
            for frame in frames[:4]:
                for at in range(0, len(frame), 7):
                    client.send_bytes(frame[at : at + 7])
                    time.sleep(0.0005)
            client.send_bytes(b"".join(frames[4:6]))
            assert [client.reply()[0] for _ in range(6)] == [1, 2, 3, 4, 5, 6]
            # A frame is whole while another one has begun, and Python looks around meanwhile.
            client.send_bytes(frames[6] + frames[7][:20])
            assert client.reply()[0] == 7
            time.sleep(0.2)
            client.send_bytes(frames[7][20:])
            assert client.reply()[0] == 8
            assert served.in_python == [1]

    def test_replies_wait_for_a_worker_that_reads_late(self) -> None:
        count = 600_000
        with shard(features=count) as served:
            client, keys = StepClient(served), np.arange(count)
            for batch in range(1, 9):
                pushed = np.full(count, batch, np.float32) if batch > 2 else EMPTY
                client.ask(PULL | (PUSH if batch > 2 else 0), batch, pushed, keys)
                if batch == 2:
                    time.sleep(0.1)
                if batch > 1:
                    time.sleep(0.06)
                    number, values = client.reply()
                    assert (number, len(values)) == (batch - 1, 4 * count)
            assert client.reply()[0] == 8
            assert len(served.in_python) < 8

    def test_a_worker_that_never_reads_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("paceline.wire.server.QUEUE_BYTES", 1 << 20)
        count = 300_000
        with shard(workers=2, features=count) as served:
            greedy, other = StepClient(served, 0), StepClient(served, 1)
            with contextlib.suppress(WireError):
                for batch in range(1, 40):
                    pushed = np.zeros(count, np.float32) if batch > 2 else EMPTY
                    greedy.ask(PULL | (PUSH if batch > 2 else 0), batch, pushed, np.arange(count))
            other.ask(PULL, 1, EMPTY, [1])
            assert other.reply()[0] == 1
            wait_until(lambda: served.service.clocks.workers[0].peer is None)

    @pytest.mark.parametrize(
        "damage",
        [
            {"at": 2, "bytes": b"\x09"},
            {"at": 3, "bytes": b"\x07"},
            {"at": 8, "bytes": (1 << 40).to_bytes(8, "little")},
            {"at": 8, "bytes": (39).to_bytes(8, "little")},
            {"at": 4, "bytes": (1).to_bytes(4, "little")},
            {"at": 16, "bytes": (9).to_bytes(8, "little")},
            {"at": 16, "bytes": (-1).to_bytes(8, "little", signed=True)},
            {"at": 16, "bytes": (1 << 63 - 1).to_bytes(8, "little")},
            {"at": 44, "bytes": (1).to_bytes(4, "little")},
            {"at": 44, "bytes": (2**32 - 1).to_bytes(4, "little")},
            {"at": 48, "bytes": (3).to_bytes(4, "little")},
            {"at": 48, "bytes": (2**32 - 1).to_bytes(4, "little")},
            {"at": 52, "bytes": (1).to_bytes(4, "little")},
            {"at": 64, "bytes": (FEATURES + 1).to_bytes(4, "little")},
            {"at": 68, "bytes": (2**32 - 1).to_bytes(4, "little")},
        ],
    )
    def test_that_are_damaged_change_nothing_and_close_the_connection(self, damage: dict[str, Any]) -> None:
        with shard(workers=2) as served:
            bad, good = StepClient(served, 0), StepClient(served, 1)
            for client in (bad, good):
                for batch in (1, 2):
                    client.ask(PULL, batch, EMPTY, [1, 2])
                    assert client.reply()[0] == batch
            before = served.table.tobytes()
            frame = bytearray(bytes_of(PULL | PUSH, 3, [1.0, 1.0], [1, 2]))
            frame[damage["at"] : damage["at"] + len(damage["bytes"])] = damage["bytes"]
            bad.send_bytes(bytes(frame))
            bad.connection.stream.socket.shutdown(socket.SHUT_WR)
            assert bad.is_closed()
            assert served.table.tobytes() == before
            good.ask(PULL | PUSH, 3, [1.0, 1.0], [1, 2])
            assert good.reply()[0] == 3
            assert served.table.tobytes() != before


class TestMemory:
    def test_follows_what_one_worker_pulls_not_what_all_might(self) -> None:
        count, process = 1_500_000, psutil.Process()
        with shard(workers=16, features=count) as served:
            client = StepClient(served)
            for batch, size in ((1, count // 2), (2, count)):
                before = process.memory_info().rss
                client.ask(PULL, batch, EMPTY, np.arange(size))
                assert client.reply()[0] == batch
            # Of one worker: its frame, received twice, its keys and the values, with what was there before.
            assert process.memory_info().rss - before < 10 * 4 * count

    def test_what_waits_is_kept_when_there_is_more_room(self) -> None:
        with shard(pace="sync", workers=2) as served:
            first, second = StepClient(served, 0), StepClient(served, 1)
            for client in (first, second):
                client.ask(PULL, 1, EMPTY, [3, 4])
                client.reply()
            first.ask(PULL | PUSH, 2, [1.0, 2.0], [3])
            # Far more than there is room for.
            second.ask(PULL | PUSH, 2, [1.0, 2.0], np.arange(FEATURES))
            (_, values), (_, all_values) = first.reply(), second.reply()
            assert values == all_values[3 * 4 : 4 * 4] != bytes(4)
            first.ask(PULL | PUSH, 3, [1.0], [3])
            second.ask(PULL | PUSH, 3, np.zeros(FEATURES), [3])
            assert first.reply() == second.reply()

    @pytest.mark.parametrize("num_keys", [2, FEATURES + 50])
    def test_keys_that_do_not_exist_are_nobodys(self, num_keys: int) -> None:
        """Not even those of the pull that was in their place before, and of which a push may be added up."""
        with shard() as served:
            client = StepClient(served)
            client.ask(PULL, 1, EMPTY, np.arange(FEATURES))
            client.reply()
            for batch in (2, 3, 4, 5):
                client.ask(PULL | (PUSH if batch > 2 else 0), batch, np.zeros(1 if batch > 3 else FEATURES), [1])
                client.reply()
            client.ask(PULL | PUSH, 6, [0.0], np.full(num_keys, 2**32 - 1))
            assert client.is_closed()
            pulls = served.service.exchange.pulls.arrays  # type: ignore[attr-defined]
            for slot, numbers in enumerate(pulls.numbers):
                assert (pulls.keys[slot, : numbers[COUNT]] <= FEATURES).all()


class TestBesideSteps:
    def test_workers_are_served_while_python_is_kept_busy(self) -> None:
        with shard() as served:
            client = StepClient(served)
            client.ask(PULL, 1, EMPTY, [1])
            assert client.reply()[0] == 1
            wait_until(lambda: served.service.clocks.spun > 0)

            def again() -> None:
                served.server.call_soon(again)

            again()
            client.ask(PULL, 2, EMPTY, [1])
            assert client.reply()[0] == 2
            assert served.in_python == [1]

    def test_a_segment_that_begins_leaves_replies_that_wait_as_they_are(self) -> None:
        count = 5_000_000
        with shard(features=count) as served:
            client, keys = StepClient(served), np.arange(count)
            client.ask(PULL, 1, EMPTY, keys)
            client.reply()
            client.ask(PULL, 2, EMPTY, keys)
            wait_until(lambda: served.service.clocks.counters[0] == 2)
            assert tell(served, m.Open(bases=[0], done=[1])) == m.Finished()
            # In the place of the one that was not sent completely.
            client.ask(PULL, 2, EMPTY, [7])
            for size in (count, 1):
                batch, values = client.reply()
                assert (batch, len(values)) == (2, 4 * size)
            assert served.in_python[0] == 1

    def test_a_segment_that_begins_waits_for_all_pushes(self) -> None:
        with shard(pace="sync", workers=2) as served:
            first, second = StepClient(served, 0), StepClient(served, 1)
            for client in (first, second):
                client.ask(PULL, 1, EMPTY, [3])
                client.reply()
            first.ask(PULL | PUSH, 2, [1.0], [3])
            wait_until(lambda: served.service.clocks.num_pushed == 1)
            assert tell(served, m.Open(bases=[1, 1], done=[1, 1])) == m.Finished()
            assert served.service.clocks.num_pushed == 0

    def test_a_successor_gets_the_same_answer_again(self) -> None:
        with shard() as served:
            client = StepClient(served)
            for batch in range(1, 6):
                client.ask(PULL | (PUSH if batch > 2 else 0), batch, [1.0, 2.0] if batch > 2 else EMPTY, [1, 2])
                last = client.reply()
            table = served.table.tobytes()
            successor = StepClient(served, incarnation=1)
            assert client.is_closed()
            successor.ask(PULL | PUSH, 5, [1.0, 2.0], [1, 2])
            assert successor.reply() == last
            assert served.table.tobytes() == table
            successor.ask(PULL | PUSH, 6, [1.0, 2.0], [1, 2])
            assert successor.reply()[0] == 6
            assert served.in_python == [1, 5]

    def test_a_connection_is_of_one_worker(self) -> None:
        """Of two, the loop could not tell whom a reply is for."""
        with shard(pace="sync", workers=2) as served:
            both = StepClient(served, 0)
            both.ask(PULL, 1, EMPTY, [3])
            both.reply()
            both.connection.send(Kind.MESSAGE, 0, encode(m.Join(rank=1, incarnation=0, generation=1)))
            assert both.is_closed()
            assert tell(served, m.Count()).refused == 1
            assert [worker.peer for worker in served.service.clocks.workers] == [None, None]

    def test_a_reply_that_is_held_back_is_said_to_be(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("paceline.training.cluster.shard.NOTICE_SECONDS", 0.1)
        with shard(pace=1, workers=2) as served:
            fast, slow = StepClient(served, 0), StepClient(served, 1)
            for batch in (1, 2, 3):
                fast.ask(PULL | (PUSH if batch > 1 else 0), batch, [1.0] if batch > 1 else EMPTY, [3])
                if batch < 3:
                    assert fast.reply()[0] == batch
            held = fast.connection.receive(SECONDS)
            assert held.kind == Kind.HELD
            assert read_held(held) == [1]
            slow.ask(PULL, 1, EMPTY, [4])
            slow.reply()
            slow.ask(PULL | PUSH, 2, [1.0], [4])
            assert fast.reply()[0] == 3
            assert tell(served, m.Count()).largest_lead == 1

    def test_in_sync_a_copy_is_of_its_clock(self) -> None:
        with shard(pace="sync", workers=2) as served, connect(served.server.address, TOKEN, None) as coordinator:
            clients = [StepClient(served, rank) for rank in range(2)]
            tables = []
            for batch in range(1, 8):
                for client in clients:
                    client.ask(PULL | (PUSH if batch > 1 else 0), batch, [1.0] if batch > 1 else EMPTY, [5])
                for client in clients:
                    client.reply()
                tables.append(served.table.copy())
                if batch == 3:
                    coordinator.send(Kind.MESSAGE, 0, encode(m.Copy(at=4)))
                    assert decode(coordinator.receive(SECONDS), m.FromShard) == m.Finished()
            assert decode(coordinator.receive(SECONDS), m.FromShard).applied == [4, 4]
            np.testing.assert_array_equal(served.service._copies._kept["table"], tables[4])
            assert served.in_python[2:] == []

    @pytest.mark.parametrize("at", [1 << 63, -2])
    def test_a_copy_at_no_clock_is_refused(self, at: int) -> None:
        with shard() as served:
            client = StepClient(served)
            with pytest.raises(WireError):
                tell(served, m.Copy(at=at))
            client.ask(PULL, 1, EMPTY, [1])
            assert client.reply()[0] == 1

    def test_connections_with_macs_are_served_by_python(self) -> None:
        with shard(mac=True) as served:
            client = StepClient(served, mac=True)
            for batch in (1, 2, 3):
                client.ask(PULL | (PUSH if batch > 2 else 0), batch, [1.0] if batch > 2 else EMPTY, [3])
                assert client.reply()[0] == batch
            assert served.in_python == [1, 2, 3]

    @pytest.mark.parametrize("wire", [{"key_deltas": True}, {"values": "float16"}, {"pull": "all"}])
    def test_other_codings_have_no_loop(self, wire: dict[str, Any]) -> None:
        with shard(**wire) as served:
            assert served.service.loop is None


def test_the_loop_knows_the_header_that_is_sent() -> None:
    assert len(bytes_of(PULL, 1, EMPTY, [])) == HEADER.size + 40
