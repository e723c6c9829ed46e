"""A row without a usable label or weight is bad, and the first problem of a row is the one that is told."""

from __future__ import annotations

import pyarrow as pa

from paceline.data.sources.parsed import BadRow
from paceline.data.sources.row_columns import LABEL_HINT, BadRows, note_bad, read_labels, read_weights


def problems(bad: BadRows) -> dict[int, tuple[str, str]]:
    return {row: (found.column, found.problem) for row, found in bad.items()}


def test_labels_are_numbers_or_names() -> None:
    bad: BadRows = {}
    assert read_labels(pa.array([1.0, 0.5, None]), "column y", bad, named=False).numbers.tolist() == [1, 0.5, 0]
    assert bad == {2: BadRow(0, "column y", "no label", LABEL_HINT)}
    found = read_labels(pa.array(["dog", "cat", "dog", ""]), "column y", bad, named=True)
    assert (found.numbers.tolist()[:3], found.names) == ([0, 1, 0], ["dog", "cat"])
    assert problems(bad) == {2: ("column y", "no label"), 3: ("column y", "no label")}


def test_weights_are_finite_and_not_negative() -> None:
    bad: BadRows = {}
    found = read_weights(pa.array([2.0, -1.0, None, float("inf"), 0.0]), "the weights", bad)
    assert found.dtype == "float32"
    assert (found[0], found[4]) == (2, 0)
    assert problems(bad) == {
        1: ("the weights", "the weight is `-1`"),
        2: ("the weights", "no weight"),
        3: ("the weights", "`inf` is not a finite number"),
    }


def test_a_row_is_bad_for_one_reason() -> None:
    bad: BadRows = {}
    note_bad(bad, "column y", {3: "no label"}, "add one")
    note_bad(bad, "column w", {3: "no weight", 4: "no weight"}, "add one")
    assert problems(bad) == {3: ("column y", "no label"), 4: ("column w", "no weight")}
