"""Linear models with one score per class over sparse rows: multinomial logistic regression, under the softmax loss.

The table has one column per class. The bias of each class is the weight of one more key, numbered `features`, that
every row has with value 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.data.labels import Labels
from paceline.data.sparse.batch import Batch
from paceline.kernels.multinomial import Multinomial, gradient, score
from paceline.kernels.row_loop import train_rows
from paceline.models.images import cross_entropy
from paceline.models.losses import PLAIN, CrossEntropy, LabelUnits, Scales
from paceline.models.metrics import ClassSums, MetricSums
from paceline.models.model import Compute, Floats, Parameters, Step, Tensor
from paceline.models.sparse import Columns, table_layout
from paceline.models.tasks import CLASSES, Task
from paceline.parameters.layout import Layout
from paceline.settings import RunConfig


class MultinomialModel:
    """A linear model with one score per class in a run. Each worker has a part of it, with memory of its own."""

    tensors: tuple[Tensor, ...] = ()
    fingerprint = ""
    scoring_threads = knows_start = True
    curvature: float | None = None
    operations = "paceline.models.step_operations:StepParts"
    loops_on_gpu = "paceline.torch.sparse.multinomial:MultinomialLoops"

    def __init__(self, config: RunConfig, features: int, labels: Labels, _scales: Scales = PLAIN,
                 weights: Floats | None = None, _start_loss: float = 0.0) -> None:  # fmt: skip
        """`weights` are those of the classes in training. A table of one class would have nothing to learn."""
        self._classes, self._weights = max(2, labels.classes), weights
        self.start_loss = math.log(self._classes)
        self.label_units = LabelUnits(class_weights=weights)
        self._said = {
            "features": features, "loss": msgspec.to_builtins(config.loss), "class_names": list(labels.names),
        }  # fmt: skip
        self.layout = Layout(table_layout((Columns("weight", self._classes),), config, features, bias=True))
        self.train_rows = train_rows
        self.output = ClassesOutput(labels.names)
        self.shapes = {"weight": (features, self._classes), "bias": (self._classes,)}

    def make_kernel(self) -> Multinomial:
        return Multinomial(np.zeros(self._classes, np.float32), self._weights)

    def initial(self) -> Floats:
        return np.zeros(0, np.float32)

    def compute(self) -> Compute:
        return MultinomialCompute(self.make_kernel())

    def scores(self, parameters: Parameters, rows: Batch) -> Floats:
        view = parameters.table
        assert view is not None
        out, layout = np.empty((rows.num_rows, self._classes), np.float32), view.layout
        score(*view.rules, view.rows, layout.features, layout.features, rows.offsets, rows.keys, rows.values, out)
        return out

    def save(self, parameters: Parameters) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        view = parameters.table
        assert view is not None
        table = view.rows.reshape(-1, self._classes)
        return {"weight": table[:-1], "bias": table[-1]}, self._said


class MultinomialCompute:
    """Computes gradients for one worker."""

    use_threads = None
    filled: Callable[[int], None] | None = None
    holds_values = False

    def __init__(self, kernel: Multinomial) -> None:
        self._kernel = kernel

    def gradient(self, step: Step) -> float:
        rows = step.rows
        return gradient(
            self._kernel, rows.offsets, step.local, rows.values, rows.labels, rows.weights, rows.fields, step.weights,
            step.sums,
        )  # fmt: skip


class ClassesOutput(NamedTuple):
    """What scores of classes mean: a probability per class, and the name of the most probable one."""

    names: tuple[str, ...]
    task: Task = CLASSES
    loss: Any = CrossEntropy()

    @property
    def num_classes(self) -> int:
        return len(self.names)

    def metric_sums(self) -> MetricSums:
        return ClassSums(cross_entropy)

    def probabilities(self, scores: Floats) -> Floats:
        shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
        result: Floats = shifted / shifted.sum(axis=1, keepdims=True)
        return result

    def predict(self, scores: Floats) -> dict[str, NDArray[Any]]:
        found = self.probabilities(scores)
        best = found.argmax(axis=1)
        return {"class": np.array(self.names)[best], "probability": found.max(axis=1)}
