"""How does a worker of a cluster get to know which rows are its own? It asks the coordinator, in time."""

from __future__ import annotations

import queue
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from paceline.training.cluster.messages import Grant, Take

if TYPE_CHECKING:
    from paceline.training.cluster.role import Lifeline

POLL_SECONDS = 0.5


class RecalledError(Exception):
    """The coordinator wants something else now."""


class Rations:
    """The batches that a worker was granted in a leg; `next` is the number of the one that it takes next."""

    def __init__(self, lifeline: Lifeline) -> None:
        self.next = 0
        self._lifeline = lifeline
        self._leg = 0
        self._rows: deque[tuple[int, int, int]] = deque()
        self._none_left = False

    def begin(self, leg: int) -> None:
        """Ask for rows in a new leg."""
        self._leg, self._none_left = leg, False
        self._rows.clear()
        self._lifeline.say(Take(leg=leg, batch=self.next))

    def at_hand(self) -> bool:
        """Whether `take` need not wait."""
        return bool(self._rows) or self._none_left

    def take(self) -> tuple[int, int, int] | None:
        """The rows of the next batch: first position, last + 1, rows handed out before; None: no more in this leg."""
        while not self.at_hand():
            try:
                self._add(self._lifeline.grants.get(timeout=POLL_SECONDS))
            except queue.Empty:
                if self.recalled():
                    raise RecalledError from None
        if not self._rows:
            return None
        self.next += 1
        return self._rows.popleft()

    def recalled(self) -> bool:
        return not self._lifeline.orders.empty()

    def _add(self, grant: Grant) -> None:
        """Take rows on, and ask for the next ones already."""
        if grant.leg != self._leg or grant.first != self.next + len(self._rows):
            return
        bounds = np.frombuffer(grant.bounds, np.int64).reshape(-1, 3).tolist()
        self._none_left = not bounds
        self._rows.extend((start, stop, trained) for start, stop, trained in bounds)
        if bounds:
            self._lifeline.say(Take(leg=self._leg, batch=grant.first + len(bounds)))
