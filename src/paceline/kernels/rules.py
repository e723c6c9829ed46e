"""How does a compiled loop call an optimizer that it does not know?

A *rule* is a named tuple of float32 numbers: an optimizer's settings at this moment, its rate among them. Its type
says which optimizer it is, and the compiler picks that optimizer's two functions by it:

    weight(rule, table, key)            the weight of a key, from its state in the table
    update(rule, table, key, gradient)  what a gradient does to that state, in place

A table is flat float32: the state of a key, `width(rule)` numbers, lies together at `width · key`. Optimizers enter
their functions with `optimizer_rule`; loops call `width`, `weight` and `update` of this file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import overload, register_jitable
from numpy.typing import NDArray

from paceline.kernels.jit import STRICT

Table = NDArray[np.float32]
Weight = Callable[[Any, Table, Any], Any]
Update = Callable[[Any, Table, Any, Any], None]

_RULES: dict[type, tuple[int, Weight, Update]] = {}


def optimizer_rule(rule: type, width: int, weight: Weight, update: Update) -> None:
    """Let compiled loops use `weight` and `update` wherever they are given a `rule` of this type."""
    strict = register_jitable(**STRICT)
    _RULES[rule] = (width, strict(weight), strict(update))


def width(rule: Any) -> int:
    """How many numbers the state of one key has."""
    return _RULES[type(rule)][0]


def weight(rule: Any, table: Table, key: Any) -> Any:
    """The weight of `key`."""
    return _RULES[type(rule)][1](rule, table, key)


def update(rule: Any, table: Table, key: Any, gradient: Any) -> None:
    """Apply one gradient to the state of `key`, in place."""
    _RULES[type(rule)][2](rule, table, key, gradient)


# Numba compares the parameters of these with those of what they return, annotations included: hence none here.
@overload(width)
def _compile_width(rule):  # type: ignore[no-untyped-def]
    chosen = np.uint64(_RULES[rule.instance_class][0])
    return lambda rule: chosen


@overload(weight)
def _compile_weight(rule, table, key):  # type: ignore[no-untyped-def]
    chosen = _RULES[rule.instance_class][1]
    return lambda rule, table, key: chosen(rule, table, key)


@overload(update)
def _compile_update(rule, table, key, gradient):  # type: ignore[no-untyped-def]
    chosen = _RULES[rule.instance_class][2]
    return lambda rule, table, key, gradient: chosen(rule, table, key, gradient)
