"""How does a compiled loop call an optimizer that it does not know?

A *rule* is a named tuple of float32 numbers: the settings of an optimizer at one moment, its rate among them. The type
of the rule says which optimizer it is, and the compiler picks that optimizer's functions by it:

    weight(rule, table, at, stride)            the value of a parameter, from its state
    update(rule, table, at, stride, gradient)  what a gradient does to that state, in place

The state of a parameter is its first number, `table[at]`, and what the optimizer remembers, `memory(rule)` numbers at
`at + stride`, `at + 2 * stride`, and so on. In a table of keys the stride is the number of columns of a group, in a
dense array it is the number of values, so the same formula serves both. Optimizers register their functions with
`optimizer_rule`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import overload, register_jitable
from numpy.typing import NDArray

from paceline.kernels.jit import STRICT

Table = NDArray[np.float32]
Weight = Callable[[Any, Table, Any, Any], Any]
Update = Callable[[Any, Table, Any, Any, Any], None]

_RULES: dict[type, tuple[int, Weight, Update]] = {}


def optimizer_rule(rule: type, memory: int, weight: Weight, update: Update) -> None:
    """Let compiled loops use `weight` and `update` for rules of this type, which remember `memory` numbers."""
    strict = register_jitable(**STRICT)
    _RULES[rule] = (memory, strict(weight), strict(update))


def is_rule_type(kind: Any) -> bool:
    """Whether this is the type of an optimizer's rule."""
    return kind in _RULES


def memory(rule: Any) -> int:
    """How many numbers the optimizer remembers of each parameter."""
    return _RULES[type(rule)][0]


def weight(rule: Any, table: Table, at: Any, stride: Any) -> Any:
    """The value of the parameter at `at`."""
    return _RULES[type(rule)][1](rule, table, at, stride)


def update(rule: Any, table: Table, at: Any, stride: Any, gradient: Any) -> None:
    """Apply one gradient to the parameter at `at`, in place."""
    _RULES[type(rule)][2](rule, table, at, stride, gradient)


# Numba compares the parameters of these with those of what they return, annotations included: hence none here.
@overload(memory)
def _compile_memory(rule):  # type: ignore[no-untyped-def]
    chosen = np.uint64(_RULES[rule.instance_class][0])
    return lambda rule: chosen


@overload(weight)
def _compile_weight(rule, table, at, stride):  # type: ignore[no-untyped-def]
    chosen = _RULES[rule.instance_class][1]
    return lambda rule, table, at, stride: chosen(rule, table, at, stride)


@overload(update)
def _compile_update(rule, table, at, stride, gradient):  # type: ignore[no-untyped-def]
    chosen = _RULES[rule.instance_class][2]
    return lambda rule, table, at, stride, gradient: chosen(rule, table, at, stride, gradient)
