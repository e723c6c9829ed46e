"""How does a worker bring a large gradient to a shard, and get all its values? In pieces, or by memory that both see.

Nothing of this is asked for twice: if a connection breaks, the coordinator takes all roles back to a checkpoint.
"""

from __future__ import annotations

import os
import socket
import time

import numpy as np
from numpy.typing import NDArray

from paceline.parameters.parts import DENSE
from paceline.processes.messages import decode, encode
from paceline.training.cluster.batch_queue import BatchQueue, RecalledError
from paceline.training.cluster.messages import Begin, FetchPart, FromShard, Go, Join, Joined, RoleSpec
from paceline.training.cluster.shard import KINDS
from paceline.training.cluster.shared import find
from paceline.training.cluster.steps import Times, chunk_parts, read_chunk, read_held, read_reply, step_parts
from paceline.wire.connection import Connection, connect
from paceline.wire.frames import BadFrameError, Frame, Kind, SilentPeerError

Floats = NDArray[np.float32]

PIECE_VALUES = 1 << 17
PIECES_ASKED_FOR = 8
POLL_SECONDS = 0.05
SILENCE_SECONDS = 5.0
# A lost shard is known to the coordinator, and so to its workers, after this many seconds.
GIVE_UP_SECONDS = 12.0
NO_KEYS = np.zeros(0, np.uint8)


class PieceLink:
    """A worker's connection to one shard of dense values."""

    def __init__(self, shard: int, begin: Begin, spec: RoleSpec, queue: BatchQueue, gradient: str = "",
                 num_values: int = 0) -> None:  # fmt: skip
        """`gradient`: where gradients are, for a shard of `num_values` values that sees the same memory."""
        self.doing = f"waits for shard {shard}"
        self._shard = shard
        self._waits = self.doing
        self._queue = queue
        self.connection: Connection = connect(begin.shards[shard], spec.token, spec.tls)
        join = Join(rank=spec.rank, incarnation=begin.incarnation, generation=begin.generation, gradient=gradient)
        self.connection.send(Kind.MESSAGE, 0, encode(join))
        joined = decode(self.connection.receive(SILENCE_SECONDS), FromShard)
        if not isinstance(joined, Joined):
            raise BadFrameError(f"shard {shard} does not let worker {spec.rank} join")
        self.applied = joined.applied
        self.values = find(joined.values, num_values) if gradient else None
        """The shard's own values, if this process sees them."""

    @property
    def num_bytes(self) -> tuple[int, int]:
        return self.connection.bytes_sent, self.connection.bytes_received

    @property
    def spun(self) -> int:
        return self.connection.spun

    @property
    def socket(self) -> socket.socket:
        return self.connection.socket

    def close(self) -> None:
        self.connection.close()

    def announce(self, batch: int, flags: int, trained: int, losses: float, rows: int) -> None:
        """Say what comes next: a push of the batch before, a pull for this one, or both."""
        self.connection.send(Kind.STEP, flags, *step_parts(batch, trained, losses, rows, NO_KEYS, 0, 0, 0, NO_KEYS))

    def may_push(self) -> bool:
        """Wait for the word to push; whether there is a need to."""
        go = decode(self._next(), FromShard)
        if not isinstance(go, Go):
            raise BadFrameError(f"a {type(go).__name__} of {self.connection.peer} where a word to push was expected")
        return go.wanted

    def push(self, sums: Floats) -> None:
        """Send a gradient."""
        self.doing = f"pushes to shard {self._shard}"
        for start in range(0, len(sums), PIECE_VALUES):
            self.send_piece(start, sums[start : start + PIECE_VALUES])
        self.doing = ""

    def send_piece(self, start: int, piece: Floats) -> None:
        """Send values or states from `start` on."""
        self.connection.send(Kind.CHUNK, KINDS.index(DENSE), *chunk_parts(start, piece))

    def wait(self, batch: int) -> Times:
        """Wait until the pull of a batch may begin; what the shard says of its time."""
        frame = self._next()
        if frame.kind != Kind.VALUES or (reply := read_reply(frame)).batch != batch:
            raise BadFrameError(f"{self.connection.peer} did not answer batch {batch}")
        self.doing = ""
        return reply.times

    def pull(self, out: Floats) -> None:
        """Fetch all values; a few pieces are on the way at any time."""
        if self.values is not None:
            np.copyto(out, self.values)
            return
        self.doing = f"pulls from shard {self._shard}"
        starts = list(range(0, len(out), PIECE_VALUES))
        for number, start in enumerate(starts):
            ahead = starts[:PIECES_ASKED_FOR] if number == 0 else starts[number + PIECES_ASKED_FOR - 1 :][:1]
            for asked in ahead:
                self._ask("values", asked, min(PIECE_VALUES, len(out) - asked))
            count = min(PIECE_VALUES, len(out) - start)
            out[start : start + count] = self._piece(count)
        self.doing = ""

    def fetch_states(self, start: int, count: int, width: int) -> Floats:
        """States [count, width] of the values from `start` on; valid until the next frame."""
        self._ask("states", start, count)
        return self._piece(count * width).reshape(count, width)

    def _ask(self, what: str, start: int, count: int) -> None:
        self.connection.send(Kind.MESSAGE, 0, encode(FetchPart(what=what, of=DENSE, start=start, count=count)))

    def _piece(self, count: int) -> Floats:
        _, numbers = read_chunk(self.connection.receive(SILENCE_SECONDS))
        if len(numbers) != count:
            raise BadFrameError(f"{len(numbers)} numbers from {self.connection.peer} instead of {count}")
        return numbers

    def _next(self) -> Frame:
        """The next frame that is not a notice of a reply that is held back."""
        while True:
            try:
                frame = self.connection.receive(SILENCE_SECONDS)
            except SilentPeerError:
                if self._queue.recalled():
                    raise RecalledError from None
                raise
            if frame.kind != Kind.HELD:
                return frame
            ranks = ", ".join(map(str, read_held(frame)))
            self.doing = f"{self._waits}, which " + (f"waits for worker {ranks}" if ranks else "is being saved")
            if self._queue.recalled():
                raise RecalledError


def recalled_in_time(queue: BatchQueue) -> bool:
    """Wait until the coordinator recalls this worker; False if it does not.

    If a shard cannot be reached, it is mostly lost, and the coordinator will say so. Otherwise this worker must go, so
    that all return to what is whole.
    """
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while not queue.recalled():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def end_process() -> None:
    """End this process: the engine starts another one."""
    os._exit(1)
