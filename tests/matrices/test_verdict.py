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
