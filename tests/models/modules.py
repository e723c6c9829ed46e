"""Modules that tests give to `--model tests.models.modules:FUNCTION`."""

from __future__ import annotations

import torch
from paceline.machine import num_cores
from torch import nn


def plain(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Nothing random, nothing kept: a convolution and a dense layer."""
    return nn.Sequential(
        nn.Conv2d(shape[2], 4, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(4 * (shape[0] // 2) * (shape[1] // 2), classes),
    )  # fmt: skip


def normalised(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """With batch normalisation, which keeps averages."""
    return nn.Sequential(
        nn.Conv2d(shape[2], 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
        nn.Linear(4 * shape[0] * shape[1], classes),
    )  # fmt: skip


def with_loss(shape: tuple[int, int, int], classes: int) -> tuple[nn.Module, nn.Module]:
    return plain(shape, classes), nn.CrossEntropyLoss(label_smoothing=0.1)


def picky_loss(shape: tuple[int, int, int], classes: int) -> tuple[nn.Module, object]:
    def loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if len(labels) != 10:
            raise RuntimeError("ten rows, please")
        return nn.functional.cross_entropy(scores, labels)

    return plain(shape, classes), loss


class Watchful(nn.Module):
    """Trains only on half of the cores."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(144, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training and torch.get_num_threads() != max(1, num_cores() // 2):
            raise RuntimeError(f"{torch.get_num_threads()} threads")
        scores: torch.Tensor = self.layer(images.flatten(1))
        return scores


def half_of_the_cores(classes: int) -> nn.Module:
    return Watchful(classes)


def for_ten() -> nn.Module:
    """Knows nothing of the data."""
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 10))


def no_module() -> int:
    return 3


def five_numbers(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(100, 5))


class Random(nn.Module):
    """Says something else each time, unless it is told what is random."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(144, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layer(nn.functional.dropout(images.flatten(1), 0.5, self.training))
        return scores


def with_dropout(classes: int) -> nn.Module:
    return Random(classes)


class PartlyFrozen(nn.Module):
    """A layer that is not trained, one that is, and a mask that is infinite."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(144, 8).requires_grad_(False)
        self.last = nn.Linear(8, classes)
        self.register_buffer("mask", torch.full((2,), -torch.inf))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(self.frozen(images.flatten(1)).relu())
        return scores


def partly_frozen(shape: tuple[int, int, int], classes: int) -> nn.Module:
    return PartlyFrozen(classes)


def raising() -> nn.Module:
    raise ValueError("no such luck")


def nothing_to_train(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(144, classes).requires_grad_(False))


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(144, 144)
        self.second = nn.Linear(144, 144)
        self.second.weight = self.first.weight
        self.last = nn.Linear(144, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(self.second(self.first(images.flatten(1)).tanh()).tanh())
        return scores


def tied(classes: int) -> nn.Module:
    return Tied(classes)


def wider(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """As `plain`, with other tensors."""
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))


class OnlyTested(nn.Module):
    """Works until it is trained."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(144, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            raise ValueError("no gradients today")
        scores: torch.Tensor = self.layer(images.flatten(1))
        return scores


def only_tested(classes: int) -> nn.Module:
    return OnlyTested(classes)


def loss_of_each(shape: tuple[int, int, int], classes: int) -> tuple[nn.Module, nn.Module]:
    return plain(shape, classes), nn.CrossEntropyLoss(reduction="none")
