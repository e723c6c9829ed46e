"""Dense parameters on a GPU, with what the optimizer remembers of them: the counterpart of `parameters/dense.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.parameters.layout import DenseLayout
from paceline.torch.model import import_torch
from paceline.torch.optimizers import UPDATES

Floats = NDArray[np.float32]


class TorchStore:
    """All dense values of a model as a tensor [width, values]; what `DenseStore` has as arrays, it has as tensors."""

    def __init__(self, layout: DenseLayout, device: str) -> None:
        self._torch = import_torch()
        self.layout = layout
        self.size = layout.num_values
        self.width = layout.width
        self._planes = self._torch.zeros((layout.width, layout.num_values), device=device)

    @property
    def values(self) -> Any:
        return self._planes[0]

    @property
    def states(self) -> Floats:
        """As checkpoints have them, [values, width]; a copy."""
        states: Floats = self._planes.T.cpu().numpy()
        return states

    def begin(self, values: Floats) -> None:
        """Let the store be as a run begins, with these values."""
        self._planes.zero_()
        self._planes[0].copy_(self._torch.from_numpy(values))

    def load(self, start: int, states: Floats) -> None:
        """Put states [n, width] in place from value `start` on."""
        own = self._torch.from_numpy(np.ascontiguousarray(states.T))
        self._planes[:, start : start + len(states)].copy_(own)

    def part(self, start: int, stop: int) -> Floats:
        """States [n, width] of the values from `start` to `stop`, as they go over a wire."""
        return np.ascontiguousarray(self._planes[:, start:stop].cpu().numpy().T)

    def copy_of_values(self) -> Floats:
        values: Floats = self._planes[0].cpu().numpy()
        return values

    def make_sums(self, count: int) -> Any:
        """Room for this many gradients."""
        return self._torch.zeros((count, self.size), device=self._planes.device)

    def copy_values_to(self, own: Any) -> None:
        own.copy_(self._planes[0])

    def add(self, total: Any, more: Any, start: int, stop: int) -> None:
        """Add a gradient to another, from `start` to `stop`."""
        total[start:stop] += more[start:stop]

    def apply(self, start: int, sums: Any, rows: int, trained: int) -> None:
        """Update the values from `start` on by the mean over the rows of gradients whose `sums` are given."""
        count = min(len(sums), max(0, self.layout.num_trained - start))
        if count:
            rule = self.layout.rule_at(trained)
            UPDATES[type(rule)](rule, self._planes[:, start : start + count], sums[:count] * (1 / rows))
        if count < len(sums):
            self._planes[0, start + count : start + len(sums)].sub_(sums[count:], alpha=1 / rows)

    def warm_up(self) -> None:
        """Nothing needs to be compiled."""
