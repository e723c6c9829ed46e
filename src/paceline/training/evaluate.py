"""How good is the model on held-out rows?"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import Dataset, Split
from paceline.kernels.logistic import score
from paceline.kernels.rules import Table
from paceline.models.logistic import Quality, QualitySum
from paceline.parameters.optimizers import Rules


class Scorer(NamedTuple):
    """Weights laid out by a dataset's keys, and the rules that read them; keys from `num_keys` on count nothing."""

    rules: Rules
    table: Table
    bias: int
    num_keys: int

    def scores(self, batch: Batch) -> NDArray[np.float32]:
        """w·x + b of each row."""
        out = np.empty(batch.num_rows, np.float32)
        score(*self.rules, self.table, self.bias, self.num_keys, batch.offsets, batch.keys, batch.values, out)
        return out


def scores_by_block(
    scorer: Scorer, dataset: Dataset, split: Split, threads: int
) -> Iterator[tuple[Batch, NDArray[np.float32]]]:
    """Each block of a split with its rows' scores, in order, computed by several threads."""

    def one(index: int) -> tuple[Batch, NDArray[np.float32]]:
        block = dataset.block(split, index)
        return block, scorer.scores(block)

    with ThreadPoolExecutor(threads, thread_name_prefix="paceline-score") as pool:
        blocks = deque(range(len(dataset.split(split).blocks)))
        ahead = deque(pool.submit(one, blocks.popleft()) for _ in range(min(2 * threads, len(blocks))))
        while ahead:
            yield ahead.popleft().result()
            if blocks:
                ahead.append(pool.submit(one, blocks.popleft()))


def evaluate(scorer: Scorer, dataset: Dataset, split: Split, threads: int, stop: Callable[[], bool]) -> Quality | None:
    """Loss, error and AUC over all rows of a split, which has some; None where `stop` said so on the way."""
    sums = QualitySum()
    for block, scores in scores_by_block(scorer, dataset, split, threads):
        if stop():
            return None
        sums.add(scores, block.labels)
    return sums.quality()
