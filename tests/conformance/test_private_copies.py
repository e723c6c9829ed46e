"""Private copies of hot keys: at pace async alone, merged on the way, and nothing of them lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline.parameters.keyed import PrivateCopies


@pytest.mark.parametrize(
    ("pace", "batch_size", "workers", "private"),
    [("async", 1, 2, True), ("async", 1, 1, False), ("async", 5, 2, True), (3, 1, 2, False), ("sync", 1, 2, False)],
)
def test_where_they_are_used(
    tmp_path: Path,
    clicks: Path,
    monkeypatch: pytest.MonkeyPatch,
    pace: Any,
    batch_size: int,
    workers: int,
    private: bool,
) -> None:
    seen: list[int] = []

    def remember(private: PrivateCopies, *arguments: Any) -> None:
        make(private, *arguments)
        seen.append(private.num_hot)

    make = PrivateCopies.__init__
    monkeypatch.setattr(PrivateCopies, "__init__", remember)
    paceline.train(data=clicks, run=tmp_path / "run", pace=pace, batch_size=batch_size, workers=workers, steps=1)
    assert (seen[0] > 0) == private
