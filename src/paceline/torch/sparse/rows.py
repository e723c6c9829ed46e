"""Rows in a GPU's memory, and which of them a launch of a kernel trains on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.data.rows import RUN_ROWS
from paceline.data.sparse.batch import Batch
from paceline.kernels.packing import BITS, LISTED, count_hot, count_listed, pack_bits, pack_rows
from paceline.torch.model import torch
from paceline.torch.sparse.bits import copied, unpack
from paceline.torch.sparse.triton_ import tl, triton

# Keys beyond these are never columns; blocks have the hottest keys first.
MOST_HOT = 16_384
# Keys in fewer rows than this are listed: a column costs every row something.
LEAST_SHARE = 1 / 128
# More columns with numbers than this would cost more memory than they save.
MOST_NUMBERS = 48
LEAST_LISTED_AT_ONCE, MOST_LISTED_AT_ONCE = 16, 64
# Where a row's list begins, and how long it is.
BYTES_PER_START, BYTES_PER_LENGTH = 8, 4
# Packed keys need memory on the GPU besides what they become, so they are unpacked by that many blocks.
UNPACKED_TOGETHER = 64


class HotColumns(NamedTuple):
    """Which keys are columns: those with numbers, and those with bits."""

    numbers: NDArray[np.int64]
    bits: NDArray[np.int64]

    @property
    def words(self) -> int:
        """How many words a row's bits take: a power of two, because all are read at once."""
        needed = -(-len(self.bits) // BITS)
        return int(triton.next_power_of_2(needed)) if needed else 0

    @property
    def places(self) -> NDArray[np.int32]:
        """The column of each of the hottest keys, or `LISTED`."""
        keys = np.concatenate([self.numbers, self.bits])
        found = np.full(int(keys.max(initial=-1)) + 1, LISTED, np.int32)
        found[keys] = np.arange(len(keys))
        return found


NO_COLUMNS = HotColumns(np.zeros(0, np.int64), np.zeros(0, np.int64))


def choose_columns(rows: Batch, most_hot: int, most_bits: int, most_numbers: int = MOST_NUMBERS) -> HotColumns:
    """The columns that suit rows like these, of the `most_hot` hottest keys."""
    counts, ones = np.zeros((2, most_hot), np.int64)
    count_hot(rows.keys, rows.values, counts, ones)
    often = np.flatnonzero(counts >= max(1, LEAST_SHARE * rows.num_rows))
    often = often[np.argsort(-counts[often], kind="stable")]
    is_bit = 2 * ones[often] > counts[often]
    return HotColumns(often[~is_bit][:most_numbers], often[is_bit][:most_bits])


class Packed(NamedTuple):
    """Rows of a block as `kernels/packing.py` lays them out; `values` is None if all listed values are 1."""

    labels: NDArray[Any]
    weights: NDArray[np.float32] | None
    numbers: NDArray[np.float32]
    bits: NDArray[np.uint32]
    lengths: NDArray[np.int32]
    keys: NDArray[Any]
    values: NDArray[np.float32] | None


class PackedTensors(NamedTuple):
    """The same as PyTorch's tensors in this machine's memory, as they travel over the bus.

    `weights` and `values` are empty if all are 1. Lengths have the smallest type, and `words` are the `num_keys` listed
    keys with `RowShape.key_bits` bits each.
    """

    labels: Any
    weights: Any
    numbers: Any
    bits: Any
    lengths: Any
    words: Any
    values: Any
    num_keys: int

    @property
    def num_bytes(self) -> int:
        """How many bytes travel."""
        return sum(tensor.nbytes for tensor in self[:-1])


def pack(rows: Batch, columns: HotColumns, features: int) -> Packed:
    """Lay out the rows of a block for a GPU. Keys from `features` on, which no model knows, become `features`."""
    count, num_numbers = rows.num_rows, len(columns.numbers)
    places, last_row = columns.places, np.empty(num_numbers + len(columns.bits), np.int64)
    lengths = np.empty(count, np.int32)
    all_ones = count_listed(rows.offsets, rows.keys, rows.values, places, num_numbers, last_row, lengths)
    numbers = np.zeros((count, num_numbers), np.float32)
    bits = np.zeros((count, columns.words), np.uint32)
    listed = np.empty(int(lengths.sum(dtype=np.int64)), key_type_on_gpu(features))
    values = np.empty(0 if all_ones else len(listed), np.float32)
    pack_rows(rows.offsets, rows.keys, rows.values, places, last_row, numbers, bits, listed, values, features)
    return Packed(rows.labels, rows.weights, numbers, bits, lengths, listed, None if all_ones else values)


class GpuRows(NamedTuple):
    """Rows on the GPU, as kernels take them. `weights` or `key_values` are empty if all are 1."""

    labels: Any
    weights: Any
    numbers: Any
    bits: Any
    starts: Any
    lengths: Any
    keys: Any
    key_values: Any


class RowShape(NamedTuple):
    """What the compiler knows of rows: whether they have weights, whether all listed values are 1, how many columns
    there are, how many nonzeros are read at once, and whether that is all of every list. On the bus, a length takes
    `length_bytes`, and a key `key_bits`.
    """

    weighted: bool
    ones: bool
    numbers: int
    words: int
    listed: int
    one_chunk: bool
    length_bytes: int
    key_bits: int


def key_type_on_gpu(features: int) -> Any:
    """The integers of keys on a GPU, for which PyTorch knows signed ones only."""
    return np.int32 if features < 1 << 31 else np.int64


def shape_of(blocks: Sequence[Packed], columns: HotColumns, features: int, longest: int = 0) -> RowShape:
    """The shape of all these blocks, so that kernels compiled for one of them serve the others. If others will
    follow, their lists have at most `longest` nonzeros.
    """
    longest = max(longest, *(int(block.lengths.max(initial=0)) for block in blocks), 0)
    # Powers of two, because kernels are compiled for every shape.
    room = triton.next_power_of_2(max(longest, LEAST_LISTED_AT_ONCE))
    listed = min(MOST_LISTED_AT_ONCE, room)
    return RowShape(
        any(block.weights is not None for block in blocks), all(block.values is None for block in blocks),
        len(columns.numbers), columns.words, listed, room == listed, 1 if longest < 1 << 8 else 4,
        features.bit_length(),
    )  # fmt: skip


def tensors_of(block: Packed, shape: RowShape, pinned: bool) -> PackedTensors:
    """A block of this shape as tensors: `pinned` if they will be copied more than once."""
    count, none = len(block.labels), np.zeros(0, np.float32)
    wide_labels = block.labels.astype(np.int32) if block.labels.dtype == np.uint16 else block.labels
    words = np.zeros(-(-len(block.keys) * shape.key_bits // 64) + 1, np.uint64)
    pack_bits(block.keys, shape.key_bits, words)
    found = (
        wide_labels, _or_ones(block.weights, count) if shape.weighted else none, block.numbers,
        block.bits.view(np.int32), block.lengths.astype(np.uint8 if shape.length_bytes == 1 else np.int32),
        words.view(np.int64), none if shape.ones else _or_ones(block.values, len(block.keys)),
    )  # fmt: skip

    def tensor(array: Any) -> Any:
        # PyTorch warns of memory that cannot be written, as blocks on disk are.
        own = torch.from_numpy(array if array.flags.writeable else array.copy())
        return own.pin_memory() if pinned and len(own) else own

    labels, weights, numbers, bits, lengths, keys, values = map(tensor, found)
    return PackedTensors(labels, weights, numbers, bits, lengths, keys, values, len(block.keys))


def to_gpu(blocks: Sequence[PackedTensors], shape: RowShape, device: Any) -> GpuRows:
    """Blocks (`tensors_of`) on the GPU, one after the other."""

    def joined(tensors: Sequence[Any]) -> Any:
        # `torch.cat` of copies would need twice the memory.
        counts = [len(tensor) for tensor in tensors]
        out = torch.empty((sum(counts), *tensors[0].shape[1:]), dtype=tensors[0].dtype, device=device)
        if out.numel():
            for part, tensor in zip(out.split(counts), tensors, strict=True):
                part.copy_(tensor, non_blocking=True)
        return out

    labels, weights, numbers, bits, lengths, _, values, num_keys = zip(*blocks, strict=True)
    copies = [joined(tensors) for tensors in (labels, weights, numbers, bits, lengths, values)]
    # After the copies, for which the bus does not wait for kernels then.
    keys, at = torch.empty(sum(num_keys), dtype=torch.int32 if shape.key_bits < 32 else torch.int64, device=device), 0
    for first in range(0, len(blocks), UNPACKED_TOGETHER):
        some = blocks[first : first + UNPACKED_TOGETHER]
        words, counts = [block.words for block in some], [block.num_keys for block in some]
        unpack(joined(words), [*map(len, words)], counts, shape.key_bits, keys[at : at + sum(counts)])
        at += sum(counts)
    all_labels, all_weights, all_numbers, all_bits, short_lengths, all_values = copies
    all_lengths = short_lengths.to(torch.int32)
    starts = torch.cumsum(all_lengths, 0, dtype=torch.int64) - all_lengths
    return GpuRows(all_labels, all_weights, all_numbers, all_bits, starts, all_lengths, keys, all_values)


def bytes_on_gpu(block: Packed, shape: RowShape) -> int:
    """What a block of this shape takes there."""
    per_row = block.labels.itemsize + BYTES_PER_START + BYTES_PER_LENGTH + 4 * (shape.numbers + shape.words)
    per_key = block.keys.itemsize + 4 * (not shape.ones)
    return len(block.labels) * (per_row + 4 * shape.weighted) + len(block.keys) * per_key


def _or_ones(given: NDArray[np.float32] | None, count: int) -> NDArray[np.float32]:
    return np.ones(count, np.float32) if given is None else given


class Runs(NamedTuple):
    """Which rows a launch is for: some runs of rows, with the first row and the size of each. The first row of a run is
    row `places` - BASE of the launch.

    `plan` [NUM_PLANNED] says the rest, on the GPU: if these numbers were arguments, Triton would compile kernels
    again for numbers that 16 divides.
    """

    starts: Any
    sizes: Any
    places: Any
    plan: Any


# The numbers of a plan: which run is the first, how many there are, how many rows of the first are left out, after how
# many rows the last one ends, and the place where the launch begins. Plans begin at multiples of 64 bytes.
NUM_PLANNED = 8


class Planned(NamedTuple):
    """A plan, here."""

    first: int
    num_runs: int
    skip: int
    last: int
    base: int


def plans_on_gpu(plans: Sequence[Planned], device: Any) -> Any:
    """The plans of some launches [launches, NUM_PLANNED], in one copy."""
    array = np.zeros((len(plans), NUM_PLANNED), np.int64)
    array[:, : len(Planned._fields)] = plans
    return copied(torch.from_numpy(array), device)


def all_runs(num_rows: int, device: Any) -> tuple[Runs, int]:
    """The runs of all rows, in their order, and how many there are."""
    starts = np.arange(0, num_rows, RUN_ROWS, dtype=np.int64)
    sizes = np.minimum(num_rows - starts, RUN_ROWS).astype(np.int32)
    found = [torch.from_numpy(array).to(device) for array in (starts, sizes)]
    plan = Planned(0, len(starts), 0, int(sizes[-1]) if len(sizes) else 0, 0)
    return Runs(found[0], found[1], found[0], plans_on_gpu([plan], device)[0]), len(starts)


@triton.jit
def rows_of_run(runs, number):
    """The first row of a run of a launch, how many there are, and the place of the first in the launch."""
    run = tl.load(runs.plan) + number
    last_run = tl.load(runs.plan + 1) - 1
    inside = number <= last_run
    start = tl.load(runs.starts + run, inside, other=0)
    size = tl.load(runs.sizes + run, inside, other=0).to(tl.int64)
    place = tl.load(runs.places + run, inside, other=0) - tl.load(runs.plan + 4)
    size = tl.where(number == last_run, tl.load(runs.plan + 3), size)
    skip = tl.where(number == 0, tl.load(runs.plan + 2), 0)
    return start + skip, tl.maximum(size - skip, 0), place + skip


@triton.jit
def listed_nonzeros(rows, first, length, k, ONES: tl.constexpr):
    """The nonzeros number `k` of rows that list `length` of them from `first` on: keys, values, and which are there."""
    there = k < length
    key = tl.load(rows.keys + first + k, there, other=0).to(tl.int64)
    value = there.to(tl.float32) if ONES else tl.load(rows.key_values + first + k, there, other=0.0)
    return key, value, there


@triton.jit
def num_chunks(longest, LISTED: tl.constexpr, ONE_CHUNK: tl.constexpr):
    """In how many chunks rows are read that list at most `longest` nonzeros. Loops over one chunk are not loops."""
    if ONE_CHUNK:
        return 1
    else:
        return tl.cdiv(longest, LISTED)
