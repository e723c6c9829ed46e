"""Where does a worker get a block from? From the disk if it lives here, else from the worker that it lives on.

A block of a worker that is away is read from the disk here, because every node sees the files. So a lost worker costs
time and bytes, but nothing waits for it.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from paceline.errors import DataError, PacelineError
from paceline.matrices.cluster.messages import Fetch, ProductTask
from paceline.matrices.cluster.placement import LEFT, RIGHT, Owners, grid_of
from paceline.matrices.nodes import Matrix, Node
from paceline.matrices.plan import Shape
from paceline.matrices.sources import fingerprint, open_matrix
from paceline.processes.messages import decode, encode
from paceline.wire.connection import Connection, connect
from paceline.wire.frames import BadFrameError, Frame, Kind, WireError
from paceline.wire.server import Peer

PIECE_BYTES = 4 << 20
# This many pieces are requested ahead of the one that is being received.
AHEAD = 2
SILENCE_SECONDS = 5.0
# A worker that did not answer is not asked again for this long, unless it returns under another address.
AWAY_SECONDS = 3.0


class Blocks:
    """The factors of a product as one worker sees them. `fill` is for one thread; serving is for another."""

    def __init__(self, rank: int, token: bytes, work: ProductTask) -> None:
        self.factors = [_open(work.left, work.heading.left), _open(work.right, work.heading.right)]
        left, right = self.factors
        self.grid = grid_of(Shape(*left.shape, right.shape[1]), work.heading.plan.rows)
        self.dtype = np.result_type(left.dtype, right.dtype)
        self.addresses: list[str] = []
        self.counts = Counter({"bytes_fetched": 0, "bytes_read": 0, "blocks_read_for_others": 0})
        self.seconds = {"input": 0.0, "pull": 0.0}
        """Spent on reading blocks that live here, and on fetching those that do not."""
        self._rank, self._token = rank, token
        self._edges = (self.grid.rows, self.grid.columns)
        self._owners = Owners(self.grid, work.rectangles)
        self._connections: dict[str, Connection] = {}
        self._away_until: dict[str, float] = {}

    def fill(self, side: int, outer: int, inner: int, out: Matrix) -> None:
        """Fill `out` with a block, from wherever it lives."""
        owner = self._owners.of(side, outer, inner)
        if owner != self._rank:
            address = self.addresses[owner] if owner < len(self.addresses) else ""
            if address and time.monotonic() >= self._away_until.get(address, 0.0):
                try:
                    self._fetch(address, side, outer, inner, out)
                    return
                except WireError:
                    self._away_until[address] = time.monotonic() + AWAY_SECONDS
                    if connection := self._connections.pop(address, None):
                        connection.close()
            self.counts["blocks_read_for_others"] += 1
        began = time.perf_counter()
        self.read(side, outer, inner, 0, out)
        self.seconds["input"] += time.perf_counter() - began
        self.counts["bytes_read"] += out.nbytes

    def read(self, side: int, outer: int, inner: int, start: int, out: Matrix) -> None:
        """Fill `out` with rows of a block from the disk."""
        outer, inner = self._edges[side][outer], self.grid.inner[inner]
        row, column = (outer, inner) if side == LEFT else (inner, outer)
        self.factors[side].fill(row + start, column, out)

    def shape_of(self, side: int, outer: int, inner: int) -> tuple[int, int]:
        """Rows and columns of a block."""
        edges, depths = self._edges[side], self.grid.inner
        length, depth = edges[outer + 1] - edges[outer], depths[inner + 1] - depths[inner]
        return (length, depth) if side == LEFT else (depth, length)

    def _fetch(self, address: str, side: int, outer: int, inner: int, out: Matrix) -> None:
        """Receive a block in pieces, some of which are always requested ahead."""
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = connect(address, self._token, None)
        stream = connection.stream
        before, began = stream.bytes_sent + stream.bytes_received, time.perf_counter()
        rows = max(1, PIECE_BYTES // max(1, out.shape[1] * out.itemsize))
        starts = list(range(0, len(out), rows))
        try:
            for number in range(len(starts) + AHEAD):
                if number < len(starts):
                    start = starts[number]
                    piece = Fetch(side=side, outer=outer, inner=inner, start=start, stop=min(start + rows, len(out)))
                    connection.send(Kind.MESSAGE, 0, encode(piece))
                if number >= AHEAD:
                    part = out[starts[number - AHEAD] : starts[number - AHEAD] + rows]
                    frame = connection.receive(SILENCE_SECONDS)
                    if frame.kind != Kind.VALUES or frame.body.nbytes != part.nbytes:
                        raise BadFrameError(f"{address} sent no block where one was expected")
                    part[...] = frame.body.view(out.dtype).reshape(part.shape)
        finally:
            self.seconds["pull"] += time.perf_counter() - began
            self.counts["bytes_fetched"] += stream.bytes_sent + stream.bytes_received - before


class BlockService(NamedTuple):
    """Serves the blocks that live here to other workers."""

    blocks: Blocks

    def closed(self, peer: Peer) -> None:
        """Nothing to do: peers are not remembered."""

    def tick(self) -> None:
        """Nothing to do: blocks do not change."""

    def received(self, peer: Peer, frame: Frame) -> None:
        piece: Any = decode(frame, Fetch)
        blocks = self.blocks
        rows, inner, columns = blocks.grid.num_blocks
        outers = rows if piece.side == LEFT else columns
        if piece.side not in (LEFT, RIGHT) or not (0 <= piece.outer < outers and 0 <= piece.inner < inner):
            raise BadFrameError(f"{peer.address} asks for a block that does not exist")
        height, width = blocks.shape_of(piece.side, piece.outer, piece.inner)
        if not 0 <= piece.start < piece.stop <= height:
            raise BadFrameError(f"{peer.address} asks for rows that do not exist")
        out = np.empty((piece.stop - piece.start, width), blocks.dtype)
        try:
            blocks.read(piece.side, piece.outer, piece.inner, piece.start, out)
        except PacelineError as error:
            # The peer then reads the block itself, and reports an error if it cannot.
            raise WireError(f"a block for {peer.address} cannot be read: {error}") from None
        peer.send(Kind.VALUES, 0, out)


def _open(path: str, expected: str) -> Node:
    found = open_matrix(path)
    if fingerprint(found) != expected:
        raise DataError(
            f"`{path}` is not the same file here as where the command runs",
            "every node must see the same files under the same paths",
        )
    return found
