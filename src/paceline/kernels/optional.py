"""How do loops use arrays that rows may have to do without: weights of rows, fields of nonzeros?

Where there is no such array, None stands in its place. None has a type of its own, so a loop without the array compiles
as if nobody had ever thought of it.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.extending import overload

from paceline.kernels.jit import STRICT

MOST_FIELDS = 1 << 16  # a field is a uint16


def is_missing(kind: Any) -> bool:
    """Whether an argument of this type is None."""
    return bool(kind == numba.none)


def row_weight(weights: Any, row: Any) -> Any:
    """The weight of a row: 1 where rows have none."""
    return np.float32(1) if weights is None else weights[row]


def move(array: Any, to: Any, source: Any, at: Any) -> None:
    """`array[to]` becomes `source[at]`, if there are such arrays. For compiled loops."""
    raise NotImplementedError


def put(array: Any, at: Any, value: Any) -> None:
    """`array[at]` becomes `value`, if there is such an array. For compiled loops."""
    raise NotImplementedError


@overload(row_weight, jit_options=STRICT)
def _compile_row_weight(weights, row):  # type: ignore[no-untyped-def]
    if is_missing(weights):
        return lambda weights, row: np.float32(1)
    return lambda weights, row: weights[row]


@overload(move, jit_options=STRICT)
def _compile_move(array, to, source, at):  # type: ignore[no-untyped-def]
    if is_missing(array):
        return lambda array, to, source, at: None

    def move_one(array, to, source, at):  # type: ignore[no-untyped-def]
        array[to] = source[at]

    return move_one


@overload(put, jit_options=STRICT)
def _compile_put(array, at, value):  # type: ignore[no-untyped-def]
    if is_missing(array):
        return lambda array, at, value: None

    def put_one(array, at, value):  # type: ignore[no-untyped-def]
        array[at] = value

    return put_one
