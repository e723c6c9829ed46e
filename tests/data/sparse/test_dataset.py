from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from paceline.data.blocks import files as block_files
from paceline.data.blocks.files import write_table
from paceline.data.sparse import blocks as sparse_blocks
from paceline.data.sparse import dataset as blocks
from paceline.data.sparse.batch import Batch, concatenate
from paceline.data.sparse.dataset import SparseDataset, sparse_writer
from paceline.errors import DataError, UsageError
from tests.data.inputs import rows_of, rows_of_batch


def random_rows(count: int, seed: int = 0, keys: int = 2000, width: int = 9) -> Batch:
    random = np.random.default_rng(seed)
    lists = [random.choice(keys, random.integers(0, width), replace=False).tolist() for _ in range(count)]
    values = [[float(value) for value in random.integers(1, 9, len(row))] for row in lists]
    return Batch.from_lists(random.integers(0, 2, count).tolist(), lists, values)


def make(path: Path, rows: Batch, pieces: int = 1, **settings: Any) -> SparseDataset:
    with sparse_writer(path, features=None, source={"made": "here"}, **settings) as writer:
        bounds = np.linspace(0, rows.num_rows, pieces + 1).astype(int)
        for start, stop in itertools.pairwise(bounds.tolist()):
            piece = rows.slice(start, stop)
            writer.add("train", piece._replace(keys=piece.keys.copy()))
        return writer.finish()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_files, "BLOCK_ROWS", 64)
    monkeypatch.setattr(blocks, "SAMPLE_ROWS", 200)
    monkeypatch.setattr(blocks, "HOT_KEYS", 50)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("pieces", [1, 3, 50])
def test_what_is_written_is_read(tmp_path: Path, pieces: int) -> None:
    rows = random_rows(500)
    dataset = make(tmp_path / "data", rows, pieces)
    assert rows_of(dataset) == rows_of_batch(rows)
    info = dataset.manifest.train
    assert [block.rows for block in info.blocks] == [64] * 7 + [52]
    assert (info.rows, info.nonzeros) == (500, rows.num_nonzeros)
    assert info.positives == rows.labels.sum()
    assert dataset.features == rows.keys.max() + 1
    assert SparseDataset(tmp_path / "data").manifest == dataset.manifest


@pytest.mark.usefixtures("small")
def test_hot_keys_are_counted_and_come_first(tmp_path: Path) -> None:
    rows = random_rows(500, keys=100)
    manifest = make(tmp_path / "data", rows).manifest
    counts = np.bincount(rows.keys, minlength=100)
    assert manifest.hot_counts == [counts[key] for key in manifest.hot_keys]
    assert manifest.hot_keys[0] == counts.argmax()
    assert len(manifest.hot_keys) == 50


@pytest.mark.usefixtures("small")
def test_blocks_end_before_they_grow_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_blocks, "BLOCK_BYTES", 8 * 30)
    rows = concatenate([random_rows(40), Batch.from_lists([1], [list(range(100))], [[1.0] * 100]), random_rows(10, 1)])
    datasets = [make(tmp_path / f"data-{pieces}", rows, pieces) for pieces in (1, 7)]
    for dataset in datasets:
        assert rows_of(dataset) == rows_of_batch(rows)
        assert all(block.nonzeros <= 30 or block.rows == 1 for block in dataset.manifest.train.blocks)
    assert datasets[0].manifest.train == datasets[1].manifest.train


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with sparse_writer(tmp_path / "data", features=None, source={}) as writer:
            writer.add("train", random_rows(10))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small")
def test_a_full_disk_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(block_files.HashedFile, "write", full)
    with pytest.raises(UsageError, match="no room left"):
        make(tmp_path / "data", random_rows(500))
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_keys_above_the_declared_features_are_refused(tmp_path: Path) -> None:
    with (
        sparse_writer(tmp_path / "data", features=7, source={}) as writer,
        pytest.raises(DataError, match="key 7 is above the declared 7 features"),
    ):
        writer.add("train", Batch.from_lists([1], [[7]], [[1.0]]))


def test_no_training_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no training rows"):
        make(tmp_path / "data", Batch.from_lists([], [], []))


def test_a_damaged_block_is_noticed_when_it_is_read(tmp_path: Path) -> None:
    dataset = make(tmp_path / "data", random_rows(50))
    path = tmp_path / "data" / dataset.manifest.train.blocks[0].file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="wrong checksum"):
        SparseDataset(tmp_path / "data").block("train", 0)
    path.unlink()
    with pytest.raises(DataError, match="cannot be opened"):
        SparseDataset(tmp_path / "data").block("train", 0)


def test_folders_that_are_no_datasets(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no dataset at"):
        SparseDataset(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no manifest\.json"):
        SparseDataset(tmp_path / "empty")
    (tmp_path / "empty" / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        SparseDataset(tmp_path / "empty")


def test_another_version_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "data", random_rows(5))
    path = tmp_path / "data" / "manifest.json"
    manifest = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode({**manifest, "version": 99}))
    with pytest.raises(DataError, match="format version 99"):
        SparseDataset(tmp_path / "data")


def edit_manifest(path: Path, edit: Callable[[Any], None]) -> SparseDataset:
    manifest = msgspec.json.decode((path / "manifest.json").read_bytes())
    edit(manifest)
    (path / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    return SparseDataset(path)


@pytest.mark.parametrize("field", ["rows", "nonzeros", "longest"])
def test_a_block_that_is_not_as_the_manifest_says_is_refused(tmp_path: Path, field: str) -> None:
    make(tmp_path / "data", random_rows(50))
    edited = edit_manifest(tmp_path / "data", lambda manifest: manifest["train"]["blocks"][0].update({field: 1}))
    with pytest.raises(DataError, match=r"does not match the manifest: \d+ .* instead of 1") as error:
        edited.block("train", 0)
    assert error.value.hint == "prepare the data again"


def test_a_key_beyond_the_manifests_features_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "data", random_rows(50, keys=123))
    edited = edit_manifest(tmp_path / "data", lambda manifest: manifest.update(features=100))
    with pytest.raises(DataError, match=r"does not match the manifest: key \d+ is not below its 100 features"):
        edited.block("train", 0)


def test_rows_that_overlap_are_refused(tmp_path: Path) -> None:
    """Checksum and counts fit, but compiled loops would read outside of the block."""
    make(tmp_path / "data", Batch.from_lists([1, 0, 1], [[1, 2, 3], [], [4]], [[1.0] * 3, [], [1.0]]))
    table = pa.ipc.open_file((tmp_path / "data" / "train-00000.arrow").read_bytes()).get_batch(0)
    features = table.column("features")
    # Arrow does not look at offsets when it reads a file.
    moved = pa.LargeListArray.from_arrays(pa.array([0, 3, 1, 4], pa.int64()), features.values)
    checksum = write_table(tmp_path / "data" / "train-00000.arrow", table.set_column(1, "features", moved))
    edited = edit_manifest(tmp_path / "data", lambda manifest: manifest["train"]["blocks"][0].update(checksum=checksum))
    with pytest.raises(DataError, match="does not match the manifest: its rows are not one after the other"):
        edited.block("train", 0)


def test_another_arrow_file_in_the_place_of_a_block_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "data", random_rows(3))
    other = pa.record_batch({"label": pa.array([1, 0, 1], pa.uint8()), "price": pa.array([1.5, 2.5, 3.5])})
    checksum = write_table(tmp_path / "data" / "train-00000.arrow", other)
    edited = edit_manifest(tmp_path / "data", lambda manifest: manifest["train"]["blocks"][0].update(checksum=checksum))
    with pytest.raises(DataError, match="its columns are label uint8, price double instead of label uint8, features"):
        edited.block("train", 0)


def test_blocks_without_nonzeros_are_read(tmp_path: Path) -> None:
    dataset = make(tmp_path / "data", Batch.from_lists([1, 0], [[], []], [[], []]))
    assert rows_of(dataset) == [(1, {}), (0, {})]


def test_the_fingerprint_says_which_data_it_is(tmp_path: Path) -> None:
    first, again, other = (
        make(tmp_path / name, random_rows(50, seed)) for name, seed in (("first", 0), ("again", 0), ("other", 1))
    )
    assert first.fingerprint == again.fingerprint == SparseDataset(tmp_path / "first").fingerprint
    assert first.fingerprint != other.fingerprint
    wider = edit_manifest(tmp_path / "again", lambda manifest: manifest.update(features=5000))
    swapped = edit_manifest(
        tmp_path / "other", lambda manifest: manifest.update(train=manifest["test"], test=manifest["train"])
    )
    assert len({first.fingerprint, other.fingerprint, wider.fingerprint, swapped.fingerprint}) == 4


def test_declared_features_decide_how_wide_keys_are(tmp_path: Path) -> None:
    with sparse_writer(tmp_path / "data", features=1 << 32, source={}) as writer:
        writer.add("train", Batch.from_lists([1], [[7]], [[1.0]]))
        dataset = writer.finish()
    assert dataset.block("train", 0).keys.dtype == dataset.key_dtype == np.uint64
