"""How many rows have each feature: what is known of one run, and of a run and the one before it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from paceline.data.blocks.files import write_table
from paceline.data.blocks.folders import LocalFolder
from paceline.data.sparse.feature_counts import FILE, CountsInfo, FeatureCounts, read_counts, write_counts
from paceline.errors import DataError


def counts_of(counts: dict[int, int], rows: int, dataset: str, *, complete: bool = True) -> FeatureCounts:
    keys = np.array(sorted(counts), np.uint64)
    return FeatureCounts(keys, np.array([counts[key] for key in sorted(counts)]), rows, (dataset,), complete)


def listed(found: FeatureCounts) -> dict[int, int]:
    return dict(zip(found.keys.tolist(), found.counts.tolist(), strict=True))


@pytest.mark.parametrize("largest", [9, 1 << 40])
def test_counts_are_read_as_they_were_written(tmp_path: Path, largest: int) -> None:
    found = counts_of({2: 5, largest: 7}, 10, "a")
    info = write_counts(tmp_path, found)
    again = read_counts(LocalFolder(tmp_path), info)
    assert again is not None
    assert listed(again) == {2: 5, largest: 7}
    assert again[2:] == found[2:]
    (tmp_path / FILE).unlink()
    assert read_counts(LocalFolder(tmp_path), info) is None


def test_nothing_is_written_of_no_features(tmp_path: Path) -> None:
    assert write_counts(tmp_path, counts_of({}, 10, "a")) == CountsInfo()
    assert not (tmp_path / FILE).exists()


def test_keys_that_are_not_listed_are_in_no_row_only_if_all_are_listed() -> None:
    assert counts_of({2: 5, 4: 1}, 10, "a").of([1, 2, 9]) == {1: 0, 2: 5, 9: 0}
    assert counts_of({2: 5, 4: 1}, 10, "a", complete=False).of([1, 2, 9]) == {2: 5}


def test_counts_of_two_runs_are_added() -> None:
    both = counts_of({2: 5, 4: 1}, 10, "a").with_those_of(counts_of({4: 2, 8: 3}, 5, "b"))
    assert listed(both) == {2: 5, 4: 3, 8: 3}
    assert both[2:] == (15, ("a", "b"), True)


def test_what_is_not_known_of_one_run_is_not_known_of_both() -> None:
    hot = counts_of({2: 5}, 10, "a", complete=False)
    both = hot.with_those_of(counts_of({4: 2, 8: 3}, 5, "b"))
    assert listed(both) == {2: 5}
    assert not both.complete


def test_keys_in_disorder_are_refused(tmp_path: Path) -> None:
    columns = [pa.array([4, 2], pa.uint32()), pa.array([1, 1], pa.uint32())]
    checksum = write_table(tmp_path / FILE, pa.RecordBatch.from_arrays(columns, ["key", "rows"]))
    with pytest.raises(DataError, match="does not list its keys in order"):
        read_counts(LocalFolder(tmp_path), CountsInfo(file=FILE, keys=2, checksum=checksum, rows=5))
