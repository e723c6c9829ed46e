"""What do the kernels of all models have in common? What they are given, and what a run asks of them."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.data.sparse.batch import Batch
from paceline.kernels.packing import BITS
from paceline.kernels.private import mean_products
from paceline.torch.model import torch
from paceline.torch.sparse.rows import MOST_HOT, MOST_NUMBERS, GpuRows, HotColumns, RowShape, Runs
from paceline.torch.sparse.table import GpuTable, NumberedTable
from paceline.torch.sparse.triton_ import triton
from paceline.torch.sparse.updates import RuleNumbers

# Of the bound that `mean_products` gives, this much counts. With less than half, steps could go further beyond the
# optimum with every launch; with all of it, they learn more slowly (decision 0037).
TOGETHER = 0.5
# How NVIDIA's processors share their registers and their memory among programs.
THREADS_PER_WARP, REGISTERS_TOGETHER = 32, 256
MOST_PROGRAMS_PER_PROCESSOR, RESERVED_SHARED_BYTES = 32, 1024


class Hot(NamedTuple):
    """The keys that are columns; the bias is the last of those with numbers. `bent` is the curvature of the loss by the
    weight of each of the hottest keys (`updates.py`).
    """

    number_keys: Any
    number_bent: Any
    bit_keys: Any
    bit_bent: Any
    num_bits: int
    bent: Any
    num_bent: int


class Launch(NamedTuple):
    """How a kernel is launched: the rules of the table's groups, how many rows are trained on at the same time, and by
    how many programs, how many runs each program has, how many programs there are, and where each notes the sum of its
    losses.
    """

    rules: tuple[RuleNumbers, ...]
    in_flight: float
    programs_in_flight: float
    runs_per_program: int
    num_programs: int
    losses: Any


class Loops(Protocol):
    """The kernels of one model.

    `most_bits` and `most_numbers` are how many columns suit it. `columns` is how many numbers say how a row moves its
    keys: the gradient of a key is its value times them, less what `segments.py` subtracts if `second` is set.
    """

    most_bits: int
    most_numbers: int
    columns: int
    second: bool

    def __init__(self, model: Any) -> None: ...

    def train(self, table: GpuTable, rows: GpuRows, shape: RowShape, runs: Runs, hot: Hot, launch: Launch) -> Any:
        """An update by each row, in any order, at the same time. Returns the compiled kernel, if there is one."""

    def measure(self, table: GpuTable | NumberedTable, rows: GpuRows, shape: RowShape, runs: Runs, launch: Launch,
                out: Any, scores_only: bool) -> None:  # fmt: skip
        """For rows without columns: what says how a row moves its keys [rows, columns], or only its scores."""


def room_for_columns(numbers_per_key: int) -> tuple[int, int]:
    """How many columns of bits and of numbers fit into a program's registers, if each key has several numbers.

    >>> [room_for_columns(numbers) for numbers in (5, 16, 64)]
    [(64, 48), (32, 32), (0, 8)]
    """
    room = 512 // int(triton.next_power_of_2(numbers_per_key))
    return min(64, room // BITS * BITS), min(MOST_NUMBERS, room)


def programs_at_a_time(kernel: Any, processor: Any) -> int:
    """How many programs of a compiled kernel a GPU works on at the same time. `processor` are the properties of its
    device.
    """
    warps = kernel.metadata.num_warps
    registers = warps * -(-kernel.n_regs * THREADS_PER_WARP // REGISTERS_TOGETHER) * REGISTERS_TOGETHER
    most = min(
        MOST_PROGRAMS_PER_PROCESSOR,
        processor.max_threads_per_multi_processor // (THREADS_PER_WARP * warps),
        processor.regs_per_multiprocessor // max(1, registers),
        processor.shared_memory_per_multiprocessor // (kernel.metadata.shared + RESERVED_SHARED_BYTES),
    )
    return max(1, most) * int(processor.multi_processor_count)


def make_hot(
    rows: Batch, columns: HotColumns, bias: int, curvature: float, class_weights: Any, num_hot: int, device: Any
) -> Hot:
    """What kernels know of hot keys, from some rows."""
    products = np.zeros(min(num_hot, MOST_HOT) + 1, np.float32)
    mean_products(rows.offsets, rows.keys, rows.values, products)
    bent = (TOGETHER * curvature * mean_weight(rows, class_weights) * products).astype(np.float32)

    def to_gpu(found: NDArray[Any]) -> Any:
        return torch.from_numpy(np.ascontiguousarray(found if len(found) else np.zeros(1, found.dtype))).to(device)

    numbers, bits = columns
    return Hot(
        to_gpu(np.append(numbers, bias)), to_gpu(np.append(bent[numbers], bent[-1:])), to_gpu(bits), to_gpu(bent[bits]),
        len(bits), to_gpu(bent[:-1]), len(bent) - 1,
    )  # fmt: skip


def mean_weight(rows: Batch, class_weights: Any) -> float:
    """How much a row counts on average. The steps of many rows together grow by this factor."""
    if not rows.num_rows:
        return 1.0
    weights = np.ones(rows.num_rows) if rows.weights is None else rows.weights.astype(np.float64)
    if class_weights is not None:
        weights = weights * np.asarray(class_weights)[rows.labels.astype(np.int64)]
    return float(weights.mean())
