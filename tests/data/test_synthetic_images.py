"""Made-up images: the same bytes for the same seed, uniform labels, and something to learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from paceline.data import pipeline
from paceline.data.images.dataset import ImageDataset
from paceline.data.synthetic_images import MEAN, generate_images, make_images, make_patterns
from paceline.errors import ConfigError
from tests.conftest import Command
from tests.data.image_inputs import all_images, same_images

SETTINGS: dict[str, Any] = {"rows": 1000, "size": 32, "classes": 10, "channels": 3, "test_rows": 300, "seed": 0}


def make(path: Path, **settings: Any) -> ImageDataset:
    return generate_images(path, progress=lambda _: None, **{**SETTINGS, **settings})


def test_shape_and_rows_are_as_asked(tmp_path: Path) -> None:
    seen: list[int] = []
    dataset = generate_images(tmp_path / "data", progress=seen.append, **SETTINGS)
    assert dataset.shape == (32, 32, 3)
    assert (dataset.split("train").rows, dataset.split("test").rows) == (1000, 300)
    assert dataset.classes == len(dataset.manifest.class_names) == 10
    assert seen == sorted(seen)
    assert seen[-1] == 1300
    counts = np.bincount(all_images(dataset).labels, minlength=10)
    assert counts.min() > 60
    assert counts.max() < 140


def test_the_seed_decides_the_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make(tmp_path / "first")
    monkeypatch.setattr(pipeline, "num_cores", lambda: 1)
    again, other = make(tmp_path / "again"), make(tmp_path / "other", seed=1)
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert not same_images(all_images(first).slice(0, 300), all_images(first, "test"))


def test_grey_images_of_an_odd_size_and_many_classes(tmp_path: Path) -> None:
    dataset = make(tmp_path / "data", rows=20, size=37, channels=1, classes=65_536, test_rows=0)
    assert dataset.shape == (37, 37, 1)
    assert all_images(dataset).labels.max() > 10_000
    assert make(tmp_path / "dot", rows=3, size=1, test_rows=0).features == 3


@pytest.mark.parametrize(("size", "channels"), [(1, 3), (3, 1), (8, 3), (32, 1), (100, 3)])
def test_patterns_are_spread_by_linear_interpolation(size: int, channels: int) -> None:
    """Against numpy's, in float64: at most one off, as places and values are whole numbers."""
    patterns = make_patterns(4, channels, seed=5)
    images = make_images(patterns, size, 6, np.random.Philox(1))
    halves = images.pixels.reshape(6, size, size, channels) - interpolated(patterns, size, channels)[images.labels]
    assert halves.min() >= -1.5
    assert halves.max() <= 128.5
    flat = np.full_like(patterns, MEAN)
    noise = make_images(flat, size, 6, np.random.Philox(1)).pixels.reshape(halves.shape).astype(int) - MEAN
    assert abs(halves - noise).max() <= 1.5


def interpolated(patterns: NDArray[np.float32], size: int, channels: int) -> NDArray[np.float64]:
    """Patterns [classes, size, size, channels], spread along both sides."""
    places = (np.arange(size) + 0.5) * 8 / size - 0.5
    rows = np.apply_along_axis(lambda v: np.interp(places, np.arange(8), v), 1, patterns.reshape(-1, 8, 8, channels))
    return np.asarray(np.apply_along_axis(lambda v: np.interp(places, np.arange(8), v), 2, rows), np.float64)


def test_softmax_learns_them_within_some_hundred_steps(tmp_path: Path) -> None:
    dataset = make(tmp_path / "data", rows=3200)
    train, test = all_images(dataset), all_images(dataset, "test")
    pixels, unseen = (images.pixels.astype(np.float32) / 64 - 2 for images in (train, test))
    weights = np.zeros((dataset.features, 10), np.float32)
    for step in range(200):
        batch = slice(32 * (step % 100), 32 * (step % 100) + 32)
        scores = np.exp(pixels[batch] @ weights)
        scores /= scores.sum(axis=1, keepdims=True)
        scores[np.arange(32), train.labels[batch]] -= 1
        weights -= 0.003 / 32 * pixels[batch].T @ scores
    accuracy = ((unseen @ weights).argmax(axis=1) == test.labels).mean()
    assert accuracy > 0.9


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("rows", 0, "`rows` is 0; it must be at least 1"),
        ("test-rows", -1, "`test-rows` is -1; it must be at least 0"),
        ("size", 0, "`size` is 0; it must be 1 to 4096"),
        ("size", 9999, "`size` is 9999; it must be 1 to 4096"),
        ("classes", 0, "`classes` is 0; it must be 1 to 65536"),
        ("classes", 70_000, "`classes` is 70000; it must be 1 to 65536"),
        ("channels", 2, "`channels` is 2; it must be 3 (RGB) or 1 (grey)"),
        ("seed", -1, "`seed` is -1; it must be at least 0"),
        ("seed", 1 << 70, f"`seed` is {1 << 70}; it must be 0 to {(1 << 62) - 1}"),
    ],
)
def test_what_cannot_be_made(command: Command, tmp_path: Path, option: str, value: int, words: str) -> None:
    arguments = {"rows": 5, "size": 8, "classes": 3} | {option: value}
    options = [word for name, number in arguments.items() for word in (f"--{name}", number)]
    outcome = command("generate", "images", *options, "--out", tmp_path / "data")
    assert outcome.code == 2
    error, hint = outcome.err.strip().splitlines()
    assert error == f"error: {words}"
    assert hint.startswith(f"hint: --{option} ")
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_what_it_made(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "data"
    outcome = command("generate", "images", "--rows", 40, "--size", 16, "--classes", 5, "--out", out)
    assert outcome.code == 0
    assert f"{out}: 40 training rows, 4 test rows, 16 × 16 × 3 bytes each, 5 classes, in " in outcome.out
    refused = command("train", "--data", out)
    assert refused.code == 2
    assert "learns from rows of features" in refused.err


def test_settings_are_checked_in_python_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        make(tmp_path / "data", channels=4)
