"""Block matrices against NumPy in float64: 1e-13 of the sum of absolute values, 1e-5 where elements are float32."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import paceline
from paceline.errors import ConfigError, DataError
from paceline.matrices import nodes, sources, trace
from paceline.matrices.matrix import MOST_BLOCKS, BlockMatrix
from paceline.matrices.nodes import Product
from paceline.matrices.plan import memory_for
from paceline.matrices.trace import Pair, RandomPairs, sum_up

sizes = st.one_of(st.just(1), st.integers(1, 40))
dtypes = st.sampled_from([np.float32, np.float64])


@st.composite
def factors(draw: Any, square: bool = False) -> Any:
    """Two matrices that can be multiplied, from a seed or an array, transposed or not; and both in float64."""
    rows, inner = draw(sizes), draw(sizes)
    made = []
    for shape in ((rows, inner), (inner, rows if square else draw(sizes))):
        flipped = draw(st.booleans())
        stored = shape[::-1] if flipped else shape
        blocks = (draw(st.integers(1, stored[0])), draw(st.integers(1, stored[1])))
        seed, dtype = draw(st.integers(0, 99)), draw(dtypes)
        if draw(st.booleans()):
            matrix = BlockMatrix.random(stored, blocks=blocks, seed=seed, dtype=dtype)
        else:
            values = np.random.default_rng(seed).normal(size=stored).astype(dtype)
            matrix = BlockMatrix.from_numpy(values, blocks=blocks)
        made.append(matrix.T if flipped else matrix)
    return (*made, *(matrix.to_numpy().astype(np.float64) for matrix in made))


def tolerance(*matrices: BlockMatrix) -> float:
    return 1e-13 if all(matrix.dtype == np.float64 for matrix in matrices) else 1e-5


@given(factors())
def test_products(made: Any) -> None:
    A, B, a, b = made
    scale = np.abs(a) @ np.abs(b)
    assert (np.abs((A @ B).to_numpy() - a @ b) <= tolerance(A, B) * scale + 1e-300).all()
    assert (A @ B).dtype == np.result_type(A.dtype, B.dtype)
    assert (np.abs((A @ B).T.to_numpy() - (a @ b).T) <= tolerance(A, B) * scale.T + 1e-300).all()


@given(factors(square=True))
def test_traces_are_of_float64(made: Any) -> None:
    A, B, a, b = made
    scale = np.trace(np.abs(a) @ np.abs(b))
    exact = np.trace(a @ b)
    assert abs((A @ B).trace() - exact) <= 1e-13 * scale
    assert abs((B @ A).trace() - exact) <= 1e-13 * scale
    assert abs((3 * A @ B).trace() - 3 * exact) <= 3e-13 * scale
    assert abs((A @ B).T.trace() - exact) <= 1e-13 * scale
    assert abs((A @ B + A @ B).trace() - 2 * exact) <= 2e-13 * scale
    assert abs((A.T @ B.T).trace() - exact) <= 1e-13 * scale


@given(factors())
def test_sums(made: Any) -> None:
    A, B, a, b = made
    scale = (np.abs(a) @ np.abs(b)).sum()
    assert abs((A @ B).sum() - (a @ b).sum()) <= 1e-12 * scale
    assert abs((A @ B).T.sum() - (a @ b).sum()) <= 1e-12 * scale
    assert abs((A * 0.5 + A).sum() - 1.5 * a.sum()) <= 1e-12 * np.abs(a).sum()


@given(factors())
def test_elementwise(made: Any) -> None:
    A, _, a, _ = made
    assert np.array_equal((A + A).to_numpy(), 2 * a)
    assert np.array_equal((A * 0.5).to_numpy(), 0.5 * a)
    assert np.array_equal((2 * A.T).T.to_numpy(), 2 * a)


class TestOneTraceForOneBlockCount:
    @pytest.mark.parametrize("blocks", [1, 3, 7, 10])
    def test_same_bits_on_any_number_of_threads(self, blocks: int) -> None:
        A = BlockMatrix.random(300, blocks=blocks, seed=5)
        stored = BlockMatrix.from_numpy(np.random.default_rng(0).normal(size=(300, 300)), blocks=blocks)
        for matrix in (A @ A, A @ stored, stored @ stored):
            assert len({matrix.trace(threads=threads) for threads in (1, 2, 5)}) == 1

    def test_pairs_are_taken_a_few_at_a_time(self) -> None:
        """However many there are; and they are counted without going through them."""
        taken = [0]

        def pairs() -> Iterator[Pair]:
            for number in range(1_000):
                taken[0] += 1
                yield Pair(number, number, 1)

        seen: list[int] = []
        total = sum_up(lambda pair: float(pair.i), pairs(), 1_000, 2, lambda done, of: seen.append(taken[0] - done))
        assert total == 999 * 500
        assert max(seen) <= 2 * trace.AHEAD
        for numbers in ((9, 9, 4, 4, 1, 1), (9, 9, 4, 4, 1, 2), (9, 8, 3, 4, 1, 1)):
            assert RandomPairs(*numbers).num_pairs == len(list(RandomPairs(*numbers).pairs()))

    def test_block_counts_agree(self) -> None:
        values = np.random.default_rng(1).normal(size=(301, 301)) + 1
        for square in (
            [BlockMatrix.random(301, blocks=k, seed=2) for k in (1, 2, 9, 40)],
            [BlockMatrix.from_numpy(values, blocks=k) for k in (1, 2, 9, 40)],
        ):
            traces = [(A @ A).trace() for A in square]
            assert max(traces) - min(traces) <= 1e-10 * abs(traces[0])

    def test_made_or_read(self, tmp_path: Path) -> None:
        A = BlockMatrix.random(97, blocks=4, seed=3)
        A.to_npy(tmp_path / "A.npy")
        B = BlockMatrix.from_npy(tmp_path / "A.npy", blocks=4)
        assert (B @ B).trace() == pytest.approx((A @ A).trace(), rel=1e-14)


def test_the_product_is_not_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither are its blocks, nor the random factors of a square."""

    def formed(*_: Any) -> None:
        raise AssertionError("a product was formed")

    monkeypatch.setattr(Product, "fill", formed)
    A = BlockMatrix.from_numpy(np.eye(50), blocks=5)
    assert (A @ A).trace() == 50
    assert (A @ A).sum() == 50
    # 10^12 elements of 1,000,000 rows would be 4 TB: only what a block pair needs is ever there.
    monkeypatch.setattr("paceline.matrices.sources.fill_block", formed)
    B = BlockMatrix.random((2, 1_000_000), blocks=(2, 100), seed=1)
    assert (B @ BlockMatrix.random((1_000_000, 2), seed=2)).trace() == pytest.approx(500_000, rel=1e-2)


def test_work_is_n_squared(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many elements are read as the factors have."""
    read = [0]
    A = BlockMatrix.from_numpy(np.ones((60, 60)), blocks=4)
    fill = type(A.node).fill

    def counted(self: Any, row: int, column: int, out: np.ndarray) -> None:
        read[0] += out.size
        fill(self, row, column, out)

    monkeypatch.setattr(type(A.node), "fill", counted)
    (A @ A).trace()
    assert read[0] == 2 * 60 * 60


@pytest.mark.parametrize(("rows", "inner"), [(3, 5_000), (100, 300), (300, 3)])
def test_a_long_inner_side_is_cut_as_well(monkeypatch: pytest.MonkeyPatch, rows: int, inner: int) -> None:
    """No block is larger than a square of a given side, into however few blocks the result is cut."""
    largest = [0]
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(rows, inner)), rng.normal(size=(inner, rows))
    A, B = BlockMatrix.from_numpy(a, blocks=1), BlockMatrix.from_numpy(b, blocks=1)
    fill = type(A.node).fill

    def counted(self: Any, row: int, column: int, out: np.ndarray) -> None:
        largest[0] = max(largest[0], out.size)
        fill(self, row, column, out)

    monkeypatch.setattr(type(A.node), "fill", counted)
    monkeypatch.setattr(trace, "BLOCK_SIDE", 16)
    scale = (np.abs(a) @ np.abs(b)).sum()
    assert abs((A @ B).trace() - np.trace(a @ b)) <= 1e-13 * scale
    assert abs((A @ B).sum() - (a @ b).sum()) <= 1e-12 * scale
    assert abs((A.T @ A).T.sum() - (a.T @ a).sum()) <= 1e-12 * (np.abs(a.T) @ np.abs(a)).sum()
    assert abs(BlockMatrix.from_numpy(a @ b, blocks=1).trace() - np.trace(a @ b)) <= 1e-13 * scale
    assert 0 < largest[0] <= 16**2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(factors(), st.booleans(), st.sampled_from(["=", ">", "<"]))
def test_files(tmp_path: Path, made: Any, fortran: bool, order: str) -> None:
    A, _, a, _ = made
    path = tmp_path / "stored.npy"
    values = A.to_numpy().astype(A.dtype.newbyteorder(order))
    np.save(path, np.asfortranarray(values) if fortran else values)
    read = BlockMatrix.from_npy(path)
    assert np.array_equal(read.to_numpy(), a)
    assert read.dtype == A.dtype
    part = np.empty((1, 1), np.float64)
    read.node.fill(A.shape[0] - 1, A.shape[1] - 1, part)
    assert part[0, 0] == a[-1, -1]


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


def test_shapes_that_do_not_fit() -> None:
    A, B = BlockMatrix.random((3, 4)), BlockMatrix.random((5, 6))
    with pytest.raises(ConfigError, match="cannot multiply 3 × 4 by 5 × 6"):
        A @ B
    with pytest.raises(ConfigError, match="cannot add 3 × 4 and 5 × 6"):
        A + B
    with pytest.raises(ConfigError, match="3 × 4 has no trace"):
        A.trace()
    with pytest.raises(TypeError):
        A @ np.ones((4, 4))
    with pytest.raises(TypeError):
        A * "x"


def test_many_rows_are_cut_into_no_more_blocks_than_there_may_be() -> None:
    assert BlockMatrix.random((2**40, 1)).blocks == (MOST_BLOCKS, 1)
    A = BlockMatrix.random((3_000, 1), blocks=(3_000, 1), seed=1)
    assert (A @ A.T).trace() == pytest.approx((A.to_numpy().astype(np.float64) ** 2).sum(), rel=1e-12)
    B = BlockMatrix.random(3_000, blocks=3_000)
    with pytest.raises(ConfigError, match="`blocks` is 3,000; a product has at most 2,000 per side"):
        (B @ B).trace()


def test_it_is_exported_and_says_what_it_is() -> None:
    A = paceline.BlockMatrix.random((100, 200), blocks=3)
    assert repr(A @ A.T) == "BlockMatrix(100 × 100 float32, 3 × 3 blocks)"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"size": 0}, "`size` is 0"),
        ({"size": (3, -1)}, "`size` is -1"),
        ({"size": 2**40 + 1}, "`size` is 1,099,511,627,777; it must be 1 to 1,099,511,627,776"),
        ({"size": 10, "blocks": 11}, "10 × 10 can be cut into 1 to 10"),
        ({"size": 10, "blocks": 0}, "`blocks` is 0"),
        ({"size": 10, "seed": -1}, "`seed` is -1"),
        ({"size": 10, "dtype": np.int32}, "`dtype` is int32"),
    ],
)
def test_random_matrices_that_make_no_sense(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        BlockMatrix.random(**arguments)
