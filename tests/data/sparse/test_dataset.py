from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import xxhash

from paceline.data.blocks import files as block_files
from paceline.data.blocks.files import write_table
from paceline.data.blocks.manifests import seal
from paceline.data.sparse import dataset as blocks
from paceline.data.sparse.batch import Batch, concatenate
from paceline.data.sparse.dataset import Room, SparseDataset, sparse_writer
from paceline.errors import DataError, PacelineWarning, UsageError
from tests.data.inputs import rows_of, rows_of_batch, run, with_weights_and_fields, write


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
def test_blocks_end_before_they_grow_too_large(tmp_path: Path) -> None:
    room = Room(block_bytes=8 * 30)
    rows = concatenate([random_rows(40), Batch.from_lists([1], [list(range(100))], [[1.0] * 100]), random_rows(10, 1)])
    datasets = [make(tmp_path / f"data-{pieces}", rows, pieces, room=room) for pieces in (1, 7)]
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
    """The dataset with an edited manifest, whose checksum is that of the edited one."""
    manifest = msgspec.json.decode((path / "manifest.json").read_bytes())
    del manifest["checksum"]
    edit(manifest)
    (path / "manifest.json").write_bytes(seal(msgspec.json.encode(manifest)))
    return SparseDataset(path)


def edit_block(path: Path, edit: Callable[[pa.RecordBatch], pa.RecordBatch]) -> SparseDataset:
    """The dataset with an edited first block, whose checksum is that of the edited one."""
    table = pa.ipc.open_file((path / "train-00000.arrow").read_bytes()).get_batch(0)
    checksum = write_table(path / "train-00000.arrow", edit(table))
    return edit_manifest(path, lambda manifest: manifest["train"]["blocks"][0].update(checksum=checksum))


def features_of(table: pa.RecordBatch, offsets: Any = None, keys: Any = None, mask: Any = None) -> pa.RecordBatch:
    """The same rows with other offsets or keys. Nothing is checked, as nothing is when Arrow reads a file."""
    column = table.column("features")
    struct = column.values
    if keys is not None:
        struct = pa.StructArray.from_arrays([keys, struct.field(1)], ["key", "value"])
    moved = np.array(offsets if offsets is not None else column.offsets, np.int64)
    valid = pa.array(mask).buffers()[1] if mask is not None else None
    buffers = [valid, pa.py_buffer(moved)]
    made = pa.Array.from_buffers(pa.large_list(struct.type), len(moved) - 1, buffers, children=[struct])
    return pa.RecordBatch.from_arrays([table.column(0), made], ["label", "features"])


ROWS = Batch.from_lists([1, 0, 1], [[1, 2, 3], [], [4]], [[1.0] * 3, [], [1.0]])


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda table: features_of(table, [0, 3, 1, 4]), "not a valid Arrow file|not one after the other"),
        (lambda table: features_of(table, [1, 3, 4, 4]), "not one after the other|instead of"),
        (lambda table: features_of(table, keys=pa.array([-1, -2, 3, 4], pa.int32())), "its columns are"),
        (lambda table: features_of(table, keys=pa.array([1, 2, 3, 2**32 - 1], pa.uint32())), "key 4294967295 is not"),
        (lambda table: features_of(table, keys=pa.array([1, None, 3, 4], pa.uint32())), "cells are null"),
        (lambda table: features_of(table, mask=[True, False, True]), "cells are null"),
        (lambda table: table.set_column(0, "label", pa.array([1, 0, 200], pa.uint8())), "label 200 is not below its 2"),
        (lambda table: table.set_column(0, "label", pa.array([1, None, 0], pa.uint8())), "cells are null"),
        (lambda table: table.slice(0, 2), "2 rows instead of 3"),
    ],
)
def test_a_block_made_to_do_harm_is_refused(tmp_path: Path, edit: Any, words: str) -> None:
    """Its checksum is right; compiled loops would read and write outside of their arrays."""
    make(tmp_path / "data", ROWS)
    with pytest.raises(DataError, match=words) as error:
        edit_block(tmp_path / "data", edit).block("train", 0)
    assert len(error.value.message.splitlines()) == 1


@pytest.mark.parametrize("offsets", [(0, 3, 3, 400), (-8, 3, 3, 4), (0, 1 << 40, 3, 4), None])
def test_a_block_that_is_not_a_valid_arrow_file_is_refused(tmp_path: Path, offsets: Any) -> None:
    make(tmp_path / "data", ROWS)
    path = tmp_path / "data" / "train-00000.arrow"
    content = b"ARROW1\0\0" + bytes(200) + b"ARROW1"
    if offsets:
        before = np.array([0, 3, 3, 4], np.int64).tobytes()
        assert path.read_bytes().count(before) == 1
        content = path.read_bytes().replace(before, np.array(offsets, np.int64).tobytes())
    path.write_bytes(content)
    checksum = xxhash.xxh3_64_hexdigest(content)
    edited = edit_manifest(tmp_path / "data", lambda manifest: manifest["train"]["blocks"][0].update(checksum=checksum))
    with pytest.raises(DataError, match="not a valid Arrow file"):
        edited.block("train", 0)


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize("version", [pa.ipc.MetadataVersion.V4, pa.ipc.MetadataVersion.V5])
def test_a_compressed_block_is_refused_before_it_fills_the_memory(
    tmp_path: Path, compression: str, version: pa.ipc.MetadataVersion
) -> None:
    make(tmp_path / "data", ROWS)
    path = tmp_path / "data" / "train-00000.arrow"
    table = pa.ipc.open_file(path.read_bytes()).get_batch(0)
    options = pa.ipc.IpcWriteOptions(compression=compression, metadata_version=version)
    with pa.ipc.new_file(path, table.schema, options=options) as writer:
        writer.write_batch(table)
    checksum = xxhash.xxh3_64_hexdigest(path.read_bytes())
    edited = edit_manifest(tmp_path / "data", lambda manifest: manifest["train"]["blocks"][0].update(checksum=checksum))
    with pytest.raises(DataError, match="it is compressed"):
        edited.block("train", 0)


@pytest.mark.parametrize("name", ["manifest.json", "train-00000.arrow"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path, name: str) -> None:
    make(tmp_path / "data", ROWS)
    (tmp_path / "data" / name).unlink()
    os.mkfifo(tmp_path / "data" / name)
    with pytest.raises(DataError, match="not a regular file"):
        SparseDataset(tmp_path / "data").block("train", 0)


def test_labels_that_are_numbers_must_be_finite(tmp_path: Path) -> None:
    make(tmp_path / "data", ROWS._replace(labels=np.array([0.5, 1, 2], np.float32)), labels="numbers")
    edited = edit_block(
        tmp_path / "data", lambda table: table.set_column(0, "label", pa.array([0.5, np.nan, 1], pa.float32()))
    )
    with pytest.raises(DataError, match="not finite"):
        edited.block("train", 0)


def test_a_changed_manifest_is_refused(tmp_path: Path) -> None:
    """Swapped hot keys would train silently to another model."""
    make(tmp_path / "data", random_rows(50))
    path = tmp_path / "data" / "manifest.json"
    manifest = msgspec.json.decode(path.read_bytes())
    hot = manifest["hot_keys"]
    hot[0], hot[1] = hot[1], hot[0]
    path.write_bytes(msgspec.json.encode(manifest))
    with pytest.raises(DataError, match="wrong checksum: it changed"):
        SparseDataset(tmp_path / "data")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hot_keys": [3, 3]}, "distinct"),
        ({"hot_keys": [-1]}, "distinct"),
        ({"hot_keys": [1 << 40]}, "distinct"),
        ({"hot_counts": []}, "0 counts for 4 hot keys"),
        ({"features": 0}, "features"),
        ({"train": {"rows": 2, "blocks": []}}, "do not have its 2 rows"),
        ({"train": {"rows": 0, "blocks": []}}, "no training rows"),
        ({"test": {"rows": 1, "blocks": [
            {"file": "../x", "rows": 1, "nonzeros": 1, "longest": 1, "checksum": ""}]}}, "regex|match"),
    ],
)  # fmt: skip
def test_a_manifest_that_makes_no_sense_is_refused(tmp_path: Path, change: Any, words: str) -> None:
    make(tmp_path / "data", ROWS)
    with pytest.raises(DataError, match=words):
        edit_manifest(tmp_path / "data", lambda manifest: manifest.update(change))


@pytest.mark.parametrize("text", [b'{"kind": "ro\xffws"}', b"[" * 100_000, b'{"a":' * 100_000, b""])
def test_a_manifest_that_cannot_be_parsed_is_refused(tmp_path: Path, text: bytes) -> None:
    make(tmp_path / "data", ROWS)
    (tmp_path / "data" / "manifest.json").write_bytes(text)
    with pytest.raises(DataError, match=r"manifest.json` cannot be read"):
        SparseDataset(tmp_path / "data")


def test_an_older_manifest_opens_with_a_warning(tmp_path: Path) -> None:
    make(tmp_path / "data", ROWS)
    path = tmp_path / "data" / "manifest.json"
    manifest = msgspec.json.decode(path.read_bytes())
    del manifest["checksum"]
    path.write_bytes(msgspec.json.encode(manifest))
    with pytest.warns(PacelineWarning, match="has no checksum"):
        SparseDataset(tmp_path / "data")


@pytest.mark.parametrize("field", ["rows", "nonzeros", "longest"])
def test_a_block_that_is_not_as_the_manifest_says_is_refused(tmp_path: Path, field: str) -> None:
    make(tmp_path / "data", random_rows(50))

    def edit(manifest: Any) -> None:
        manifest["train"]["blocks"][0][field] = 1
        manifest["train"]["rows"] = manifest["train"]["blocks"][0]["rows"]

    edited = edit_manifest(tmp_path / "data", edit)
    with pytest.raises(DataError, match=r"does not match the manifest: \d+ .* instead of 1") as error:
        edited.block("train", 0)
    assert error.value.hint == "prepare the data again"


def test_a_key_beyond_the_manifests_features_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "data", random_rows(50, keys=123))
    edited = edit_manifest(
        tmp_path / "data", lambda manifest: manifest.update(features=100, hot_keys=[], hot_counts=[])
    )
    with pytest.raises(DataError, match=r"does not match the manifest: key \d+ is not below its 100 features"):
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
    assert len({first.fingerprint, other.fingerprint, wider.fingerprint}) == 3


def test_declared_features_decide_how_wide_keys_are(tmp_path: Path) -> None:
    with sparse_writer(tmp_path / "data", features=1 << 32, source={}) as writer:
        writer.add("train", Batch.from_lists([1], [[7]], [[1.0]]))
        dataset = writer.finish()
    assert dataset.block("train", 0).keys.dtype == dataset.key_dtype == np.uint64


FIELDS = ("a", "b", "c", "d", "e")


@pytest.mark.usefixtures("small")
def test_weights_and_fields_are_written_and_read(tmp_path: Path) -> None:
    rows = with_weights_and_fields(500)
    dataset = make(tmp_path / "data", rows, 3, fields=FIELDS)
    assert (dataset.manifest.weighted, dataset.manifest.fields) == (True, FIELDS)
    found = concatenate([dataset.block("train", i) for i in range(len(dataset.manifest.train.blocks))])
    assert rows.weights is not None
    assert found.weights is not None
    assert found.weights.tolist() == rows.weights.tolist()
    assert found.fields is not None
    assert rows.fields is not None
    assert found.fields.tolist() == rows.fields.tolist()
    assert dataset.manifest.train.mean_weight == pytest.approx(rows.weights.mean())
    plain = make(tmp_path / "plain", rows._replace(weights=None, fields=None))
    assert plain.fingerprint != dataset.fingerprint
    assert plain.manifest.train.mean_weight == 1


@pytest.mark.parametrize("weight", [-1, np.nan, np.inf])
def test_wrong_weights_are_not_written(tmp_path: Path, weight: float) -> None:
    rows = with_weights_and_fields(10)._replace(weights=np.full(10, weight, np.float32))
    with pytest.raises(DataError, match="some weights are negative or not finite"):
        make(tmp_path / "data", rows, fields=FIELDS)


def test_wrong_weights_and_fields_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "are_weights", lambda _: True)
    rows = with_weights_and_fields(10)
    wrong = np.where(np.arange(10) == 3, np.float32(-1), np.float32(5))
    weights = make(tmp_path / "weights", rows._replace(weights=wrong), fields=FIELDS)
    with pytest.raises(DataError, match="some weights are negative"):
        weights.block("train", 0)
    fields = make(tmp_path / "fields", rows, fields=FIELDS[:4])
    with pytest.raises(DataError, match="field 4"):
        fields.block("train", 0)


def test_validation_rows_are_a_split_of_their_own(tmp_path: Path) -> None:
    rows = random_rows(30)
    with sparse_writer(tmp_path / "data", features=None, source={}) as writer:
        for split, start in (("train", 0), ("validation", 10), ("test", 20)):
            piece = rows.slice(start, start + 10)
            writer.add(split, piece._replace(keys=piece.keys.copy()))  # type: ignore[arg-type]
        dataset = writer.finish()
    assert dataset.split("validation").rows == 10
    assert dataset.block("validation", 0).labels.tolist() == rows.labels[10:20].tolist()


def test_classes_get_the_numbers_of_a_model(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "label,x\ncat,1\nant,2\ncat,3\n")
    dataset = run(tmp_path, path, labels="classes").dataset
    assert SparseDataset(dataset.folder.name).block("train", 0).labels.tolist() == [1, 0, 1]
    assert dataset.manifest.source["class_names"] == ["ant", "cat"]
    dataset.number_classes_as(["dog", "cat", "ant"])
    assert dataset.block("train", 0).labels.tolist() == [1, 2, 1]
    assert not dataset.block("train", 0).labels.flags.writeable
    assert dataset.labels.names == ("dog", "cat", "ant")
    with pytest.raises(DataError, match="the class `cat` is not one of the 2"):
        dataset.number_classes_as(["dog", "ant"])
