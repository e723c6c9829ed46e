"""How good is the model on held-out rows?"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from paceline.data.blocks.dataset import Split
from paceline.models.metrics import Quality
from paceline.models.model import Floats, Output, Parameters


class Scorer(Protocol):
    """What scores rows: a model, as a rule."""

    @property
    def output(self) -> Output: ...

    @property
    def scoring_threads(self) -> bool:
        """Whether several threads may score at once."""

    def scores(self, parameters: Parameters, rows: Any) -> Floats:
        """The score of each row [rows], or of each row and class [rows, classes]."""


def scores_by_block(
    model: Scorer, parameters: Parameters, dataset: Any, split: Split, threads: int
) -> Iterator[tuple[Any, Floats]]:
    """Each block of a split with its rows' scores, in order, computed by several threads if the model allows it."""
    threads = threads if model.scoring_threads else 1

    def one(index: int) -> tuple[Any, Floats]:
        block = dataset.block(split, index)
        return block, model.scores(parameters, block)

    with ThreadPoolExecutor(threads, thread_name_prefix="paceline-score") as pool:
        blocks = deque(range(len(dataset.split(split).blocks)))
        ahead = deque(pool.submit(one, blocks.popleft()) for _ in range(min(2 * threads, len(blocks))))
        while ahead:
            yield ahead.popleft().result()
            if blocks:
                ahead.append(pool.submit(one, blocks.popleft()))


def evaluate(
    model: Scorer, parameters: Parameters, dataset: Any, split: Split, threads: int, stop: Callable[[], bool]
) -> Quality | None:
    """The metrics over all rows of a non-empty split; None if `stop()` interrupts."""
    sums = model.output.metric_sums()
    for block, scores in scores_by_block(model, parameters, dataset, split, threads):
        if stop():
            return None
        sums.add(scores, block.labels, block.weights)
    return sums.quality()
