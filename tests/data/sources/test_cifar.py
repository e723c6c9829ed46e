"""CIFAR-10's planes become pixels; rows that are cut short or of no class are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paceline.data.sources import files as sources
from tests.conftest import Command
from tests.data.image_inputs import all_images, cifar_rows, random_images, run_images, same_images
from tests.data.inputs import write

TRAIN, TEST = random_images(23, 3072, 10), random_images(7, 3072, 10, seed=1)


def cifar(folder: Path) -> Path:
    """A folder with the files that CIFAR-10 has."""
    folder.mkdir()
    write(folder / "data_batch_1.bin", cifar_rows(TRAIN.slice(0, 15)))
    write(folder / "data_batch_2.bin", cifar_rows(TRAIN.slice(15, 23)))
    write(folder / "test_batch.bin", cifar_rows(TEST))
    write(folder / "batches.meta.txt", "airplane\nautomobile\n")
    return folder


@pytest.mark.parametrize("chunk_bytes", [1000, 3073, 10_000, 4 << 20])
def test_a_folder_as_cifar_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    monkeypatch.setattr(sources, "CHUNK_BYTES", chunk_bytes)
    made = run_images(tmp_path, cifar(tmp_path / "cifar"))
    assert made.dataset.shape == (32, 32, 3)
    assert made.dataset.manifest.class_names[3] == "cat"
    assert made.dataset.manifest.source["format"] == "cifar"
    assert same_images(all_images(made.dataset), TRAIN)
    assert same_images(all_images(made.dataset, "test"), TEST)
    assert "batches.meta.txt" in made.notes[0]


def test_channels_of_a_pixel_lie_side_by_side(tmp_path: Path) -> None:
    planes = np.repeat(np.array([10, 20, 30], np.uint8), 1024)
    made = run_images(tmp_path, write(tmp_path / "data_batch_1.bin", b"\x04" + planes.tobytes()))
    rows = all_images(made.dataset)
    assert rows.pixels[0, :6].tolist() == [10, 20, 30, 10, 20, 30]
    assert rows.labels.tolist() == [4]


@pytest.mark.parametrize("chunk_bytes", [4000, 4 << 20])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (cifar_rows(TRAIN)[:-1], "row 23: it ends after 3072 of 3073 bytes"),
        (cifar_rows(TRAIN) + b"\0\0", "row 24: it ends after 2 of 3073 bytes"),
        (cifar_rows(TRAIN) + b"\x0a" + b"\0" * 3072, "row 24: label 10 is not one of the 10 classes, 0 to 9"),
        (b"\xff" * 3073 * 2, "row 1: label 255 is not one of the 10 classes"),
    ],
)
def test_bad_files(
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    words: str,
    chunk_bytes: int,
) -> None:
    monkeypatch.setattr(sources, "CHUNK_BYTES", chunk_bytes)
    folder = cifar(tmp_path / "cifar")
    write(folder / "data_batch_2.bin", content)
    outcome = command("prepare", folder, "--out", tmp_path / "out")
    assert outcome.code == 2
    error, hint = outcome.err.strip().splitlines()
    assert error == f"error: `{folder / 'data_batch_2.bin'}`, {error.split(', ', 1)[1]}"
    assert words in error
    assert hint.startswith("hint: ")
    assert [path.name for path in tmp_path.iterdir()] == ["cifar"]


def test_an_empty_test_file_is_refused(command: Command, tmp_path: Path) -> None:
    folder = cifar(tmp_path / "cifar")
    write(folder / "test_batch.bin", b"")
    outcome = command("prepare", folder, "--out", tmp_path / "out")
    assert outcome.code == 2
    assert f"no rows in `{folder / 'test_batch.bin'}`" in outcome.err


def test_the_pickled_version_is_never_opened(command: Command, tmp_path: Path) -> None:
    path = write(tmp_path / "data_batch_1", b"\x80\x04whatever")
    outcome = command("prepare", path, "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "CIFAR-10's Python version" in outcome.err
    assert "data_batch_1.bin" in outcome.err
