"""Rows in memory lie in the same blocks as those of a dataset in a folder."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from paceline.data.labels import Labels
from paceline.data.memory import dataset
from paceline.data.memory.dataset import LabelledRows, dataset_in_memory, dataset_of
from paceline.data.memory.matrices import rows_of_matrix
from paceline.data.memory.prepare import Memory, prepare_memory
from paceline.data.prepare_settings import PrepareConfig
from paceline.data.sparse.scaling import Scaling
from paceline.errors import DataError
from tests.conftest import small_blocks

RNG = np.random.default_rng(0)
CSR = scipy.sparse.random(500, 80, 0.1, "csr", rng=RNG)
CSR.data[:40] = 10_000
Y = RNG.integers(0, 2, 500).astype(np.uint8)
WEIGHTS = RNG.random(500).astype(np.float32)


@pytest.mark.parametrize("matrix", [CSR, CSR.toarray(), CSR.astype(np.float32)], ids=["csr", "array", "float32"])
def test_blocks_are_those_of_a_folder(tmp_path: Path, matrix: object) -> None:
    config = PrepareConfig(sources=["memory"], out=str(tmp_path / "memory"))
    with small_blocks(200):
        folder = prepare_memory(Memory((matrix, Y, WEIGHTS)), config).dataset
        memory = dataset_in_memory(LabelledRows(rows_of_matrix(matrix), Y, WEIGHTS, Labels()))
    assert memory.manifest.hot_keys == folder.manifest.hot_keys
    assert memory.scaling == folder.scaling
    assert memory.scaling.keys
    assert memory.longest_row == folder.longest_row
    assert [block.rows for block in memory.split("train").blocks] == [200, 200, 100]
    for number in range(3):
        for ours, theirs in zip(memory.block("train", number), folder.block("train", number), strict=True):
            np.testing.assert_array_equal(ours, theirs, strict=True)


def test_many_rows_are_in_a_temporary_folder_while_they_are_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rows = LabelledRows(rows_of_matrix(CSR), Y, WEIGHTS, Labels("classes", ("a", "b", "c")))
    rows = rows._replace(targets=Y.astype(np.uint16))  # no row has the third class
    with small_blocks(200), dataset_of(rows) as memory:
        assert list(tmp_path.iterdir()) == []
        monkeypatch.setattr(dataset, "MOST_IN_MEMORY", rows.num_bytes - 1)
        with dataset_of(rows) as written:
            assert len(list(tmp_path.iterdir())) == 1
            assert (written.key_dtype, written.longest_row) == (memory.key_dtype, memory.longest_row)
            for field in ("hot_keys", "scaling", "labels", "label_statistics"):
                assert getattr(written.manifest, field) == getattr(memory.manifest, field)
            for number in range(3):
                for ours, theirs in zip(memory.block("train", number), written.block("train", number), strict=True):
                    np.testing.assert_array_equal(ours, theirs, strict=True)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_of_rows_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(dataset, "MOST_IN_MEMORY", 0)
    rows = LabelledRows(rows_of_matrix(np.full((2, 2), 1e300)), Y[:2], None, Labels())
    with pytest.raises(DataError, match="too large for float32"), dataset_of(rows):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_scaling_that_is_given_is_used() -> None:
    scaling = Scaling((3,), (2.0,), (0.0,))
    memory = dataset_in_memory(
        LabelledRows(rows_of_matrix(np.eye(4)), Y[:4], None, Labels()), scale="none", scaling=scaling
    )
    assert memory.scaling == scaling
    assert sorted(memory.block("train", 0).values.tolist()) == [0.5, 1.0, 1.0, 1.0]


def test_blocks_cannot_be_written_to() -> None:
    memory = dataset_in_memory(LabelledRows(rows_of_matrix(np.eye(4)), Y[:4], None, Labels()))
    with pytest.raises(ValueError, match="read-only"):
        memory.block("train", 0).values[0] = 2


def test_values_too_large_for_float32_are_refused() -> None:
    with pytest.raises(DataError, match="too large for float32"):
        dataset_in_memory(LabelledRows(rows_of_matrix(np.full((2, 2), 1e300)), Y[:2], None, Labels()))
