"""How does a shard give away its states for a checkpoint while workers go on?

The coordinator orders a copy at a clock, or at once; what workers exchange says when no gradient is half applied. A
shard that keeps keys copies its states. One that keeps dense values alone would need as much memory again: there,
nothing changes until all has been fetched, and workers wait with their pushes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from paceline.parameters.parts import Floats, Store
from paceline.training.cluster.clocks import WorkerClocks, say
from paceline.training.cluster.messages import Copied
from paceline.wire.frames import BadFrameError
from paceline.wire.server import Peer

NOW = -1
# How long a coordinator that fetches states may be away after its connection broke.
BACK_SECONDS = 5.0


class Hold:
    """For whom nothing may change now, because the states themselves are being fetched; for nobody at first."""

    def __init__(self) -> None:
        self.released: Callable[[], None] = lambda: None
        """Called when pushes may go on."""
        self._fetcher: Peer | None = None
        self._fetched_by = math.inf

    @property
    def held(self) -> bool:
        """Whether nothing may change now."""
        return self._fetcher is not None

    def take(self, peer: Peer) -> None:
        """Let nothing change until this peer has fetched the states."""
        self._fetcher, self._fetched_by = peer, math.inf

    def release(self) -> None:
        """All has been fetched."""
        self._fetcher = None
        self.released()

    def forget(self) -> None:
        """A generation of the parameters begins."""
        self._fetcher = None

    def closed(self, peer: Peer) -> None:
        """A connection is gone."""
        if self._fetcher is peer:
            self._fetched_by = time.monotonic() + BACK_SECONDS

    def expire(self) -> None:
        """Do not wait any longer for a coordinator that does not come back."""
        if self.held and time.monotonic() > self._fetched_by:
            self.release()


class Copies:
    """The copy that the coordinator has ordered, if it is not made yet, and the last one."""

    def __init__(self, clocks: WorkerClocks, stores: Mapping[str, Store], in_place: bool) -> None:
        """`in_place`: the copy is the states themselves, on hold, instead of memory of its own."""
        self.at: int | None = None
        """The clock that it is to be of, `NOW`, or None if none is ordered."""
        self.hold = Hold()
        self._peer: Peer | None = None
        self._clocks = clocks
        self._stores = stores
        self._in_place = in_place

    def order(self, at: int, peer: Peer) -> None:
        self.at, self._peer = at, peer

    def cancel(self, peer: Peer | None = None) -> None:
        """Forget the order, if it is this peer's."""
        if peer is None or self._peer is peer:
            self.at = self._peer = None

    def make(self) -> None:
        """Make the copy that was ordered, and tell what it contains."""
        peer, self.at, self._peer = self._peer, None, None
        assert peer is not None
        if self._in_place:
            self.hold.take(peer)
        else:
            for store in self._stores.values():
                store.set_aside()
        clocks = self._clocks
        applied = [worker.applied for worker in clocks.workers]
        say(peer, Copied(applied=applied, rows=clocks.rows, losses=clocks.losses, loss_rows=clocks.loss_rows))

    def part(self, peer: Peer, store: Store, start: int, stop: int) -> Floats:
        """States [n, width] of one store, out of the last copy."""
        if not self._in_place:
            return store.copied(start, stop)
        if not self.hold.held:
            raise BadFrameError("states are asked for that may have changed since")
        # It may ask over another connection if the first was cut.
        self.hold.take(peer)
        return store.part(start, stop)
