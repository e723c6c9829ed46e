"""Which numbers of a run are shown? Declared once, for pages, comparisons and the tables of sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from paceline.models.registry import METRICS
from paceline.reports.units import quantity

NOTHING = "–"


class Measure(NamedTuple):
    """One number of `result.json`: its name in tables, where it is, its label on pages, how it is formatted, which
    direction is better, whether a page shows it at a glance, and whether a table on a terminal shows it.
    """

    name: str
    path: tuple[str, ...]
    label: str
    form: str = ","
    better: Literal["high", "low"] | None = None
    at_a_glance: bool = False
    on_terminal: bool = False
    unit: float = 1.0

    def value(self, result: Mapping[str, Any]) -> Any:
        """The value in a result; None if it has none."""
        value: Any = result
        for key in self.path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def text(self, result: Mapping[str, Any]) -> str:
        """The value as text; a dash if there is none."""
        value = self.value(result)
        if value is None:
            return NOTHING
        return format(value if self.unit == 1 else value / self.unit, self.form)


# Metrics on the held-out rows. The baseline stands in sentences, beside the loss.
VALIDATION_MEASURES, TEST_MEASURES = (
    tuple(
        Measure(
            f"{rows}_{name}", (rows, name), f"{rows} {metric.label}", ".5f", metric.better, bool(metric.better), True
        )
        for name, metric in METRICS.items()
    )
    for rows in ("validation", "test")
)
# Without held-out rows, all that is known is the mean loss in training.
TRAIN_MEASURES = (
    Measure("train_loss", ("train", "loss"), "train loss", ".5f", "low", True, True),
    Measure("train_baseline_loss", ("train", "baseline_loss"), "train baseline", ".5f", on_terminal=True),
)
MEASURES = (
    Measure("status", ("status",), "status", "", on_terminal=True),
    Measure("rows", ("rows",), "rows", at_a_glance=True),
    Measure("rows_per_second", ("rows_per_second",), "rows/s", ",.0f", "high", True, True),
    Measure("train_seconds", ("train_seconds",), "seconds", ",.2f", "low", True, True),
    Measure("startup_seconds", ("startup_seconds",), "seconds to start", ",.2f", "low"),
    Measure("steps", ("steps",), "steps"),
    *VALIDATION_MEASURES,
    *TEST_MEASURES,
    *TRAIN_MEASURES,
    Measure("bytes_per_row", ("wire", "bytes_per_row"), "wire bytes per row", ",.0f", "low", True),
    Measure("max_staleness", ("max_staleness",), "largest staleness"),
    Measure("trace", ("trace",), "trace", ",.2f", at_a_glance=True, on_terminal=True),
    Measure("seconds", ("seconds",), "job seconds", ",.2f", "low", True, True),
    Measure("elements_per_second", ("elements_per_second",), "elements/s", ",.0f", "high", True, True),
    Measure("blocks_made", ("blocks_made",), "blocks made", at_a_glance=True),
    Measure("flop_per_second", ("flop_per_second",), "GFLOP/s", ",.1f", "high", True, unit=1e9),
    Measure("tiles", ("tiles",), "tiles", at_a_glance=True),
    Measure("bytes_moved", ("bytes_moved",), "bytes moved", at_a_glance=True),
    Measure("peak_memory_bytes", ("peak_memory_bytes",), "peak memory, MB", ",.0f", "low", unit=1e6),
)
LABELS = {measure.name: measure.label for measure in MEASURES}


def label_of(name: str) -> str:
    """How a measure or a column of `metrics.jsonl` is called on pages.

    >>> label_of("test_auc"), label_of("train_loss")
    ('test AUC', 'train loss')
    """
    return LABELS.get(name, name.replace("_", " "))


def glance(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The label and text of what a page shows first."""
    told = [(measure.label, measure.text(result)) for measure in MEASURES if measure.at_a_glance]
    return [(label, text) for label, text in told if text not in (NOTHING, "0")]


def movement(result: Mapping[str, Any]) -> str:
    """How many bytes moved between the processes of a matrix job, compared with the least; empty for one process."""
    names = ("algorithm", "bytes_moved", "bytes_lower_bound", "bytes_naive")
    if not all(name in result for name in names):
        return ""
    algorithm, moved, least, naive = (result[name] for name in names)
    ratio = f" ({moved / least:.2f}×)" if least else ""
    return (
        f"{algorithm}: {quantity(moved, 'B')} moved; at least {quantity(least, 'B')} must move{ratio}; "
        f"a placement that ignores neighbours would move {quantity(naive, 'B')}"
    )


def best_places(measure: Measure, results: Sequence[Mapping[str, Any]]) -> set[int]:
    """Which results are best. Only finished runs can be, and only if they differ."""
    done = {place: measure.value(one) for place, one in enumerate(results) if one.get("status") == "done"}
    values = {place: value for place, value in done.items() if value is not None}
    if measure.better is None or len({measure.text(results[place]) for place in values}) < 2:
        return set()
    best = (max if measure.better == "high" else min)(values.values())
    return {place for place, value in values.items() if value == best}
