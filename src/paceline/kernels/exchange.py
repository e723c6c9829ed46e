"""How do the keys of a batch get to the shards that hold them, in few bytes?

Key k lives at shard k mod S, where it is number k div S, its *index*: the hottest keys come first, so dealing them out
in turn loads all shards equally. A worker sends indices shard by shard; `numbers` says which key of its batch each was.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.jit import compiled
from paceline.kernels.keys import Keys
from paceline.kernels.tables import columns

Bytes = NDArray[np.uint8]
NUMBER_BITS = np.uint64(24)
LONGEST_VARINT = 10


@compiled
def deal_keys(keys: Keys, num_shards: int, numbers: NDArray[np.uint32], indices: Keys, ends: NDArray[np.int64]) -> None:
    """Order distinct `keys` by shard: the i-th has index `indices[i]` there and is `keys[numbers[i]]`.

    Those of shard s lie before `ends[s + 1]` and from `ends[s]` on; within a shard they keep their order.
    """
    ends[:] = 0
    if num_shards == 1:
        for i in range(keys.size):
            numbers[i] = i
            indices[i] = keys[i]
        ends[1] = keys.size
        return
    shards = np.uint64(num_shards)
    for i in range(keys.size):
        ends[np.uint64(keys[i]) % shards + np.uint64(1)] += 1
    for s in range(num_shards):
        ends[s + 1] += ends[s]
    for i in range(keys.size):
        key = np.uint64(keys[i])
        index = key // shards
        shard = key - index * shards
        place = ends[shard]
        ends[shard] = place + 1
        numbers[place] = i
        indices[place] = index
    for s in range(num_shards, 0, -1):
        ends[s] = ends[s - 1]
    ends[0] = 0


@compiled
def pack_order(keys: Keys, num_shards: int, keys_per_shard: int, packed: NDArray[np.uint64]) -> None:
    """One number per key that sorts by shard, then index, and carries in its low bits which key it was."""
    shards, stride = np.uint64(num_shards), np.uint64(keys_per_shard)
    for i in range(keys.size):
        key = np.uint64(keys[i])
        index = key // shards
        shard = key - index * shards
        packed[i] = ((shard * stride + index) << NUMBER_BITS) | np.uint64(i)


@compiled
def unpack_order(packed: NDArray[np.uint64], num_shards: int, keys_per_shard: int, numbers: NDArray[np.uint32],
                 indices: Keys, ends: NDArray[np.int64]) -> None:  # fmt: skip
    """`numbers`, `indices` and `ends` as `deal_keys` gives them, but with ascending indices, from sorted `packed`."""
    stride = np.uint64(keys_per_shard)
    mask = (np.uint64(1) << NUMBER_BITS) - np.uint64(1)
    ends[:] = 0
    shard = np.uint64(0)
    for i in range(packed.size):
        numbers[i] = packed[i] & mask
        index = (packed[i] >> NUMBER_BITS) - shard * stride
        while index >= stride:
            index -= stride
            shard += np.uint64(1)
            ends[shard] = i
        indices[i] = index
    for s in range(np.int64(shard) + 1, num_shards + 1):
        ends[s] = packed.size


@compiled
def pick(given: Any, values: NDArray[np.float32], numbers: Keys, out: NDArray[np.float32]) -> None:
    """`out[i] = values[numbers[i]]`, rows of as many columns as `given` says.

    From a batch's order to the shards', or from all values of a shard to those of a batch's keys.
    """
    dim = columns(given)
    for i in range(np.uint64(numbers.size)):
        for column in range(dim):
            out[i * dim + column] = values[np.uint64(numbers[i]) * dim + column]


@compiled
def put(given: Any, values: NDArray[np.float32], numbers: NDArray[np.uint32], out: NDArray[np.float32]) -> None:
    """`out[numbers[i]] = values[i]`, rows of as many columns as `given` says: from the shards' order to a batch's."""
    dim = columns(given)
    for i in range(np.uint64(numbers.size)):
        for column in range(dim):
            out[np.uint64(numbers[i]) * dim + column] = values[i * dim + column]


@compiled
def copy_below(indices: Keys, limit: int, out: Keys) -> bool:
    """Copy indices, of which `out` has as many; whether all are smaller than `limit`."""
    largest = np.uint64(0)
    for i in range(np.uint64(indices.size)):
        out[i] = indices[i]
        largest = max(largest, np.uint64(indices[i]))
    return indices.size == 0 or largest < np.uint64(limit)


@compiled
def encode_deltas(indices: Keys, out: Bytes) -> int:
    """Write ascending indices as the gaps between them, 7 bits per byte, low bits first; returns how many bytes."""
    written = 0
    before = np.uint64(0)
    for i in range(indices.size):
        index = np.uint64(indices[i])
        gap = index - before
        before = index + np.uint64(1)
        while gap >= np.uint64(128):
            out[written] = (gap & np.uint64(127)) | np.uint64(128)
            gap >>= np.uint64(7)
            written += 1
        out[written] = gap
        written += 1
    return written


@compiled
def decode_deltas(data: Bytes, out: Keys) -> bool:
    """Read as many indices as `out` has from exactly these bytes; False if the bytes say something else."""
    read = 0
    before = np.uint64(0)
    for i in range(out.size):
        gap, shift = np.uint64(0), np.uint64(0)
        while True:
            if read == data.size or shift > np.uint64(63):
                return False
            byte = np.uint64(data[read])
            read += 1
            gap |= (byte & np.uint64(127)) << shift
            shift += np.uint64(7)
            if byte < np.uint64(128):
                break
        index = before + gap
        if index < before:
            return False
        out[i] = index
        if np.uint64(out[i]) != index:
            return False
        before = index + np.uint64(1)
        if before == 0:
            return False  # a key that cannot be, after which ascending ones would begin again
    return read == data.size


@compiled
def to_bfloat16(bits: NDArray[np.uint32], out: NDArray[np.uint16]) -> None:
    """The upper halves of float32 numbers, given by their bits, rounded to nearest even."""
    for i in range(bits.size):
        out[i] = (bits[i] + np.uint32(0x7FFF) + ((bits[i] >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)


@compiled
def from_bfloat16(halves: NDArray[np.uint16], out: NDArray[Any]) -> None:
    """The bits of the float32 numbers whose upper halves these are, into `out` (uint32)."""
    for i in range(halves.size):
        out[i] = np.uint32(halves[i]) << np.uint32(16)
