"""What can be asked of parameters, wherever they live? One protocol for all stores.

`keyed.py` has the table of one process and the slice of it that a shard keeps, `dense.py` dense values in memory, and
`torch/store.py` dense values on a GPU. `tests/conformance/test_stores.py` runs all of them through the same checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Never, Protocol, TypeVar

import numpy as np
import psutil
from numpy.typing import NDArray

from paceline.errors import ConfigError
from paceline.parameters.layout import TableLayout

Floats = NDArray[np.float32]


class Numbers(Protocol):
    """Float32 numbers, or rows of them: a NumPy array, or a PyTorch tensor where the store has its values."""

    def __len__(self) -> int: ...
    def __getitem__(self, which: int | slice, /) -> Numbers: ...
    def __array__(self) -> NDArray[Any]: ...


Where = TypeVar("Where", contravariant=True)
Array = TypeVar("Array", contravariant=True)


class Store(Protocol[Where, Array]):
    """`size` parameters. Each has a state of `width` numbers, which gives its `dim` values.

    `Where` says which parameters are meant: the indices of distinct keys, or the first of a range of dense values that
    is as long as the `Array` that goes with it. Arrays are flat.
    """

    size: int
    width: int
    dim: int

    def begin(self) -> None:
        """Set a table to its initial values, and dense values to zeros; the model loads those that it begins with."""

    def gather(self, where: Where, out: Array) -> None:
        """Copy values to `out`."""

    def apply(self, where: Where, sums: Array, rows: int, trained: int) -> None:
        """Update parameters by the mean gradient over `rows` rows, whose `sums` are given, after `trained` rows.

        Without rows, nothing changes.
        """

    def fold(self, pushes: Sequence[tuple[Where, Array]], rows: int, trained: int) -> None:
        """One update by the mean gradient over the rows of all pushes, added up in their order.

        Pushes to dense values are all for the same range, and the first one may be changed.
        """

    def read(self, start: int, count: int, trained: int) -> Floats:
        """`count` parameters' values from index `start` on, after `trained` rows; may be a view."""

    @property
    def states(self) -> Floats:
        """All states [size, width], as checkpoints have them; may be a view."""

    def part(self, start: int, stop: int) -> Floats:
        """States [n, width] that can be sent over a wire."""

    def load(self, start: int, states: Floats) -> None:
        """Replace the states [n, width] from index `start` on."""


AnyStore = Store[Never, Never]
"""A store of any kind, for code that moves states and does not compute with values."""


class TableStore(Store[Never, Never], Protocol):
    """All parameters by key of a model, where one process trains them."""

    layout: TableLayout

    def rearrange(self, change: Callable[[Floats], Any]) -> None:
        """Change the order of the states [size, width] by a function that does it in place."""


class CompiledStore(Store[Never, Never], Protocol):
    """A store in memory, whose loops are compiled."""

    def warm_up(self) -> None:
        """Load or compile the loops; changes nothing."""


class DenseValues(Store[int, Numbers], Protocol):
    """All dense values of a model, which workers of this process compute with where they lie."""

    def begin(self, values: Floats | float = 0.0) -> None:
        """Set the values to these, and what the optimizer remembers to zeros."""

    @property
    def values(self) -> Numbers:
        """The values; a view."""

    def make_sums(self, count: int) -> Numbers:
        """Space for `count` gradients [count, size]: zeros."""


def check_memory(needed_bytes: int, what: str, hint: str) -> None:
    """Refuse a model for which there is not enough memory."""
    available = psutil.virtual_memory().available
    if needed_bytes > available:
        raise ConfigError(
            f"a model of {what} needs {needed_bytes / 1e9:.1f} GB, {available / 1e9:.1f} GB are free", hint
        )
