"""How do steps over keys get into the compiled serving loop, and out of it when something else comes up?

`Server.serve` lends connections of workers to the loop (`kernels/serving.py`). The loop and `KeyedSteps` share the
clocks and the pulls, so each can take over from the other between any two frames.
"""

from __future__ import annotations

import time

import numpy as np

from paceline.kernels.serving import (
    COPY_DUE,
    FILLED,
    FIRST_BYTES,
    HEADER_BYTES,
    NUM_UNSENT,
    NUMBERS,
    OFFSET,
    RECEIVED,
    SENT,
    STEP_BYTES,
    UNSENT,
    ConnectionArrays,
    ServedSteps,
    serve,
)
from paceline.kernels.sockets import READABLE, make_polled
from paceline.parameters.keyed import KeyedStore
from paceline.training.cluster.clocks import WorkerClock, WorkerClocks
from paceline.training.cluster.copies import Copies
from paceline.training.cluster.pulls import Pulls
from paceline.wire.frames import HEADER, MAGIC, VERSION, Kind
from paceline.wire.server import Peer

LINE = 64
# Nobody orders a copy before the first clock.
NO_COPY = 0


def start_of(kind: Kind) -> int:
    """The first four bytes of a frame's header, as an integer."""
    return int.from_bytes(HEADER.pack(MAGIC, VERSION, kind, 0, 0)[:4], "little")


class CompiledServing:
    """A shard's compiled loop, with the connections that are lent to it. A `ServingLoop`."""

    def __init__(self, clocks: WorkerClocks, copies: Copies, table: KeyedStore, pulls: Pulls, fold: str) -> None:
        self._clocks = clocks
        self._copies = copies
        self._table = table
        self._pulls = pulls
        self._folds = fold == "mean"
        self._arrays = self._make_room(FIRST_BYTES)

    def warm_up(self) -> None:
        """Load or compile the loop; changes nothing."""
        serve(self._steps(), self._arrays, 0, 0)

    def wanted(self) -> list[Peer]:
        self._grow()
        return [worker.peer for worker in self._clocks.workers if worker.peer is not None]

    def has_room(self, peer: Peer) -> bool:
        return peer.incoming.fits(self._arrays.bytes.shape[1])

    def lend(self, peer: Peer, came: memoryview) -> None:
        rank, arrays = _rank_of(peer), self._arrays
        arrays.polled[rank] = peer.stream.socket.fileno(), READABLE
        arrays.numbers[rank] = 0
        arrays.numbers[rank, FILLED] = len(came)
        arrays.bytes[rank, : len(came)] = came

    def take_back(self, peer: Peer) -> tuple[bytes, list[bytes]]:
        rank, arrays = _rank_of(peer), self._arrays
        arrays.polled[rank, 0] = -1
        numbers = arrays.numbers[rank]
        peer.stream.bytes_received += numbers.item(RECEIVED)
        peer.stream.bytes_sent += numbers.item(SENT)
        return arrays.bytes[rank, : numbers[FILLED]].tobytes(), self._unsent(rank)

    def serve(self, descriptor: int, seconds: float, spin_seconds: float) -> Peer | None:
        arrays, workers = self._arrays, self._clocks.workers
        arrays.polled[len(workers)] = descriptor, READABLE
        until = time.perf_counter_ns() + int(seconds * 1e9)
        needs_python = serve(self._steps(), arrays, until, int(spin_seconds * 1e9))
        if needs_python == COPY_DUE:
            self._copies.make_at(workers[0].applied)
        for worker in workers:
            if arrays.polled[worker.rank, 0] < 0 and arrays.numbers[worker.rank, NUM_UNSENT]:
                self._send_unsent(worker)
        return workers[needs_python].peer if needs_python >= 0 else None

    def _send_unsent(self, worker: WorkerClock) -> None:
        """Answer a worker whose connection is not lent, if it has one."""
        for reply in self._unsent(worker.rank):
            if worker.peer is not None:
                worker.peer.send(Kind.VALUES, 0, memoryview(reply)[HEADER_BYTES:])

    def _unsent(self, rank: int) -> list[bytes]:
        """The replies to a worker that were not sent, the first one without what was; they count as sent."""
        numbers, pulls = self._arrays.numbers[rank], self._pulls.arrays
        first, count, offset = numbers[[UNSENT, NUM_UNSENT, OFFSET]].tolist()
        numbers[[NUM_UNSENT, OFFSET]] = 0
        replies = []
        for batch in range(first, first + count):
            slot = rank * pulls.kept + batch % pulls.kept
            replies.append(pulls.bytes[slot, offset : HEADER_BYTES + pulls.words[slot, 1]].tobytes())
            offset = 0
        return replies

    def _steps(self) -> ServedSteps:
        copy_at = self._copies.at
        return ServedSteps(
            table=self._table.arrays_at(0),
            num_keys=self._table.size,
            clocks=self._clocks.arrays,
            pulls=self._pulls.arrays,
            fold=self._table.fold_memory,
            step_start=start_of(Kind.STEP),
            reply_start=start_of(Kind.VALUES),
            folds=self._folds,
            copy_at=NO_COPY if copy_at is None else copy_at,
        )

    def _grow(self) -> None:
        """Let the largest frame fit for which the pulls have room."""
        room = self._pulls.arrays.keys.shape[1]
        key_bytes = self._table.key_dtype.itemsize
        needed = HEADER_BYTES + STEP_BYTES + 4 * self._pulls.num_values(room) + 8 + key_bytes * room
        if needed <= self._arrays.bytes.shape[1]:
            return
        old = self._arrays
        new = self._make_room(needed)
        for now, before in ((new.polled, old.polled), (new.numbers, old.numbers)):
            now[:] = before
        for rank, filled in enumerate(old.numbers[:, FILLED].tolist()):
            new.bytes[rank, :filled] = old.bytes[rank, :filled]
        self._arrays = new

    def _make_room(self, num_bytes: int) -> ConnectionArrays:
        num_workers = len(self._clocks.workers)
        room = np.zeros((num_workers, -(-num_bytes // LINE) * LINE), np.uint8)
        return ConnectionArrays(
            polled=make_polled(num_workers + 1),
            numbers=np.zeros((num_workers, NUMBERS), np.int64),
            bytes=room,
            words=room.view(np.int64),
            halves=room.view(np.uint32),
            floats=room.view(np.float32),
            doubles=room.view(np.float64),
            keys=room.view(self._table.key_dtype),
            progress=np.zeros(NUMBERS, np.int64),
            ranks=np.zeros(num_workers, np.int64),
        )


def _rank_of(peer: Peer) -> int:
    worker: WorkerClock = peer.tag
    return worker.rank
