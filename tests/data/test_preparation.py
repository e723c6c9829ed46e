"""Data whose keys mean something else than in a model's training data is refused, and other differences are not."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.data.preparation import Preparation, config_of, refuse_other_preparation
from paceline.errors import DataError

CRITEO = {"format": "criteo", "sources": ["a"], "test": [], "hash_bits": 18, "integers": "log"}
LIBSVM = {"format": "libsvm", "sources": ["a"], "test": [], "index_base": 1}
CSV = {"format": "csv", "label": "y", "hash_bits": 10, "columns": {"a": "number", "b": "number", "c": "text"}}
MATRIX = {"format": "matrix", "sources": ["memory"]}


def refuse(trained: dict[str, Any], given: dict[str, Any], features: int = 9) -> None:
    refuse_other_preparation(Preparation(trained, 9), Preparation(given, features), "data/x")


@pytest.mark.parametrize(
    ("trained", "given"),
    [
        (CRITEO, CRITEO | {"sources": ["b"], "seed": 3, "test_fraction": 0.1, "scale": "none", "label": "x"}),
        (CRITEO, {"hash_bits": 18}),  # as earlier versions, or a user's own writer, recorded it
        ({}, CRITEO),
        (LIBSVM, LIBSVM | {"format": "tfrecord"}),
        (LIBSVM, LIBSVM | {"format": "libffm", "labels": "classes", "class_names": ["a", "b"]}),
        (LIBSVM, MATRIX),
        (MATRIX, MATRIX | {"format": "batch"}),
        (CSV, CSV | {"format": "parquet", "columns": {"a": "number", "c": "text", "b": "number"}}),
        (CSV, CSV | {"format": "table", "drop": ["id"], "categorical": ["c"]}),
        ({"format": "clicks", "seed": 1, "rows": 10}, {"format": "clicks", "seed": 2, "rows": 20, "skew": "criteo"}),
    ],
)
def test_the_same_keys(trained: dict[str, Any], given: dict[str, Any]) -> None:
    refuse(trained, given)


@pytest.mark.parametrize(
    ("trained", "given", "words", "hint"),
    [
        (CRITEO, LIBSVM, r"trained on Criteo's columns \(criteo\); `data/x` has plain indices \(libsvm\)", "same kind"),
        (CRITEO, CRITEO | {"hash_bits": 20}, "with hash_bits 18; `data/x` has 20", "--hash-bits 18"),
        (CRITEO, CRITEO | {"integers": "bucket"}, "with integers log; `data/x` has bucket", "--integers log"),
        (LIBSVM, LIBSVM | {"index_base": 0}, "with index_base 1; `data/x` has 0", "--index-base 1"),
        (CSV, CSV | {"columns": {"b": "number", "a": "number", "c": "text"}}, "the order is b, a instead of a, b", ""),
        (CSV, CSV | {"columns": {"a": "number", "c": "number", "d": "text"}},
         "trained on: b is missing, d is new, c is number instead of text", "same columns"),
        (CSV, CSV | {"cross": ["a,c"]}, "with cross none; `data/x` has a,c", "--cross"),
        (CSV, MATRIX, "columns of a table .* has plain indices", ""),
        ({"format": "clicks"}, LIBSVM, "generated clicks", ""),
    ],
)  # fmt: skip
def test_other_keys(trained: dict[str, Any], given: dict[str, Any], words: str, hint: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        refuse(trained, given)
    assert hint in caught.value.hint


def test_matrices_have_as_many_columns() -> None:
    with pytest.raises(DataError, match="trained on 9 features; `data/x` has 8"):
        refuse(MATRIX, MATRIX, features=8)
    refuse(LIBSVM, LIBSVM, features=8)  # the largest index that occurs


def test_a_recorded_preparation_becomes_settings_again() -> None:
    config = config_of(LIBSVM | {"labels": "classes", "test_fraction": 0.1, "seed": 5}, ["rows"], skip_bad_rows=3)
    assert (config.format, config.index_base, config.labels) == ("libsvm", "1", "classes")
    assert (config.sources, config.skip_bad_rows, config.test_fraction, config.seed) == (["rows"], 3, 0.0, 0)
    assert config_of(MATRIX, ["rows"]).format == "auto"
    with pytest.raises(DataError, match="what the model says about its data cannot be read"):
        config_of(CRITEO | {"hash_bits": "many"}, [])


@pytest.mark.parametrize(
    ("recorded", "words"),
    [
        (CSV | {"hash_bits": 1 << 62}, "`hash-bits` is 4611686018427387904; it must be 1 to 32"),
        (CSV | {"hash_bits": -1}, "`hash-bits` is -1"),
        (CSV | {"cross": [[]]}, "it must be two or more columns"),
        (CSV | {"bins": {"a": 3}}, "`bins` does not have the edges of just the columns in bins"),
        (CSV | {"columns": {"a": "bins"}}, "`bins` does not have the edges"),
        (CSV | {"columns": {"a": "bins"}, "bins": {"a": [2, 1]}}, "they must rise"),
    ],
)
def test_settings_that_cannot_have_been_recorded(recorded: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match="what the model says about its data cannot be read") as caught:
        config_of(recorded, ["rows.csv"])
    assert words in caught.value.message
