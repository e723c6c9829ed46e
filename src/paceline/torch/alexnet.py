"""AlexNet (Krizhevsky, Sutskever and Hinton, 2012) in the form for one GPU, and a small one for small images.

Five convolutions and three dense layers, ReLU after each but the last, pooling after the first, second and fifth, and
dropout before the first two dense layers. With 1,000 classes it has 61,100,840 weights. The models'
entries name these functions; `torch/model.py` imports them, once it knows that there is a PyTorch.
"""

from __future__ import annotations

import torch
from torch import nn


class Centred(nn.Module):
    """Pixels from 0 to 1 become numbers around 0."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return (images - 0.5) * 4


def alexnet(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The large one: for images of 63 × 63 pixels or more; 224 × 224 in the paper."""
    return _started(nn.Sequential(
        Centred(),
        nn.Conv2d(shape[2], 64, 11, stride=4, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(inplace=True),
        nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(inplace=True),
        nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
        nn.AdaptiveAvgPool2d(6), nn.Flatten(),
        nn.Dropout(), nn.Linear(256 * 36, 4096), nn.ReLU(inplace=True),
        nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(inplace=True),
        nn.Linear(4096, classes),
    ))  # fmt: skip


def alexnet_small(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The same layers with fewer and smaller filters and no dropout, for images of 8 × 8 pixels or more, such as
    CIFAR-10's.
    """
    return _started(nn.Sequential(
        Centred(),
        nn.Conv2d(shape[2], 16, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(32, 48, 3, padding=1), nn.ReLU(inplace=True),
        nn.Conv2d(48, 32, 3, padding=1), nn.ReLU(inplace=True),
        nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(32 * 4, 128), nn.ReLU(inplace=True),
        nn.Linear(128, 64), nn.ReLU(inplace=True),
        nn.Linear(64, classes),
    ))  # fmt: skip


def _started(module: nn.Module) -> nn.Module:
    """Weights so large that what goes through eight layers neither fades nor grows (He et al., 2015); no biases."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module
