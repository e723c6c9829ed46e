"""A dataset may lie behind a URL."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.fs
import pytest

import paceline
from paceline.data.blocks import folders
from paceline.data.blocks.folders import open_folder
from paceline.data.sparse.dataset import SparseDataset
from paceline.errors import DataError
from tests.skips import needs_linux


@pytest.fixture
def store(clicks: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A URL of a store that holds the clicks: a file system of pyarrow's, as it makes one for s3://."""
    files = pa.fs.SubTreeFileSystem(str(clicks.parent), pa.fs.LocalFileSystem())

    class FileSystem:
        @staticmethod
        def from_uri(uri: str) -> tuple[pa.fs.FileSystem, str]:
            assert uri.startswith("store://")
            return files, uri.removeprefix("store://")

    monkeypatch.setattr("pyarrow.fs.FileSystem", FileSystem)
    return f"store://{clicks.name}/"


def test_training_from_a_store_is_training_from_a_folder(store: str, clicks: Path, tmp_path: Path) -> None:
    near = paceline.train(data=clicks, run=tmp_path / "near", pace="sync", workers=2)
    far = paceline.train(data=store, run=tmp_path / "far", pace="sync", workers=2)
    assert far.result["model_sha256"] == near.result["model_sha256"]
    assert far.config.data == store.rstrip("/")


def test_what_is_not_there(store: str) -> None:
    with pytest.raises(DataError, match="no dataset at `store://nothing`"):
        SparseDataset("store://nothing")


def test_a_file_url_is_a_folder_here(clicks: Path) -> None:
    assert open_folder(f"file://{clicks}").name == str(clicks)
    assert SparseDataset(f"file://{clicks}").fingerprint == SparseDataset(clicks).fingerprint


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../precious", "/precious", "a\\b"])
@pytest.mark.parametrize("place", ["store", "folder"])
def test_files_are_those_of_the_folder(store: str, clicks: Path, tmp_path: Path, place: str, name: str) -> None:
    """Manifests name files, and others may have made them."""
    folder = open_folder(store if place == "store" else clicks)
    precious, to = tmp_path / "precious", tmp_path / "to"
    precious.write_text("precious")
    to.mkdir()
    for use in (folder.read, lambda file: folder.copy(file, to)):
        with pytest.raises(DataError, match="is not the name of a file in a dataset"):
            use(name.replace("/precious", str(precious)) if name.startswith("/") else name)
    assert precious.read_text() == "precious"


def test_a_new_process_can_read_from_a_store() -> None:
    """Nothing else in it has imported pyarrow's file systems."""
    code = "from paceline.data.blocks.folders import open_folder; open_folder('nonsense://bucket/clicks')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "DataError: `nonsense://bucket/clicks` cannot be reached" in done.stderr


def test_a_url_that_nobody_reads() -> None:
    with pytest.raises(DataError, match="cannot be reached"):
        SparseDataset("nonsense://bucket/clicks")


@needs_linux
def test_what_was_not_used_for_a_while_is_no_longer_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size, files = 1 << 20, ("a", "b", "c")
    for file in files:
        (tmp_path / file).write_bytes(file.encode() * size)
    monkeypatch.setattr(folders, "MOST_MAPPED", 2 * size)
    monkeypatch.setattr(folders, "num_cores", lambda: 1)
    folder = open_folder(tmp_path)
    for file in files:
        content = folder.read(file)
        folder.use(file)
        assert content.to_pybytes() == file.encode() * size
    assert [resident(tmp_path / file) > 0 for file in files] == [False, True, True]
    # It is still there.
    assert folder.read("a").to_pybytes() == b"a" * size
    kept = folder.read("b")
    for file in ("b", "a", "c"):
        folder.use(file)
    assert resident(tmp_path / "b") == 0
    assert kept.to_pybytes() == b"b" * size


def resident(path: Path) -> int:
    """How much of a mapped file is in this process's memory, in kilobytes."""
    areas = Path("/proc/self/smaps").read_text().split(f"{path}\n")[1:]
    return sum(int(area.partition("Rss:")[2].split()[0]) for area in areas)
