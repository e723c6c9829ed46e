"""How does a compiled loop work on all columns of a key at once?

A *vector* is some float32 numbers that lie side by side in an array, as one value of a compiled loop. The compiler
keeps it in vector registers, however many it takes, and does not have to find out that a loop over columns could use
them: that made factorization machines five times faster than loops over columns.

    v = load(array, at, lanes)      numbers `at` up to `at + len(lanes)` of a flat array of float32
    store(array, at, v)
    filled(x, lanes)                `len(lanes)` times the same number
    np.sum(v)                       the sum of the numbers, added up in a fixed order
    v + w, v - w, v * w, v / w      number by number; one of the two may be a float32
    np.sqrt(v), np.sign(v), abs(v), max(v, x)

The number of *lanes* is part of a vector's type, and it is given by a tuple of that length, so that the compiler knows
it. `Vectors` makes an array look as if it held vectors: with it, the formula of an optimizer (`rules.py`) updates all
columns of a key in one go. Every operation rounds as the same operation on single numbers does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, models, overload, register_model
from numpy.typing import NDArray

from paceline.kernels.jit import address_of

FLOAT, INTEGER = ir.FloatType(), ir.IntType(32)
ALIGNMENT = 4
Lanes = tuple[tuple[()], ...]


def lanes(count: int) -> Lanes:
    """A number that the compiler knows, as the length of a tuple. Its elements take no memory.

    >>> len(lanes(16))
    16
    """
    return ((),) * count


class Vectors(NamedTuple):
    """An array as vectors: `vectors[at]` are the numbers from `at` on."""

    numbers: NDArray[np.float32]
    lanes: Lanes


class VectorType(types.Type):
    """The type of a vector with `count` lanes."""

    def __init__(self, count: int) -> None:
        self.count = count
        super().__init__(name=f"Vector({count})")


@register_model(VectorType)
class VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    """A vector as the compiler sees it."""

    def __init__(self, manager: Any, kind: VectorType) -> None:
        super().__init__(manager, kind, ir.VectorType(FLOAT, kind.count))


@intrinsic
def load(_context: Any, array: Any, index: Any, lanes: Any) -> Any:
    """The vector that begins at `array[index]`."""
    kind = VectorType(len(lanes))

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = address_of(context, builder, signature, args)
        return builder.load(builder.bitcast(pointer, _llvm(kind).as_pointer()), align=ALIGNMENT)

    return kind(array, index, lanes), codegen


@intrinsic
def store(_context: Any, array: Any, index: Any, vector: Any) -> Any:
    """Write a vector to `array[index]` and after it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = address_of(context, builder, signature, args)
        builder.store(args[2], builder.bitcast(pointer, args[2].type.as_pointer()), align=ALIGNMENT)
        return context.get_dummy_value()

    return types.void(array, index, vector), codegen


@intrinsic
def filled(_context: Any, number: Any, lanes: Any) -> Any:
    """A vector of the same numbers."""
    kind = VectorType(len(lanes))
    return kind(types.float32, lanes), lambda context, builder, signature, args: _fill(builder, args[0], kind)


@intrinsic
def _total(_context: Any, vector: Any) -> Any:
    """The sum of a vector's numbers: its upper half is added to the lower one until one number is left."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # Zeros on top, up to a power of two.
        count = 1 << (vector.count - 1).bit_length()
        zeros = ir.Constant(_llvm(vector), None)
        rest = _shuffle(builder, args[0], zeros, [min(i, vector.count) for i in range(count)])
        while count > 1:
            count //= 2
            low = _shuffle(builder, rest, rest, range(count))
            rest = builder.fadd(low, _shuffle(builder, rest, rest, range(count, 2 * count)))
        return builder.extract_element(rest, INTEGER(0))

    return types.float32(vector), codegen


def _llvm(kind: VectorType) -> ir.VectorType:
    return ir.VectorType(FLOAT, kind.count)


def _shuffle(builder: Any, low: Any, high: Any, places: Any) -> Any:
    """The numbers at these places of two vectors, one behind the other."""
    picked = [INTEGER(place) for place in places]
    return builder.shuffle_vector(low, high, ir.Constant(ir.VectorType(INTEGER, len(picked)), picked))


def _fill(builder: Any, number: Any, kind: VectorType) -> Any:
    nothing = ir.Constant(_llvm(kind), ir.Undefined)
    return _shuffle(builder, builder.insert_element(nothing, number, INTEGER(0)), nothing, [0] * kind.count)


def _by_number(name: str) -> Any:
    """An intrinsic for two vectors, or a vector and a number, by an operation of LLVM."""

    @intrinsic
    def calculate(_context: Any, a: Any, b: Any) -> Any:
        kind = a if isinstance(a, VectorType) else b
        signature = kind(*(one if isinstance(one, VectorType) else types.float32 for one in (a, b)))

        def codegen(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pairs = zip(args, signature.args, strict=True)
            vectors = [one if is_of == kind else _fill(builder, one, kind) for one, is_of in pairs]
            if hasattr(builder, name):
                return getattr(builder, name)(*vectors)
            return builder.call(_function(builder, f"llvm.{name}", kind, 2), vectors)

        return signature, codegen

    return calculate


def _of_one(name: str, constants: tuple[float, ...] = ()) -> Any:
    """An intrinsic for one vector, by a function of LLVM that may take constants before it."""

    @intrinsic
    def calculate(_context: Any, vector: Any) -> Any:
        def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            before = [_fill(builder, FLOAT(constant), vector) for constant in constants]
            function = _function(builder, f"llvm.{name}", vector, len(constants) + 1)
            return builder.call(function, [*before, *args])

        return vector(vector), codegen

    return calculate


def _function(builder: Any, name: str, kind: VectorType, num_arguments: int) -> Any:
    full_name, vector = f"{name}.v{kind.count}f32", _llvm(kind)
    found = builder.module.globals.get(full_name)
    return found or ir.Function(builder.module, ir.FunctionType(vector, [vector] * num_arguments), full_name)


def _overload_of_two(function: Callable[..., Any], name: str) -> None:
    """Let compiled loops call a function of Python with vectors."""
    chosen = _by_number(name)

    @overload(function)
    def compile_call(a, b):  # type: ignore[no-untyped-def]
        if isinstance(a, VectorType) or isinstance(b, VectorType):
            return lambda a, b: chosen(a, b)
        return None


def _overload_of_one(function: Callable[..., Any], chosen: Any) -> None:
    @overload(function)
    def compile_call(a):  # type: ignore[no-untyped-def]
        return (lambda a: chosen(a)) if isinstance(a, VectorType) else None


for _python, _name in (
    (operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul"), (operator.truediv, "fdiv"),
    (operator.iadd, "fadd"), (operator.isub, "fsub"), (operator.imul, "fmul"), (operator.itruediv, "fdiv"),
    (max, "maxnum"),
):  # fmt: skip
    _overload_of_two(_python, _name)
_overload_of_one(np.sqrt, _of_one("sqrt"))
_overload_of_one(abs, _of_one("fabs"))
_overload_of_one(np.sum, _total)
_ones_with_signs = _of_one("copysign", (1.0,))


@overload(np.sign)
def _compile_sign(x):  # type: ignore[no-untyped-def]
    """±1: the sign of 0 is 1 here, which a product with 0 does not show."""
    return (lambda x: _ones_with_signs(x)) if isinstance(x, VectorType) else None


@overload(operator.getitem)
def _compile_getitem(vectors, at):  # type: ignore[no-untyped-def]
    if getattr(vectors, "instance_class", None) is Vectors:
        return lambda vectors, at: load(vectors.numbers, at, vectors.lanes)
    return None


@overload(operator.setitem)
def _compile_setitem(vectors, at, vector):  # type: ignore[no-untyped-def]
    if getattr(vectors, "instance_class", None) is Vectors:
        return lambda vectors, at, vector: store(vectors.numbers, at, vector)
    return None
