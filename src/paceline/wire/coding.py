"""How are keys and values written into frames, and read from them?

Keys go as they are, or in ascending order as the gaps between them. Values go as float32, float16 or bfloat16. Readers
trust nothing: what does not decode to the promised number of keys, all of which exist, is a `BadFrameError`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.exchange import (
    LONGEST_VARINT,
    copy_below,
    decode_deltas,
    encode_deltas,
    from_bfloat16,
    to_bfloat16,
)
from paceline.wire.frames import BadFrameError

PLAIN, DELTAS = 0, 1
LARGEST_FLOAT16 = 65_504.0
VALUE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


class KeyWriter:
    """Writes the key lists of one connection."""

    def __init__(self, deltas: bool) -> None:
        self._deltas = deltas
        self._out: Bytes = np.empty(0, np.uint8)

    def write(self, keys: NDArray[Any]) -> tuple[int, NDArray[Any]]:
        """How these keys are written, and their bytes, valid until the next call. As gaps they must be ascending."""
        if not self._deltas:
            return PLAIN, keys.view(np.uint8)
        if len(self._out) < LONGEST_VARINT * len(keys):
            self._out = np.empty(LONGEST_VARINT * len(keys) * 5 // 4, np.uint8)
        return DELTAS, self._out[: encode_deltas(keys, self._out)]


def read_keys(coding: int, data: Bytes, num_keys: int, out: NDArray[Any]) -> None:
    """Fill `out` with keys below `num_keys`; `data` must hold exactly as many as it has room for."""
    if coding == PLAIN:
        if len(data) != out.nbytes:
            raise BadFrameError(f"{len(data)} bytes for {len(out)} keys")
        all_exist = copy_below(data.view(out.dtype), num_keys, out)
    elif coding == DELTAS and decode_deltas(data, out):
        all_exist = not len(out) or out[-1] < num_keys
    else:
        raise BadFrameError(f"{len(data)} bytes do not hold {len(out)} keys")
    if not all_exist:
        raise BadFrameError(f"a key is beyond the {num_keys} of this shard")


def write_values(values: Floats, kind: str) -> NDArray[Any]:
    """Float32 numbers as they go over the wire; as float32 they are not copied."""
    if kind == "float32":
        return values
    if kind == "float16":
        return np.clip(values, -LARGEST_FLOAT16, LARGEST_FLOAT16).astype(np.float16)
    halves = np.empty(len(values), np.uint16)
    to_bfloat16(values.view(np.uint32), halves)
    return halves


def read_values(data: Bytes, count: int, kind: str) -> Floats:
    """`count` float32 numbers from what `write_values` wrote; float32 is read in place."""
    if len(data) != count * VALUE_BYTES[kind]:
        raise BadFrameError(f"{len(data)} bytes for {count} values of {kind}")
    if kind == "float32":
        return data.view(np.float32)
    if kind == "float16":
        return data.view(np.float16).astype(np.float32)
    bits = np.empty(count, np.uint32)
    from_bfloat16(data.view(np.uint16), bits)
    return bits.view(np.float32)
