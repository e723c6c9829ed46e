"""Logistic regression over sparse rows: p(click) = σ(w·x + b).

For labels y of ±1 the loss of a row is log(1 + exp(−y z)) with z = w·x + b, and its gradient y(σ(y z) − 1) x. The bias
b is the weight of one more key, numbered `features`, that every row has with value 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.kernels import logistic as kernels

DIRECT_KEYS = 65_536
# Distinct keys that one update may have: the tables that number them have 24 bits for it.
MOST_KEYS = (1 << 24) - 2


class Buffers(NamedTuple):
    """What compiled steps write to: `distinct` keys of a batch and the `sums` of their gradients, and on the way

    the tables that number keys (`slots`, `direct`, `turn`), each nonzero's number (`local`), and `weights` by number.
    """

    slots: NDArray[Any]
    direct: NDArray[np.uint32]
    distinct: NDArray[Any]
    local: NDArray[np.uint32]
    weights: NDArray[np.float32]
    sums: NDArray[np.float32]
    turn: NDArray[np.int64]


class LogisticScratch:
    """One worker's working memory for logistic regression; not shared between threads."""

    def __init__(self, features: int, key_dtype: np.dtype[Any]) -> None:
        self.bias = features
        self._key_dtype = key_dtype
        self.buffers = self._make_buffers(0)

    def room_for(self, num_nonzeros: int) -> Buffers:
        """Buffers for a batch of so many nonzeros."""
        if num_nonzeros > len(self.buffers.local):
            self.buffers = self._make_buffers(num_nonzeros + num_nonzeros // 4)
        return self.buffers

    def _make_buffers(self, num_nonzeros: int) -> Buffers:
        slots = 1 << (num_nonzeros + 8).bit_length()
        return Buffers(
            slots=np.zeros((slots, 2), self._key_dtype),
            direct=np.zeros(min(DIRECT_KEYS, self.bias), np.uint32),
            distinct=np.zeros(num_nonzeros + 1, self._key_dtype),
            local=np.zeros(num_nonzeros, np.uint32),
            weights=np.zeros(num_nonzeros + 1, np.float32),
            sums=np.zeros(num_nonzeros + 1, np.float32),
            turn=np.zeros(2, np.int64),
        )


class Fold(NamedTuple):
    """Working memory of one thread's part of a fold: totals by distinct key, and tables to find them."""

    slots: NDArray[Any]
    direct: NDArray[np.uint32]
    own: NDArray[np.uint64]
    distinct: NDArray[Any]
    totals: NDArray[np.float32]
    turn: NDArray[np.int64]

    @staticmethod
    def make(num_keys: int, num_direct: int, key_dtype: np.dtype[Any]) -> Fold:
        return Fold(
            np.zeros((1 << num_keys.bit_length(), 2), key_dtype),
            np.zeros(num_direct, np.uint32),
            np.zeros(num_keys + 1, np.uint64),
            np.zeros(num_keys, key_dtype),
            np.zeros(num_keys, np.float32),
            np.zeros(1, np.int64),
        )


class Quality(NamedTuple):
    """How good predictions are: mean log loss, share of wrong labels at 1/2, area under the ROC curve."""

    loss: float
    error: float
    auc: float


class QualitySum:
    """The quality of scores w·x + b against labels 0 and 1, added up part by part; scores are kept for the AUC.

    >>> sums = QualitySum()
    >>> sums.add(np.array([-2, 0.5, 1], np.float32), np.array([0, 1, 0], np.uint8))
    >>> sums.quality().auc
    0.5
    """

    def __init__(self) -> None:
        self._losses = 0.0
        self._errors = 0
        self._scores: tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]] = ([], [])

    def add(self, scores: NDArray[np.float32], labels: NDArray[np.uint8]) -> None:
        """Some more rows."""
        z, positive = scores.astype(np.float64), labels == 1
        with np.errstate(invalid="ignore"):  # scores of a model that has diverged: the caller sees that in the loss
            self._losses += float((np.log1p(np.exp(-np.abs(z))) + np.maximum(z, 0) - z * labels).sum())
        self._errors += int(((scores > 0) != positive).sum())
        self._scores[0].append(scores[~positive])
        self._scores[1].append(scores[positive])

    def quality(self) -> Quality:
        """Over all rows so far, of which there are some; `auc` is NaN where only one label occurs."""
        negatives, positives = np.concatenate(self._scores[0]), np.concatenate(self._scores[1])
        num_rows, pairs = len(negatives) + len(positives), len(negatives) * len(positives)
        negatives.sort()
        positives.sort()
        auc = kernels.count_above(negatives, positives) / pairs if pairs else float("nan")
        return Quality(self._losses / num_rows, self._errors / num_rows, auc)
