"""Datasets of every kind: the folders in `prepared/` were written by an earlier version and must stay readable."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from paceline.data.blocks.reader import EpochBlocks, Reader
from paceline.data.datasets import AnyDataset, open_dataset
from paceline.data.images.blocks import Images
from paceline.data.images.dataset import IMAGE_ROWS, image_writer
from paceline.data.rows import EpochOrder
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import SPARSE_ROWS, SparseDataset, sparse_writer
from paceline.errors import DataError, PacelineWarning
from tests.conftest import all_rows, small_blocks

PREPARED = Path(__file__).parent / "prepared"
FINGERPRINTS = {"rows": "a943db4c7203c2b2", "images": "3b58335132b63f78"}
KINDS = {"rows": SPARSE_ROWS, "images": IMAGE_ROWS}


@pytest.fixture(params=["rows", "images"])
def dataset(request: pytest.FixtureRequest) -> AnyDataset:
    return open_prepared(request.param)


def open_prepared(name: str) -> AnyDataset:
    with pytest.warns(PacelineWarning, match="has no checksum"):
        return open_dataset(PREPARED / name)


def test_the_warning_names_the_line_that_opened_the_dataset() -> None:
    with pytest.warns(PacelineWarning) as told:
        open_dataset(PREPARED / "rows")
    assert [warning.filename for warning in told] == [__file__]


def test_a_dataset_keeps_its_fingerprint_and_declares_its_kind(dataset: AnyDataset) -> None:
    assert dataset.fingerprint == FINGERPRINTS[dataset.kind.name]
    assert dataset.kind is KINDS[dataset.kind.name]


def test_datasets_are_still_written_in_the_same_way(tmp_path: Path) -> None:
    rows = Batch.from_lists(
        [1, 0, 1, 0, 1, 1],
        [[3, 5], [7], [3, 19], [], [3, 7, 2], [7]],
        [[1, 0.5], [2], [0.25, -1], [], [1, 2, 3], [4]],
    )
    chance = np.random.default_rng(1)

    def images(count: int) -> Images:
        pixels = chance.integers(0, 256, (count, 12), dtype=np.uint8)
        return Images(pixels, chance.integers(0, 3, count).astype(np.uint16))

    names = ["cat", "dog", "cow"]
    with small_blocks(4), sparse_writer(tmp_path / "rows", features=20, source={}) as writer:
        writer.add("train", rows)
        writer.add("test", Batch.from_lists([0, 1], [[5], [3, 11]], [[1], [2, 8]]))
        assert writer.finish().fingerprint == FINGERPRINTS["rows"]
    with small_blocks(4), image_writer(tmp_path / "images", shape=(2, 2, 3), class_names=names, source={}) as pictures:
        pictures.add("train", images(6))
        pictures.add("test", images(3))
        assert pictures.finish().fingerprint == FINGERPRINTS["images"]


def test_rows_of_an_earlier_version_read_as_they_were() -> None:
    dataset = open_prepared("rows")
    rows = all_rows(dataset, "train")  # type: ignore[arg-type]
    assert rows.labels.tolist() == [1, 0, 1, 0, 1, 1]
    assert rows.offsets.tolist() == [0, 2, 3, 5, 5, 8, 9]
    assert rows.keys.tolist() == [3, 5, 7, 3, 19, 3, 7, 2, 7]
    assert rows.values.tolist() == [1, 0.5, 2, 0.25, -1, 1, 2, 3, 4]


def as_lists(rows: Any) -> list[Any]:
    return [part.tolist() for part in rows]


def test_rows_are_the_same_copied_and_in_place(dataset: AnyDataset) -> None:
    order = EpochOrder([block.rows for block in dataset.split("train").blocks], seed=1)
    reader: Reader[Any] = Reader(dataset, order)
    found = EpochBlocks(dataset, order).in_place(1, 5)
    in_place = [label for block, rows in found for label in block.labels[rows].tolist()]
    assert in_place == reader.between(1, 5).labels.tolist()


def test_the_first_rows_alone(dataset: AnyDataset) -> None:
    dataset.keep_first(5)
    assert dataset.split("train").rows == 5
    assert [block.rows for block in dataset.split("train").blocks] == [4, 1]
    assert dataset.split("test").rows == dataset.manifest.test.rows


def test_an_epoch_has_the_first_rows_and_no_others(clicks: Path) -> None:
    whole, part = SparseDataset(clicks), SparseDataset(clicks)
    blocks = whole.split("train").blocks
    assert len(blocks) > 2
    rows = blocks[0].rows + 7
    part.keep_first(rows)
    assert part.split("train").rows == rows
    order = EpochOrder([block.rows for block in part.split("train").blocks], seed=3)
    read = Reader(part, order).between(0, rows)
    labels = np.concatenate([whole.block("train", number).labels for number in range(len(blocks))])[:rows]
    keys = np.concatenate([whole.block("train", number).keys for number in range(len(blocks))])
    ends = np.cumsum(np.concatenate([np.diff(whole.block("train", number).offsets) for number in range(len(blocks))]))
    assert sorted(read.labels.tolist()) == sorted(labels.tolist())
    assert sorted(read.keys.tolist()) == sorted(keys[: ends[rows - 1]].tolist())
    assert part.split("test") == whole.split("test")


def test_a_manifest_without_content_does_not_fill_the_memory(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").touch()
    os.truncate(tmp_path / "manifest.json", 40 << 30)
    with pytest.raises(DataError, match=r"manifest\.json` has 42\.9 GB; the limit is 512 MiB"):
        open_dataset(tmp_path)


def test_manifests_can_be_read_by_people(tmp_path: Path) -> None:
    source = {"format": "csv", "columns": {f"column{i}": "number" for i in range(20)}}
    with sparse_writer(tmp_path / "a", features=9, source=source) as writer:
        writer.add("train", Batch.from_lists([1, 0], [[3, 5], [7]], [[1.0, 0.5], [2.0]]))
        writer.finish()
    text = (tmp_path / "a" / "manifest.json").read_text()
    lines = text.splitlines()
    assert lines[2:5] == ['  "source": {', '    "format": "csv",', '    "columns": {']
    assert '      "column0": "number",' in lines
    assert lines[-4:-1] == ['  "hot_keys": [3, 5, 7],', '  "hot_counts": [1, 1, 1],', lines[-2]]
    assert json.loads(text)["source"] == source


def test_manifests_on_one_line_still_open(tmp_path: Path) -> None:
    with sparse_writer(tmp_path / "a", features=9, source={}) as writer:
        writer.add("train", Batch.from_lists([1, 0], [[3, 5], [7]], [[1.0, 0.5], [2.0]]))
        made = writer.finish()
    path = tmp_path / "a" / "manifest.json"
    found = json.loads(path.read_text())
    del found["checksum"]
    line = json.dumps(found, separators=(",", ":")).encode()
    sealed = line[:-1] + b',"checksum":"' + xxhash.xxh3_64_hexdigest(line).encode() + b'"}'
    path.write_bytes(sealed)
    assert SparseDataset(tmp_path / "a").fingerprint == made.fingerprint
    path.write_bytes(sealed.replace(b'"features":9', b'"features":8'))
    with pytest.raises(DataError, match="wrong checksum"):
        SparseDataset(tmp_path / "a")
