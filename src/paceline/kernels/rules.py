"""How does a compiled loop call an optimizer that it does not know?

A *rule* is a named tuple of float32 numbers: the settings of an optimizer at one moment, its rate among them. The type
of the rule says which optimizer it is, and the compiler picks that optimizer's functions by it:

    weight(rule, table, at, stride)            the value of a parameter, from its state
    update(rule, table, at, stride, gradient)  what a gradient does to that state, in place
    step_size(rule, table, at, stride)         how far the next update moves the parameter, per unit of gradient

The state of a parameter is its first number, `table[at]`, and what the optimizer remembers, `memory(rule)` numbers at
`at + stride`, `at + 2 * stride`, and so on. In a table of keys the stride is the number of columns of a group, in a
dense array it is the number of values, so the same formula serves both. It also serves several columns at once, if
`table` is `Vectors` (`vectors.py`). A rule whose memory is *shared* can only be used in this way: it remembers
`memory(rule)` numbers of all columns of a vector together. `parameters/optimizers` registers the functions that
optimizers declare with `optimizer_rule`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
from numba.extending import overload, register_jitable
from numpy.typing import NDArray

from paceline.kernels.jit import REASSOCIATED, STRICT

Table = NDArray[np.float32]
Weight = Callable[[Any, Table, Any, Any], Any]
Update = Callable[[Any, Table, Any, Any, Any], None]

_MEMORIES: dict[type, int] = {}
_WEIGHTS: dict[type, Weight] = {}
_UPDATES: dict[type, Update] = {}
_QUICK_WEIGHTS: dict[type, Weight] = {}
_QUICK_UPDATES: dict[type, Update] = {}
_STEP_SIZES: dict[type, Weight] = {}
_MERGED: set[type] = set()
_SHARED: set[type] = set()


def picked_by_type(functions: dict[type, Any]) -> Any:
    """A function that Python and compiled loops can call; the type of its first argument picks one of `functions`."""

    def call(first: Any, *others: Any) -> Any:
        return functions[type(first)](first, *others)

    # Numba compares the parameters of this with those of what it returns, annotations included, so there are none here.
    @overload(call)
    def compile_call(first, *others):  # type: ignore[no-untyped-def]
        chosen = functions[first.instance_class]
        return lambda first, *others: chosen(first, *others)

    return call


weight: Weight = picked_by_type(_WEIGHTS)
update: Update = picked_by_type(_UPDATES)
# The same formulas, in which the compiler may replace a division by a setting with a multiplication. Only for loops
# whose bits are not promised.
quick_weight: Weight = picked_by_type(_QUICK_WEIGHTS)
quick_update: Update = picked_by_type(_QUICK_UPDATES)
step_size: Weight = picked_by_type(_STEP_SIZES)


def stored(rule: Any, table: Table, at: Any, stride: Any) -> Any:
    """The value of a parameter whose state begins with it."""
    return table[at]


def unknown(rule: Any, table: Table, at: Any, stride: Any) -> Any:
    """The step size of an optimizer that does not say it; loops are compiled with it, and never call it."""
    return np.float32(0)


def optimizer_rule(rule: type, memory: int, update: Update, weight: Weight | None = None,
                   step_size: Weight | None = None, shared: bool = False) -> None:  # fmt: skip
    """Let compiled loops use these functions for rules of this type with `memory` numbers; `weight` is else `stored`.

    Without a `step_size`, workers must not keep copies of a parameter (`can_merge`).
    """
    if shared:
        _SHARED.add(rule)
    strict, quick = register_jitable(**STRICT), register_jitable(**REASSOCIATED)
    _MEMORIES[rule], _WEIGHTS[rule], _UPDATES[rule] = memory, strict(weight or stored), strict(update)
    _STEP_SIZES[rule] = strict(step_size or unknown)
    _QUICK_WEIGHTS[rule], _QUICK_UPDATES[rule] = quick(copy_of(weight or stored)), quick(copy_of(update))
    if step_size is not None:
        _MERGED.add(rule)


def copy_of(function: Any) -> Any:
    """The same function as another object, without annotations: numba keeps one set of options per function."""
    return FunctionType(function.__code__, function.__globals__, function.__name__)


def can_merge(rule: Any) -> bool:
    """Whether workers may update copies of a parameter for a while and then add up the changes."""
    return type(rule) in _MERGED


def is_rule_type(kind: Any) -> bool:
    """Whether this is the type of an optimizer's rule."""
    return kind in _MEMORIES


def is_shared_type(kind: Any) -> bool:
    """Whether under rules of this type the columns of a vector share what the optimizer remembers."""
    return kind in _SHARED


def memory(rule: Any) -> int:
    """How many numbers the optimizer remembers of each parameter."""
    return _MEMORIES[type(rule)]


def group_memory(rule: Any, count: int, blocks: int) -> int:
    """How many numbers the optimizer remembers of `count` columns in that many blocks, which are a vector each."""
    return memory(rule) * (blocks if is_shared_type(type(rule)) else count)


@overload(memory)
def _compile_memory(rule):  # type: ignore[no-untyped-def]
    chosen = np.uint64(_MEMORIES[rule.instance_class])
    return lambda rule: chosen


@overload(group_memory)
def _compile_group_memory(rule, count, blocks):  # type: ignore[no-untyped-def]
    if rule.instance_class in _SHARED:
        return lambda rule, count, blocks: memory(rule) * np.uint64(blocks)
    return lambda rule, count, blocks: memory(rule) * np.uint64(count)
