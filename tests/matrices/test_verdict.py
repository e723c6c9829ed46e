"""What a matrix job says held it back."""

from __future__ import annotations

import pytest

from paceline.matrices.verdict import judge


@pytest.mark.parametrize(
    ("seconds", "bottleneck"),
    [
        ({"compute": 9.0, "input": 1.0}, "worker-compute"),
        ({"compute": 3.0, "input": 6.0}, "disk"),
        ({"compute": 3.0, "push": 6.0}, "disk"),
        ({"compute": 4.0, "pull": 6.0}, "network"),
        ({"compute": 4.0, "wait": 6.0}, "straggler"),
        ({"compute": 1.0}, "inconclusive"),
        ({}, "inconclusive"),
    ],
)
def test_what_took_most_is_named(seconds: dict[str, float], bottleneck: str) -> None:
    found = judge(seconds, 10.0)
    assert found["bottleneck"] == bottleneck
    assert sum(found["phases"].values()) == pytest.approx(1)
    assert (found["recommendation"] == "") == (bottleneck == "inconclusive")


def test_the_gain_is_without_the_waiting() -> None:
    assert judge({"compute": 4.0, "pull": 6.0}, 10.0)["gain_if_removed"] == pytest.approx(2.5)
    assert judge({"compute": 10.0}, 10.0)["gain_if_removed"] is None
    assert judge({}, 0.0)["bottleneck"] == "inconclusive"


def test_a_job_of_a_moment_is_too_short() -> None:
    found = judge({"compute": 0.03}, 0.03, used=0.1)
    assert found["sentence"] == "inconclusive: the job was too short to say what limited it"


def test_a_half_idle_machine_is_not_said_to_multiply_all_the_time() -> None:
    found = judge({"compute": 10.0}, 10.0, used=0.5)
    assert found["sentence"] == "Limited by the processors, of whose time the job could use only 50%."
    assert (found["phases"]["compute"], found["phases"]["other"]) == (0.5, 0.5)
    busy = judge({"compute": 10.0}, 10.0, used=0.97)
    assert busy["sentence"] == "Limited by the processors, which the job kept 97% busy."
