"""How much waits for the coordinator? A queue between two threads that counts bytes as well as items."""

from __future__ import annotations

import queue
import threading
from typing import Generic, TypeVar

T = TypeVar("T")

ITEM_BYTES = 500
"""About what an item takes besides its content."""


class Backlog(Generic[T]):
    """A queue that knows the bytes that wait in it; its user decides how many are too many."""

    def __init__(self) -> None:
        # Not a `SimpleQueue`: if a signal interrupts it, it may wait forever, whatever its time limit.
        self._items: queue.Queue[tuple[T, int]] = queue.Queue()
        self._counting = threading.Lock()
        self.num_bytes = 0

    def put(self, item: T, num_bytes: int = 0) -> None:
        """Add an item that was this long on the wire."""
        with self._counting:
            self.num_bytes += num_bytes + ITEM_BYTES
        self._items.put((item, num_bytes + ITEM_BYTES))

    def get(self, timeout: float = 0.0) -> T:
        """The oldest item, after waiting at most this long; raises `queue.Empty` if there is none."""
        item, num_bytes = self._items.get(timeout=timeout)
        with self._counting:
            self.num_bytes -= num_bytes
        return item

    def __len__(self) -> int:
        return self._items.qsize()
