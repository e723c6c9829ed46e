"""Random matrices: the same element wherever and however it is made, and numbers that look random."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.kernels.random_blocks import add_products
from paceline.matrices.matrix import BlockMatrix
from paceline.matrices.sources import RandomSource

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def element(seed: int, row: int, column: int) -> float:
    """The definition, in Python's own integers."""
    state = mix((seed + GOLDEN) & MASK) ^ mix((row * GOLDEN + 1) & MASK)
    number = mix((mix(state) + (column // 2 + 1) * GOLDEN) & MASK)
    return (number >> (40 if column % 2 else 8) & (2**24 - 1)) / 2**24


@given(
    st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.integers(0, 2**40), st.integers(1, 5), st.integers(1, 9),
    st.sampled_from([np.float32, np.float64]),
)  # fmt: skip
def test_elements_are_as_defined(seed: int, row: int, column: int, rows: int, columns: int, dtype: type) -> None:
    out: Any = np.empty((rows, columns), dtype)
    RandomSource((2**41, 2**41), seed, out.dtype).fill(row, column, out)
    for i in range(rows):
        for j in range(columns):
            assert out[i, j] == element(seed, row + i, column + j)


def test_one_matrix_in_whatever_blocks_and_dtype() -> None:
    whole = BlockMatrix.random((61, 83), blocks=1, seed=9).to_numpy()
    assert np.array_equal(BlockMatrix.random((61, 83), blocks=7, seed=9, dtype=np.float64).to_numpy(), whole)
    part = np.empty((20, 31), np.float32)
    BlockMatrix.random((61, 83), seed=9).node.fill(40, 51, part)
    assert np.array_equal(part, whole[40:60, 51:82])
    assert not np.array_equal(BlockMatrix.random((61, 83), seed=10).to_numpy(), whole)


@pytest.fixture(scope="module")
def sample() -> np.ndarray:
    return BlockMatrix.random(2_000, seed=1024, dtype=np.float64).to_numpy()


class TestTheyLookRandom:
    """4 million elements: an estimate is off by more than 5 standard errors once in two million."""

    def test_moments(self, sample: np.ndarray) -> None:
        n = sample.size
        assert abs(sample.mean() - 0.5) < 5 * np.sqrt(1 / 12 / n)
        assert abs(sample.var() - 1 / 12) < 5 * np.sqrt(1 / 180 / n)
        assert 0 <= sample.min() < 1e-5
        assert 1 - 1e-5 < sample.max() < 1

    def test_every_bin_and_bit(self, sample: np.ndarray) -> None:
        counts = np.histogram(sample, 1_000, (0, 1))[0]
        expected = sample.size / 1_000
        chi2 = ((counts - expected) ** 2 / expected).sum()
        assert abs(chi2 - 999) < 5 * np.sqrt(2 * 999)
        bits = (sample * 2**24).astype(np.int64)
        for bit in range(24):
            assert abs((bits >> bit & 1).mean() - 0.5) < 5 * 0.5 / np.sqrt(sample.size)

    @pytest.mark.parametrize("shift", [(0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (1, -1), (64, 0), (0, 64)])
    def test_neighbours_are_uncorrelated(self, sample: np.ndarray, shift: tuple[int, int]) -> None:
        centred = sample - 0.5
        products = centred * np.roll(centred, shift, (0, 1))
        assert abs(products.mean()) < 5 / 12 / np.sqrt(sample.size)

    def test_mirrored_elements_are_uncorrelated(self, sample: np.ndarray) -> None:
        above = np.triu_indices(len(sample), 1)
        products = (sample - 0.5)[above] * (sample.T - 0.5)[above]
        assert abs(products.mean()) < 5 / 12 / np.sqrt(len(products))

    def test_no_structure_of_rank_one(self, sample: np.ndarray) -> None:
        # Of independent entries with standard deviation s, the largest singular value is about 2 s sqrt(n).
        centred = sample[:600, :600] - 0.5
        assert np.linalg.norm(centred, 2) < 1.1 * 2 * np.sqrt(600 / 12)

    def test_seeds_are_unrelated(self, sample: np.ndarray) -> None:
        other = BlockMatrix.random(2_000, seed=1025, dtype=np.float64).to_numpy()
        assert abs(((sample - 0.5) * (other - 0.5)).mean()) < 5 / 12 / 2_000


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 30), st.integers(0, 30))
def test_sums_of_products_are_exact(row: int, column: int, rows: int, columns: int) -> None:
    a, b = np.empty((rows, columns)), np.empty((columns, rows))
    if rows and columns:
        RandomSource((99, 99), 1, a.dtype).fill(row, column, a)
        RandomSource((99, 99), 2, b.dtype).fill(column, row, b)
    room, sums = np.empty((2, 20), np.uint64), np.zeros(2, np.uint64)
    add_products(np.array([1, 2], np.uint64), row, row + rows, column, column + columns, room[0], room[1], sums)
    exact = sum(int(x) * int(y) for x, y in zip((a * 2**24).ravel(), (b.T * 2**24).ravel(), strict=True))
    assert (int(sums[0]) << 24) + int(sums[1]) == exact
