"""How does a worker bring a large gradient to a shard, and get all its values? In pieces, or by memory that both see.

Nothing of this is asked for twice: if a connection breaks, the coordinator takes all roles back to a checkpoint.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.parameters.parts import DENSE
from paceline.processes.messages import decode, encode
from paceline.training.cluster.links import SILENCE_SECONDS, ShardEndpoint
from paceline.training.cluster.messages import FetchPart, FromShard, Go
from paceline.training.cluster.shard import KINDS
from paceline.training.cluster.shared import open_shared
from paceline.training.cluster.steps import Ask, Times, chunk_parts, read_numbers, read_reply, step_parts
from paceline.wire.coding import KeyWriter
from paceline.wire.frames import BadFrameError, Kind

Floats = NDArray[np.float32]

PIECE_VALUES = 1 << 17
PIECES_ASKED_FOR = 8
NO_KEYS = KeyWriter(deltas=False)


class PieceLink:
    """A worker's connection to one shard of dense values."""

    def __init__(self, endpoint: ShardEndpoint, num_values: int) -> None:
        self._endpoint = endpoint
        joined = endpoint.connect()
        self._connection = endpoint.connection
        self._values = open_shared(joined.values, num_values)
        """The shard's own values, if this process sees them."""
        self._step_bytes = 4 * num_values
        self._num_steps = 0

    @property
    def moved(self) -> tuple[int, int]:
        """Bytes that all steps until now send and receive. With shared memory nothing is sent, but it would be on other
        machines, which is what `plan` wants to know.
        """
        return self._num_steps * self._step_bytes, self._num_steps * self._step_bytes

    def announce(self, ask: Ask) -> None:
        """Say what comes next: a push of the batch before, a pull for this one, or both."""
        self._num_steps += 1
        self._connection.send(Kind.STEP, ask.flags, *step_parts(ask, "float32", NO_KEYS))

    def may_push(self) -> bool:
        """Wait for permission to push; returns whether the push is still wanted."""
        go = decode(self._endpoint.receive(), FromShard)
        if not isinstance(go, Go):
            raise BadFrameError(f"a {type(go).__name__} of {self._connection.peer} instead of Go")
        return go.wanted

    def push(self, sums: Floats) -> None:
        """Send a gradient."""
        self._endpoint.doing = f"pushes to shard {self._endpoint.shard}"
        for start in range(0, len(sums), PIECE_VALUES):
            self.send_piece(start, sums[start : start + PIECE_VALUES])
        self._endpoint.doing = ""

    def send_piece(self, start: int, piece: Floats) -> None:
        """Send values or states from `start` on."""
        self._connection.send(Kind.CHUNK, KINDS.index(DENSE), *chunk_parts(start, piece))

    def receive(self, batch: int) -> Times:
        """Wait until the pull of a batch may begin; returns how the shard spent its time."""
        frame = self._endpoint.receive()
        if frame.kind != Kind.VALUES or (reply := read_reply(frame)).batch != batch:
            raise BadFrameError(f"{self._connection.peer} did not answer batch {batch}")
        self._endpoint.doing = ""
        return reply.times

    def pull(self, out: Floats) -> None:
        """Fetch all values; a few pieces are on the way at any time."""
        if self._values is not None:
            np.copyto(out, self._values)
            return
        self._endpoint.doing = f"pulls from shard {self._endpoint.shard}"
        pieces = [out[start : start + PIECE_VALUES] for start in range(0, len(out), PIECE_VALUES)]
        for number in range(len(pieces) + PIECES_ASKED_FOR):
            if number < len(pieces):
                self._ask(FetchPart(what="values", of=DENSE, start=number * PIECE_VALUES, count=len(pieces[number])))
            if number >= PIECES_ASKED_FOR:
                piece = pieces[number - PIECES_ASKED_FOR]
                piece[:] = read_numbers(self._connection.receive(SILENCE_SECONDS), len(piece))
        self._endpoint.doing = ""

    def fetch_states(self, start: int, count: int, width: int) -> Floats:
        """States [count, width] of the values from `start` on; valid until the next frame."""
        self._ask(FetchPart(what="states", of=DENSE, start=start, count=count))
        return read_numbers(self._connection.receive(SILENCE_SECONDS), count * width).reshape(count, width)

    def _ask(self, fetch: FetchPart) -> None:
        self._connection.send(Kind.MESSAGE, 0, encode(fetch))
