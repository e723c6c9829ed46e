"""Columns in memory have the types that files have."""

from __future__ import annotations

import pyarrow as pa
import pytest

from paceline.data.memory.arrow_types import as_usable, usable
from paceline.data.sources.cells import holds_text
from paceline.errors import UsageError


@pytest.mark.parametrize("kind", [pa.string_view(), pa.dictionary(pa.uint32(), pa.string_view())])
def test_text_of_any_layout_is_text(kind: pa.DataType) -> None:
    views = pa.array(["yes", None, "no"]).cast(pa.string_view())
    column = views if kind == pa.string_view() else pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], "uint32"), views)
    read = as_usable(column, usable(column.type), "labels")
    assert holds_text(read.type)
    assert read.to_pylist() == ["yes", None, "no"]


@pytest.mark.parametrize("kind", [pa.list_(pa.null()), pa.large_list(pa.string_view())])
def test_lists_hold_text(kind: pa.DataType) -> None:
    read = as_usable(pa.array([[], None], kind), usable(kind), "column tags")
    assert read.type == pa.large_list(pa.large_string())
    assert read.to_pylist() == [[], None]


def test_other_types_stay() -> None:
    for kind in (pa.int8(), pa.timestamp("us", "UTC"), pa.list_(pa.int64()), pa.binary()):
        assert usable(kind) == kind


def test_what_cannot_be_read_is_named() -> None:
    with pytest.raises(UsageError, match="column town cannot be read as int64") as error:
        as_usable(pa.array(["Rome"]), pa.int64(), "column town")
    assert error.value.hint == "cast it first"
