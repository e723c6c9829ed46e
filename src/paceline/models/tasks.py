"""What is predicted? A task says which labels it is for, what is measured, and which metric people compare first."""

from __future__ import annotations

from typing import NamedTuple


class Task(NamedTuple):
    """What a model predicts: the kinds of labels it is for, and its metrics in the order in which they are shown."""

    name: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    headline: str


TWO_CLASSES = Task("two-classes", ("two-classes",), ("loss", "error", "auc"), "auc")
CLASSES = Task("classes", ("classes",), ("loss", "error", "accuracy"), "accuracy")
NUMBERS = Task("numbers", ("numbers", "two-classes"), ("loss", "rmse"), "rmse")
