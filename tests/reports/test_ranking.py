"""Which run is best, and by how much."""

from __future__ import annotations

from typing import Any

from paceline.reports.ranking import rank, verdict_on


def result(loss: float, speed: float, status: str = "done", **more: Any) -> dict[str, Any]:
    return {"status": status, "loss": "logistic", "test": {"loss": loss, "auc": 1 - loss}, "rows_per_second": speed,
            "data_fingerprint": "a", **more}  # fmt: skip


def test_the_lowest_loss_is_first_and_what_is_not_done_is_last() -> None:
    results = [result(0.3, 9.0, "failed"), result(0.5, 2.0), result(0.4, 1.0)]
    found = rank(results)
    assert (found.order, found.rows) == ([2, 1, 0], "test")
    told = verdict_on(["x", "b", "c"], results, found)
    assert told == (
        "`c` has the lowest test loss, 0.40000: 20% lower than `b`. "
        "`b` trains 2.0× as fast, and its test loss is 25% higher."
    )


def test_validation_rows_decide_if_all_runs_have_them() -> None:
    results = [result(0.3, 1.0, validation={"loss": 0.6}), result(0.5, 1.0, validation={"loss": 0.4})]
    assert (rank(results).order, rank(results).rows) == ([1, 0], "validation")
    del results[0]["validation"]
    assert (rank(results).order, rank(results).rows) == ([0, 1], "test")


def test_losses_of_different_kinds_are_not_compared() -> None:
    results = [result(0.3, 1.0) | {"loss": "hinge"}, result(0.5, 1.0)]
    results[0]["test"]["auc"] = 0.4
    found = rank(results)
    assert found.measure is not None
    assert (found.measure.name, found.order) == ("test_auc", [1, 0])


def test_matrix_jobs_are_ranked_by_speed() -> None:
    results = [{"status": "done", "elements_per_second": speed} for speed in (1.0, 4.0)]
    found = rank(results)
    assert found.order == [1, 0]
    assert verdict_on(["a", "b"], results, found) == "`b` has the highest elements/s, 4: 4.0× higher than `a`."


def test_other_data_is_said() -> None:
    results = [result(0.3, 1.0), result(0.5, 1.0, data_fingerprint="b")]
    assert "different data" in verdict_on(["a", "b"], results, rank(results))
