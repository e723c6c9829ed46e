"""Tables in memory are read as tables in files are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from paceline.data.memory.frames import Frames, open_first
from paceline.data.memory.given import Given
from paceline.data.prepare_settings import PrepareConfig
from paceline.data.sources.files import Source
from paceline.data.sources.table_columns import Roles
from paceline.data.sparse.batch import Batch
from paceline.errors import UsageError

SOURCE = Source("the data", None, "", None)
COLUMNS: dict[str, list[Any]] = {"age": [20.0, 30.5, None], "town": ["Rome", None, "Oslo"], "label": [1, 0, 1]}


def read(given: Given, **settings: Any) -> Batch:
    table, roles = open_first(given)
    config = PrepareConfig(sources=["memory"], out="", hash_bits=10, **settings)
    frames = Frames(table, roles, {"the data": iter([table])}, config, named_labels=False)
    parsed = [frames.parse(chunk, 10).batch for chunk in frames.chunks(SOURCE)]
    assert len(parsed) == 1
    return parsed[0]


def same(found: Batch, expected: Batch) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


ARROW = Given(pa.table(COLUMNS), "label")


class Stream:
    """Any object with Arrow's C stream interface."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return pa.table(COLUMNS).__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame(COLUMNS),
        pd.DataFrame(COLUMNS, index=[7, 8, 9]),
        pd.DataFrame(COLUMNS).astype({"town": "category"}),
        pl.DataFrame(COLUMNS),
        pl.LazyFrame(COLUMNS),
        pl.DataFrame(COLUMNS).with_columns(pl.col("town").cast(pl.Categorical)),
        Stream(),
        pa.table(COLUMNS).to_batches()[0],
        pa.table(COLUMNS).cast(pa.schema([("age", pa.float64()), ("town", pa.string_view()), ("label", pa.int64())])),
    ],
)
def test_all_frames_give_the_same_rows(frame: Any) -> None:
    same(read(Given(frame, "label")), read(ARROW))


def test_labels_and_weights_may_be_arrays() -> None:
    features = pd.DataFrame(COLUMNS).drop(columns="label")
    found = read(Given(features, pd.Series([1, 0, 1], name="clicked"), [1.0, 2.0, 0.5]))
    np.testing.assert_array_equal(found.weights, [1.0, 2.0, 0.5])
    same(found._replace(weights=None), read(ARROW))
    assert open_first(Given(features, pd.Series([1], name="clicked"), [1.0]))[1] == Roles("clicked", "weight")


def test_labels_may_have_the_name_of_a_column() -> None:
    """`y = (frame.price > 10).astype(int)` is called `price`."""
    frame = pd.DataFrame({"price": [5.0, 20.0, 30.0], "label": [2.0, 3.0, 4.0], "weight": [1.0, 1.0, 2.0]})
    labels = (frame.price > 10).astype(int)
    given = Given(frame, labels, labels + 1.0)
    found = read(given)
    assert found.labels.tolist() == [0, 1, 1]
    assert found.weights is not None
    assert found.weights.tolist() == [1, 2, 2]
    assert found.num_nonzeros == 9
    assert open_first(given)[1] == Roles("label-2", "weight-2")
    assert open_first(Given(frame[["price"]], labels))[1] == Roles("label")


def test_numbers_may_be_categories() -> None:
    table = pa.table({"shop": [3, 3, 4], "label": [0, 1, 1]})
    found = read(Given(table, "label"), categorical=["shop"])
    assert found.values.tolist() == [1, 1, 1]
    assert found.keys[0] == found.keys[1] != found.keys[2]
    same(found, read(Given(table.set_column(0, "shop", pa.array(["3", "3", "4"])), "label")))


@pytest.mark.parametrize(
    ("given", "categorical", "words", "hint"),
    [
        (ARROW, ["twon"], "`categorical` has `twon`", "did you mean `town`?"),
        (Given(pa.table(COLUMNS), [1, 0, 1]), [], "a column `label` with the same values", "drop the column"),
        (Given(pa.table(COLUMNS), pd.Series(COLUMNS["town"], name="town")), [], "a column `town`", "give its name"),
        (
            Given(pa.table({"age": [1.0]}), [1, 0]),
            [],
            "does not have as many rows as there are labels, 2",
            "one per row",
        ),
        (Given(pd.Series([1.0, 2.0]), "label"), [], "is not a table", "distinct names"),
        (Given(pd.DataFrame(np.eye(2), columns=["a", "a"]), "y"), [], "Duplicate column names", "distinct names"),
        (Given(pd.DataFrame({"a": [1, "b"]}), "y"), [], "type str: tried to convert to int64; Conversion", "one type"),
        (Given(pd.DataFrame({"a": pd.arrays.SparseArray([0, 1])}), "y"), [], "Sparse pandas", "give a matrix"),
    ],
)
def test_what_does_not_fit_is_refused(given: Given, categorical: list[str], words: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        read(given, categorical=categorical)
    assert words in error.value.message
    assert hint in error.value.hint
