"""A PyTorch module with a buffer that training moves."""

from __future__ import annotations

from torch import nn


def normalised(shape: tuple[int, int, int], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(shape[2], 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, classes),
    )  # fmt: skip
