"""What do the kernels of all models have in common? What they are given, and what a run asks of them."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.private import mean_products
from paceline.torch.model import torch
from paceline.torch.sparse.rows import MOST_HOT, GpuRows, HotColumns, RowShape, Runs
from paceline.torch.sparse.table import GpuTable, NumberedTable
from paceline.torch.sparse.updates import RuleNumbers

# Of the bound that `mean_products` gives, this much counts. With less than half, steps could go further beyond the
# optimum with every launch; with all of it, they learn more slowly (decision 0037).
TOGETHER = 0.5


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
    """How a kernel is launched: the rules of the table's groups, how many rows are trained on at the same time, how
    many runs each program has, how many programs there are, and where each notes the sum of its losses.
    """

    rules: tuple[RuleNumbers, ...]
    in_flight: float
    runs_per_program: int
    num_programs: int
    losses: Any


class Loops(Protocol):
    """The kernels of one model.

    `most_bits` is how many columns of bits suit it, and `programs_per_processor` how many programs a processor of the
    GPU works on at a time: as many as have room in its registers. `columns` is how many numbers say how a row moves
    its keys: the gradient of a key is its value times them, less what `segments.py` subtracts if `second` is set.
    """

    most_bits: int
    programs_per_processor: int
    columns: int
    second: bool

    def __init__(self, model: Any) -> None: ...

    def train(self, table: GpuTable, rows: GpuRows, shape: RowShape, runs: Runs, hot: Hot, launch: Launch) -> None:
        """An update by each row, in any order, at the same time."""

    def measure(self, table: GpuTable | NumberedTable, rows: GpuRows, shape: RowShape, runs: Runs, launch: Launch,
                out: Any, scores_only: bool) -> None:  # fmt: skip
        """For rows without columns: what says how a row moves its keys [rows, columns], or only its scores."""


def make_hot(rows: Any, columns: HotColumns, bias: int, curvature: float, num_hot: int, device: Any) -> Hot:
    """What kernels know of hot keys, from some rows."""
    products = np.zeros(min(num_hot, MOST_HOT) + 1, np.float32)
    mean_products(rows.offsets, rows.keys, rows.values, products)
    bent = (TOGETHER * curvature * products).astype(np.float32)

    def to_gpu(found: NDArray[Any]) -> Any:
        return torch.from_numpy(np.ascontiguousarray(found if len(found) else np.zeros(1, found.dtype))).to(device)

    numbers, bits = columns
    return Hot(
        to_gpu(np.append(numbers, bias)), to_gpu(np.append(bent[numbers], bent[-1:])), to_gpu(bits), to_gpu(bent[bits]),
        len(bits), to_gpu(bent[:-1]), len(bent) - 1,
    )  # fmt: skip
