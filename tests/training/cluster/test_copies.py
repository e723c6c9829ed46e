"""A copy is what the parameters were at the moment that was ordered, and fetching it returns exactly that."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paceline.parameters.dense import DenseStore
from paceline.parameters.keyed import KeyedStore
from paceline.parameters.layout import DenseLayout, Group, TableLayout
from paceline.processes.messages import decode
from paceline.settings import OptimizerConfig
from paceline.training.cluster.clocks import WorkerClocks
from paceline.training.cluster.copies import BACK_SECONDS, NOW, Copies
from paceline.training.cluster.messages import Copied, FromShard
from paceline.wire.frames import BadFrameError
from tests.training.cluster.shards import FakePeer

SGD = OptimizerConfig(name="sgd")
KEYS, VALUES = 5, 4


class Shard:
    """Stores, clocks and copies of a shard, without its connections."""

    def __init__(self, in_place: bool) -> None:
        self.stores: dict[str, Any] = {"dense": DenseStore(DenseLayout(VALUES, VALUES, SGD))}
        if not in_place:
            self.stores["table"] = KeyedStore(TableLayout(KEYS, (Group("weight", 1, SGD),), bias=False))
        self.clocks = WorkerClocks(2, 1, 0)
        self.copies = Copies(self.clocks, self.stores, in_place)
        self.num_released = 0
        self.copies.released = self._count

    def _count(self) -> None:
        self.num_released += 1

    def set_all(self, value: float) -> None:
        for store in self.stores.values():
            store.load(0, np.full((store.size, store.width), value, np.float32))

    def fetch(self, peer: Any, name: str, start: int = 0, stop: int = VALUES) -> list[float]:
        found: list[float] = self.copies.part(peer, name, start, stop)[:, 0].tolist()
        return found


def told(peer: Any) -> list[Any]:
    messages = [decode(frame, FromShard) for frame in peer.sent]
    peer.sent.clear()
    return messages


@pytest.fixture
def peer() -> Any:
    return FakePeer()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock on."""
    passed = [0.0]
    began = time.monotonic()
    monkeypatch.setattr("paceline.training.cluster.copies.time.monotonic", lambda: began + passed[0])

    def move(seconds: float) -> None:
        passed[0] += seconds

    return move


class TestOrders:
    """Whether copies take memory of their own or not."""

    @pytest.fixture(params=[False, True], ids=["own-memory", "in-place"])
    def shard(self, request: pytest.FixtureRequest) -> Shard:
        return Shard(request.param)

    def test_nothing_is_made_that_was_not_ordered(self, shard: Shard, peer: Any) -> None:
        for clock in (NOW, 0, 1, 2):
            shard.copies.make_at(clock)
        with pytest.raises(BadFrameError):
            shard.fetch(peer, "dense")
        assert not shard.copies.held

    @pytest.mark.parametrize("at", [NOW, 0, 3])
    def test_it_is_made_once_and_at_its_moment(self, shard: Shard, peer: Any, at: int) -> None:
        shard.copies.order(at, peer)
        for clock in (1, 2, 4):
            shard.copies.make_at(clock)
        assert told(peer) == []
        assert shard.copies.at == at
        shard.copies.make_at(at)
        assert [type(message) for message in told(peer)] == [Copied]
        assert shard.copies.at is None
        shard.copies.make_at(at)
        assert told(peer) == []

    def test_it_tells_what_it_contains(self, shard: Shard, peer: Any) -> None:
        shard.clocks.book(30, 4.5)
        for worker, applied in zip(shard.clocks.workers, (7, 6), strict=True):
            worker.applied = applied
        shard.copies.order(NOW, peer)
        shard.copies.make_at(NOW)
        assert told(peer) == [Copied(applied=[7, 6], rows=30, losses=4.5, loss_rows=30)]

    def test_an_order_goes_with_its_connection_and_with_its_generation(self, shard: Shard, peer: Any) -> None:
        shard.copies.order(3, peer)
        stranger: Any = FakePeer()
        shard.copies.closed(stranger)
        assert shard.copies.at == 3
        shard.copies.closed(peer)
        assert shard.copies.at is None
        shard.copies.order(3, peer)
        shard.copies.reset()
        shard.copies.make_at(3)
        assert told(peer) == []
        assert not shard.copies.held

    def test_the_last_order_counts(self, shard: Shard, peer: Any) -> None:
        later: Any = FakePeer()
        shard.copies.order(3, peer)
        shard.copies.order(5, later)
        shard.copies.make_at(3)
        shard.copies.make_at(5)
        assert told(peer) == []
        assert len(told(later)) == 1


class TestOwnMemory:
    def test_a_copy_stays_what_it_was_until_the_next_one(self, peer: Any) -> None:
        shard = Shard(in_place=False)
        for value in (1.0, 2.0):
            shard.set_all(value)
            shard.copies.order(NOW, peer)
            shard.copies.make_at(NOW)
            assert not shard.copies.held
            shard.set_all(value + 50)
            assert shard.fetch(peer, "table", 0, KEYS) == [value] * KEYS
            assert shard.fetch(peer, "dense") == [value] * VALUES
        # Whatever has been fetched, nothing was on hold.
        shard.copies.release()
        assert shard.fetch(peer, "dense", 1, 3) == [2.0, 2.0]


class TestInPlace:
    """The states themselves are the copy: nothing may change before all has been fetched."""

    def held(self, peer: Any) -> Shard:
        shard = Shard(in_place=True)
        shard.set_all(1.0)
        shard.copies.order(NOW, peer)
        assert not shard.copies.held
        shard.copies.make_at(NOW)
        assert shard.copies.held
        return shard

    def test_held_until_released(self, peer: Any) -> None:
        shard = self.held(peer)
        assert shard.fetch(peer, "dense", 1, 4) == [1.0] * 3
        assert (shard.copies.held, shard.num_released) == (True, 0)
        shard.copies.release()
        assert (shard.copies.held, shard.num_released) == (False, 1)
        with pytest.raises(BadFrameError, match="may have changed"):
            shard.fetch(peer, "dense")

    def test_as_long_as_the_connection_stands_there_is_no_hurry(
        self, peer: Any, later: Callable[[float], None]
    ) -> None:
        shard, stranger = self.held(peer), FakePeer()
        shard.copies.closed(stranger)  # type: ignore[arg-type]
        later(1e6)
        shard.copies.expire()
        assert shard.copies.held

    def test_a_fetcher_that_is_gone_is_waited_for_a_while(self, peer: Any, later: Callable[[float], None]) -> None:
        shard = self.held(peer)
        shard.copies.closed(peer)
        later(BACK_SECONDS - 0.1)
        shard.copies.expire()
        assert (shard.copies.held, shard.num_released) == (True, 0)
        later(0.2)
        shard.copies.expire()
        assert (shard.copies.held, shard.num_released) == (False, 1)
        shard.copies.expire()
        assert shard.num_released == 1

    def test_one_that_comes_back_has_all_the_time_again(self, peer: Any, later: Callable[[float], None]) -> None:
        shard = self.held(peer)
        shard.copies.closed(peer)
        later(BACK_SECONDS - 0.1)
        again: Any = FakePeer()
        assert shard.fetch(again, "dense") == [1.0] * VALUES
        # The old connection is not what it waits for any more.
        shard.copies.closed(peer)
        later(1e6)
        shard.copies.expire()
        assert shard.copies.held

    def test_a_new_generation_holds_nothing(self, peer: Any) -> None:
        shard = self.held(peer)
        shard.copies.reset()
        assert not shard.copies.held
