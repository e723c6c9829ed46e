"""Rows in memory become the same dataset as rows of files do."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import paceline
from paceline.data.memory.prepare import Memory, prepare_memory
from paceline.data.prepare import prepare
from paceline.data.prepare_settings import PrepareConfig
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import SparseDataset
from paceline.errors import DataError, PacelineError, UsageError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 4)).round(3)
Y = (X[:, 0] > 0).astype(int)
DATED = pd.DataFrame({"a": [1.0, 2.0], "y": pd.to_datetime(["2026-01-01", "2026-01-02"])})


def made(path: Path, memory: Memory, **settings: Any) -> SparseDataset:
    return prepare_memory(memory, PrepareConfig(sources=["memory"], out=str(path), **settings)).dataset


def test_a_matrix_is_the_dataset_of_the_same_file(tmp_path: Path) -> None:
    lines = [f"{label} " + " ".join(f"{j}:{v}" for j, v in enumerate(row)) for label, row in zip(Y, X, strict=True)]
    (tmp_path / "rows").write_text("\n".join(lines) + "\n")
    settings: dict[str, Any] = {"test_fraction": 0.2, "seed": 3, "features": 4}
    of_file = prepare(
        PrepareConfig(sources=[str(tmp_path / "rows")], out=str(tmp_path / "file"), index_base="0", **settings),
        lambda _: None,
    ).dataset
    in_memory = made(tmp_path / "memory", Memory((X, Y)), **settings)
    assert in_memory.fingerprint == of_file.fingerprint
    assert [in_memory.split(name).rows for name in ("train", "test")] == [of_file.split("train").rows, 12]


def test_a_stream_of_hashed_keys_has_as_many_features_as_its_largest_key(tmp_path: Path) -> None:
    batches = [Batch.from_lists([0, 1], [[key, 3], [5]], [[1.0, 2.0], [1.0]]) for key in (9, 200, 4)]
    dataset = made(tmp_path / "memory", Memory(iter(batches), test=[batches[1]]))
    assert (dataset.features, dataset.split("train").rows) == (201, 6)
    run = paceline.train(data=iter(batches), run=tmp_path / "run", progress=False)
    assert len(paceline.load(run.path).weights) == 201
    assert paceline.evaluate(run, batches)["rows"] == 6


def test_a_frame_is_the_dataset_of_the_same_file(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": X[:, 0], "town": RNG.choice(["Rome", "Oslo"], 50), "label": Y})
    frame.to_parquet(tmp_path / "rows.parquet")
    config = PrepareConfig(sources=[str(tmp_path / "rows.parquet")], out=str(tmp_path / "file"), hash_bits=8)
    of_file = prepare(config, lambda _: None).dataset
    assert made(tmp_path / "memory", Memory(frame, label="label"), hash_bits=8).fingerprint == of_file.fingerprint


def test_rows_held_out_are_given_in_the_same_way(tmp_path: Path) -> None:
    csr = scipy.sparse.csr_matrix(X)
    batches = [(csr[:20], Y[:20]), (csr[20:], Y[20:])]
    dataset = made(tmp_path / "memory", Memory(iter(batches), validation=(csr[:5], Y[:5]), test=[(X[:7], Y[:7])]))
    assert [dataset.split(split).rows for split in ("train", "validation", "test")] == [50, 5, 7]


@pytest.mark.parametrize(
    ("labels", "kind", "names"),
    [
        ([0, 1, 1], "two-classes", ()),
        ([-1, 1, 1], "two-classes", ()),
        ([True, False, True], "two-classes", ()),
        (["yes", "no", "no"], "two-classes", ("yes", "no")),
        (["a", "b", "c"], "classes", ("a", "b", "c")),
        ([0.5, 1.0, 2.0], "numbers", ()),
        ([-2, 0, 1], "numbers", ()),
    ],
)
def test_labels_tell_of_which_kind_they_are(tmp_path: Path, labels: Any, kind: str, names: tuple[str, ...]) -> None:
    dataset = made(tmp_path / "memory", Memory((X[:3], labels)))
    assert dataset.labels.kind == kind
    assert set(dataset.manifest.source.get("class_names", ())) == set(names)


def test_whole_numbers_may_be_either(tmp_path: Path) -> None:
    rows = X[:3], [0, 1, 2]
    with pytest.raises(UsageError, match="whole numbers from 0 to 2: classes, or numbers"):
        made(tmp_path / "none", Memory(rows))
    assert made(tmp_path / "a", Memory(rows, labels="classes")).labels.kind == "classes"
    assert made(tmp_path / "b", Memory(rows, labels="numbers")).labels.kind == "numbers"
    assert made(tmp_path / "c", Memory(rows, fits=("two-classes", "classes"))).labels.kind == "classes"
    assert made(tmp_path / "d", Memory((X[:3], [0, 1, 1]), fits=("numbers",))).labels.kind == "numbers"


def test_columns_of_a_matrix_have_no_names(tmp_path: Path) -> None:
    for settings in ({"categorical": ["a"]}, {"cross": [["a", "b"]]}, {"bins": {"a": 3}}):
        with pytest.raises(UsageError, match=f"`{next(iter(settings))}` .* columns of a matrix have no names"):
            made(tmp_path / "memory", Memory((X, Y)), **settings)


@pytest.mark.parametrize(
    ("memory", "kind", "words"),
    [
        (Memory(X), UsageError, "the rows have no labels"),
        (Memory((X[:0], Y[:0])), DataError, "the matrix has 0 rows and 4 columns"),
        (Memory((X, Y), labels=cast("Any", "binary")), UsageError, "must be two-classes, classes or numbers"),
        (Memory(pd.DataFrame({"a": [1.0], "y": [1]})[:0], label="y"), DataError, "no rows in `the data`"),
        (Memory((X, Y), labels=cast("Any", Y)), UsageError, "`labels` is a ndarray; it must be"),
        (Memory(X, label="y"), UsageError, "the columns of a matrix have no names"),
        (Memory((np.full((2, 2), np.nan), [0, 1])), DataError, "nan"),
        (Memory((X, Y), validation=(X[:, :2], Y)), UsageError, "a matrix has 2 columns, the first has 4"),
        (Memory([(X, Y), (pd.DataFrame({"a": [1]}), [1])]), UsageError, "some batches are tables"),
        (Memory([(pd.DataFrame({"a": [1]}), [1]), (X, Y)]), UsageError, "some are matrices"),
        (Memory(pd.DataFrame({"a": [1.0]}), label="b"), PacelineError, "b"),
        (Memory(pd.DataFrame({"a": [1.0], "y": [[1]]}), label="y"), DataError, "the label is of the type list"),
        (Memory([DATED.assign(y=1), DATED], label="y"), DataError, "column y: the label is of the type timestamp"),
        (Memory(DATED.assign(y=1, w=DATED.y), label="y", weight="w"), DataError, "the weight is of the type timestamp"),
    ],
)
def test_what_cannot_become_a_dataset_leaves_nothing(
    tmp_path: Path, memory: Memory, kind: type[PacelineError], words: str
) -> None:
    with pytest.raises(kind) as error:
        made(tmp_path / "memory", memory)
    assert words in error.value.message
    assert list(tmp_path.iterdir()) == []
