"""What can a model predict? Each task has labels that it is for, and metrics that say how good predictions are."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Metric(NamedTuple):
    """How a metric is called in tables and on pages, and which direction is better, if any."""

    label: str
    better: Literal["high", "low"] | None


METRICS = {
    "loss": Metric("loss", "low"),
    "baseline_loss": Metric("baseline", None),
    "error": Metric("error", "low"),
    "deviance": Metric("deviance", "low"),
    "mae": Metric("MAE", "low"),
    "r2": Metric("R²", "high"),
    "rmse": Metric("RMSE", "low"),
    "macro_f1": Metric("macro F1", "high"),
    "auc": Metric("AUC", "high"),
    "accuracy": Metric("accuracy", "high"),
}


class Task(NamedTuple):
    """What a model predicts: the kinds of labels it is for, and its metrics (keys of `METRICS`) in the order in which
    they are shown. The last one is the one that people compare first.

    `baseline_loss` is the loss of the best constant prediction for the same rows. For models over sparse rows: `sums`,
    "module:function", makes what adds up the metrics, and `column` is the name of predictions in the files that
    `paceline predict` writes.
    """

    name: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    sums: str = ""
    column: str = ""

    def needs_labels(self, who: str) -> str:
        """A clause that says which labels a model needs."""
        return f"{who} needs labels of kind {' or '.join(f'`{kind}`' for kind in self.labels)}"


SUMS = "paceline.models.metrics:"
TWO_CLASSES = Task(
    "two-classes", ("two-classes",), ("loss", "baseline_loss", "error", "auc"), f"{SUMS}TwoClassSums", "probability"
)
MARGINS = TWO_CLASSES._replace(column="score")
CLASSES = Task(
    "classes", ("classes", "two-classes"), ("loss", "baseline_loss", "error", "macro_f1", "accuracy"),
    f"{SUMS}ClassSums", "probability",
)  # fmt: skip
NUMBERS = Task(
    "numbers", ("numbers", "two-classes"), ("loss", "baseline_loss", "mae", "r2", "rmse"), f"{SUMS}NumberSums",
    "prediction",
)  # fmt: skip
COUNTS = NUMBERS._replace(
    metrics=("loss", "baseline_loss", "mae", "r2", "rmse", "deviance"), sums=f"{SUMS}CountSums"
)  # fmt: skip
