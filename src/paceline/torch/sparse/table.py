"""Parameters by key on a GPU: the counterpart of `parameters/keyed.py`, with the same rows of numbers per key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from paceline.errors import ConfigError
from paceline.kernels.tables import read_all
from paceline.parameters.keyed import KeyedStore
from paceline.parameters.layout import Group, TableLayout
from paceline.parameters.optimizers import gpu_update_of, rule_at
from paceline.parameters.scratch import MOST_KEYS
from paceline.parameters.store import Floats
from paceline.torch.model import torch
from paceline.torch.sparse.triton_ import free_memory, interpreted, tl, triton
from paceline.torch.sparse.updates import RuleNumbers, moves, rule_numbers, shrunk, step_of, value_of, with_decay

KEYS_PER_PROGRAM = 64
SMALLER_TABLE = "--device cpu, data with fewer features (--hash-bits), or --optimizer sgd, which needs the least"
ROW_WISE = tl.constexpr("row-wise")


class GroupOnGpu(NamedTuple):
    """Columns of a table, as kernels know them: the update (`updates.py`), where they begin in a row of numbers, how
    many there are, and whether they have an L1 or L2 penalty. Their memory is behind them; row-wise, it is one number.
    """

    kind: str
    first: int
    dim: int
    has_l1: bool
    has_l2: bool


class GpuTable:
    """All keys of a model in one tensor [keys, width]. Kernels train on `numbers`, flat."""

    def __init__(
        self, layout: TableLayout, device: Any, hot_keys: Sequence[int] = (), hint: str = SMALLER_TABLE
    ) -> None:
        """`hint` is what to do if it does not fit into the GPU's memory."""
        self.layout = layout
        self.size = layout.num_keys
        self.width, self.dim = layout.width, layout.dim
        self.device = device
        self._hot_keys = hot_keys
        check_gpu_memory(4 * self.size * self.width, f"{layout.features:,} features", device, hint)
        firsts = np.cumsum([0, *(group.width for group in layout.groups)])
        self.groups = tuple(_on_gpu(group, int(first)) for group, first in zip(layout.groups, firsts, strict=False))
        self.numbers: Any = None
        self.begin()

    def begin(self) -> None:
        if self.layout.is_drawn or self.layout.bias_start:
            self.numbers = torch.from_numpy(KeyedStore(self.layout, hot_keys=self._hot_keys).table).to(self.device)
        else:
            self.numbers = torch.zeros(self.size * self.width, device=self.device)

    def rules_at(self, rows: int) -> tuple[RuleNumbers, ...]:
        """The rule of each group after `rows` rows."""
        trained = rows + self.layout.rows_before
        return tuple(rule_numbers(rule_at(group.optimizer, trained)) for group in self.layout.groups)

    def gather(self, keys: Any, out: Any) -> None:
        keys = _tensor(keys).to(self.device).long()
        states = self.numbers.view(self.size, self.width)[keys].cpu().numpy().reshape(-1)
        is_bias = (keys == self.layout.bias_key).cpu().numpy() & self.layout.bias
        found = np.empty(len(keys) * self.dim, np.float32)
        read_all(*self.layout.rules_at(0), states, int(is_bias.argmax()) if is_bias.any() else -1, found)
        torch.as_tensor(out).copy_(torch.from_numpy(found))

    def warm_up(self) -> None:
        """Compile or load the kernel of updates; changes nothing."""
        none = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._launch(none, 0, torch.zeros(self.dim, device=self.device), 1, 0)

    def apply(self, keys: Any, sums: Any, rows: int, trained: int) -> None:
        if not rows or not len(keys):
            return
        keys, sums = (_tensor(given).to(self.device) for given in (keys, sums))
        self._launch(keys, len(keys), sums, rows, trained)

    def _launch(self, keys: Any, num_keys: int, sums: Any, rows: int, trained: int) -> None:
        grid, column = (max(1, triton.cdiv(num_keys, KEYS_PER_PROGRAM)),), 0
        for group, rule in zip(self.groups, self.rules_at(trained), strict=True):
            update_group[grid](
                self.numbers, self.width, group.first, keys, num_keys, self.layout.bias_key, sums, self.dim, column,
                1 / rows, rule, group.kind, group.has_l1, group.has_l2, group.dim,
                triton.next_power_of_2(group.dim), KEYS_PER_PROGRAM,
            )  # fmt: skip
            column += group.dim

    def fold(self, pushes: Sequence[tuple[Any, Any]], rows: int, trained: int) -> None:
        if not rows or not pushes:
            return
        keys = torch.cat([_tensor(keys).to(self.device).long() for keys, _ in pushes])
        distinct, places = torch.unique(keys, return_inverse=True)
        sums, at = torch.zeros((len(distinct), self.dim), device=self.device), 0
        for own, more in pushes:
            # The keys of a push are distinct, so that nothing depends on the order of threads.
            chosen = places[at : at + len(own)]
            sums[chosen] += _tensor(more).to(self.device).view(-1, self.dim)
            at += len(own)
        self.apply(distinct, sums.view(-1), rows, trained)

    def read(self, start: int, count: int, trained: int) -> Floats:
        out, bias = np.empty(count * self.dim, np.float32), self.layout.bias_key - start
        read_all(*self.layout.rules_at(trained), self.part(start, start + count).reshape(-1),
                 bias if self.layout.bias and 0 <= bias < count else -1, out)  # fmt: skip
        return out

    @property
    def states(self) -> Floats:
        return self.part(0, self.size)

    def part(self, start: int, stop: int) -> Floats:
        found: Floats = self.numbers[start * self.width : stop * self.width].cpu().numpy().reshape(-1, self.width)
        # The interpreter's tensors are memory of this process.
        return found.copy() if interpreted() else found

    def load(self, start: int, states: Floats) -> None:
        flat = torch.from_numpy(np.ascontiguousarray(states, np.float32).reshape(-1))
        self.numbers[start * self.width : start * self.width + len(flat)].copy_(flat)

    def rearrange(self, change: Callable[[Floats], Any]) -> None:
        """Change the order of the states [size, width] by a function that does it in place."""
        states = self.states
        change(states)
        self.load(0, states)


class NumberedKeys(NamedTuple):
    """The numbers of a batch's keys, which stand for keys: the bias has the first, and none is unknown.

    Kernels are compiled for these, so they are the same for all batches.
    """

    bias_key: int = 0
    features: int = MOST_KEYS + 1


class NumberedTable(NamedTuple):
    """The values of a batch's keys by number [numbers, dim], flat: a table to read, for kernels that train nothing."""

    numbers: Any
    width: int
    groups: tuple[GroupOnGpu, ...]
    layout: NumberedKeys = NumberedKeys()


def plain_groups(layout: TableLayout) -> tuple[GroupOnGpu, ...]:
    """The groups of a table for values alone, without an optimizer's memory."""
    firsts = np.cumsum([0, *(group.dim for group in layout.groups)])
    pairs = zip(layout.groups, firsts, strict=False)
    return tuple(GroupOnGpu("sgd", int(first), group.dim, False, False) for group, first in pairs)


def _on_gpu(group: Group, first: int) -> GroupOnGpu:
    kind, settings = gpu_update_of(group.optimizer, by_key=True), group.optimizer
    return GroupOnGpu(kind, first, group.dim, bool(settings.l1), bool(settings.l2))


def _tensor(given: Any) -> Any:
    if isinstance(given, np.ndarray):
        return torch.from_numpy(given.astype(np.int64) if given.dtype.kind == "u" else given)
    return given


def check_gpu_memory(needed: int, what: str, device: Any, hint: str = SMALLER_TABLE) -> None:
    """Refuse what does not fit into the GPU's memory."""
    if device.type != "cuda":
        return
    free, total = free_memory(device), torch.cuda.mem_get_info(device)[1]
    if needed > free:
        raise ConfigError(
            f"{what} need {needed / 1e9:.1f} GB on the GPU, of whose {total / 1e9:.1f} GB {free / 1e9:.1f} are free",
            hint,
        )


@triton.jit(do_not_specialize=["num_keys"])
def update_group(numbers, width, first, keys, num_keys, bias, sums, dim, column, per_row, rule, KIND: tl.constexpr,
                 HAS_L1: tl.constexpr, HAS_L2: tl.constexpr, COLUMNS: tl.constexpr, PADDED: tl.constexpr,
                 KEYS: tl.constexpr):  # fmt: skip
    """One update of distinct keys by the mean gradients of a batch, for the columns of one group."""
    index = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    c = tl.arange(0, PADDED)
    known = index < num_keys
    mask = known[:, None] & (c[None, :] < COLUMNS)
    key = tl.load(keys + index, known, other=0).to(tl.int64)
    at = key[:, None] * width + first + c[None, :]
    regularised = (key != bias).to(tl.float32)[:, None]
    l1, l2 = rule.l1 * regularised, rule.l2 * regularised
    value = value_of(KIND, numbers, at, COLUMNS, rule, l1, l2, mask)
    total = tl.load(sums + index.to(tl.int64)[:, None] * dim + column + c[None, :], mask, other=0.0) * per_row
    total, squares = with_decay(KIND, HAS_L2, value, total, total * total, 1, l2)
    if KIND == ROW_WISE:
        memory = (key * width + first + COLUMNS)[:, None]
        squares = tl.sum(tl.where(mask, squares, 0.0), 1)[:, None] / COLUMNS
        before = tl.load(numbers + memory, known[:, None], other=0.0)
        tl.store(numbers + memory, before + squares, known[:, None])
    elif KIND == "sgd":
        before = tl.zeros_like(squares)
    else:
        before = tl.load(numbers + at + COLUMNS, mask, other=0.0)
        tl.store(numbers + at + COLUMNS, before + squares, mask)
    step, share = step_of(KIND, before, squares, rule, l2, 0.0, 1.0)
    moved = moves(KIND, value, total, before, squares, step, share, rule)
    if HAS_L1 and KIND != "ftrl":
        moved = shrunk(value + moved, step * l1) - value
    state = tl.load(numbers + at, mask, other=0.0)
    tl.store(numbers + at, state + moved, mask)
