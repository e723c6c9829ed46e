"""Data and small things that many tests use. Everything is generated; nothing is fetched."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from paceline.data.blocks import files as block_files
from paceline.data.blocks.dataset import Split
from paceline.data.images.blocks import Images
from paceline.data.images.dataset import image_writer
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import SparseDataset, sparse_writer
from paceline.data.synthetic import generate_clicks
from tests.ray_cluster import RayCluster

# Before Triton is imported, which reads it: without a GPU, its interpreter runs kernels. `make test-gpu` says 0.
os.environ.setdefault("TRITON_INTERPRET", "1")

# Runs of commit 70fa034, stopped after a few rows or done, and their data. Since then, only the paths in `config.toml`
# were edited, and telemetry, TensorBoard files, models and roles.json removed.
OLDER_RUNS = Path(__file__).parent / "older_runs"
OLDER_DATA = Path(__file__).parent / "data" / "blocks" / "prepared"

# Several tests run at a time: PyTorch's threads had better sleep than look whether there is work.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# Some of scikit-learn's checks need it. SciPy reads it when it is imported.
os.environ["SCIPY_ARRAY_API"] = "1"


@pytest.fixture(scope="session")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """6,000 training and 2,000 test rows of clicks over 5,000 features, in blocks of 1,000 rows."""
    path = tmp_path_factory.mktemp("data") / "clicks"
    with small_blocks(1_000):
        generate_clicks(path, rows=6_000, features=5_000, test_rows=2_000, seed=3, progress=lambda _: None)
    return path


@pytest.fixture(scope="session")
def one_key_per_row(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """997 training rows in blocks of 100: row i has key i alone, value 1. What touched a row shows in its weight."""
    path = tmp_path_factory.mktemp("data") / "one-key-a-row"
    rows = np.arange(997)
    batch = Batch((rows % 2).astype(np.uint8), np.arange(998), rows.astype(np.uint32), np.ones(997, np.float32))
    with small_blocks(100), sparse_writer(path, features=997, source={}) as writer:
        writer.add("train", batch)
        writer.finish()
    return path


@pytest.fixture(scope="session")
def mostly_clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,000 training and 1,000 test rows with one key each that tells nothing; 80 % are clicks."""
    path = tmp_path_factory.mktemp("data") / "mostly-clicks"
    rng = np.random.default_rng(0)
    labels = (np.arange(1_000) % 5 > 0).astype(np.uint8)
    with sparse_writer(path, features=50, source={}) as writer:
        for split in ("train", "test"):
            keys = rng.integers(0, 50, 1_000).astype(np.uint32)
            writer.add(split, Batch(rng.permutation(labels), np.arange(1_001), keys, np.ones(1_000, np.float32)))
        writer.finish()
    return path


@pytest.fixture(scope="session")
def drawings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,500 training and 500 test images of 12 × 12 grey pixels in 4 classes: which quarter is brighter, in noise."""
    path = tmp_path_factory.mktemp("data") / "drawings"
    chance = np.random.default_rng(5)
    splits: list[tuple[Split, int]] = [("train", 1_500), ("test", 500)]
    with image_writer(path, shape=(12, 12, 1), class_names=["0", "1", "2", "3"], source={}) as writer:
        for split, rows in splits:
            labels = chance.integers(0, 4, rows).astype(np.uint16)
            pixels = chance.integers(0, 180, (rows, 2, 6, 2, 6), dtype=np.uint8)
            pixels[np.arange(rows), labels // 2, :, labels % 2] += 60
            writer.add(split, Images(pixels.reshape(rows, 144), labels))
        writer.finish()
    return path


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    """A Ray cluster of one node with eight processors, which this process may join."""
    cluster = RayCluster(head_cpus=8)
    patch = pytest.MonkeyPatch()
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
        patch.setenv(name, cluster.environment[name])
    yield cluster
    patch.undo()
    cluster.close()


class small_blocks:  # noqa: N801 (reads as the context that it is)
    """While it lasts, blocks have this many rows."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> None:
        self._patch.setattr(block_files, "BLOCK_ROWS", self._rows)

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """A worker that outlives its run fails the test."""
    yield
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("paceline-")]
    assert not left


class SmallDisk:
    """A disk of 8 MB that can be filled and made read-only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filling = path / "filling"

    def fill(self) -> None:
        with suppress(OSError), self._filling.open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12):
                with suppress(OSError):
                    while file.write(bytes(size)) == size:
                        pass

    def free(self) -> None:
        self._filling.unlink()

    def make_read_only(self) -> None:
        subprocess.run(["mount", "-o", "remount,ro", self.path], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """For tests with the mark `needs_mount`."""
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", path], check=True)
    yield SmallDisk(path)
    subprocess.run(["umount", "--lazy", path], check=True)


class Outcome(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `paceline` with arguments, in this process."""
    from paceline.cli import main

    def run(*arguments: Any) -> Outcome:
        monkeypatch.setattr("sys.argv", ["paceline", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        return Outcome(code, *capsys.readouterr())

    return run


def all_rows(dataset: SparseDataset, split: Any) -> Batch:
    """Every row of a split, with the input's keys."""
    from paceline.data.sparse.batch import concatenate

    count = len(dataset.split(split).blocks)
    rows = concatenate([dataset.block(split, i) for i in range(count)])
    input_key = dataset.key_order.to_blocks(np.arange(dataset.features, dtype=rows.keys.dtype))
    return rows._replace(keys=input_key[rows.keys])
