"""Stray keys: a few nonzeros far above all others."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from paceline.data.prepare import prepare
from paceline.data.prepare_settings import PrepareConfig
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.stray import LargestKeys


def rows_of(keys: list[list[int]]) -> Batch:
    return Batch.from_lists([0] * len(keys), keys, [[1.0] * len(row) for row in keys])


def test_one_far_key_is_stray() -> None:
    largest = LargestKeys()
    largest.take(rows_of([[1, 5]] * 500), "a", np.arange(1, 501))
    largest.take(rows_of([[3, 2_000_000_000], [6]]), "b", np.array([4, 9]))
    stray = largest.stray
    assert stray is not None
    assert (stray.key, stray.where, stray.nonzeros, stray.rest) == (2_000_000_000, "b, row 4", 1, 6)


def test_large_keys_of_many_rows_are_not_stray() -> None:
    largest, random = LargestKeys(), np.random.default_rng(0)
    for _ in range(5):
        largest.take(rows_of(random.integers(0, 1 << 31, (200, 5)).tolist()), "a", np.arange(200))
    assert largest.stray is None


def test_several_stray_keys_among_large_ones() -> None:
    largest, random = LargestKeys(), np.random.default_rng(0)
    largest.take(rows_of(random.integers(0, 1 << 27, (1000, 5)).tolist()), "a", np.arange(1000))
    largest.take(rows_of([[4_000_000_000], [4_000_000_001]]), "b", np.array([1, 2]))
    stray = largest.stray
    assert stray is not None
    assert (stray.where, stray.nonzeros) == ("b, row 2", 2)
    assert stray.rest < 1 << 27


def test_prepare_says_where_a_stray_key_is(tmp_path: Path) -> None:
    source = tmp_path / "rows.svm"
    source.write_text("1 1:1 3:1\n0 2:1\n" * 50 + "1 2000000000:1\n" + "0 2:1\n" * 50)
    config = PrepareConfig(sources=[str(source)], out=str(tmp_path / "data"))
    notes = prepare(config, lambda _: None).notes
    (note,) = (note for note in notes if "2000000000" in note)
    assert "rows.svm`, row 101)" in note
    assert "8.0 GB" in note
    assert "--features 3 --skip-bad-rows 1" in note
    again = PrepareConfig(sources=[str(source)], out=str(tmp_path / "again"), features=3, skip_bad_rows=1)
    assert prepare(again, lambda _: None).dataset.features == 3
