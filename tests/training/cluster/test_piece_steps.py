"""A shard of a dense model: pushes in pieces and in turn, gates that count what is applied, copies of whole states."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paceline.parameters.layout import DenseLayout, Layout
from paceline.processes.messages import decode, encode
from paceline.settings import OptimizerConfig, RunConfig
from paceline.training.cluster import copies, piece_steps
from paceline.training.cluster import messages as m
from paceline.training.cluster.copies import NOW
from paceline.training.cluster.shared import open_shared, share
from paceline.training.cluster.steps import LEAVE, PULL, PUSH, Ask, chunk_parts, read_chunk, step_parts
from paceline.wire.coding import KeyWriter
from paceline.wire.frames import BadFrameError, Kind
from tests.training.cluster.shards import FakePeer, TestedShard, frame_of, open_shard, order_copy, tell

VALUES = 10
NO_KEYS = KeyWriter(deltas=False)


def make(pace: Any, workers: int = 2, exchange: str = "shard", shared: bool = False, num_values: int = VALUES,
         **optimizer: Any) -> TestedShard:  # fmt: skip
    settings = OptimizerConfig(**{"name": "sgd", "learning_rate": 1.0, **optimizer})
    config = RunConfig(data="x", model="softmax", pace=pace, workers=workers, engine="ray", exchange=exchange,
                       optimizer=settings)  # fmt: skip
    layout = DenseLayout(num_values, num_values, settings, epoch_rows=100)
    return open_shard(config, Layout(dense=layout), loopback=shared)


class Client:
    """A worker's connection; it may share its gradient's memory."""

    def __init__(self, service: TestedShard, rank: int, shared: bool = False) -> None:
        self.service = service
        self.rank = rank
        self.peer = FakePeer()
        self.gradient, place = share(VALUES) if shared else (np.zeros(VALUES, np.float32), "")
        tell(service, m.Join(rank=rank, incarnation=0, generation=1, gradient=place), self.peer)
        joined = decode(self.peer.sent.pop(), m.FromShard)
        assert isinstance(joined, m.Joined)
        self.values = open_shared(joined.values, VALUES)

    def step(self, batch: int, rows: int, value: float) -> None:
        """Announce a gradient and, where it is wanted, push it."""
        self.gradient.fill(value)
        self.announce(batch, PUSH | PULL, rows)
        if m.Go(wanted=True) in self.heard():
            self.push(value)

    def announce(self, batch: int, flags: int, rows: int = 1) -> None:
        parts = step_parts(Ask(flags, batch, 0, float(rows), rows), "float32", NO_KEYS)
        self.service.received(self.peer, frame_of(Kind.STEP, flags, *parts))  # type: ignore[arg-type]

    def send(self, start: int, values: Any) -> None:
        frame = frame_of(Kind.CHUNK, 1, *chunk_parts(start, np.array(values, np.float32)))
        self.service.received(self.peer, frame)  # type: ignore[arg-type]

    def push(self, value: float) -> None:
        for start in (0, 5):
            self.send(start, [value] * 5)

    def heard(self) -> list[Any]:
        """What came since the last time: words to push, and `True` where values may be pulled."""
        found: list[Any] = []
        while self.peer.sent:
            frame = self.peer.sent.pop(0)
            if frame.kind == Kind.HELD:
                continue
            found.append(True if frame.kind == Kind.VALUES else decode(frame, m.FromShard))
        return found


def say_to(service: TestedShard, message: Any, peer: FakePeer) -> None:
    service.received(peer, frame_of(Kind.MESSAGE, 0, encode(message)))  # type: ignore[arg-type]


def copied_values(service: TestedShard, asker: FakePeer) -> list[float]:
    """Fetch what was copied, in two pieces."""
    found: list[float] = []
    for start in (0, 5):
        asker.sent.clear()
        fetch = m.FetchPart(what="copy", of="dense", start=start, count=5)
        say_to(service, fetch, asker)
        found += read_chunk(asker.sent[0])[1].tolist()
    say_to(service, m.Fetched(), asker)
    return found


def weights(service: TestedShard) -> list[float]:
    found: list[float] = service.dense.values.tolist()
    return found


def test_in_sync_workers_push_in_turn_and_are_answered_together() -> None:
    service = make("sync")
    clients = [Client(service, rank) for rank in (0, 1)]
    for client in clients:
        client.announce(1, PULL)
        assert client.heard() == [True]
    clients[1].announce(2, PUSH | PULL, rows=3)
    assert clients[1].heard() == []
    clients[0].announce(2, PUSH | PULL, rows=1)
    assert clients[0].heard() == [m.Go(wanted=True)]
    clients[0].push(1.0)
    assert clients[0].heard() == []
    assert clients[1].heard() == [m.Go(wanted=True)]
    clients[1].push(7.0)
    assert clients[0].heard() == clients[1].heard() == [True]
    assert weights(service) == [-2.0] * VALUES


@pytest.mark.parametrize(
    "sharing", [(False, False, False), (True, True, True), (True, False, True), (False, True, True)]
)
def test_every_step_begins_a_sum_of_its_own(sharing: tuple[bool, ...]) -> None:
    """Whichever worker is first or last, and whether or not it shares its memory with the shard."""
    service = make("sync", workers=3, shared=True)
    clients = [Client(service, rank, shared) for rank, shared in enumerate(sharing)]
    for client in clients:
        client.announce(1, PULL)
    expected = 0.0
    for batch, rows in enumerate([(1, 1, 1), (0, 1, 1), (0, 0, 2), (1, 0, 1), (1, 1, 0), (2, 0, 0), (1, 1, 2)], 2):
        for client, own in zip(clients, rows, strict=True):
            client.step(batch, own, 3.0 * own * (client.rank + batch))
            expected -= 3.0 * own * (client.rank + batch) / sum(rows)
        assert weights(service) == pytest.approx([expected] * VALUES)
        for client in clients:
            assert client.values is not None
            assert client.values.tolist() == weights(service)


@pytest.mark.parametrize("pace", ["async", 2])
def test_shared_gradients_at_other_paces(pace: Any) -> None:
    service = make(pace, shared=True)
    clients = [Client(service, rank, shared=True) for rank in (0, 1)]
    for client in clients:
        client.announce(1, PULL)
        client.step(2, 2, 4.0)
    assert weights(service) == [-4.0] * VALUES


@pytest.mark.parametrize("pace", ["sync", "async"])
def test_others_get_a_turn_while_a_gradient_is_taken(monkeypatch: pytest.MonkeyPatch, pace: str) -> None:
    monkeypatch.setattr(piece_steps, "TURN_VALUES", 4)
    monkeypatch.setattr(piece_steps, "FOLD_VALUES", 3)
    service = make(pace, shared=True)
    calls: list[Callable[[], None]] = []
    service.exchange._soon = calls.append  # type: ignore[attr-defined]
    clients = [Client(service, rank, shared=True) for rank in (0, 1)]
    for client in clients:
        client.announce(1, PULL)
    for client in clients:
        client.step(2, 1, 6.0)
    turns = 0
    while calls:
        calls.pop(0)()
        turns += 1
    # Ten values, four a turn; what a sum begins with stays where it is.
    assert turns == (4 if pace == "sync" else 6)
    assert weights(service) == [-6.0 if pace == "sync" else -12.0] * VALUES
    # A run that has gone back wants none of what was being taken.
    clients[0].step(3, 1, 1.0)
    tell(service, m.Reset(generation=2, applied=[0, 0], rows=0))
    for call in calls:
        call()
    assert weights(service) == [0.0] * VALUES


def test_a_shard_that_shares_nothing_gives_nothing_away() -> None:
    service = make("sync")
    client = Client(service, 0, shared=True)
    assert client.values is None
    client.announce(1, PULL)
    client.announce(2, PUSH | PULL)
    assert m.Go(wanted=True) in client.heard()


def test_a_late_worker_can_pull_while_another_has_pushed() -> None:
    service = make("sync")
    early, late = Client(service, 0), Client(service, 1)
    early.announce(1, PULL)
    early.announce(2, PUSH | PULL)
    early.push(1.0)
    late.announce(1, PULL)
    assert late.heard() == [True]


def test_a_worker_without_rows_holds_nobody_up() -> None:
    service = make("sync", workers=3)
    clients = [Client(service, rank) for rank in range(3)]
    for client in clients:
        client.announce(1, PULL)
    for client, rows in zip(clients, (0, 2, 0), strict=True):
        client.heard()
        client.announce(2, PUSH | LEAVE, rows=rows)
    assert clients[0].heard() == [m.Go(wanted=False)]
    clients[1].push(4.0)
    assert clients[1].heard() == [m.Go(wanted=True), True]
    assert clients[0].heard() == [True]
    assert clients[2].heard() == [m.Go(wanted=False), True]
    assert weights(service) == [-2.0] * VALUES


def test_the_gate_counts_what_is_applied_and_not_what_is_announced() -> None:
    service = make(1)
    fast, slow = Client(service, 0), Client(service, 1)
    for client in (fast, slow):
        client.announce(1, PULL)
    for batch in (2, 3):
        fast.announce(batch, PUSH | PULL)
        fast.push(0.0)
    assert True not in fast.heard()[3:]
    slow.announce(2, PUSH | PULL)
    assert True not in fast.heard()
    slow.push(0.0)
    assert fast.heard() == [True]


def test_a_copy_waits_for_pushes_under_way_and_holds_back_others() -> None:
    service = make("async")
    clients = [Client(service, rank) for rank in (0, 1)]
    for client in clients:
        client.announce(1, PULL)
        client.heard()
    clients[0].announce(2, PUSH | PULL)
    clients[0].send(0, [1.0] * 5)
    asker = FakePeer()
    order_copy(service, NOW, asker)
    assert asker.sent == []
    clients[1].announce(2, PUSH | PULL)
    assert clients[1].heard() == []
    clients[0].send(5, [1.0] * 5)
    copied = decode(asker.sent[0], m.FromShard)
    assert (copied.applied, copied.rows) == ([1, 0], 1)
    # Nothing changes until it has been fetched, but workers that wait for values get them.
    assert clients[1].heard() == []
    assert True in clients[0].heard()
    assert copied_values(service, asker) == [-1.0] * VALUES
    assert clients[1].heard() == [m.Go(wanted=True)]


def test_in_sync_workers_compute_while_a_copy_is_fetched_and_wait_with_their_pushes() -> None:
    service = make("sync")
    clients = [Client(service, rank) for rank in (0, 1)]
    for client in clients:
        client.announce(1, PULL)
    asker = FakePeer()
    order_copy(service, 1, asker)
    for client in clients:
        client.heard()
        client.step(2, 1, 2.0)
    assert decode(asker.sent[0], m.FromShard).applied == [1, 1]
    for client in clients:
        assert client.heard() == [True]
        client.announce(3, PUSH | PULL)
    assert clients[0].heard() == []
    assert copied_values(service, asker) == [-2.0] * VALUES
    assert clients[0].heard() == [m.Go(wanted=True)]


@pytest.mark.parametrize("comes_back", [False, True])
def test_the_coordinator_may_lose_its_connection_while_it_fetches_a_copy(
    monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    service = make("async")
    client, asker = Client(service, 0), FakePeer()
    client.announce(1, PULL)
    tell(service, m.Copy(at=NOW), asker)
    client.announce(2, PUSH | PULL)
    client.heard()
    service.closed(asker)  # type: ignore[arg-type]
    other = FakePeer()
    if comes_back:
        say_to(service, m.FetchPart(what="copy", of="dense", start=0, count=5), other)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + copies.BACK_SECONDS + 1)
    service.tick()
    assert (m.Go(wanted=True) in client.heard()) is not comes_back
    if comes_back:
        assert copied_values(service, other) == [0.0] * VALUES
        assert client.heard() == [m.Go(wanted=True)]
    else:
        client.push(1.0)
        with pytest.raises(BadFrameError, match="may have changed"):
            say_to(service, m.FetchPart(what="copy", of="dense", start=0, count=5), other)


@pytest.mark.parametrize("optimizer", [{"own": {"momentum": 0.9}}, {"name": "adam"}])
@pytest.mark.parametrize(("pace", "workers"), [("sync", 3), ("async", 3)])
def test_a_shard_has_one_copy_beyond_what_its_optimizer_needs(pace: str, workers: int, optimizer: Any) -> None:
    """Of a model that is large beside all else, with checkpoints on the way."""
    num, piece = 1 << 22, 1 << 16
    gradient = np.ones(piece, np.float32)
    make(pace, workers, num_values=1, **optimizer).dense.warm_up()
    tracemalloc.start()
    try:
        service = make(pace, workers, num_values=num, **optimizer)
        width = service.dense.width
        clients = [Client(service, rank) for rank in range(workers)]
        for client in clients:
            client.announce(1, PULL)
        for batch in (2, 3):
            for client in clients:
                client.announce(batch, PUSH | PULL)
                for start in range(0, num, piece):
                    client.send(start, gradient)
            asker = FakePeer()
            tell(service, m.Copy(at=NOW if pace == "async" else batch - 1), asker)
            for start in range(0, num, piece):
                say_to(service, m.FetchPart(what="copy", of="dense", start=start, count=piece), asker)
                asker.sent.clear()
            say_to(service, m.Fetched(), asker)
            assert service.dense.values[0] < 0
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert width <= most / (4 * num) < width + 1.25


@pytest.mark.parametrize(("start", "count"), [(5, 5), (0, 11), (0, 0)])
def test_pieces_that_do_not_fit(start: int, count: int) -> None:
    service = make("async")
    client = Client(service, 0)
    client.announce(1, PULL)
    client.announce(2, PUSH | PULL)
    with pytest.raises(BadFrameError):
        client.send(start, [1.0] * count)
