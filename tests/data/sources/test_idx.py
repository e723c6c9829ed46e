"""IDX files come back byte for byte; damaged ones are refused in one line that names the file."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data.images.blocks import Images
from paceline.data.sources import files as sources
from paceline.data.sources.idx import Idx
from paceline.errors import DataError
from tests.conftest import Command
from tests.data.image_inputs import (
    IMAGES_NAME,
    LABELS_NAME,
    all_images,
    idx_images,
    idx_labels,
    random_images,
    run_images,
    same_images,
    write_idx,
)
from tests.data.inputs import source_of, write

HEIGHT, WIDTH = 4, 3
TRAIN, TEST = random_images(60, 12, 10), random_images(20, 12, 10, seed=1)


def mnist(folder: Path, train: Images = TRAIN, test: Images = TEST) -> Path:
    """A folder with the files that MNIST has."""
    write_idx(folder, "train", train, HEIGHT, WIDTH)
    write_idx(folder, "t10k", test, HEIGHT, WIDTH)
    return folder


@pytest.mark.parametrize("chunk_bytes", [1, 12, 50, 4 << 20])
def test_a_folder_as_mnist_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    monkeypatch.setattr(sources, "CHUNK_BYTES", chunk_bytes)
    made = run_images(tmp_path, mnist(tmp_path / "mnist"))
    assert made.rows == 80
    assert made.notes == ()
    assert made.dataset.shape == (HEIGHT, WIDTH, 1)
    assert made.dataset.manifest.class_names == [str(i) for i in range(10)]
    assert made.dataset.manifest.source["format"] == "idx"
    assert same_images(all_images(made.dataset), TRAIN)
    assert same_images(all_images(made.dataset, "test"), TEST)


def test_gzip_other_files_and_the_name_with_a_dot(tmp_path: Path) -> None:
    folder = mnist(tmp_path / "mnist")
    for path in list(folder.iterdir()):
        name = path.name.replace("-idx", ".idx") if path.name.startswith("t10k") else path.name
        write(folder / f"{name}.gz", gzip.compress(path.read_bytes()))
        path.unlink()
    write(folder / "README.txt", "Handwritten digits.")
    made = run_images(tmp_path, folder)
    assert same_images(all_images(made.dataset), TRAIN)
    assert same_images(all_images(made.dataset, "test"), TEST)
    assert made.notes == (f"left out: `{folder / 'README.txt'}`, not in the format idx",)


def test_files_named_one_by_one(tmp_path: Path) -> None:
    folder = mnist(tmp_path / "mnist")
    train = [folder / IMAGES_NAME, folder / LABELS_NAME]
    test = sorted(folder.glob("t10k*"))
    by_option = run_images(tmp_path, *train, test=test).dataset
    assert same_images(all_images(by_option, "test"), TEST)
    by_glob = run_images(tmp_path, folder / "*").dataset
    assert by_glob.fingerprint == by_option.fingerprint
    alone = run_images(tmp_path, *test).dataset
    assert same_images(all_images(alone), TEST)
    assert alone.split("test").rows == 0
    left_out = run_images(tmp_path, folder, test=test)
    assert left_out.dataset.fingerprint == by_option.fingerprint
    assert left_out.left_out == tuple(str(path) for path in test)


def test_a_seeded_fraction_of_test_rows(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    images = random_images(1000, 12, 10)
    write_idx(folder, "train", images, HEIGHT, WIDTH)
    first, again, other = (run_images(tmp_path, folder, test_fraction=0.3, seed=seed).dataset for seed in (1, 1, 2))
    assert 220 < first.split("test").rows < 380
    assert first.fingerprint == again.fingerprint != other.fingerprint
    together = [all_images(first, split) for split in ("train", "test")]
    rows = sorted(row.tobytes() for part in together for row in part.pixels)
    assert rows == sorted(row.tobytes() for row in images.pixels)


def test_several_pairs_are_read_one_behind_the_other(tmp_path: Path) -> None:
    write_idx(tmp_path / "in", "a", TRAIN, HEIGHT, WIDTH)
    write_idx(tmp_path / "in", "b", TEST, HEIGHT, WIDTH)
    rows = all_images(run_images(tmp_path, tmp_path / "in").dataset)
    assert same_images(rows.slice(0, 60), TRAIN)
    assert same_images(rows.slice(60, 80), TEST)


def test_a_label_that_no_row_has_is_told(tmp_path: Path) -> None:
    images = TRAIN._replace(labels=(TRAIN.labels + 1).astype(np.uint16))
    made = run_images(tmp_path, mnist(tmp_path / "mnist", images, images))
    assert made.dataset.classes == 11
    assert made.notes == ("no training row has the label 0",)


def images_of(count: int, height: int = HEIGHT, width: int = WIDTH, magic: int = 0x803, rows: int = 60) -> bytes:
    return struct.pack(">4I", magic, rows, height, width) + TRAIN.pixels.tobytes()[:count]


BAD_IMAGES = {
    "magic": (images_of(720, magic=0xD03), "begins with 00 00 0d 03; images in IDX begin with 00 00 08 03"),
    "swapped": (idx_labels(TRAIN), "begins with 00 00 08 01; images in IDX begin with 00 00 08 03"),
    "text": (b"hello, this is no IDX", "begins with 68 65 6c 6c"),
    "empty": (b"", "has 0 bytes; its header has 16"),
    "short head": (images_of(0)[:9], "has 9 bytes; its header has 16"),
    "truncated": (images_of(719), "ends after 59 of its 60 images"),
    "longer": (images_of(720) + b"\0", "has more than its 60 images"),
    "counts": (images_of(720, rows=59), f"has 59 images, but `{{folder}}/{LABELS_NAME}` has 60 labels"),
    "no pixels": (images_of(0, height=0), "declares images of 0 × 3"),
    "huge": (images_of(0, height=1 << 31, width=1 << 31), "declares images of 2147483648 × 2147483648"),
    "other size": (images_of(720, height=3, width=4), "of 4 × 3"),
}


@pytest.mark.parametrize(("content", "words"), BAD_IMAGES.values(), ids=BAD_IMAGES.keys())
@pytest.mark.parametrize("compressed", [False, True])
def test_bad_files_of_images(command: Command, tmp_path: Path, content: bytes, words: str, compressed: bool) -> None:
    folder = mnist(tmp_path / "mnist")
    (folder / IMAGES_NAME).unlink()
    name = f"{IMAGES_NAME}.gz" if compressed else IMAGES_NAME
    write(folder / name, gzip.compress(content) if compressed else content)
    check_refused(command, tmp_path, name, words)


BAD_LABELS = {
    "magic": (b"\x00\x00\x09\x01" + idx_labels(TRAIN)[4:], "begins with 00 00 09 01; labels in IDX begin with"),
    "truncated": (idx_labels(TRAIN)[:-3], "ends after 57 of its 60 labels"),
    "longer": (idx_labels(TRAIN) + b"\1", "has more than its 60 labels"),
}


@pytest.mark.parametrize(("content", "words"), BAD_LABELS.values(), ids=BAD_LABELS.keys())
def test_bad_files_of_labels(command: Command, tmp_path: Path, content: bytes, words: str) -> None:
    write(mnist(tmp_path / "mnist") / LABELS_NAME, content)
    check_refused(command, tmp_path, LABELS_NAME, words)


def test_a_gzip_file_that_is_cut_short(command: Command, tmp_path: Path) -> None:
    folder = mnist(tmp_path / "mnist")
    write(folder / f"{IMAGES_NAME}.gz", gzip.compress((folder / IMAGES_NAME).read_bytes())[:-100])
    (folder / IMAGES_NAME).unlink()
    check_refused(command, tmp_path, f"{IMAGES_NAME}.gz", "")


def test_test_labels_that_are_none_of_the_classes(command: Command, tmp_path: Path) -> None:
    labels = TEST.labels.copy()
    labels[[7, 9]] = 12, 11
    mnist(tmp_path / "mnist", test=TEST._replace(labels=labels))
    check_refused(command, tmp_path, "t10k-labels-idx1-ubyte", "row 8: label 12 is not one of the 10 classes, 0 to 9")


def test_labels_that_are_none_of_the_classes_that_were_said(command: Command, tmp_path: Path) -> None:
    labels = TRAIN.labels.copy()
    labels[3] = 200
    folder = mnist(tmp_path / "mnist", TRAIN._replace(labels=labels))
    done = command("prepare", folder, "--classes", 10, "--out", tmp_path / "out")
    assert done.code == 2
    assert "row 4: label 200 is not one of the 10 classes, as --classes says" in done.err
    # Without it that label makes classes up, and the command says so.
    done = command("prepare", folder, "--out", tmp_path / "out")
    assert "201 classes" in done.out
    assert "no training row has the labels 10 to 199 (190 labels); --classes says how many there are" in done.err
    done = command("prepare", folder, "--classes", 300, "--out", tmp_path / "other")
    assert (done.code, "it must be 1 to 256" in done.err) == (2, True)


def test_images_without_labels(command: Command, tmp_path: Path) -> None:
    (mnist(tmp_path / "mnist") / "t10k-labels-idx1-ubyte").unlink()
    check_refused(command, tmp_path, "t10k-images-idx3-ubyte", "has no counterpart t10k-labels-idx1-ubyte")


def test_the_same_file_plain_and_compressed(command: Command, tmp_path: Path) -> None:
    folder = mnist(tmp_path / "mnist")
    write(folder / f"{LABELS_NAME}.gz", gzip.compress((folder / LABELS_NAME).read_bytes()))
    check_refused(command, tmp_path, f"{LABELS_NAME}.gz", "are the same file")


def test_files_of_other_names_are_refused(command: Command, tmp_path: Path) -> None:
    path = write(tmp_path / "digits", idx_images(TRAIN, HEIGHT, WIDTH))
    outcome = command("prepare", path, "--format", "idx", "--out", tmp_path / "out")
    assert outcome.code == 2
    assert f"`{path}` is named neither …-images-idx3-ubyte nor …-labels-idx1-ubyte" in outcome.err


def check_refused(command: Command, tmp_path: Path, name: str, words: str) -> None:
    """The command says what is wrong in a line and a hint, exits with 2 and leaves nothing behind."""
    folder = tmp_path / "mnist"
    outcome = command("prepare", folder, "--out", tmp_path / "out")
    assert outcome.code == 2
    error, hint = outcome.err.strip().splitlines()
    assert error.startswith("error: ")
    assert f"{folder / name}`" in error
    assert words.format(folder=folder) in error
    assert hint.startswith("hint: ")
    assert [path.name for path in tmp_path.iterdir()] == ["mnist"]


@given(images=st.binary(max_size=60), labels=st.binary(max_size=20), whole_heads=st.booleans())
@settings(max_examples=150, deadline=None)
def test_hostile_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, images: bytes, labels: bytes, whole_heads: bool
) -> None:
    folder = tmp_path_factory.getbasetemp() / "hostile"
    folder.mkdir(exist_ok=True)
    heads = (b"\0\0\x08\x03\0\0\0\x03\0\0\0\x02", b"\0\0\x08\x01\0\0\0\x03") if whole_heads else (b"", b"")
    paths = [write(folder / IMAGES_NAME, heads[0] + images), write(folder / LABELS_NAME, heads[1] + labels)]
    refused, rows = None, 0
    try:
        rows = sum(part.num_rows for part, _ in Idx([source_of(path) for path in paths], []).read("train"))
    except DataError as error:
        refused = error
    if refused is None:
        assert rows == len(labels) == 3
    else:
        assert str(folder) in refused.message
        assert refused.hint
