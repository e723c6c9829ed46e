"""Where matrices come from: seeds, arrays, .npy files and folders of blocks, good ones and damaged ones."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.errors import ConfigError, DataError, UsageError
from paceline.matrices import nodes, sources
from paceline.matrices.matrix import BlockMatrix
from paceline.matrices.plan import memory_for
from paceline.matrices.sources import array_source, fingerprint, open_matrix, open_npy, write_blocks
from tests.skips import needs_linux


@pytest.mark.parametrize("fortran", [False, True])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", ">f8"])
def test_any_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fortran: bool, dtype: str) -> None:
    """In either byte order, read in few or in many pieces."""
    monkeypatch.setattr(sources, "MOST_BYTES_PER_READ", 20)
    monkeypatch.setattr(nodes, "STRIP", 3)
    values = np.random.default_rng(1).normal(size=(13, 7)).astype(dtype)
    np.save(tmp_path / "x.npy", np.asfortranarray(values) if fortran else values)
    read = open_matrix(tmp_path / "x.npy")
    assert read.shape == (13, 7)
    assert read.dtype == np.dtype(dtype).newbyteorder("=")
    for row, column, rows, columns in ((0, 0, 13, 7), (4, 0, 5, 7), (2, 3, 8, 2), (12, 6, 1, 1)):
        part = np.full((rows, columns), np.nan, read.dtype)
        read.fill(row, column, part)
        assert np.array_equal(part, values[row : row + rows, column : column + columns])


def test_a_folder_has_a_manifest_only_when_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = np.save

    def save(path: Path, *given: Any, **settings: Any) -> None:
        if path.name == "00001-00000.npy":
            raise OSError(errno.ENOSPC, "No space left on device")
        saved(path, *given, **settings)

    node = array_source(np.ones((4, 4)))
    monkeypatch.setattr(np, "save", save)
    with pytest.raises(UsageError, match="no room left on the disk"):
        write_blocks(node, tmp_path / "blocks", (2, 2))
    with pytest.raises(DataError, match="not a folder of blocks"):
        open_matrix(tmp_path / "blocks")


def test_a_folder_that_exists_is_not_written_into(tmp_path: Path) -> None:
    node = array_source(np.ones((4, 4)))
    write_blocks(node, tmp_path / "blocks", (2, 2))
    with pytest.raises(UsageError, match="exists"):
        write_blocks(node, tmp_path / "blocks", (1, 1))


@pytest.mark.parametrize("cuts", [[], [0], [0, 5], [0, 3, 2, 4], [0, 2, 2, 4], [1, 4]])
def test_a_manifest_whose_blocks_do_not_cover_the_matrix(tmp_path: Path, cuts: list[int]) -> None:
    write_blocks(array_source(np.ones((4, 4))), tmp_path / "blocks", (2, 2))
    manifest = tmp_path / "blocks" / sources.MANIFEST
    manifest.write_text(manifest.read_text().replace("[0,2,4]", str(cuts), 1))
    with pytest.raises(DataError, match=r"matrix.json` is not a valid manifest"):
        open_matrix(tmp_path / "blocks")


class TestFingerprint:
    """What decides whether an interrupted product may continue."""

    def test_the_same_matrix_has_the_same(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", np.ones((4, 4)))
        write_blocks(array_source(np.ones((4, 4))), tmp_path / "blocks", (2, 2))
        for path in (tmp_path / "x.npy", tmp_path / "blocks"):
            assert fingerprint(open_matrix(path)) == fingerprint(open_matrix(path))
        for _ in range(2):
            made = {fingerprint(BlockMatrix.random((3, 3), seed=seed).node) for seed in (1, 1, 2)}
            assert len(made) == 2

    def test_another_shape_seed_type_or_operation_has_another(self) -> None:
        A, B = BlockMatrix.random((3, 3), seed=1), BlockMatrix.random((3, 3), seed=2)
        others = [
            A,
            B,
            BlockMatrix.random((3, 4), seed=1),
            BlockMatrix.random((3, 3), seed=1, dtype=np.float64),
            A.T,
            2 * A,
            3 * A,
            A + B,
            B + A,
            A @ B,
            B @ A,
        ]
        assert len({fingerprint(one.node) for one in others}) == len(others)

    def test_a_file_that_was_written_again_has_another(self, tmp_path: Path) -> None:
        write_blocks(array_source(np.ones((4, 4))), tmp_path / "blocks", (2, 2))
        block = tmp_path / "blocks" / "00000-00001.npy"
        np.save(tmp_path / "x.npy", np.ones((4, 4)))
        for path, changed in ((tmp_path / "x.npy", tmp_path / "x.npy"), (tmp_path / "blocks", block)):
            before = fingerprint(open_matrix(path))
            os.utime(changed, ns=(1, 1))
            assert fingerprint(open_matrix(path)) != before

    def test_an_array_in_memory_is_never_the_same_again(self) -> None:
        node = array_source(np.ones((2, 2)))
        assert fingerprint(node) != fingerprint(node)


def test_arrays_are_not_copied_and_integers_become_float64() -> None:
    values = np.ones((3, 2), np.float32)
    assert array_source(values).array is values
    assert array_source([[1, 2]]).dtype == array_source([[True]]).dtype == np.float64


@needs_linux
def test_a_file_is_open_as_long_as_its_matrix_exists(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((4, 4)))
    read = open_npy(tmp_path / "x.npy")
    assert num_open(tmp_path) == 1
    del read
    assert num_open(tmp_path) == 0


def test_files_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "STRIP", 3)
    A = BlockMatrix.random((31, 17), blocks=(4, 3), seed=1)
    A.to_blocks(tmp_path / "blocks")
    A.to_npy(tmp_path / "A.npy", memory=memory_for(17 * 4 * 5))
    for path in ("blocks", "A.npy"):
        read = BlockMatrix.from_npy(tmp_path / path)
        assert np.array_equal(read.to_numpy(), A.to_numpy())
        part = np.empty((20, 9))
        read.node.fill(5, 6, part)
        assert np.array_equal(part, A.to_numpy()[5:25, 6:15])
        assert np.array_equal(read.T.to_numpy(), A.to_numpy().T)


def num_open(folder: Path) -> int:
    descriptors = Path("/proc/self/fd").iterdir()
    return sum(str(folder) in os.readlink(one) for one in descriptors if one.is_symlink())


@needs_linux
def test_a_folder_of_many_blocks_keeps_few_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MOST_OPEN", 5)
    A = BlockMatrix.random(60, blocks=6, seed=1)
    A.to_blocks(tmp_path / "blocks")
    read = BlockMatrix.from_npy(tmp_path / "blocks", blocks=6)
    assert num_open(tmp_path) <= 5
    assert np.array_equal(read.to_numpy(), A.to_numpy())
    # From several threads, whose files are not closed while they read.
    assert (read @ read).trace(threads=4) == pytest.approx((A @ A).trace(), rel=1e-13)
    assert 1 <= num_open(tmp_path) <= 5
    np.save(tmp_path / "blocks" / "00000-00000.npy", np.zeros((10, 10), np.float32))
    with pytest.raises(DataError, match="changed while it was read"):
        read.to_numpy()
    del read
    assert num_open(tmp_path) == 0


class TestWhatIsNotAMatrix:
    def refused(self, path: Path) -> str:
        with pytest.raises(DataError) as caught:
            BlockMatrix.from_npy(path)
        assert caught.value.hint
        assert caught.value.exit_code == 2
        return caught.value.message

    def test_files(self, tmp_path: Path) -> None:
        path = tmp_path / "x.npy"
        assert "no such file" in self.refused(path)
        for content in (b"", b"hello", b"\x93NUMPY", b"\x93NUMPY\x01\x00\xff\xff{'descr'", b"PK\x03\x04"):
            path.write_bytes(content)
            assert "not a matrix" in self.refused(path)
        np.save(path, np.ones((4, 4)))
        path.write_bytes(path.read_bytes()[:-1])
        assert "not a matrix" in self.refused(path)
        np.save(path, np.arange(5.0))
        assert "its shape is (5,)" in self.refused(path)
        np.save(path, np.ones((0, 5)))
        assert "its shape is (0, 5)" in self.refused(path)
        np.save(path, np.ones((2, 2), np.int16))
        assert "holds int16" in self.refused(path)
        np.savez(tmp_path / "x.npz", a=np.ones((2, 2)))
        assert "not a matrix" in self.refused(tmp_path / "x.npz")

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.data())
    def test_hostile_headers(self, tmp_path: Path, data: Any) -> None:
        path = tmp_path / "x.npy"
        np.save(path, np.ones((2, 3)))
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, 127))] = data.draw(st.integers(0, 255))
        path.write_bytes(content)
        with suppress(DataError):
            BlockMatrix.from_npy(path).to_numpy()

    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "x.npy")
        assert "not a regular file" in self.refused(tmp_path / "x.npy")
        os.mkfifo(tmp_path / "matrix.json")
        assert "it has no file matrix.json" in self.refused(tmp_path)

    def test_a_header_nested_too_deeply(self, tmp_path: Path) -> None:
        text = b"{'descr': " + b"-" * 9_000 + b"1}"
        (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
        assert "not a matrix" in self.refused(tmp_path / "x.npy")

    def test_nothing_is_unpickled(self, tmp_path: Path) -> None:
        path = tmp_path / "x.npy"
        np.save(path, np.array([[print, 1]], object), allow_pickle=True)
        assert "not a matrix" in self.refused(path)

    def test_a_file_that_shrinks(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", np.ones((100, 100)))
        A = BlockMatrix.from_npy(tmp_path / "x.npy")
        with (tmp_path / "x.npy").open("r+b") as file:
            file.truncate(1_000)
        with pytest.raises(DataError, match="shorter"):
            A.to_numpy()

    def test_a_disk_that_fails(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        np.save(tmp_path / "x.npy", np.ones((100, 100)))
        A = BlockMatrix.from_npy(tmp_path / "x.npy")

        def fail(*_: Any) -> int:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, "preadv", fail)
        with pytest.raises(DataError, match=r"x.npy` cannot be read: Input/output error"):
            A.to_numpy()

    def test_folders(self, tmp_path: Path) -> None:
        folder = tmp_path / "blocks"
        assert "not a folder of blocks" in self.refused(tmp_path)
        BlockMatrix.random(10, blocks=2).to_blocks(folder)
        np.save(folder / "00001-00001.npy", np.ones((4, 5), np.float32))
        assert "4 × 5 float32, not 5 × 5 float32" in self.refused(folder)
        (folder / "00001-00001.npy").unlink()
        assert "no such file" in self.refused(folder)
        (folder / "matrix.json").write_text('{"rows": 1}')
        assert "not a folder of blocks" in self.refused(folder)

    def test_arrays(self) -> None:
        for array in (np.ones(3), np.ones((0, 3)), np.ones((2, 2), complex)):
            with pytest.raises(ConfigError):
                BlockMatrix.from_numpy(array)
        assert BlockMatrix.from_numpy([[1, 2], [3, 4]]).trace() == 5
