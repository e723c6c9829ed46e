"""Dense parameters on a GPU, with what the optimizer remembers of them: the counterpart of `parameters/dense.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from paceline.imports import import_from
from paceline.parameters.layout import DenseLayout
from paceline.parameters.optimizers import gpu_update_of
from paceline.parameters.store import Floats, Numbers
from paceline.torch.model import torch

if TYPE_CHECKING:
    from torch import Tensor


class TorchStore:
    """All dense values of a model as a tensor [width, values]. Takes tensors, and arrays as well."""

    dim = 1

    def __init__(self, layout: DenseLayout, device: str) -> None:
        self.layout = layout
        self.size = layout.num_values
        self.width = layout.width
        self._update = import_from(gpu_update_of(layout.optimizer))
        self._planes: Tensor = torch.zeros((layout.width, layout.num_values), device=device)

    @property
    def values(self) -> Tensor:
        return self._planes[0]

    @property
    def states(self) -> Floats:
        return self._planes.T.cpu().numpy()

    def begin(self, values: Floats | float = 0.0) -> None:
        self._planes.zero_()
        self._planes[0].copy_(torch.as_tensor(values))

    def load(self, start: int, states: Floats) -> None:
        own = torch.as_tensor(np.ascontiguousarray(states.T))
        self._planes[:, start : start + len(states)].copy_(own)

    def part(self, start: int, stop: int) -> Floats:
        return np.ascontiguousarray(self._planes[:, start:stop].cpu().numpy().T)

    def read(self, start: int, count: int, trained: int) -> Floats:
        return self._planes[0, start : start + count].cpu().numpy()

    def make_sums(self, count: int) -> Tensor:
        sums: Tensor = torch.zeros((count, self.size), device=self._planes.device)
        return sums

    def gather(self, start: int, out: Numbers) -> None:
        torch.as_tensor(out).copy_(self._planes[0, start : start + len(out)])

    def apply(self, start: int, sums: Numbers, rows: int, trained: int) -> None:
        if not rows:
            return
        given = self._tensor(sums)
        count = min(len(given), max(0, self.layout.num_trained - start))
        if count:
            rule = self.layout.rule_at(trained)
            self._update(rule, self._planes[:, start : start + count], given[:count] * (1 / rows))
        if count < len(given):
            self._planes[0, start + count : start + len(given)].sub_(given[count:], alpha=1 / rows)

    def fold(self, pushes: Sequence[tuple[int, Numbers]], rows: int, trained: int) -> None:
        if not rows:
            return
        (start, first), *others = pushes
        total = self._tensor(first)
        for _, more in others:
            total += self._tensor(more)
        self.apply(start, total, rows, trained)

    def _tensor(self, numbers: Numbers) -> Tensor:
        """These numbers on the store's device."""
        found: Tensor = torch.as_tensor(numbers, device=self._planes.device)
        return found
