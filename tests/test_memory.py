"""Training from a matrix in memory takes at most the matrix, twice the parameters with their state, and 500 MB.

Two fits are compared, so that neither Python nor what the 500 MB are for hides a copy of rows or parameters.
"""

from __future__ import annotations

import pytest

from fit_memory import Case, measure
from tests.skips import needs_linux

SLACK = 30_000_000
# Per core, `LocalFolder` leaves as much of a dataset mapped.
MAPPED = 2 * (32 << 20)
WHAT = ["PacelineClassifier", "paceline.train"]


@needs_linux
@pytest.mark.parametrize("what", WHAT)
def test_memory_grows_with_the_rows_as_much_as_the_matrix(what: str) -> None:
    few, many = (measure(Case(what, rows, 100_000)) for rows in (300_000, 700_000))
    more = many.given - few.given
    assert more > 4 * SLACK
    assert many.anonymous - few.anonymous < more + SLACK
    assert many.anonymous < many.limit
    # What is mapped of the temporary dataset is bounded, too.
    assert many.resident - few.resident < more + SLACK + MAPPED
    assert many.resident < many.limit


@needs_linux
@pytest.mark.parametrize("what", WHAT)
def test_memory_grows_with_the_features_as_twice_the_parameters(what: str) -> None:
    few, many = (measure(Case(what, 10_000, features)) for features in (10_000_000, 30_000_000))
    more = many.parameters - few.parameters
    assert more > 4 * SLACK
    assert many.anonymous - few.anonymous < 2 * more + SLACK
    assert many.anonymous < many.limit
