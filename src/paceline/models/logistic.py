"""Logistic regression over sparse rows: p(click) = σ(w·x + b).

For labels y of ±1 the loss of a row is log(1 + exp(−y z)) with z = w·x + b, and its gradient y(σ(y z) − 1) x. The bias
b is the weight of one more key, numbered `features`, that every row has with value 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.data.batch import Batch
from paceline.errors import ConfigError
from paceline.kernels import logistic as kernels

DIRECT_KEYS = 65_536
MOST_KEYS = (1 << 24) - 1


class Buffers(NamedTuple):
    """What numbering the keys of a batch and summing its gradient write to; compiled loops take it whole."""

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
        self._count = 0

    def keys(self, batch: Batch) -> NDArray[Any]:
        """The distinct keys of a batch, the bias first; valid until the next call."""
        buffers = self.room_for(batch.num_nonzeros)
        self._count = kernels.number_keys(
            batch.keys, self.bias, buffers.slots, buffers.direct, buffers.turn, buffers.distinct, buffers.local
        )
        return buffers.distinct[: self._count]

    def gradient(self, batch: Batch, weights: NDArray[np.float32]) -> tuple[NDArray[np.float32], float]:
        """The sums of the rows' gradients by the keys that `keys` just gave, from their weights; and of their losses."""
        sums = self.buffers.sums[: self._count]
        losses = kernels.gradient(batch.offsets, self.buffers.local, batch.values, batch.labels, weights, sums)
        return sums, losses

    def room_for(self, num_nonzeros: int) -> Buffers:
        """Buffers for a batch of so many nonzeros."""
        if num_nonzeros > len(self.buffers.local):
            self.buffers = self._make_buffers(num_nonzeros + num_nonzeros // 4)
        return self.buffers

    def _make_buffers(self, num_nonzeros: int) -> Buffers:
        if num_nonzeros > MOST_KEYS:
            raise ConfigError(f"a batch of {num_nonzeros} nonzeros is too large", "choose a smaller --batch-size")
        slots = 1 << (2 * num_nonzeros + 8).bit_length()
        return Buffers(
            slots=np.zeros((slots, 2), self._key_dtype),
            direct=np.zeros(min(DIRECT_KEYS, self.bias), np.uint32),
            distinct=np.zeros(num_nonzeros + 1, self._key_dtype),
            local=np.zeros(num_nonzeros, np.uint32),
            weights=np.zeros(num_nonzeros + 1, np.float32),
            sums=np.zeros(num_nonzeros + 1, np.float32),
            turn=np.zeros(1, np.int64),
        )


class Quality(NamedTuple):
    """How good predictions are: mean log loss, share of wrong labels at 1/2, area under the ROC curve."""

    loss: float
    error: float
    auc: float


def quality(scores: NDArray[np.float32], labels: NDArray[np.uint8]) -> Quality:
    """The quality of scores w·x + b against labels 0 and 1; `auc` is NaN where only one label occurs.

    >>> quality(np.array([-2, 0.5, 1], np.float32), np.array([0, 1, 0], np.uint8)).auc
    0.5
    """
    z = scores.astype(np.float64)
    losses = np.log1p(np.exp(-np.abs(z))) + np.maximum(z, 0) - z * labels
    positive = labels == 1
    negatives, positives = np.sort(scores[~positive]), np.sort(scores[positive])
    pairs = len(negatives) * len(positives)
    auc = kernels.count_above(negatives, positives) / pairs if pairs else float("nan")
    return Quality(float(losses.mean()), float(((scores > 0) != positive).mean()), auc)
