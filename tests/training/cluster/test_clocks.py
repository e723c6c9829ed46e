"""The gate of a shard: nobody gets further ahead than the pace allows, nobody waits who need not, nobody joins late."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.kernels.clocks import ClockArrays
from paceline.training.cluster.clocks import WorkerClock, WorkerClocks
from paceline.training.cluster.messages import Join, Open, Reset
from paceline.training.cluster.steps import LEAVE, PULL, PUSH, Ask, read_reply, step_parts
from paceline.wire.coding import KeyWriter
from paceline.wire.frames import BadFrameError, Frame, Kind
from tests.training.cluster.shards import FakePeer, frame_of


def announcement(batch: int, flags: int = PULL) -> Frame:
    ask = Ask(flags, batch, 0, 0.0, 1, np.empty(0, np.float32), np.empty(0, np.uint32))
    return frame_of(Kind.STEP, flags, *step_parts(ask, "float32", KeyWriter(False)))


def join(clocks: WorkerClocks, rank: int, incarnation: int = 0, generation: int = 0) -> Any:
    peer: Any = FakePeer()
    clocks.join(peer, Join(rank=rank, incarnation=incarnation, generation=generation))
    return peer


def clocks_of(workers: int, staleness: int = 0, in_flight: int = 1) -> tuple[WorkerClocks, list[Any]]:
    """The clocks of workers that have all joined."""
    clocks = WorkerClocks(workers, in_flight, staleness)
    return clocks, [join(clocks, rank) for rank in range(workers)]


class Gated:
    """Workers that announce one batch after the other, each with the push of the one before it.

    `finished` is what this test counts: the batches of a worker in this segment; None once it has left.
    """

    def __init__(self, bases: list[int], ahead: list[int], staleness: int) -> None:
        self.first = [base + more + 1 for base, more in zip(bases, ahead, strict=True)]
        done = [first - 1 for first in self.first]
        self.clocks = WorkerClocks(len(bases), 1, staleness)
        self.clocks.reset(Reset(generation=0, applied=done, rows=0))
        self.clocks.open(Open(bases=bases, done=done))
        self.peers = [join(self.clocks, rank) for rank in range(len(bases))]
        self.staleness = staleness
        self.bases, self.asked = bases, done
        self.finished: list[int | None] = [*ahead]
        self.waiting: set[int] = set()
        self.leaving: set[int] = set()
        self.largest_lead = self.num_answered = 0

    def announce(self, rank: int, leaves: bool) -> None:
        self.asked[rank] += 1
        batch = self.asked[rank]
        pushes = batch > self.first[rank]
        flags = (LEAVE if leaves else PULL) | (PUSH if pushes else 0)
        worker, step = self.clocks.take_announcement(self.peers[rank], announcement(batch, flags))
        assert (worker.rank, step.batch) == (rank, batch)
        if pushes:
            worker.applied = batch - 1
            self.finished[rank] = batch - 1 - self.bases[rank]
        if leaves:
            worker.present = False
            self.finished[rank] = None
            self.leaving.add(rank)
        self.waiting.add(rank)

    def release(self) -> None:
        """Answer those who may go on; check that they may, and that nobody else may."""
        for worker in self.clocks.released():
            rank = worker.rank
            self.waiting.remove(rank)
            self.num_answered += 1
            self.clocks.let_pull(worker)
            assert read_reply(self.peers[rank].sent[-1]).batch == self.asked[rank]
            if rank not in self.leaving:
                assert self.lead_of(rank, self.finished) <= self.staleness
                self.largest_lead = max(self.largest_lead, self.lead_of(rank, self.known()))
        assert not self.waiting & self.leaving
        assert all(self.lead_of(rank, self.known()) > self.staleness for rank in self.waiting)
        assert self.clocks.released() == []

    def known(self) -> list[int | None]:
        """What a shard knows is finished: a worker that was ahead says so only by asking for its next batch."""
        return [
            max(0, done - 1) if done is not None and asked < first else done
            for done, asked, first in zip(self.finished, self.asked, self.first, strict=True)
        ]

    def lead_of(self, rank: int, finished: list[int | None]) -> int:
        mine = finished[rank]
        assert mine is not None
        return mine - min(done for done in finished if done is not None)


@given(data=st.data(), staleness=st.integers(0, 4), workers=st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_those_within_the_bound_go_on_and_no_others(data: st.DataObject, staleness: int, workers: int) -> None:
    numbers = st.lists(st.integers(0, 3), min_size=workers, max_size=workers)
    run = Gated(data.draw(numbers), data.draw(numbers), staleness)
    turns = st.tuples(st.integers(0, workers - 1), st.sampled_from([False] * 7 + [True]))
    for rank, leaves in data.draw(st.lists(turns, max_size=60)):
        if rank not in run.waiting | run.leaving:
            run.announce(rank, leaves)
            run.release()
            known = [done for done in run.known() if done is not None]
            slowest = [rank for rank, done in enumerate(run.known()) if known and done == min(known)]
            assert run.clocks.slowest_ranks() == slowest
    # Whatever came before, workers that leave let all others go on.
    while len(run.leaving) < workers:
        ready = {*range(workers)} - run.waiting - run.leaving
        assert ready, "all that are left wait for each other"
        run.announce(min(ready), leaves=True)
        run.release()
    assert run.clocks.largest_lead == run.largest_lead
    assert run.clocks.counters[0] == run.num_answered == sum(len(peer.sent) for peer in run.peers)


def test_with_two_batches_in_flight_a_clock_is_the_last_batch_pushed() -> None:
    clocks, (peer,) = clocks_of(1, in_flight=2)
    seen = []
    for batch in range(1, 6):
        worker, _ = clocks.take_announcement(peer, announcement(batch))
        clocks.let_pull(worker)
        worker.applied = max(0, batch - 2)
        seen.append(worker.clock)
    assert seen == [0, 0, 1, 2, 3]


def test_a_push_that_has_not_arrived_holds_its_worker_back() -> None:
    clocks, peers = clocks_of(1)
    worker, step = clocks.take_announcement(peers[0], announcement(1, PULL | PUSH))
    worker.announced = step
    assert clocks.released() == []
    worker.announced = None
    assert clocks.released() == [worker]


def test_a_sum_is_complete_once_every_worker_is_in_it() -> None:
    clocks, peers = clocks_of(3)
    workers = [clocks.take_announcement(peer, announcement(1))[0] for peer in peers]
    for _ in range(2):
        assert not clocks.add_push(workers[2])
        assert not clocks.add_push(workers[0])
        assert clocks.slowest_ranks() == [1]
        # Those in the sum wait for it; the third may still pull.
        assert clocks.released() == [workers[1]]
        assert clocks.add_push(workers[1])
        assert clocks.num_pushed == 0
        assert clocks.released() == workers


@pytest.mark.parametrize(
    ("batch", "flags"), [(0, PULL), (1, PULL), (3, PULL), (-1, PULL), (2, 0), (2, PUSH)],
)  # fmt: skip
def test_an_announcement_that_makes_no_sense_changes_nothing(batch: int, flags: int) -> None:
    clocks, peers = clocks_of(1)
    worker, _ = clocks.take_announcement(peers[0], announcement(1))
    clocks.let_pull(worker)
    with pytest.raises(BadFrameError):
        clocks.take_announcement(peers[0], announcement(batch, flags))
    assert (worker.asked, worker.waiting) == (1, False)
    assert clocks.take_announcement(peers[0], announcement(2))[1].batch == 2


def test_who_waits_for_an_answer_asks_for_nothing_more() -> None:
    clocks, peers = clocks_of(1)
    clocks.take_announcement(peers[0], announcement(1))
    with pytest.raises(BadFrameError, match="asks for batch 2 after 1"):
        clocks.take_announcement(peers[0], announcement(2))


@given(in_flight=st.integers(1, 3), done=st.integers(0, 9), more=st.integers(0, 9), batch=st.integers(-2, 25))
def test_only_recent_batches_of_this_segment_can_be_asked_for_again(
    in_flight: int, done: int, more: int, batch: int
) -> None:
    worker = WorkerClock(0, ClockArrays.make(1, in_flight, 0))
    worker.restart(0, done)
    worker.asked = done + more
    recent = [done + 1 + number for number in range(more)][-2 * in_flight :]
    assert worker.has_asked(batch) == (batch in recent)


class TestJoining:
    def test_a_successor_takes_over_and_its_predecessor_is_not_heard_any_more(self) -> None:
        clocks, (old,) = clocks_of(1)
        new = join(clocks, 0, incarnation=1)
        assert not old.open
        assert clocks.worker_of(new) is clocks.workers[0]
        with pytest.raises(BadFrameError, match="not a worker now"):
            clocks.take_announcement(old, announcement(1))
        with pytest.raises(BadFrameError, match="has been replaced"):
            join(clocks, 0, incarnation=0)
        assert new.open
        assert clocks.refused == 1

    def test_the_same_process_may_connect_again(self) -> None:
        clocks, (old,) = clocks_of(1)
        again = join(clocks, 0)
        assert (old.open, again.open) == (False, True)
        assert clocks.refused == 0

    @pytest.mark.parametrize(("rank", "generation"), [(0, 1), (0, -1), (2, 0), (-1, 0)])
    def test_other_generations_and_ranks_are_refused(self, rank: int, generation: int) -> None:
        clocks, peers = clocks_of(2)
        with pytest.raises(BadFrameError):
            join(clocks, rank, 9, generation)
        assert clocks.refused == 1
        assert [worker.peer for worker in clocks.workers] == peers

    def test_a_stranger_takes_no_steps(self) -> None:
        clocks, _ = clocks_of(1)
        stranger: Any = FakePeer()
        with pytest.raises(BadFrameError):
            clocks.take_announcement(stranger, announcement(1))


class TestBeginning:
    def test_a_generation_begins_where_its_states_are_and_with_new_connections(self) -> None:
        clocks, peers = clocks_of(2)
        worker, _ = clocks.take_announcement(peers[0], announcement(1))
        clocks.add_push(worker)
        clocks.reset(Reset(generation=5, applied=[7, 6], rows=130))
        assert [peer.open for peer in peers] == [False, False]
        assert [(worker.applied, worker.asked, worker.clock) for worker in clocks.workers] == [(7, 7, 0), (6, 6, 0)]
        assert (clocks.rows, clocks.num_pushed, clocks.released()) == (130, 0, [])
        with pytest.raises(BadFrameError, match="joins generation 0, not 5"):
            join(clocks, 0)
        peer = join(clocks, 0, generation=5)
        assert clocks.take_announcement(peer, announcement(8))[1].batch == 8

    def test_losses_are_those_of_a_segment_and_rows_those_of_the_run(self) -> None:
        clocks, _ = clocks_of(1)
        clocks.book(10, 2.5)
        clocks.book(4, 0.5)
        assert (clocks.rows, clocks.loss_rows, clocks.losses) == (14, 14, 3.0)
        clocks.open(Open(bases=[2], done=[2]))
        assert (clocks.rows, clocks.loss_rows, clocks.losses) == (14, 0, 0.0)

    @pytest.mark.parametrize("numbers", [[], [1], [1, 2, 3], [1, -1]])
    def test_a_number_for_each_worker(self, numbers: list[int]) -> None:
        clocks, _ = clocks_of(2)
        for message in (Open(bases=numbers, done=[1, 1]), Open(bases=[1, 1], done=numbers)):
            with pytest.raises(BadFrameError):
                clocks.open(message)
        with pytest.raises(BadFrameError):
            clocks.reset(Reset(generation=1, applied=numbers, rows=0))
        assert [worker.asked for worker in clocks.workers] == [0, 0]
