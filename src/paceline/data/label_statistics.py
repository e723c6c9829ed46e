"""What does a dataset know about the labels of its training rows, before anyone reads them?

Each block is summed up on its own, and the sums are added in the order of the blocks: the result depends neither on
threads nor on how the input was read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.data.labels import Labels

QUANTILES = 100
# Quantiles are exact for the rows of this many blocks. Of as many more blocks every second label is taken, of twice as
# many more every fourth, and so on.
EXACT_BLOCKS = 16


class LabelStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The labels of the training rows, each counted with the weight of its row.

    For classes, `rows` and `weights` are the number of rows of each class and the sum of their weights. For numbers,
    `quantiles` are those of 0, 0.01, … 1; of very many rows, they are estimated.
    """

    rows: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()
    mean: float = 0.0
    deviation: float = 0.0
    quantiles: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        numbers = (self.mean, self.deviation, *self.weights, *self.quantiles)
        if not all(math.isfinite(number) for number in numbers):
            raise ValueError("some statistics of labels are not finite numbers")
        if min(self.rows, default=0) < 0 or min(self.weights, default=0) < 0 or self.deviation < 0:
            raise ValueError("some statistics of labels are negative")
        if len(self.quantiles) not in (0, QUANTILES + 1) or sorted(self.quantiles) != [*self.quantiles]:
            raise ValueError(f"the quantiles of labels are not {QUANTILES + 1} numbers in order")

    @property
    def least(self) -> float:
        """The smallest label, if labels are numbers."""
        return self.quantiles[0]

    @property
    def largest(self) -> float:
        """The largest label, if labels are numbers."""
        return self.quantiles[-1]

    def check_for(self, labels: Labels) -> None:
        """Raise `ValueError` unless these can be statistics of such labels."""
        classes, quantiles = (0, QUANTILES + 1) if labels.kind == "numbers" else (labels.classes, 0)
        if (len(self.rows), len(self.weights), len(self.quantiles)) != (classes, classes, quantiles):
            raise ValueError(f"statistics of {len(self.rows)} classes for {labels.classes}")


class BlockSums(NamedTuple):
    """The labels of one block: the sum of weights, and for classes the rows and weights of each.

    For numbers, `mean` is their mean and `squares` the sum of squared distances from it; `sample` are some labels, with
    weights.
    """

    weight: float
    rows: NDArray[np.int64]
    weights: NDArray[np.float64]
    mean: float
    squares: float
    least: float
    largest: float
    sample: tuple[NDArray[np.float32], NDArray[np.float64]]


NOTHING = np.zeros(0, np.int64), np.zeros(0, np.float64)
NO_SAMPLE = np.zeros(0, np.float32), np.zeros(0, np.float64)


def sum_classes(labels: NDArray[Any], weights: NDArray[np.float32] | None) -> BlockSums:
    """The sums of a block whose labels are classes."""
    rows = np.bincount(labels)
    counted = (rows if weights is None else np.bincount(labels, weights)).astype(np.float64)
    return BlockSums(float(counted.sum()), rows, counted, 0.0, 0.0, 0.0, 0.0, NO_SAMPLE)


def sum_numbers(labels: NDArray[np.float32], weights: NDArray[np.float32] | None, index: int) -> BlockSums:
    """The sums of block `index`, whose labels are numbers."""
    numbers = labels.astype(np.float64)
    counted = np.ones(len(labels)) if weights is None else weights.astype(np.float64)
    weight = float(counted.sum())
    mean = float(numbers @ counted) / weight if weight else 0.0
    squares = float((numbers - mean) ** 2 @ counted)
    step = 1 << (index // EXACT_BLOCKS).bit_length()
    sample = labels[::step].copy(), step * counted[::step]
    return BlockSums(weight, *NOTHING, mean, squares, float(labels.min()), float(labels.max()), sample)


def combine(blocks: Sequence[BlockSums], labels: Labels) -> LabelStatistics:
    """The statistics of all training rows, whose labels are described by `labels`."""
    if labels.kind != "numbers":
        rows, weights = np.zeros(labels.classes, np.int64), np.zeros(labels.classes)
        for block in blocks:
            rows[: len(block.rows)] += block.rows
            weights[: len(block.weights)] += block.weights
        return LabelStatistics(rows=tuple(rows.tolist()), weights=tuple(weights.tolist()))
    total = math.fsum(block.weight for block in blocks)
    mean = math.fsum(block.mean * block.weight for block in blocks) / total
    squares = math.fsum(block.squares + block.weight * (block.mean - mean) ** 2 for block in blocks)
    sample, weights = (np.concatenate([block.sample[i] for block in blocks]) for i in range(2))
    quantiles = weighted_quantiles(sample, weights, np.linspace(0, 1, QUANTILES + 1))
    quantiles[0], quantiles[-1] = min(block.least for block in blocks), max(block.largest for block in blocks)
    return LabelStatistics(mean=mean, deviation=math.sqrt(squares / total), quantiles=tuple(quantiles.tolist()))


def weighted_quantiles(
    numbers: NDArray[Any], weights: NDArray[np.float64], shares: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The smallest numbers such that at least these shares of all weight lie at or below them.

    >>> weighted_quantiles(np.array([3, 1, 2]), np.array([1.0, 2, 1]), np.array([0, 0.5, 0.6, 1])).tolist()
    [1.0, 1.0, 2.0, 3.0]
    """
    order = np.argsort(numbers, kind="stable")
    reached = np.cumsum(weights[order])
    # Sums of weights are rounded, so a share may seem to be missed by a hair.
    places = np.searchsorted(reached, shares * reached[-1] * (1 - 1e-12))
    found: NDArray[np.float64] = numbers[order][np.minimum(places, len(numbers) - 1)].astype(np.float64)
    return found
