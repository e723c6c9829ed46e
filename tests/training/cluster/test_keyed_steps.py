"""A shard applies each batch once, keeps the gate, and answers again with the very values of the first answer."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.parameters.layout import DenseLayout, Group, Layout, TableLayout
from paceline.processes.messages import decode, encode
from paceline.settings import OptimizerConfig, RunConfig, WireConfig
from paceline.training.cluster import messages as m
from paceline.training.cluster.copies import NOW
from paceline.training.cluster.shard import ShardService
from paceline.training.cluster.steps import LEAVE, PULL, PUSH, Ask, read_held, read_reply, step_parts
from paceline.training.pace import Pace
from paceline.wire.coding import KeyWriter, read_values
from paceline.wire.frames import BadFrameError, Frame, Kind
from tests.training.cluster.shards import FakePeer, TestedShard, frame_of, open_shard, order_copy, tell

FEATURES = 20
RATE = 2.0**-10


def make_shard(workers: int, pace: Any, shard: int = 0, shards: int = 1, dim: int = 1, num_dense: int = 0,
               **wire: Any) -> TestedShard:  # fmt: skip
    optimizer = OptimizerConfig(name="sgd", learning_rate=RATE)
    config = RunConfig(
        data="x", pace=pace, workers=workers, shards=shards, engine="ray", wire=WireConfig(**wire), optimizer=optimizer
    )
    table = TableLayout(FEATURES, (Group("weight", dim, optimizer),))
    dense = DenseLayout(num_dense, num_dense, optimizer) if num_dense else None
    return open_shard(config, Layout(table, dense), shard)


class Client:
    """A worker's connection to one shard."""

    def __init__(self, service: ShardService, rank: int, incarnation: int = 0, values: str = "float32",
                 deltas: bool = False) -> None:  # fmt: skip
        self.service = service
        self.peer = FakePeer()
        self.values = values
        self.writer = KeyWriter(deltas)
        self.applied = tell(service, m.Join(rank=rank, incarnation=incarnation, generation=1), self.peer).applied
        self.peer.sent.clear()

    def step(self, flags: int, batch: int, pushed: list[float], keys: list[int], rows: int = 1) -> None:
        ask = Ask(flags, batch, 0, float(rows), rows, np.array(pushed, np.float32), np.array(keys, np.uint32))
        parts = step_parts(ask, self.values, self.writer)
        self.service.received(self.peer, frame_of(Kind.STEP, flags, *parts))  # type: ignore[arg-type]

    def reply(self) -> tuple[int, list[float]] | None:
        """The next VALUES frame, if there is one: its batch and values."""
        while self.peer.sent:
            frame = self.peer.sent.pop(0)
            if frame.kind == Kind.VALUES:
                found = read_reply(frame)
                count = len(found.data) // (4 if self.values == "float32" else 2)
                return found.batch, read_values(found.data, count, self.values).tolist()
        return None


class SimulatedWorker:
    """A worker with a fixed list of batches that may lose connections, die and be replaced at any moment.

    Batch b pushes 1.0 for each of its keys, so a weight is −rate times the batches that had its key.
    """

    def __init__(self, rank: int, batches: list[list[int]], shards: list[TestedShard], in_flight: int) -> None:
        self.rank = rank
        self.batches = batches
        self.shards = shards
        self.in_flight = in_flight
        self.incarnation = 0
        self.clients = [Client(shard, rank) for shard in shards]
        self.values: dict[int, list[Any]] = {}
        self.furthest = 0
        self.begin(1)

    def begin(self, first: int) -> None:
        """Frames are numbered like the batches that they pull; the last ones, past the batches, only push."""
        self.first = first
        self.last = first if first > len(self.batches) else len(self.batches) + self.in_flight
        self.sent = [first - 1] * len(self.shards)
        self.answered = [first - 1] * len(self.shards)
        # What an incarnation that died had reached counts too: others may have gone on because of it.
        self.furthest = max(self.furthest, first)

    @property
    def finished(self) -> bool:
        return min(self.answered) == self.last

    def keys(self, batch: int, shard: int) -> list[int]:
        keys = self.batches[batch - 1] if 1 <= batch <= len(self.batches) else []
        return [key // len(self.shards) for key in keys if key % len(self.shards) == shard]

    def send(self, shard: int, frame: int) -> None:
        pushed = frame - self.in_flight
        has_pushed = pushed >= self.first
        flags = (LEAVE if frame == self.last else PULL) | (PUSH if has_pushed else 0)
        values = [1.0] * len(self.keys(pushed, shard)) if has_pushed else []
        self.clients[shard].step(flags, frame, values, self.keys(frame, shard))

    def advance(self, shard: int) -> None:
        """Do the next thing towards one shard: send what may be sent, or look for answers."""
        frame = self.sent[shard] + 1
        if frame <= min(self.last, min(self.answered) + self.in_flight):
            self.send(shard, frame)
            self.sent[shard] = frame
        while (reply := self.clients[shard].reply()) is not None:
            number, values = reply
            if number != self.answered[shard] + 1:
                continue
            self.answered[shard] = number
            seen = self.values.setdefault(number, [None] * len(self.shards))
            assert seen[shard] in (None, values)
            seen[shard] = values
        self.furthest = max(self.furthest, min(self.answered) + 1)

    def cut(self, shard: int) -> None:
        """The connection breaks: connect again and ask for all that was not answered."""
        self.clients[shard] = Client(self.shards[shard], self.rank, self.incarnation)
        for frame in range(self.answered[shard] + 1, self.sent[shard] + 1):
            self.send(shard, frame)

    def die(self) -> None:
        """A successor goes on after the last batch that all shards have."""
        if self.finished:
            return
        self.incarnation += 1
        self.clients = [Client(shard, self.rank, self.incarnation) for shard in self.shards]
        self.begin(min(client.applied for client in self.clients) + 1)


def run_simulation(data: st.DataObject, pace: Any, num_shards: int) -> tuple[list[SimulatedWorker], list[TestedShard]]:
    num_workers = data.draw(st.integers(1, 3))
    same = data.draw(st.integers(0, 5))
    batches = [
        [
            sorted(data.draw(st.sets(st.integers(0, FEATURES), max_size=4)))
            for _ in range(same if pace == "sync" else data.draw(st.integers(0, 5)))
        ]
        for _ in range(num_workers)
    ]
    shards = [make_shard(num_workers, pace, shard, num_shards) for shard in range(num_shards)]
    in_flight = Pace.of(pace).in_flight(keyed=True)
    workers = [SimulatedWorker(rank, batches[rank], shards, in_flight) for rank in range(num_workers)]
    turns = 0
    while not all(worker.finished for worker in workers):
        worker = data.draw(st.sampled_from(workers))
        shard = data.draw(st.integers(0, num_shards - 1))
        fault = data.draw(st.integers(0, 9)) if turns < 60 else 9
        if fault == 0:
            worker.cut(shard)
        elif fault == 1:
            worker.die()
        else:
            worker.advance(shard)
            check_gate(workers, pace)
        turns += 1
        if turns > 200:
            for worker in workers:
                for shard in range(num_shards):
                    worker.advance(shard)
    return workers, shards


def check_gate(workers: list[SimulatedWorker], pace: Any) -> None:
    """A worker that all shards let into batch b was at most N clocks ahead of all workers that had not left."""
    if pace == "async":
        return
    staleness = 0 if pace == "sync" else pace
    for fast in workers:
        let_in = [b for b, seen in fast.values.items() if b <= len(fast.batches) and None not in seen]
        for slow in workers:
            if slow.furthest <= len(slow.batches):
                assert max(let_in, default=0) - slow.furthest <= staleness


@pytest.mark.parametrize("num_shards", [1, 2, 3])
@pytest.mark.parametrize("pace", ["sync", "async", 1, 2])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_each_batch_counts_once_whatever_dies(pace: Any, num_shards: int, data: st.DataObject) -> None:
    workers, shards = run_simulation(data, pace, num_shards)
    expected = np.zeros(FEATURES + 1)
    for worker in workers:
        for batch in worker.batches:
            # In sync one update is the mean over all workers' rows.
            expected[batch] -= RATE / (len(workers) if pace == "sync" else 1)
    found = np.zeros(FEATURES + 1)
    for shard, service in enumerate(shards):
        found[shard::num_shards] = service.table.table
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
    rows = sum(len(worker.batches) for worker in workers)
    assert {tell(service, m.Count()).rows for service in shards} == {rows}
    assert {tell(service, m.Count()).losses for service in shards} == {float(rows)}


class TestGate:
    def test_a_held_reply_says_for_whom_it_waits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("paceline.training.cluster.shard.NOTICE_SECONDS", -1.0)
        service = make_shard(3, 1)
        fast, slow = Client(service, 0), Client(service, 1)
        fast.step(PULL, 1, [], [3])
        fast.step(PULL | PUSH, 2, [1.0], [3])
        assert [fast.reply(), fast.reply()] == [(1, [0.0]), (2, [-RATE])]
        slow.step(PULL, 1, [], [4])
        fast.step(PULL | PUSH, 3, [1.0], [3])
        slow.reply()
        assert fast.reply() is None
        service.tick()
        assert fast.peer.sent[-1].kind == Kind.HELD
        assert read_held(fast.peer.sent[-1]) == [1, 2]
        assert service.doing == "holds back the reply to worker 0, waiting for workers 1, 2"

    def test_replies_carry_queue_and_service_time(self) -> None:
        service = make_shard(1, "async")
        client = Client(service, 0)
        client.step(PULL, 1, [], [1, 2])
        times = read_reply(client.peer.sent[-1]).times
        assert times.service > 0
        assert times.queue > 0

    def test_the_largest_lead_is_kept(self) -> None:
        service = make_shard(2, 3)
        client = Client(service, 0)
        client.step(PULL, 1, [], [1])
        for batch in (2, 3, 4):
            client.step(PULL | PUSH, batch, [1.0], [1])
        assert tell(service, m.Count()).largest_lead == 3


class TestInFlight:
    def test_at_pace_async_a_frame_pushes_the_batch_before_the_last(self) -> None:
        service = make_shard(1, "async")
        client = Client(service, 0)
        client.step(PULL, 1, [], [1])
        client.step(PULL, 2, [], [1, 2])
        client.step(PULL | PUSH, 3, [1.0], [1, 2])
        client.step(PUSH | PULL, 4, [1.0, 1.0], [])
        client.step(PUSH | LEAVE, 5, [1.0, 1.0], [])
        assert [client.reply() for _ in range(5)] == [(1, [0.0]), (2, [0.0, 0.0]), (3, [-RATE, 0.0]), (4, []), (5, [])]
        assert service.table.table[[1, 2]].tolist() == [-3 * RATE, -2 * RATE]

    def test_what_was_pulled_two_frames_ago_must_be_pushed(self) -> None:
        service = make_shard(1, "async")
        client = Client(service, 0)
        client.step(PULL, 1, [], [1])
        client.step(PULL, 2, [], [1, 2])
        with pytest.raises(BadFrameError, match="without having pushed 1"):
            client.step(PULL, 3, [], [1])
        with pytest.raises(BadFrameError, match="2 values of batch 1, for 1 values"):
            client.step(PULL | PUSH, 3, [1.0, 1.0], [1])


class TestConnections:
    def test_an_older_incarnation_is_refused(self) -> None:
        service = make_shard(1, 9)
        old = Client(service, 0, incarnation=1)
        Client(service, 0, incarnation=2)
        assert not old.peer.open
        with pytest.raises(BadFrameError, match="replaced"):
            Client(service, 0, incarnation=1)
        with pytest.raises(BadFrameError, match="not a worker now"):
            old.step(PULL, 1, [], [1])
        assert tell(service, m.Count()).refused == 1

    def test_an_older_generation_is_refused(self) -> None:
        service = make_shard(1, 9)
        client = Client(service, 0)
        tell(service, m.Reset(generation=2, applied=[0], rows=0))
        assert not client.peer.open
        with pytest.raises(BadFrameError, match="generation"):
            Client(service, 0)

    @pytest.mark.parametrize(
        ("flags", "batch", "pushed", "keys"),
        [
            (PULL, 3, [], [1]),
            (PULL | PUSH, 2, [1.0], [1]),
            (PULL, 2, [], [1]),
            (PULL, 1, [], [FEATURES + 1]),
            (0, 2, [], []),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, flags: int, batch: int, pushed: Any, keys: Any) -> None:
        service = make_shard(1, 9)
        client = Client(service, 0)
        client.step(PULL, 1, [], [1, 2])
        before = service.table.table.copy()
        if batch == 1:
            tell(service, m.Open(bases=[0], done=[0]))
        with pytest.raises(BadFrameError):
            client.step(flags, batch, pushed, keys)
        np.testing.assert_array_equal(service.table.table, before)

    @settings(max_examples=200, deadline=None)
    @given(flags=st.integers(0, 8), body=st.binary(max_size=200), kind=st.sampled_from(list(Kind)))
    def test_random_bodies_close_a_connection_at_most(self, flags: int, body: bytes, kind: Kind) -> None:
        service = make_shard(1, 9)
        client = Client(service, 0)
        frame = Frame(kind, flags, np.frombuffer(bytearray(body), np.uint8))
        with suppress(BadFrameError):
            service.received(client.peer, frame)  # type: ignore[arg-type]
        fresh = Client(service, 0, incarnation=1)
        assert fresh.applied >= 0


class TestCopies:
    def test_a_copy_is_of_one_moment_while_steps_go_on(self) -> None:
        service = make_shard(2, 9)
        client = Client(service, 0)
        client.step(PULL, 1, [], [5])
        client.step(PULL | PUSH, 2, [1.0], [5])
        coordinator = FakePeer()
        copied = tell(service, m.Copy(at=NOW), coordinator)
        assert copied == m.Copied(applied=[1, 0], rows=1, losses=1.0, loss_rows=1)
        client.step(PULL | PUSH, 3, [1.0], [5])
        fetch = m.FetchPart(what="copy", of="table", start=0, count=21)
        service.received(coordinator, frame_of(Kind.MESSAGE, 0, encode(fetch)))  # type: ignore[arg-type]
        states = coordinator.sent[-1].body[8:].view(np.float32)
        assert states[5] == -RATE
        assert service.table.table[5] == -2 * RATE

    def test_in_sync_a_copy_waits_for_its_clock(self) -> None:
        service = make_shard(2, "sync")
        clients = [Client(service, rank) for rank in range(2)]
        coordinator = FakePeer()
        order_copy(service, 1, coordinator)
        for client in clients:
            client.step(PULL, 1, [], [5])
        clients[0].step(PULL | PUSH, 2, [1.0], [5])
        assert not coordinator.sent
        clients[1].step(PULL | PUSH, 2, [1.0], [5])
        assert decode(coordinator.sent[-1], m.FromShard).applied == [1, 1]

    def test_states_come_back_as_they_were(self) -> None:
        service = make_shard(1, 9)
        states = np.arange(FEATURES + 1, dtype=np.float32)
        peer = FakePeer()
        service.received(peer, frame_of(Kind.CHUNK, 0, (0).to_bytes(8, "little"), states))  # type: ignore[arg-type]
        assert service.table.table.tolist() == states.tolist()
        with pytest.raises(BadFrameError, match="states from key 1"):
            service.received(peer, frame_of(Kind.CHUNK, 0, (1).to_bytes(8, "little"), states))  # type: ignore[arg-type]


@pytest.mark.parametrize("values", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("deltas", [False, True])
def test_every_coding_gives_the_same_weights(values: str, deltas: bool) -> None:
    service = make_shard(1, 9, values=values, key_deltas=deltas)
    client = Client(service, 0, 0, values, deltas)
    pushed: list[float] = []
    for batch, keys in enumerate([[1, 4, 20], [1, 4, 20], [4], [1, 4, 20]], start=1):
        client.step(PULL | (PUSH if batch > 1 else 0), batch, pushed, keys)
        pushed = [0.5] * len(keys)
    assert client.reply() == (1, [0.0, 0.0, 0.0])
    assert client.reply() == (2, [-RATE / 2] * 3)
    assert client.reply() == (3, [-RATE])
    assert client.reply() == (4, [-RATE, -1.5 * RATE, -RATE])


def test_pulling_everything_sends_the_whole_model() -> None:
    service = make_shard(1, 9, pull="all")
    client = Client(service, 0)
    client.step(PULL, 1, [], [1])
    client.step(PULL | PUSH, 2, [1.0], [2])
    reply = client.reply()
    assert reply is not None
    assert len(reply[1]) == FEATURES + 1
    second = client.reply()
    assert second is not None
    assert second[1][1] == -RATE


class TestSeveralColumnsAndDenseValues:
    """Behind the values of keys, two each, come the dense ones."""

    def test_each_push_is_applied(self) -> None:
        service = make_shard(1, 9, dim=2, num_dense=3)
        client = Client(service, 0)
        client.step(PULL, 1, [], [1, 4])
        assert client.reply() == (1, [0.0] * 7)
        client.step(PULL | PUSH, 2, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], [4], rows=1)
        assert client.reply() == (2, [-3 * RATE, -4 * RATE, -5 * RATE, -6 * RATE, -7 * RATE])
        # Asked again, the answer is the same even if the values have changed since.
        client.step(PULL | PUSH, 3, [1.0] * 5, [4])
        client.reply()
        client.step(PULL | PUSH, 2, [0.0] * 7, [4])
        assert client.reply() == (2, [-3 * RATE, -4 * RATE, -5 * RATE, -6 * RATE, -7 * RATE])

    def test_in_sync_the_mean_of_all_with_rows(self) -> None:
        service = make_shard(3, "sync", dim=2, num_dense=1)
        clients = [Client(service, rank) for rank in range(3)]
        for client, keys in zip(clients, ([1], [1, 2], []), strict=True):
            client.step(PULL, 1, [], keys)
            client.reply()
        clients[0].step(PULL | PUSH, 2, [1.0, 2.0, 8.0], [1], rows=1)
        clients[2].step(PULL | PUSH, 2, [99.0], [1], rows=0)
        assert clients[0].reply() is None
        clients[1].step(PULL | PUSH, 2, [3.0, 2.0, 4.0, 8.0, 8.0], [2], rows=3)
        assert clients[0].reply() == (2, [-RATE, -RATE, -4 * RATE])
        assert clients[1].reply() == (2, [-RATE, -2 * RATE, -4 * RATE])

    def test_pulling_everything(self) -> None:
        service = make_shard(1, 9, dim=2, num_dense=1, pull="all")
        client = Client(service, 0)
        client.step(PULL, 1, [], [1])
        client.reply()
        client.step(PULL | PUSH, 2, [1.0, 2.0, 3.0], [2])
        reply = client.reply()
        assert reply is not None
        assert len(reply[1]) == 2 * (FEATURES + 1) + 1
        assert (reply[1][2:4], reply[1][-1]) == ([-RATE, -2 * RATE], -3 * RATE)

    def test_a_copy_has_both(self) -> None:
        service = make_shard(1, 9, dim=2, num_dense=2)
        client, asker = Client(service, 0), FakePeer()
        client.step(PULL, 1, [], [0])
        client.step(PULL | PUSH, 2, [1.0, 2.0, 3.0, 4.0], [0])
        tell(service, m.Copy(at=NOW), asker)
        client.step(PULL | PUSH, 3, [1.0, 2.0, 3.0, 4.0], [0])
        for of, count, expected in (("table", 1, [-RATE, -2 * RATE]), ("dense", 2, [-3 * RATE, -4 * RATE])):
            fetch = m.FetchPart(what="copy", of=of, start=0, count=count)
            service.received(asker, frame_of(Kind.MESSAGE, 0, encode(fetch)))  # type: ignore[arg-type]
            assert asker.sent[-1].body[8:].view(np.float32).tolist() == expected

    @pytest.mark.parametrize("pushed", [[1.0] * 4, [1.0] * 6])
    def test_a_push_must_have_all_of_it(self, pushed: list[float]) -> None:
        service = make_shard(1, 9, dim=2, num_dense=3)
        client = Client(service, 0)
        client.step(PULL, 1, [], [1])
        with pytest.raises(BadFrameError, match="for 5 values"):
            client.step(PULL | PUSH, 2, pushed, [])
