"""Images come back from disk as they were written, whole or not at all, and a reader sees each once an epoch."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data.blocks import files as block_files
from paceline.data.blocks.manifests import seal
from paceline.data.blocks.reader import Reader
from paceline.data.datasets import open_dataset
from paceline.data.images import blocks as image_blocks
from paceline.data.images.blocks import Images
from paceline.data.images.dataset import ImageDataset, image_writer
from paceline.data.rows import EpochOrder
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import SparseDataset, sparse_writer
from paceline.errors import DataError, UsageError
from tests.conftest import small_blocks
from tests.data.image_inputs import all_images, random_images, same_images

SHAPE = (3, 5, 2)
FEATURES = 30
NAMES = ["a", "b", "c", "d"]


def make(path: Path, images: Images, pieces: int = 1, test: Images | None = None) -> ImageDataset:
    with image_writer(path, shape=SHAPE, class_names=NAMES, source={"made": "here"}) as writer:
        bounds = np.linspace(0, images.num_rows, pieces + 1).astype(int)
        for start, stop in pairwise(bounds.tolist()):
            writer.add("train", images.slice(start, stop))
        if test is not None:
            writer.add("test", test)
        return writer.finish()


def rows(count: int, seed: int = 0) -> Images:
    return random_images(count, FEATURES, len(NAMES), seed)


@pytest.mark.parametrize("pieces", [1, 3, 50])
def test_what_is_written_is_read(tmp_path: Path, pieces: int) -> None:
    images, test = rows(500), rows(70, 1)
    with small_blocks(64):
        dataset = make(tmp_path / "data", images, pieces, test)
    assert same_images(all_images(dataset), images)
    assert same_images(all_images(dataset, "test"), test)
    assert [block.rows for block in dataset.split("train").blocks] == [64] * 7 + [52]
    assert (dataset.split("train").rows, dataset.split("test").rows) == (500, 70)
    assert (dataset.shape, dataset.features, dataset.classes) == (SHAPE, FEATURES, 4)
    assert dataset.manifest.class_names == NAMES
    assert dataset.manifest.source == {"made": "here"}
    assert ImageDataset(tmp_path / "data").manifest == dataset.manifest


def test_blocks_end_before_they_grow_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_blocks, "BLOCK_BYTES", 7 * FEATURES + 5)
    images = rows(20)
    dataset = make(tmp_path / "data", images)
    assert [block.rows for block in dataset.split("train").blocks] == [7, 7, 6]
    monkeypatch.setattr(image_blocks, "BLOCK_BYTES", 3)
    assert [block.rows for block in make(tmp_path / "ones", rows(3)).split("train").blocks] == [1, 1, 1]


def test_blocks_are_mapped_read_only_and_opened_once(tmp_path: Path) -> None:
    make(tmp_path / "data", rows(50))
    dataset = ImageDataset(tmp_path / "data")
    before = pa.total_allocated_bytes()
    block = dataset.block("train", 0)
    assert pa.total_allocated_bytes() == before
    assert block.pixels.dtype == np.uint8
    assert block.labels.dtype == np.uint16
    assert not block.pixels.flags.writeable
    assert not block.labels.flags.writeable
    assert not block.pixels.flags.owndata
    assert dataset.block("train", 0) is block
    with Path("/proc/self/maps").open() as maps:
        assert any(dataset.split("train").blocks[0].file in line for line in maps)


def test_a_block_is_an_arrow_file_with_a_label_and_bytes(tmp_path: Path) -> None:
    images = rows(9)
    make(tmp_path / "data", images)
    table = pa.ipc.open_file(str(tmp_path / "data" / "train-00000.arrow")).read_all()
    assert table.schema == pa.schema([("label", pa.uint16()), ("pixels", pa.binary(FEATURES))])
    assert table["pixels"].to_pylist() == [row.tobytes() for row in images.pixels]


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with image_writer(tmp_path / "data", shape=SHAPE, class_names=NAMES, source={}) as writer:
            writer.add("train", rows(10))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(block_files.HashedFile, "write", full)
    with pytest.raises(UsageError, match="no room left"):
        make(tmp_path / "data", rows(500))
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
import numpy as np
from paceline.data.images.blocks import Images
from paceline.data.images.dataset import image_writer
with image_writer(sys.argv[1], shape=(2, 2, 1), class_names=["a"], source={}) as writer:
    writer.add("train", Images(np.zeros((10, 4), np.uint8), np.zeros(10, np.uint16)))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_appears_when_the_writer_is_killed_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    out = tmp_path / "data"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(out)], env=os.environ, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert not out.exists()
    assert len(list(tmp_path.iterdir())) == 1
    make(out, rows(5))
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "train-00000.arrow"]


def test_what_exists_is_not_overwritten(tmp_path: Path) -> None:
    make(tmp_path / "data", rows(5))
    with pytest.raises(UsageError, match="exists already"):
        make(tmp_path / "data", rows(5))


def test_what_a_writer_refuses(tmp_path: Path) -> None:
    out = tmp_path / "data"
    with pytest.raises(DataError, match="no training rows"):
        make(out, rows(0))
    with pytest.raises(DataError, match="label 4 is not one of the 4 classes"):
        make(out, rows(5)._replace(labels=np.array([0, 4, 1, 5, 0], np.uint16).clip(0, 4)))
    with pytest.raises(DataError, match="expected 5 × 30"):
        make(out, random_images(5, 29, 4))
    with pytest.raises(DataError, match="images of 0 × 5 × 2"):
        image_writer(out, shape=(0, 5, 2), class_names=NAMES, source={})
    with pytest.raises(DataError, match="images of 8192 × 8192 × 3"):
        image_writer(out, shape=(8192, 8192, 3), class_names=NAMES, source={})
    with pytest.raises(DataError, match="65,537 classes"):
        image_writer(out, shape=SHAPE, class_names=["x"] * 65_537, source={})
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_block_is_noticed_when_it_is_read(tmp_path: Path) -> None:
    dataset = make(tmp_path / "data", rows(50))
    path = tmp_path / "data" / dataset.manifest.train.blocks[0].file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="wrong checksum"):
        ImageDataset(tmp_path / "data").block("train", 0)
    path.unlink()
    with pytest.raises(DataError, match="cannot be opened"):
        ImageDataset(tmp_path / "data").block("train", 0)


def edit_manifest(path: Path, edit: Callable[[Any], None]) -> None:
    manifest = msgspec.json.decode((path / "manifest.json").read_bytes())
    edit(manifest)
    manifest.pop("checksum")
    (path / "manifest.json").write_bytes(seal(msgspec.json.encode(manifest)))


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (
            lambda manifest: manifest["train"].update(rows=49, blocks=[manifest["train"]["blocks"][0] | {"rows": 49}]),
            "50 rows instead of 49",
        ),
        (lambda manifest: manifest.update(shape=[3, 5, 1]), r"instead of label uint16, pixels fixed_size_binary\[15\]"),
        (lambda manifest: manifest.update(classes=2, class_names=["a", "b"]), "label 3 is not below its 2 classes"),
    ],
)
def test_a_block_that_is_not_as_the_manifest_says_is_refused(
    tmp_path: Path, edit: Callable[[Any], None], words: str
) -> None:
    make(tmp_path / "data", rows(50))
    edit_manifest(tmp_path / "data", edit)
    with pytest.raises(DataError, match=f"does not match the manifest: .*{words}") as error:
        ImageDataset(tmp_path / "data").block("train", 0)
    assert error.value.hint == "prepare the data again"


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda manifest: manifest.update(version=99), "format version 99"),
        (lambda manifest: manifest.update(classes=9), "cannot be read: 4 class names for 9 classes"),
        (lambda manifest: manifest.update(shape=[3, 0, 1]), "cannot be read"),
        (lambda manifest: manifest.update(kind="films"), "holds films, not images"),
    ],
)
def test_manifests_that_cannot_be(tmp_path: Path, edit: Callable[[Any], None], words: str) -> None:
    make(tmp_path / "data", rows(5))
    edit_manifest(tmp_path / "data", edit)
    with pytest.raises(DataError, match=words):
        ImageDataset(tmp_path / "data")


def test_each_kind_of_dataset_is_told_from_the_other(tmp_path: Path) -> None:
    make(tmp_path / "images", rows(5))
    with sparse_writer(tmp_path / "rows", features=None, source={}) as writer:
        writer.add("train", Batch.from_lists([1], [[7]], [[1.0]]))
        writer.finish()
    assert "kind" not in msgspec.json.decode((tmp_path / "rows" / "manifest.json").read_bytes())
    assert isinstance(open_dataset(tmp_path / "images"), ImageDataset)
    assert isinstance(open_dataset(tmp_path / "rows"), SparseDataset)
    with pytest.raises(DataError, match=r"images` holds images, not rows") as error:
        SparseDataset(tmp_path / "images")
    assert error.value.hint
    with pytest.raises(DataError, match=r"rows` holds rows, not images") as error:
        ImageDataset(tmp_path / "rows")
    assert "generate images" in error.value.hint
    with pytest.raises(DataError, match="no dataset at"):
        open_dataset(tmp_path / "nothing")
    edit_manifest(tmp_path / "images", lambda manifest: manifest.update(kind="films"))
    with pytest.raises(DataError, match=r"images` holds films, which .* it reads rows and images"):
        open_dataset(tmp_path / "images")


def test_the_fingerprint_says_which_data_it_is(tmp_path: Path) -> None:
    first, again = (make(tmp_path / name, rows(50, 0)) for name in ("1", "2"))
    other = make(tmp_path / "3", rows(50, 1), test=rows(20, 2))
    assert first.fingerprint == again.fingerprint == ImageDataset(tmp_path / "1").fingerprint
    edit_manifest(tmp_path / "2", lambda manifest: manifest.update(shape=[5, 3, 2]))
    edit_manifest(tmp_path / "3", lambda manifest: manifest.update(train=manifest["test"], test=manifest["train"]))
    prints = {first.fingerprint, other.fingerprint, *(ImageDataset(tmp_path / n).fingerprint for n in ("2", "3"))}
    assert len(prints) == 4


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> ImageDataset:
    """203 images in blocks of 50: both bytes of image i are i."""
    numbers = np.arange(203)
    pixels = np.stack([numbers, numbers], axis=1).astype(np.uint8)
    path = tmp_path_factory.mktemp("data") / "numbered"
    with small_blocks(50), image_writer(path, shape=(1, 2, 1), class_names=["0", "1", "2"], source={}) as writer:
        writer.add("train", Images(pixels, (numbers % 3).astype(np.uint16)))
        return writer.finish()


def numbers_of(images: Images) -> list[int]:
    assert np.array_equal(images.pixels[:, 0], images.pixels[:, 1])
    assert np.array_equal(images.pixels[:, 0] % 3, images.labels)
    return [int(number) for number in images.pixels[:, 0]]


def order_of(dataset: ImageDataset, seed: int) -> EpochOrder:
    return EpochOrder([block.rows for block in dataset.split("train").blocks], seed)


def expected(order: EpochOrder, epochs: int) -> list[int]:
    """The numbers of the images in the order of the epochs."""
    return [50 * block + row for block, found in order.between(0, epochs * 203) for row in found.tolist()]


@given(seed=st.integers(0, 9), cuts=st.lists(st.integers(0, 609), max_size=8))
@settings(max_examples=40, deadline=None)
def test_readers_follow_the_order_across_blocks_and_epochs(numbered: ImageDataset, seed: int, cuts: list[int]) -> None:
    order = order_of(numbered, seed)
    reader, whole = Reader(numbered, order), expected(order, 3)
    for start, stop in pairwise(sorted([0, 609, *cuts])):
        assert numbers_of(reader.between(start, stop)) == whole[start:stop]
    for epoch in range(3):
        assert sorted(whole[epoch * 203 : (epoch + 1) * 203]) == list(range(203))


def test_a_reader_uses_its_buffers_again(numbered: ImageDataset) -> None:
    reader = Reader(numbered, order_of(numbered, 0))
    first = reader.between(0, 100)
    second = reader.between(100, 180)
    assert np.shares_memory(first.pixels, second.pixels)
    assert np.shares_memory(first.labels, second.labels)
    assert first.pixels.dtype == np.uint8
    assert first.labels.dtype == np.uint16
    assert reader.between(5, 5).num_rows == 0
