"""What does a shard of a cluster do? It applies pushes, answers pulls, and keeps the gate.

One thread serves all connections, one frame after the other, so applies are serialised. A worker's batches are numbered
from 1; its frame for batch b pulls batch b and pushes batch b − d, where d is the number of batches in flight. Each
push counts once: a frame that was seen before, from a connection that was cut or a worker that died, is answered again
with the very values of the first answer.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.config import RunConfig
from paceline.training.cluster.messages import (
    Copied,
    Copy,
    Count,
    Counted,
    Done,
    Fetch,
    Fetched,
    FromShard,
    Join,
    Joined,
    Open,
    Reset,
    ToShard,
    decode,
    encode,
)
from paceline.training.cluster.steps import LEAVE, PULL, PUSH, Step, Times, held_parts, read_step, values_head
from paceline.training.pace import Pace
from paceline.wire.coding import KeyReader, write_values
from paceline.wire.frames import BadFrameError, Frame, Kind
from paceline.wire.server import Peer

CHUNK_HEAD_BYTES = 8
NOTICE_SECONDS = 1.0
NOW = -1

Floats = NDArray[np.float32]


class _Pull:
    """The keys that one pull asked for, and the weights that it got; `batch` 0: none yet."""

    def __init__(self, key_dtype: np.dtype[Any]) -> None:
        self.batch = 0
        self.times = Times(0, 0, 0)
        self.answered = False
        self._key_room: NDArray[Any] = np.empty(0, key_dtype)
        self._value_room: Floats = np.empty(0, np.float32)
        self.keys, self.values, self.count = self._key_room, self._value_room, 0

    def ask(self, batch: int, count: int) -> NDArray[Any]:
        """Begin a pull; returns room for its keys."""
        if count > len(self._key_room):
            self._key_room = np.empty(count + count // 4, self._key_room.dtype)
            self._value_room = np.empty(len(self._key_room), np.float32)
        self.batch, self.count, self.answered = batch, count, False
        self.keys, self.values = self._key_room[:count], self._value_room[:count]
        return self.keys


class _Push(NamedTuple):
    """A gradient that waits for those of the other workers."""

    keys: NDArray[Any]
    sums: Floats
    rows: int
    losses: float
    trained: int


class ShardWorker:
    """What a shard knows of one worker."""

    def __init__(self, rank: int, in_flight: int, key_dtype: np.dtype[Any]) -> None:
        self.rank = rank
        self.in_flight = in_flight
        self.key_dtype = key_dtype
        self.peer: Peer | None = None
        self.keys_of_peer: KeyReader
        self.incarnation = -1
        # Of a dense model: its gradient, where this process sees the worker's memory.
        self.gradient: Floats | None = None
        self.applied = 0
        self.restart(0, 0)

    def restart(self, base: int, done: int) -> None:
        """Stand after batch `done` at the beginning of a leg whose clocks count from batch `base`."""
        self.base = base
        self.first = done + 1
        self.asked = done
        self.present = True
        self.waiting = False
        self.leaving = False
        self.arrived = 0.0
        self.worked = 0.0
        self.push: _Push | None = None
        # Of a dense model: the push that was announced, whether it is under way, whether it is in a sum that is not
        # complete, how much of it came, and the seconds that it took.
        self.step: Step | None = None
        self.pushing = False
        self.added = False
        self.received = 0
        self.service = 0.0
        # Those that may be asked for again: another shard may have lost all that is in flight, and what that waits for.
        self._pulls = [_Pull(self.key_dtype) for _ in range(2 * self.in_flight)]

    @property
    def clock(self) -> int:
        """Batches finished in this leg."""
        # In plain comparisons: this is asked of every worker in every step.
        done = self.asked - self.in_flight
        if done > self.applied:
            done = self.applied
        return done - self.base if done > self.base else 0

    def pull(self, batch: int) -> _Pull:
        """Where the pull of a batch is kept, or was."""
        return self._pulls[batch % len(self._pulls)]

    def has_asked(self, batch: int) -> bool:
        """Whether a batch was asked for, in this leg and not too long ago."""
        return self.first <= batch <= self.asked and batch > self.asked - len(self._pulls)


class ShardService:
    """One shard: its slice of the parameters, and where it stands with each worker."""

    def __init__(self, config: RunConfig, slice_: Any, refused: Callable[[], int] = lambda: 0) -> None:
        """`refused` tells how many connections were refused before they came here."""
        pace = Pace.of(config.pace)
        self.slice = slice_
        self.doing = "waits for workers"
        self._fold = pace.fold
        self._staleness = pace.staleness
        self._wire = config.wire
        self._generation = 0
        in_flight = pace.in_flight(config.dense)
        self._workers = [ShardWorker(rank, in_flight, self.slice.key_dtype) for rank in range(config.workers)]
        self._copy_at: tuple[int, Peer] | None = None
        self._num_pushed = 0
        self._rows = 0
        self._losses = 0.0
        self._loss_rows = 0
        self._largest_lead = 0
        # What telemetry reads from another thread: requests answered, nanoseconds in the queue, and of service.
        self.counters = [0, 0, 0]
        self._refused = 0
        self._refused_before = refused

    def sockets(self) -> dict[str, socket.socket]:
        """The connections to workers that stand now, by name."""
        peers = [(worker.rank, worker.peer) for worker in self._workers]
        return {f"worker {rank}": peer.socket for rank, peer in peers if peer is not None}

    # -- connections

    def opened(self, peer: Peer) -> None:
        peer.tag = None

    def closed(self, peer: Peer) -> None:
        if isinstance(peer.tag, ShardWorker) and peer.tag.peer is peer:
            peer.tag.peer = None
        if self._copy_at is not None and self._copy_at[1] is peer:
            self._copy_at = None

    def received(self, peer: Peer, frame: Frame) -> None:
        if frame.kind == Kind.STEP:
            self._step(peer, read_step(frame, self._wire.values))
        elif frame.kind == Kind.CHUNK:
            self._load(peer, frame)
        else:
            self._told(peer, decode(frame, ToShard))

    def tick(self) -> None:
        """Tell workers whose replies have been held back for long for whom they wait."""
        held = [worker for worker in self._workers if worker.waiting]
        slowest = self._slowest_ranks() if held else []
        now = time.perf_counter()
        self.doing = "serves"
        for worker in held:
            if now - worker.arrived < NOTICE_SECONDS:
                continue
            self.doing = f"holds back the reply to {_names([w.rank for w in held])}, waiting for {_names(slowest)}"
            if worker.peer is not None:
                worker.peer.send(Kind.HELD, 0, *held_parts(worker.asked, slowest))

    def _slowest_ranks(self) -> list[int]:
        """For whom replies are held back: in sync who has not pushed, else who is furthest behind."""
        if self._num_pushed:
            return [worker.rank for worker in self._workers if worker.push is None]
        present = [worker for worker in self._workers if worker.present]
        least = min((worker.clock for worker in present), default=0)
        return [worker.rank for worker in present if worker.clock == least]

    # -- one step

    def _step(self, peer: Peer, step: Step) -> None:
        began = time.perf_counter()
        worker = peer.tag
        if not isinstance(worker, ShardWorker) or worker.peer is not peer:
            raise BadFrameError(f"a step from {peer.address}, which is no worker now")
        seen = worker.has_asked(step.batch)
        pushed = step.batch - worker.in_flight
        if not seen and (step.batch != worker.asked + 1 or worker.waiting):
            raise BadFrameError(f"worker {worker.rank} asks for batch {step.batch} after {worker.asked}")
        if not step.flags & PUSH and pushed > worker.applied:
            raise BadFrameError(f"worker {worker.rank} asks for batch {step.batch} without having pushed {pushed}")
        if not step.flags & (PULL | LEAVE):
            raise BadFrameError(f"a step of worker {worker.rank} that asks for nothing")
        pull = _Pull(worker.key_dtype) if seen else worker.pull(step.batch)
        # Read the keys in any case: references to earlier ones count on it.
        worker.keys_of_peer.read(step.coding, step.keys, pull.ask(step.batch, step.num_keys))
        if seen:
            self._answer_again(worker, step.batch)
            return
        worker.asked = step.batch
        worker.arrived = peer.arrived
        worker.waiting = True
        if step.flags & PUSH and pushed > worker.applied:
            self._take_push(worker, step, pushed)
        if step.flags & LEAVE:
            worker.leaving, worker.present = True, False
        worker.worked = time.perf_counter()
        pull.times = Times(int((began - peer.arrived) * 1e9), 0, int((worker.worked - began) * 1e9))
        self._answer_who_may_go_on()

    def _take_push(self, worker: ShardWorker, step: Step, batch: int) -> None:
        """Apply the gradient of a batch, or keep it until all workers' are there and apply their mean."""
        pull = worker.pull(batch)
        if pull.batch != batch or len(step.pushed) != pull.count:
            raise BadFrameError(
                f"worker {worker.rank} pushes {len(step.pushed)} values of batch {batch}, for {pull.count} keys of "
                f"batch {pull.batch}"
            )
        worker.applied = batch
        if self._fold == "each":
            self.slice.apply(pull.keys, step.pushed, step.rows, step.trained)
            self._book(step.rows, step.losses)
            return
        worker.push = _Push(pull.keys, step.pushed.copy(), step.rows, step.losses, step.trained)
        self._num_pushed += 1
        if self._num_pushed == len(self._workers):
            self._fold_pushes()

    def _fold_pushes(self) -> None:
        """One update from the pushes of all workers, in the order of their ranks."""
        pushes = [worker.push for worker in self._workers if worker.push is not None]
        rows = sum(push.rows for push in pushes)
        self.slice.fold([(push.keys, push.sums) for push in pushes], rows, pushes[0].trained)
        for push in pushes:
            self._book(push.rows, push.losses)
        for worker in self._workers:
            worker.push = None
        self._num_pushed = 0
        if self._copy_at is not None and self._workers[0].applied == self._copy_at[0]:
            self._copy(self._copy_at[1])

    def _book(self, rows: int, losses: float) -> None:
        self._rows += rows
        self._loss_rows += rows
        self._losses += losses

    def _answer_who_may_go_on(self) -> None:
        """The gate: answer all that wait and are not too far ahead of the slowest."""
        slowest = min([worker.clock for worker in self._workers if worker.present], default=0)
        for worker in self._workers:
            if not worker.waiting or self._holds(worker):
                continue
            lead = worker.clock - slowest
            if worker.leaving:
                self._answer(worker)
            elif lead <= self._staleness:
                self._largest_lead = max(self._largest_lead, lead)
                self._answer(worker)

    def _holds(self, worker: ShardWorker) -> bool:
        """Whether a worker's push waits for those of others."""
        return worker.push is not None

    def _answer(self, worker: ShardWorker) -> None:
        began = time.perf_counter()
        pull = worker.pull(worker.asked)
        worker.waiting = False
        pull.answered = True
        self.slice.gather(pull.keys, pull.values)
        values = self._values_of(pull)
        queue, _, service = pull.times
        held = int((began - worker.worked) * 1e9)
        pull.times = Times(queue, held, service + int((time.perf_counter() - began) * 1e9))
        counters = self.counters
        counters[0] += 1
        counters[1] += queue
        counters[2] += pull.times.service
        self._send(worker, pull, values)

    def _answer_again(self, worker: ShardWorker, batch: int) -> None:
        """Give a worker, or its successor, the answer that was given before; or leave it waiting."""
        pull = worker.pull(batch)
        if pull.batch == batch and pull.answered:
            self._send(worker, pull, self._values_of(pull))
        elif not worker.waiting:
            raise BadFrameError(f"worker {worker.rank} asks again for batch {batch}, which was never asked for")

    def _values_of(self, pull: _Pull) -> NDArray[Any]:
        """What a pull gets, as it goes over the wire: the weights of its keys, or all of them."""
        values = pull.values
        if self._wire.pull == "all" and pull.count:
            values = self.slice.weights(0, self.slice.num_keys, self._rows)
            values[pull.keys] = pull.values
        return write_values(values, self._wire.values)

    def _send(self, worker: ShardWorker, pull: _Pull, values: NDArray[Any]) -> None:
        if worker.peer is not None:
            worker.peer.send(Kind.VALUES, 0, values_head(pull.batch, pull.times), values)

    # -- what workers and the coordinator ask

    def _told(self, peer: Peer, message: ToShard) -> None:
        match message:
            case Join():
                self._join(peer, message)
            case Reset():
                self._reset(message)
                say(peer, Done())
            case Open():
                self._open(message)
                say(peer, Done())
            case Copy(at=at):
                self._copy_at = (at, peer)
                if self._may_copy(at):
                    self._copy(peer)
            case Fetch():
                self._fetch(peer, message)
            case Fetched():
                self._fetched()
                say(peer, Done())
            case Count():
                say(peer, self._counted())

    def _join(self, peer: Peer, join: Join) -> None:
        """Take a worker's connection on, unless another of its kind has come since."""
        if join.generation != self._generation or not 0 <= join.rank < len(self._workers):
            self._refused += 1
            raise BadFrameError(f"worker {join.rank} joins generation {join.generation}, not {self._generation}")
        worker = self._workers[join.rank]
        if join.incarnation < worker.incarnation:
            self._refused += 1
            raise BadFrameError(f"worker {join.rank} has been replaced")
        if worker.peer is not None:
            worker.peer.close()
        worker.incarnation = join.incarnation
        worker.peer = peer
        worker.keys_of_peer = KeyReader(self.slice.num_keys, self.slice.key_dtype, self._wire.key_cache)
        peer.tag = worker
        say(peer, self._joined(worker, join))

    def _joined(self, worker: ShardWorker, join: Join) -> Joined:
        """What a worker that has joined is told."""
        return Joined(applied=worker.applied)

    def _reset(self, reset: Reset) -> None:
        self._generation = reset.generation
        self.slice.clear()
        for worker, applied in zip(self._workers, reset.applied, strict=True):
            if worker.peer is not None:
                worker.peer.close()
                worker.peer = None
            worker.applied = applied
            worker.restart(applied, applied)
        self._rows = reset.rows
        self._num_pushed, self._copy_at = 0, None

    def _open(self, opened: Open) -> None:
        for worker, base, done in zip(self._workers, opened.bases, opened.done, strict=True):
            worker.restart(base, done)
        self._losses, self._loss_rows = 0.0, 0

    def _may_copy(self, at: int) -> bool:
        """Whether the states are those that a copy at a clock, or `NOW`, is to have."""
        return at in (NOW, self._workers[0].applied) and not self._num_pushed

    def _copy(self, peer: Peer) -> None:
        self._copy_at = None
        self._set_aside(peer)
        applied = [worker.applied for worker in self._workers]
        say(peer, Copied(applied=applied, rows=self._rows, losses=self._losses, loss_rows=self._loss_rows))

    def _set_aside(self, peer: Peer) -> None:
        """Keep the states as they are for whoever asked."""
        self.slice.take_copy()

    def _fetch(self, peer: Peer, fetch: Fetch) -> None:
        if not 0 <= fetch.start <= fetch.start + fetch.count <= self.slice.num_keys:
            raise BadFrameError(f"keys {fetch.start} to {fetch.start + fetch.count} of {self.slice.num_keys}")
        if fetch.what == "weights":
            found = self.slice.weights(fetch.start, fetch.count, fetch.rows)
        else:
            found = self._states(fetch)
        peer.send(Kind.CHUNK, 0, fetch.start.to_bytes(CHUNK_HEAD_BYTES, "little"), found)

    def _states(self, fetch: Fetch) -> Floats:
        """States of the copy."""
        found: Floats = self.slice.copied(fetch.start, fetch.count)
        return found

    def _fetched(self) -> None:
        """Whoever asked for a copy has it."""

    def _load(self, peer: Peer, frame: Frame) -> None:
        self._put(frame)
        say(peer, Done())

    def _put(self, frame: Frame) -> tuple[int, int]:
        """Put states in place: the first key, and how many."""
        start = int.from_bytes(frame.body[:CHUNK_HEAD_BYTES].tobytes(), "little")
        data = frame.body[CHUNK_HEAD_BYTES:]
        if len(data) % (4 * self.slice.width) or start + len(data) // (4 * self.slice.width) > self.slice.num_keys:
            raise BadFrameError(f"{len(data)} bytes of states from key {start} on")
        self.slice.load(start, data.view(np.float32))
        return start, len(data) // (4 * self.slice.width)

    def _counted(self) -> Counted:
        return Counted(
            rows=self._rows, losses=self._losses, loss_rows=self._loss_rows, largest_lead=self._largest_lead,
            refused=self._refused + self._refused_before(),
        )  # fmt: skip


def say(peer: Peer, message: FromShard) -> None:
    peer.send(Kind.MESSAGE, 0, encode(message))


def _names(ranks: list[int]) -> str:
    """Workers by rank, the first few."""
    named = ", ".join(map(str, ranks[:4])) + (", …" if len(ranks) > 4 else "")
    return f"worker{'s' if len(ranks) > 1 else ''} {named}"
