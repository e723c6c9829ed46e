"""Labels of every kind, from every format: what is stored, and what is said about those that are wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.blocks.manifests import SEAL, seal
from paceline.data.blocks.reader import Reader
from paceline.data.datasets import open_dataset
from paceline.data.labels import RULES, Labels, first_negatives
from paceline.data.limits import LABEL_KINDS, LabelKind
from paceline.data.rows import EpochOrder
from paceline.data.sources import files
from paceline.data.sources.parsed import BadRow, Parsed
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import sparse_writer
from paceline.errors import ConfigError, DataError
from paceline.models.inputs import open_for
from paceline.settings import LossConfig, RunConfig
from tests.conftest import Command
from tests.data.inputs import criteo_row, example, floats, integers, record, rows_of, run, write

NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)
FORMATS = ["libsvm", "csv", "parquet", "arrow", "tfrecord"]


def write_libsvm(path: Path, labels: list[float]) -> None:
    write(path, "".join(f"{label!r} {i + 1}:1\n" for i, label in enumerate(labels)))


def write_csv(path: Path, labels: list[float]) -> None:
    write(path, "label,x\n" + "".join(f"{label!r},{i + 1}\n" for i, label in enumerate(labels)))


def table_of(labels: list[float]) -> pa.Table:
    return pa.table({"label": pa.array(labels, pa.float64()), "x": np.arange(1, len(labels) + 1)})


def write_parquet(path: Path, labels: list[float]) -> None:
    pa.parquet.write_table(table_of(labels), path)


def write_arrow(path: Path, labels: list[float]) -> None:
    with pa.ipc.new_file(path, table_of(labels).schema) as writer:
        writer.write_table(table_of(labels))


def write_tfrecord(path: Path, labels: list[float]) -> None:
    """Small whole numbers as int64, others as floats."""
    features = [integers([int(label)]) if label == int(label) < 1 << 30 else floats([label]) for label in labels]
    rows = [example(label=label, index=integers([i + 1])) for i, label in enumerate(features)]
    write(path, b"".join(record(row) for row in rows))


WRITERS: dict[str, Callable[[Path, list[float]], None]] = {
    "libsvm": write_libsvm, "csv": write_csv, "parquet": write_parquet, "arrow": write_arrow,
    "tfrecord": write_tfrecord,
}  # fmt: skip


@pytest.fixture(params=FORMATS)
def write_labels(request: pytest.FixtureRequest) -> Callable[[Path, list[float]], Path]:
    def write_one(path: Path, labels: list[float]) -> Path:
        WRITERS[request.param](path, labels)
        return path

    return write_one


Write = Callable[[Path, list[float]], Path]

HALF_WAY = 1.000000059604644775390625  # between two float32, which only exact arithmetic rounds
PRICES = [0.0, -2.5, 1e-3, 3.4e38, 7.0, HALF_WAY, 16777217.0]


@pytest.mark.parametrize(
    ("kind", "labels", "stored"),
    [
        ("two-classes", [1, 0, 0, 1], np.array([1, 0, 0, 1], np.uint8)),
        ("two-classes", [1, -1, -1, 1], np.array([1, 0, 0, 1], np.uint8)),
        ("classes", [2, 0, 65_535, 1], np.array([2, 0, 3, 1], np.uint16)),
        ("numbers", PRICES, np.array(PRICES, np.float32)),
    ],
)
def test_labels_of_every_format_round_trip(
    tmp_path: Path, write_labels: Write, kind: LabelKind, labels: list[float], stored: Any
) -> None:
    made = run(tmp_path, write_labels(tmp_path / "a", labels), labels=kind)
    dataset = open_dataset(made.dataset.folder.name)
    found = dataset.block("train", 0).labels
    assert found.dtype == stored.dtype == dataset.labels.dtype
    assert found.tolist() == stored.tolist()
    assert dataset.labels.kind == kind
    assert dataset.labels.classes == {"two-classes": 2, "classes": 4, "numbers": 0}[kind]
    order = EpochOrder([len(labels)], seed=0)
    reader: Reader[Any] = Reader(dataset, order)
    read = reader.between(0, len(labels))
    assert read.labels.dtype == stored.dtype
    assert sorted(read.labels.tolist()) == sorted(stored.tolist())
    expected = made.dataset.manifest.source.get("labels", "two-classes")
    assert expected == kind


@pytest.mark.parametrize(
    ("kind", "label", "words"),
    [
        ("two-classes", 2, "the label is `2`; labels are 0 and 1, or -1 and +1"),
        ("two-classes", 0.5, "the label is `0.5`; labels are 0 and 1, or -1 and +1"),
        ("classes", 1.5, "the label is `1.5`; labels are whole numbers from 0 to 65535"),
        ("classes", -1, "the label is `-1`; labels are whole numbers from 0 to 65535"),
        ("classes", 65_536, "the label is `65536`; labels are whole numbers from 0 to 65535"),
    ],
)
def test_a_wrong_label_is_named_and_can_be_skipped(
    tmp_path: Path, write_labels: Write, kind: LabelKind, label: float, words: str
) -> None:
    path = write_labels(tmp_path / "a", [1, 0, label, 1])
    with pytest.raises(DataError) as error:
        run(tmp_path, path, labels=kind)
    row = 4 if path.read_bytes().startswith(b"label") else 3  # the header of CSV is a row
    assert error.value.message.startswith(f"`{path}`, row {row}, ")
    assert error.value.message.endswith(words)
    assert "--labels" in error.value.hint
    made = run(tmp_path, path, labels=kind, skip_bad_rows=1)
    assert (made.rows, made.bad_rows) == (3, 1)
    assert [label for label, _ in rows_of(made.dataset)] == [1, 0, 1]


def test_a_label_that_is_not_finite_is_refused_whatever_the_kind(tmp_path: Path) -> None:
    row = record(example(label=floats([float("nan")]), index=integers([1])))
    for path in (
        write(tmp_path / "a.svm", "1 1:1\nnan 1:1\n"),
        write(tmp_path / "b.csv", "label,x\ninf,1\n"),
        write(tmp_path / "c.tfrecord", row),
    ):
        for kind in LABEL_KINDS:
            with pytest.raises(DataError, match=r"(label|column 1): .*not a finite number"):
                run(tmp_path, path, labels=kind)


@given(st.lists(NUMBERS | st.sampled_from([0.0, 1.0, -1.0, 2.0]), max_size=20), st.sampled_from(LABEL_KINDS))
def test_rows_are_kept_or_named_but_never_lost(labels: list[float], kind: LabelKind) -> None:
    count = len(labels)
    batch = Batch(
        np.array(labels, np.float32),
        np.arange(count + 1),
        np.arange(count, dtype=np.uint32),
        np.ones(count, np.float32),
    )
    parsed = Parsed(batch, 10 * np.arange(1, count + 1), 10 * count, [BadRow(5, "column x", "", "")])
    checked = parsed.with_labels(kind, "column label", count + 1)
    assert sorted([*checked.rows.tolist(), *(row.row for row in checked.bad)]) == sorted([5, *parsed.rows.tolist()])
    assert [row.row for row in checked.bad] == sorted(row.row for row in checked.bad)
    assert checked.batch.labels.dtype == RULES[kind].dtype
    # Each row keeps its own label and key.
    for row, label, key in zip(checked.rows.tolist(), checked.batch.labels, checked.batch.keys, strict=True):
        written = batch.labels[row // 10 - 1]
        assert key == row // 10 - 1
        assert label == (written == 1 if kind == "two-classes" else written)
    for row in checked.bad:
        if row.row != 5:
            assert kind != "numbers"
            assert f"`{batch.labels[row.row // 10 - 1]:g}`" in row.problem


@given(st.lists(st.sampled_from([1.0, 0.0, -1.0]), max_size=6))
def test_the_first_negative_labels(labels: list[float]) -> None:
    found = first_negatives(np.array(labels, np.float32), np.arange(len(labels)) + 5)
    assert found == {label: labels.index(label) + 5 for label in (0, -1) if label in labels}


def test_only_two_classes_must_not_mix_0_and_minus_1(tmp_path: Path, write_labels: Write) -> None:
    first, second = write_labels(tmp_path / "a", [1, 0]), write_labels(tmp_path / "b", [1, 1, -1])
    with pytest.raises(DataError, match=r"labels are mixed: 0 in `.*a`, row .*, -1 in `.*b`, row"):
        run(tmp_path, first, second)
    made = run(tmp_path, first, second, labels="numbers")
    assert [label for label, _ in rows_of(made.dataset)] == [1, 0, 1, 1, -1]


def test_criteo_always_has_two_classes(tmp_path: Path) -> None:
    path = write(tmp_path / "a", criteo_row("1"))
    with pytest.raises(ConfigError, match="`labels` is `numbers`, but the input is criteo"):
        run(tmp_path, path, labels="numbers")


def test_the_kind_of_labels_is_part_of_a_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_libsvm(path, [1, 0, 1])
    prints = {run(tmp_path, path, labels=kind).dataset.fingerprint for kind in LABEL_KINDS}
    assert len(prints) == 3


def test_blocks_with_other_labels_than_the_manifest_says_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_libsvm(path, [1, 0, 2])
    folder = Path(run(tmp_path, path, labels="classes").dataset.folder.name)
    manifest = json.loads((folder / "manifest.json").read_text().rpartition(SEAL.decode())[0] + "}")
    for kind, names, statistics, words in (
        ("numbers", ["0", "1", "2"], None, "labels of kind `numbers` with 3 names"),
        ("numbers", [], None, "its columns are label uint16, .* instead of label float,"),
        ("classes", ["0", "1"], None, "label 2 is not below its 2 classes"),
        ("classes", ["0", "1"], manifest["label_statistics"], "statistics of 3 classes for 2"),
    ):
        changed = {**manifest, "labels": {"kind": kind, "names": names}, "label_statistics": statistics}
        (folder / "manifest.json").write_bytes(seal(json.dumps(changed).encode()))
        with pytest.raises(DataError, match=words):
            open_dataset(folder).block("train", 0)


def test_a_writer_refuses_labels_of_another_kind(tmp_path: Path) -> None:
    with (
        pytest.raises(DataError, match="labels are uint8; `numbers` are stored as float32"),
        sparse_writer(tmp_path / "data", features=None, source={}, labels="numbers") as writer,
    ):
        writer.add("train", Batch.from_lists([1], [[0]], [[1.0]]))


def test_images_have_classes_with_names(drawings: Path) -> None:
    assert open_dataset(drawings).labels == Labels("classes", ("0", "1", "2", "3"))


def test_the_command_says_which_labels_were_read(command: Command, tmp_path: Path) -> None:
    write_libsvm(tmp_path / "a", [0.5, 3, -7])
    done = command("prepare", tmp_path / "a", "--out", tmp_path / "numbers", "--labels", "numbers")
    assert done.code == 0
    assert "3 training rows, 0 test rows, 3 features, numbers as labels, in" in done.out
    with pytest.raises(ConfigError, match=r"`hinge`.*numbers"):
        open_for(RunConfig(data=str(tmp_path / "numbers"), loss=LossConfig(name="hinge")))


def write_names(path: Path, names: list[str | None], kind: str) -> Path:
    table = pa.table({"label": pa.array(names), "x": np.arange(1, len(names) + 1)})
    if kind == "csv":
        lines = [f"{'' if name is None else name},{x}" for name, x in zip(names, table.column("x"), strict=True)]
        return write(path, "label,x\n" + "\n".join(lines) + "\n")
    if kind == "dictionary":
        table = table.set_column(0, "label", table.column("label").combine_chunks().dictionary_encode())
    pa.parquet.write_table(table, path)
    return path


KINDS_OF_NAMES = ["csv", "text", "dictionary"]


@pytest.mark.parametrize("kind", KINDS_OF_NAMES)
def test_names_of_classes_are_kept(tmp_path: Path, kind: str) -> None:
    names: list[str | None] = ["dog", " cat", "ant", "cat ", "élan", "dog"]
    path = write_names(tmp_path / "a", names, kind)
    dataset = run(tmp_path, path, path, labels="classes").dataset
    assert dataset.labels == Labels("classes", ("ant", "cat", "dog", "élan"))
    assert [label for label, _ in rows_of(dataset)] == [2, 1, 0, 1, 3, 2] * 2
    assert dataset.labels.shown(dataset.block("train", 0).labels)[:3].tolist() == ["dog", "cat", "ant"]


@pytest.mark.parametrize("kind", KINDS_OF_NAMES)
def test_two_classes_may_have_names(tmp_path: Path, kind: str) -> None:
    path = write_names(tmp_path / "a", ["yes", "no", "yes"], kind)
    dataset = run(tmp_path, path).dataset
    assert dataset.labels == Labels("two-classes", ("no", "yes"))
    assert [label for label, _ in rows_of(dataset)] == [1, 0, 1]
    assert dataset.manifest.train.positives == 2
    other = run(tmp_path, write_csv_of(tmp_path / "b", [1, 0, 1])).dataset
    assert dataset.fingerprint != other.fingerprint


def write_csv_of(path: Path, labels: list[float]) -> Path:
    write_csv(path, labels)
    return path


@pytest.mark.parametrize("kind", KINDS_OF_NAMES)
def test_names_that_are_wrong(tmp_path: Path, kind: str) -> None:
    first = 2 if kind == "csv" else 1
    three = write_names(tmp_path / "three", ["yes", "no", "maybe"], kind)
    with pytest.raises(
        DataError, match=f"row {first + 2}, .*: the label is `maybe`; the other labels are `no` and `yes`"
    ):
        run(tmp_path, three)
    assert run(tmp_path, three, skip_bad_rows=1).dataset.labels.names == ("no", "yes")
    missing = write_names(tmp_path / "missing", ["yes", None, "no"], kind)
    with pytest.raises(DataError, match=f"row {first + 1}, column label: no label"):
        run(tmp_path, missing)
    mixed = write_names(tmp_path / "mixed", ["1", "x", "0"], kind)
    with pytest.raises(DataError, match=f"row {first + 1}, column label: `x` is not a number"):
        run(tmp_path, mixed, labels="classes")
    with pytest.raises(DataError, match=f"row {first}, column label: `yes` is not a number"):
        run(tmp_path, three, labels="numbers")
    long = write_names(tmp_path / "long", ["a", "b" * 257], kind)
    with pytest.raises(DataError, match="is a name of more than 256 bytes"):
        run(tmp_path, long, labels="classes")
    alone = write_names(tmp_path / "alone", ["yes", "yes"], kind)
    with pytest.raises(DataError, match="all labels are `yes`"):
        run(tmp_path, alone)


def test_a_class_that_only_held_out_files_have_is_a_bad_row(tmp_path: Path) -> None:
    train, test = tmp_path / "train", tmp_path / "test"
    write_libsvm(train, [3, 1, 1])
    write_libsvm(test, [1, 3, 2])
    with pytest.raises(DataError, match=r"test`, row 3, column 1: the label is `2`, which no training row has"):
        run(tmp_path, train, labels="classes", test=[test])
    dataset = run(tmp_path, train, labels="classes", test=[test], skip_bad_rows=1).dataset
    assert dataset.labels.names == ("1", "3")
    assert [label for label, _ in rows_of(dataset, "test")] == [0, 1]


def test_classes_of_later_rows_follow_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHUNK_BYTES", 14)
    path = write(tmp_path / "a", "3 1:1\n1 1:1\n" + "9 1:1\n2 1:1\n1 1:1\n")
    dataset = run(tmp_path, path, labels="classes").dataset
    assert dataset.labels.names == ("1", "3", "9", "2")
    assert [label for label, _ in rows_of(dataset)] == [1, 0, 2, 3, 0]


def test_labels_of_other_classes_cannot_be_numbered() -> None:
    with pytest.raises(DataError, match="the class `c` is not one of the 2 that the model knows"):
        Labels("classes", ("a", "c")).numbered_as(["a", "b"])


def test_two_classes_may_be_any_of_many() -> None:
    names = [f"c{i}" for i in range(300)]
    assert Labels("two-classes", ("c298", "c299")).numbered_as(names).tolist() == [298, 299]


@pytest.mark.parametrize(("kind", "names"), [("two-classes", ("a",)), ("numbers", ("a",)), ("classes", ())])
def test_labels_have_as_many_names_as_classes(kind: LabelKind, names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=f"`{kind}` with {len(names)} names"):
        Labels(kind, names)


def test_names_may_be_any_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "label,x\n{0},1\ninfinite,2\n{},x\n")
    dataset = run(tmp_path, path, labels="classes").dataset
    assert dataset.labels.names == ("infinite", "{0}", "{}")
    with pytest.raises(DataError, match=r"row 4, .*: the label is `\{\}`; the other labels are `infinite` and `\{0\}`"):
        run(tmp_path, path)


def test_names_of_bad_rows_alone_are_no_classes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "label,x\n" + "ant,1\n" * 180_000 + "dog,x\ncat,2\n")  # so x seems to be numeric
    assert run(tmp_path, path, skip_bad_rows=1).dataset.labels.names == ("ant", "cat")
    bad = write(tmp_path / "b.csv", "label,x\n" + "ant,1\n" * 180_000 + "dog,x\n")
    with pytest.raises(DataError, match="all labels are `ant`"):
        run(tmp_path, bad, skip_bad_rows=1)
