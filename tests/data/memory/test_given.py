"""What a user can give from memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse

from paceline.data.memory.given import batches_of, column_of, is_in_memory
from paceline.data.sources.cells import holds_text
from paceline.errors import UsageError

X, Y, W = np.eye(2), np.array([0, 1]), [1.0, 2.0]


@pytest.mark.parametrize(
    "data", [X, scipy.sparse.eye(2).tocsr(), pd.DataFrame(X), pl.DataFrame({"a": [1]}), pa.table({"a": [1]})]
)
def test_one_matrix_or_table_is_one_batch(data: Any) -> None:
    (batch,) = batches_of((data, Y, W))
    assert batch.features is data
    assert batch.labels is Y
    assert batch.weights is W
    (batch,) = batches_of(data, "label", "w")
    assert batch == (data, "label", "w")


def test_batches_are_read_as_they_come() -> None:
    asked = []

    def source() -> Any:
        for number in range(3):
            asked.append(number)
            yield X, Y

    batches = batches_of(source())
    assert asked == [0]
    next(batches)
    next(batches)
    assert asked == [0, 1]


@pytest.mark.parametrize(
    ("data", "label", "words"),
    [
        (np.zeros(3), None, "array of shape (3,)"),
        (np.zeros((2, 2, 2)), None, "array of shape (2, 2, 2)"),
        (7, None, "cannot read rows from a int"),
        ({"a": [1]}, None, "cannot read rows from a dict"),
        ([], None, "the data is empty"),
        ([[1, 2], [3, 4]], None, "a list of list"),
        ([(X, Y)], Y, "`label` is an array, but the data comes in batches"),
        ((X, Y), Y, "labels are given twice"),
        (([X, Y], [X, Y]), None, "a tuple of list"),
    ],
)
def test_what_cannot_be_read_is_refused(data: Any, label: Any, words: str) -> None:
    with pytest.raises(UsageError) as error:
        list(batches_of(data, label))
    assert words in error.value.message
    assert error.value.hint


@pytest.mark.parametrize("rows", [X, scipy.sparse.eye(2).tocsr(), pd.DataFrame(X), pl.LazyFrame({"a": [1, 2]})])
@pytest.mark.parametrize("labels", [Y, [0, 1], ["no", "yes"], pd.Series(Y), pl.Series(Y), pa.array(Y)])
def test_a_list_of_rows_and_labels_is_told_to_be_a_tuple(rows: Any, labels: Any) -> None:
    for data in ([rows, labels], [rows, labels, W]):
        with pytest.raises(UsageError) as error:
            batches_of(data)
        assert "(X, y)" in error.value.hint


def test_a_list_of_batches_is_none_of_rows_and_labels() -> None:
    assert len(list(batches_of([X, X]))) == 2
    assert len(list(batches_of([pd.DataFrame(X), pd.DataFrame(X)], "y"))) == 2


def test_a_later_batch_of_another_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="a batch is a str"):
        list(batches_of([(X, Y), "rows"]))


@pytest.mark.parametrize(
    "values",
    [
        [0, 1], np.array([[0], [1]]), np.array([0, 1], ">i4"), pd.Series([0, 1]), pl.Series([0, 1]), pa.array([0, 1]),
        pd.DataFrame({"y": [0, 1]}, index=["a", "b"]), pl.DataFrame({"y": [0, 1]}), pa.table({"y": [0, 1]}),
    ],
)  # fmt: skip
def test_labels_of_any_kind_become_a_column(values: Any) -> None:
    assert column_of(values, 2, "labels").to_pylist() == [0, 1]


@pytest.mark.parametrize("kind", [pl.String, pl.Categorical, pl.Enum(["no", "yes"])])
def test_names_of_polars_are_text(kind: Any) -> None:
    column = column_of(pl.Series(["no", "yes"], dtype=kind), 2, "labels")
    assert holds_text(column.type)
    assert column.to_pylist() == ["no", "yes"]


def test_a_masked_label_is_missing() -> None:
    assert column_of(np.ma.masked_array([0, 7], [False, True]), 2, "labels").to_pylist() == [0, None]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0, 1, 1], "2 rows, but 3 labels"),
        (np.zeros((2, 3)), "of shape (2, 3)"),
        (pd.DataFrame(X, columns=["a", "b"]), "of shape (2, 2)"),
        ([0, object()], "cannot be read"),
        ([0, 10**30], "cannot be read"),
        (np.array(["2026-11-18", "2026-11-19"], "M8[D]"), "labels are of the type date32[day]"),
        (pd.to_datetime(["2026-01-01", "2026-01-02"]), "labels are of the type timestamp"),
        (pa.array([[0], [1]]), "labels are of the type list"),
        ([{"y": 1}] * 2, "labels are of the type struct"),
    ],
)
def test_labels_that_do_not_fit(values: Any, words: str) -> None:
    with pytest.raises(UsageError) as error:
        column_of(values, 2, "labels")
    assert words in error.value.message


def test_names_of_datasets_are_not_rows() -> None:
    assert not is_in_memory("data/clicks")
    assert is_in_memory(X)


def test_numbers_may_be_stored_in_the_order_of_other_machines() -> None:
    assert column_of(np.array([0, 1], ">i4"), 2, "labels").to_pylist() == [0, 1]
    assert column_of(np.array([0.5, 1], ">f8"), 2, "weights").to_pylist() == [0.5, 1]
