"""How does a shard give away its states for a checkpoint while workers continue?

The coordinator orders a copy at a clock, or at once; what workers exchange says when no gradient is half applied. A
shard that keeps keys copies its states. One that keeps dense values alone would need as much memory again: there,
nothing changes until all has been fetched, and workers wait with their pushes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

import numpy as np

from paceline.parameters.store import AnyStore, Floats
from paceline.training.cluster.clocks import LARGEST, WorkerClocks, say
from paceline.training.cluster.messages import Copied
from paceline.wire.frames import BadFrameError
from paceline.wire.server import Peer

NOW = -1
# How long a coordinator that fetches states may be away after its connection broke.
BACK_SECONDS = 5.0


class Copies:
    """The copy that the coordinator has ordered, if it is not made yet, and the last one."""

    def __init__(self, clocks: WorkerClocks, stores: Mapping[str, AnyStore], in_place: bool) -> None:
        """`in_place`: the copy is the states themselves, on hold, instead of memory of its own."""
        self.released: Callable[[], None] = lambda: None
        """Called when pushes may continue."""
        self._clocks = clocks
        self._stores = stores
        self._in_place = in_place
        self._kept: dict[str, Floats] = {}
        self.reset()

    def reset(self) -> None:
        """A generation of the parameters begins."""
        self.at: int | None = None
        """The clock at which a copy is ordered, or `NOW`; None if none is."""
        self._peer: Peer | None = None
        # Who fetches the states themselves, so that nothing may change now, and until when.
        self._fetcher: Peer | None = None
        self._fetched_by = math.inf

    @property
    def held(self) -> bool:
        """Whether nothing may change now."""
        return self._fetcher is not None

    def order(self, at: int, peer: Peer) -> None:
        if not NOW <= at <= LARGEST:
            raise BadFrameError(f"a copy at clock {at}")
        self.at, self._peer = at, peer

    def closed(self, peer: Peer) -> None:
        """A connection is gone, and with it what was ordered over it."""
        if self._peer is peer:
            self.at = self._peer = None
        if self._fetcher is peer:
            self._fetched_by = time.monotonic() + BACK_SECONDS

    def release(self) -> None:
        """All has been fetched."""
        self._fetcher = None
        self.released()

    def expire(self) -> None:
        """Do not wait any longer for a coordinator that does not come back."""
        if self.held and time.monotonic() > self._fetched_by:
            self.release()

    def make_at(self, clock: int) -> None:
        """Make the copy if it was ordered at this clock, or `NOW`, and tell what it contains."""
        if self.at != clock or (peer := self._peer) is None:
            return
        self.at = self._peer = None
        if self._in_place:
            self._fetcher, self._fetched_by = peer, math.inf
        else:
            for name, store in self._stores.items():
                if name not in self._kept:
                    self._kept[name] = np.empty((store.size, store.width), np.float32)
                np.copyto(self._kept[name], store.states)
        clocks = self._clocks
        applied = [worker.applied for worker in clocks.workers]
        say(peer, Copied(applied=applied, rows=clocks.rows, losses=clocks.losses, loss_rows=clocks.loss_rows))

    def part(self, peer: Peer, name: str, start: int, stop: int) -> Floats:
        """States [n, width] of one store, out of the last copy."""
        if not self._in_place:
            if name not in self._kept:
                raise BadFrameError("a copy is asked for that was never made")
            return self._kept[name][start:stop]
        if not self.held:
            raise BadFrameError("states are asked for that may have changed since")
        # The coordinator may ask over another connection if the first was cut.
        self._fetcher, self._fetched_by = peer, math.inf
        return self._stores[name].part(start, stop)
