"""How are eight bytes read or written at once?

A word is eight bytes of an array as one little-endian uint64, from any position. The caller makes sure that
the array continues for eight bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from paceline.kernels.jit import address_of, inlined

WORD_BYTES = 8
ZEROS = np.uint64(0x3030303030303030)  # eight digits 0
ABOVE_NINE = np.uint64(0x7676767676767676)  # carries into a byte's highest bit from ten on
HIGH_BITS = np.uint64(0x8080808080808080)


@intrinsic
def load_word(_context: Any, array: Any, index: Any) -> Any:
    """The word at `array[index]` of an array of uint8."""
    signature = types.uint64(array, index)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.bitcast(address_of(context, builder, signature, args), ir.IntType(64).as_pointer())
        return builder.load(pointer, align=1)

    return signature, codegen


@intrinsic
def store_word(_context: Any, array: Any, index: Any, word: Any) -> Any:
    """Write a word to `array[index]` of an array of uint8."""
    signature = types.void(array, index, types.uint64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.bitcast(address_of(context, builder, signature, args), ir.IntType(64).as_pointer())
        builder.store(args[2], pointer, align=1)
        return context.get_dummy_value()

    return signature, codegen


@inlined
def copy_bytes(source: Any, start: int, length: int, target: Any, to: int) -> None:
    """Copy some bytes, and perhaps others behind them: `target` continues for a word after the last."""
    k = 0
    while k < length and start + k + WORD_BYTES <= source.size:
        store_word(target, to + k, load_word(source, start + k))
        k += WORD_BYTES
    while k < length:
        target[to + k] = source[start + k]
        k += 1


@intrinsic
def trailing_zeros(_context: Any, word: Any) -> Any:
    """How many of a word's lowest bits are 0; 64 if all are."""
    signature = types.int64(types.uint64)

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return signature, codegen


@inlined
def count_digits(word: Any) -> Any:
    """How many of a word's bytes, from the first on, are decimal digits."""
    digits = np.uint64(word) ^ ZEROS
    # A byte of ten or more sets its high bit. Its carry only reaches later bytes.
    return trailing_zeros(((digits + ABOVE_NINE) | digits) & HIGH_BITS) >> 3


@inlined
def read_digits(word: Any, count: int) -> Any:
    """The number that a word's first `count` bytes, 1 to 8 digits, spell."""
    digits = (np.uint64(word) ^ ZEROS) << np.uint64(64 - 8 * count)
    pairs = (digits * np.uint64(10) + (digits >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    fours = (pairs * np.uint64(100) + (pairs >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    return (fours * np.uint64(10000) + (fours >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
