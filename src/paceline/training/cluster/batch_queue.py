"""How does a worker of a cluster learn which rows are its own? It asks the coordinator, in time."""

from __future__ import annotations

import queue
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from paceline.training.cluster.messages import Lease, Take

if TYPE_CHECKING:
    from paceline.processes.lifeline import Lifeline

POLL_SECONDS = 0.5


class RecalledError(Exception):
    """The coordinator wants something else now."""


class BatchQueue:
    """The batches that a worker was given in a segment; `next` is the number of the one that it takes next."""

    def __init__(self, lifeline: Lifeline) -> None:
        self.next = 0
        self._lifeline = lifeline
        # Not a `SimpleQueue`, because it is read with a time limit (see `ControlServer.events`).
        self._leases: queue.Queue[Lease] = queue.Queue()
        lifeline.on(Lease, self._leases.put)
        self._segment = 0
        self._rows: deque[tuple[int, int, int]] = deque()
        self._none_left = False

    def begin(self, segment: int) -> None:
        """Ask for rows in a new segment."""
        self._segment, self._none_left = segment, False
        self._rows.clear()
        self._lifeline.say(Take(segment=segment, batch=self.next))

    def at_hand(self) -> bool:
        """Whether `take` need not wait."""
        return bool(self._rows) or self._none_left

    def take(self) -> tuple[int, int, int] | None:
        """The rows of the next batch: first position, last + 1, rows handed out before; None if there are no more."""
        while not self.at_hand():
            try:
                self._add(self._leases.get(timeout=POLL_SECONDS))
            except queue.Empty:
                if self.recalled():
                    raise RecalledError from None
        if not self._rows:
            return None
        self.next += 1
        return self._rows.popleft()

    def recalled(self) -> bool:
        """Whether the coordinator wants something else now."""
        return not self._lifeline.orders.empty()

    def _add(self, lease: Lease) -> None:
        """Add rows to the queue, and ask for the next ones in advance."""
        if lease.segment != self._segment or lease.first != self.next + len(self._rows):
            return
        bounds = np.frombuffer(lease.bounds, np.int64).reshape(-1, 3).tolist()
        self._none_left = not bounds
        self._rows.extend((start, stop, trained) for start, stop, trained in bounds)
        if bounds:
            self._lifeline.say(Take(segment=self._segment, batch=lease.first + len(bounds)))
