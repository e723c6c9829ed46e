"""A linear model as Vowpal Wabbit shows its own: the text that `vw --readable_model` writes.

VW numbers a feature whose name is an integer by that integer, so that `| 17:0.5` has feature 17 with the value 0.5. VW
does not read this text itself; docs/export.md shows the few lines of Python that load it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import UsageError, warn
from paceline.exports.text import LINES_AT_ONCE, weights_of_source
from paceline.models.losses import Logistic, Poisson
from paceline.models.trained import TrainedModel

CONSTANT = 11_650_396
"""The number of the feature that every row of VW has."""
LEAST_BITS = 18
# What makes VW predict the same from a score, by loss, and how large scores may be; VW cuts off larger ones.
OF_LOSS = {
    Logistic: ("--loss_function logistic --link logistic", "50"),
    Poisson: ("--loss_function poisson --link poisson", "50"),
}
OF_SCORES = ("--loss_function squared", "3e+38")


def write_vw(model: TrainedModel, _run: Path, path: Path) -> None:
    """Write the text; `UsageError` if VW has no such model."""
    tensors, _ = weights_of_source(model)
    output: Any = model.model.output
    if {*tensors} != {"weight", "bias"} or output.num_classes:
        raise UsageError(
            f"`vw` is for linear models with one score per row; this is `{model.info.model}` for {output.task.name}",
            "--to onnx, --to mlflow or --to text",
        )
    weight, bias = tensors["weight"], tensors["bias"]
    bits = bits_for(len(weight))
    constant = CONSTANT % (1 << bits)
    if constant < len(weight) and weight[constant]:
        warn(f"feature {constant} is lost: Vowpal Wabbit uses its number for the constant")
    numbers = np.append(np.setdiff1d(np.flatnonzero(weight), [constant]), constant)
    numbers.sort()
    options, most = OF_LOSS.get(type(output.loss), OF_SCORES)
    with path.open("x", encoding="utf-8") as file:
        file.write(
            f"Version 9.0.0\nId \nMin label:-{most}\nMax label:{most}\nbits:{bits}\nlda:0\n0 ngram:\n0 skip:\n"
            f"options: --bit_precision {bits} {options} --min_prediction -{most} --max_prediction {most}\n:0\n"
        )
        for start in range(0, len(numbers), LINES_AT_ONCE):
            some = numbers[start : start + LINES_AT_ONCE]
            file.writelines(_lines(some, np.where(some == constant, bias[0], weight[some % len(weight)])))


def bits_for(features: int) -> int:
    """The bits of VW's numbers of features: enough for all, and for the constant to have one of its own, if possible.

    >>> bits_for(1000), bits_for(200_000), bits_for(12_000_000)
    (18, 21, 24)
    """
    least = max(LEAST_BITS, (features - 1).bit_length())
    free = (bits for bits in range(least, CONSTANT.bit_length() + 1) if CONSTANT % (1 << bits) >= features)
    return next(free, least)


def _lines(numbers: NDArray[np.int64], weights: NDArray[np.float32]) -> Iterator[str]:
    yield from (f"{number}:{weight}\n" for number, weight in zip(numbers.tolist(), weights.astype(str), strict=True))
