"""PyTorch modules: one with a buffer that training moves, and one that ONNX cannot hold."""

from __future__ import annotations

import torch
from torch import nn


def normalised(shape: tuple[int, int, int], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(shape[2], 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, classes),
    )  # fmt: skip


class Eigenvalues(nn.Module):
    """An operator that exporters of the older kind do not know."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.linalg.eigvals(pixels[:, :, :4, :4]).real.flatten(1)
        return found


def spectral(shape: tuple[int, int, int], classes: int) -> nn.Module:
    return nn.Sequential(Eigenvalues(), nn.Linear(4 * shape[2], classes))
