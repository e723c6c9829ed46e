"""One table of measures serves pages, comparisons and sweeps."""

from __future__ import annotations

from paceline.models.loss_entries import LOSSES
from paceline.models.tasks import METRICS
from paceline.reports.measures import MEASURES, best_places, glance

BY_NAME = {measure.name: measure for measure in MEASURES}


def test_names_and_labels_are_unique() -> None:
    assert len(BY_NAME) == len({measure.label for measure in MEASURES}) == len(MEASURES)


def test_every_metric_of_every_task_is_shown() -> None:
    for name in {name for loss in LOSSES.values() for name in loss.task.metrics}:
        measure = BY_NAME[f"test_{name}"]
        assert measure.better == METRICS[name].better
        assert measure.text({"test": {name: 0.25}}) == "0.25000"


def test_the_best_is_the_highest_or_the_lowest() -> None:
    results = [{"status": "done", "rows_per_second": rate, "train_seconds": 1 / rate} for rate in (1.0, 9.0, 9.0)]
    assert best_places(BY_NAME["rows_per_second"], results) == {1, 2}
    assert best_places(BY_NAME["train_seconds"], results) == {1, 2}
    assert best_places(BY_NAME["rows_per_second"], results[1:]) == set()
    assert best_places(BY_NAME["rows_per_second"], [{**one, "status": "failed"} for one in results]) == set()
    assert best_places(BY_NAME["test_auc"], results) == set()


def test_at_a_glance_there_is_only_what_was_measured() -> None:
    result = {"rows": 1_200, "test": {"error": 0.0, "auc": None}, "wire": {"bytes_per_row": 0.0}, "steps": 5}
    assert glance(result) == [("rows", "1,200"), ("test error", "0.00000")]
