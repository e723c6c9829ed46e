"""How are keys and values written into frames, and read from them?

Keys go plainly; or in ascending order as the gaps between them; or, where a shard has just had the same keys from the
same connection, as a reference to those. Values go as float32, float16 or bfloat16. Readers trust nothing: what does
not decode to the promised number of keys, all of which exist, is a `BadFrameError`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import xxhash
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

PLAIN, DELTAS, CACHED = 0, 1, 2
CACHED_LISTS = 16
MOST_CACHED_KEYS = 1 << 22
LARGEST_FLOAT16 = 65_504.0
VALUE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


class KeyCache:
    """The last key lists that went over one connection. Both ends keep one and see the same lists, so they agree."""

    def __init__(self) -> None:
        self._lists: OrderedDict[int, NDArray[Any]] = OrderedDict()

    def find(self, signature: int) -> NDArray[Any] | None:
        """The list of that signature, which becomes the newest."""
        found = self._lists.get(signature)
        if found is not None:
            self._lists.move_to_end(signature)
        return found

    def add(self, signature: int, keys: NDArray[Any]) -> None:
        """Keep a copy as the newest list; the oldest ones go."""
        if len(keys) > MOST_CACHED_KEYS // CACHED_LISTS:
            return
        self._lists[signature] = keys.copy()
        self._lists.move_to_end(signature)
        while len(self._lists) > CACHED_LISTS:
            self._lists.popitem(last=False)


def signature_of(keys: NDArray[Any]) -> int:
    """A number that tells lists of keys apart."""
    return xxhash.xxh3_64_intdigest(keys.data)


class KeyWriter:
    """Writes the key lists of one connection."""

    def __init__(self, deltas: bool, cache: bool) -> None:
        self._deltas = deltas
        self._cache = KeyCache() if cache else None
        self._out: Bytes = np.empty(0, np.uint8)

    def write(self, keys: NDArray[Any]) -> tuple[int, NDArray[Any]]:
        """How these keys are written, and their bytes, valid until the next call; ascending unless written plainly."""
        if self._cache is not None and len(keys):
            signature = signature_of(keys)
            known = self._cache.find(signature)
            if known is not None and np.array_equal(known, keys):
                return CACHED, np.array([signature], np.uint64).view(np.uint8)
            self._cache.add(signature, keys)
        if not self._deltas:
            return PLAIN, keys.view(np.uint8)
        if len(self._out) < LONGEST_VARINT * len(keys):
            self._out = np.empty(LONGEST_VARINT * len(keys) * 5 // 4, np.uint8)
        return DELTAS, self._out[: encode_deltas(keys, self._out)]


class KeyReader:
    """Reads the key lists of one connection; indices are below `num_keys`."""

    def __init__(self, num_keys: int, key_dtype: np.dtype[Any], cache: bool) -> None:
        self._num_keys = num_keys
        self._key_dtype = key_dtype
        self._cache = KeyCache() if cache else None

    def read(self, coding: int, data: Bytes, out: NDArray[Any]) -> None:
        """Fill `out` with as many keys as it has room for, which must be just what `data` holds."""
        if coding == CACHED:
            self._read_cached(data, out)
            return
        if coding == PLAIN:
            if len(data) != out.nbytes:
                raise BadFrameError(f"{len(data)} bytes for {len(out)} keys")
            all_exist = copy_below(data.view(self._key_dtype), self._num_keys, out)
        elif coding == DELTAS and decode_deltas(data, out):
            all_exist = not len(out) or out[-1] < self._num_keys
        else:
            raise BadFrameError(f"{len(data)} bytes do not hold {len(out)} keys")
        if not all_exist:
            raise BadFrameError(f"a key is beyond the {self._num_keys} of this shard")
        if self._cache is not None and len(out):
            self._cache.add(signature_of(out), out)

    def _read_cached(self, data: Bytes, out: NDArray[Any]) -> None:
        if self._cache is None or len(data) != 8:
            raise BadFrameError("a reference to keys where none are kept")
        keys = self._cache.find(int.from_bytes(data.tobytes(), "little"))
        if keys is None or len(keys) != len(out):
            raise BadFrameError("a reference to keys that are not kept")
        out[:] = keys


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
