"""Block matrices against NumPy in float64: 1e-13 of the sum of absolute values, 1e-5 where elements are float32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import paceline
from paceline.errors import ConfigError
from paceline.matrices import trace
from paceline.matrices.matrix import MOST_BLOCKS, BlockMatrix
from paceline.matrices.nodes import Product
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


def test_the_hint_is_a_number_of_blocks_that_is_possible() -> None:
    with pytest.raises(ConfigError, match="can be cut into 1 to 10") as caught:
        BlockMatrix.random(10, blocks=20)
    assert caught.value.hint == "for example 10"
