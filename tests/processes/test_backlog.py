"""A queue that counts bytes."""

from __future__ import annotations

import queue

import pytest

from paceline.processes.backlog import ITEM_BYTES, Backlog


def test_it_counts_what_waits_in_order() -> None:
    backlog: Backlog[str] = Backlog()
    backlog.put("first", 1_000)
    backlog.put("second")
    assert (len(backlog), backlog.num_bytes) == (2, 1_000 + 2 * ITEM_BYTES)
    assert backlog.get() == "first"
    assert (len(backlog), backlog.num_bytes) == (1, ITEM_BYTES)
    assert backlog.get() == "second"
    with pytest.raises(queue.Empty):
        backlog.get(timeout=0.01)
    assert backlog.num_bytes == 0
