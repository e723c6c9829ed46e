"""What is the CRC-32C of some bytes, as TFRecord files keep it?

Processors with SSE 4.2 have an instruction for eight bytes; others look bytes up in tables.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from paceline.kernels.jit import compiled, inlined
from paceline.kernels.words import WORD_BYTES, load_word

POLYNOMIAL = 0x82F63B78  # its bits reversed
ALL_ONES = np.uint32(0xFFFFFFFF)
LOW_BYTE = np.uint64(255)
MASK_DELTA = np.uint32(0xA282EAD8)


def _make_tables() -> NDArray[np.uint32]:
    """`tables[j][b]`: what byte b, followed by j zero bytes, adds to a CRC."""
    tables = np.zeros((WORD_BYTES, 256), np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
        tables[0, byte] = crc
    for j in range(1, WORD_BYTES):
        tables[j] = tables[0, tables[j - 1] & 255] ^ tables[j - 1] >> 8
    return tables


TABLES = _make_tables()


@inlined
def _add_byte(crc: Any, byte: Any) -> Any:
    return TABLES[0, (crc ^ np.uint32(byte)) & np.uint32(255)] ^ crc >> np.uint32(8)


@inlined
def _masked(crc: Any) -> Any:
    """A CRC rotated and shifted, so that the CRC of data that holds CRCs stays useful."""
    crc = crc ^ ALL_ONES
    return np.uint32(np.uint32(crc >> np.uint32(15) | crc << np.uint32(17)) + MASK_DELTA)


@compiled
def checksum_by_tables(data: NDArray[np.uint8], start: int, stop: int) -> Any:
    """The masked CRC-32C of `data[start:stop]` (uint32), on any processor."""
    crc = ALL_ONES
    i = start
    while i + WORD_BYTES <= stop:
        word = load_word(data, i) ^ np.uint64(crc)
        crc = np.uint32(0)
        for j in range(WORD_BYTES):
            crc ^= TABLES[WORD_BYTES - 1 - j, word >> np.uint64(8 * j) & LOW_BYTE]
        i += WORD_BYTES
    for k in range(i, stop):
        crc = _add_byte(crc, data[k])
    return _masked(crc)


@intrinsic
def _add_word(_context: Any, crc: Any, word: Any) -> Any:
    """The CRC (uint64) after eight more bytes, by the processor's instruction."""
    signature = types.uint64(types.uint64, types.uint64)

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        function_type = ir.FunctionType(word, [word, word])
        function = builder.module.globals.get("llvm.x86.sse42.crc32.64.64")
        if function is None:
            function = ir.Function(builder.module, function_type, "llvm.x86.sse42.crc32.64.64")
        return builder.call(function, args)

    return signature, codegen


@compiled
def checksum_by_instruction(data: NDArray[np.uint8], start: int, stop: int) -> Any:
    """The masked CRC-32C of `data[start:stop]` (uint32), where the processor has an instruction for it."""
    crc = np.uint64(ALL_ONES)
    i = start
    while i + WORD_BYTES <= stop:
        crc = _add_word(crc, load_word(data, i))
        i += WORD_BYTES
    rest = np.uint32(crc)
    for k in range(i, stop):
        rest = _add_byte(rest, data[k])
    return _masked(rest)


HAS_INSTRUCTION = bool(llvmlite.binding.get_host_cpu_features().get("sse4.2"))
checksum = checksum_by_instruction if HAS_INSTRUCTION else checksum_by_tables
