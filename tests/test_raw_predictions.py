"""Raw rows are scored as the rows of a dataset made from them, whatever they come in; other data is refused."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import scipy.sparse

import paceline
from paceline.errors import DataError, UsageError
from paceline.prediction_files import write_tables
from tests.conftest import Command
from tests.data.inputs import criteo_row

ROWS = 400


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    rows = pd.DataFrame({
        "id": [f"r{i}" for i in range(ROWS)], "town": rng.choice(["a", "b", "c"], ROWS),
        "x": rng.normal(5_000, 900, ROWS).round(1), "n": rng.integers(0, 9, ROWS),
    })  # fmt: skip
    return rows.assign(y=(((rows.town == "a") * 900 + rows.x) > 5_200).astype(int))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, table: pd.DataFrame) -> Path:
    """The same model trained on CSV, Criteo's rows and LIBSVM, and the raw files."""
    folder = tmp_path_factory.mktemp("raw")
    table.to_csv(folder / "csv", index=False)
    columns = [table["id"], table["n"], table["x"], table["town"]]
    table[["n", "x", "town"]].assign(customer=table["id"]).to_parquet(folder / "unlabelled.parquet")
    criteo = [(str(y), [str(n), str(x)], [town]) for _, n, x, town, y in zip(*columns, table["y"], strict=True)]
    (folder / "criteo").write_text("".join(criteo_row(*row) for row in criteo))
    libsvm = [f"1:{n + 1} {2 + n}:{x}" for _, n, x, _ in zip(*columns, strict=True)]
    (folder / "libsvm").write_text("".join(f"{y} {row}\n" for y, row in zip(table["y"], libsvm, strict=True)))
    (folder / "bare.libsvm").write_text("".join(f"{row}\n" for row in libsvm))
    options: dict[str, dict[str, Any]] = {"csv": {"label": "y", "drop": ["id"], "categorical": ["n"]}}
    for name in ("csv", "criteo", "libsvm"):
        paceline.prepare(folder / name, folder / f"{name}.data", **options.get(name, {}))
        paceline.train(data=folder / f"{name}.data", run=folder / f"{name}.run", epochs=2, workers=1, progress=False)
    return folder


def scores(folder: Path, name: str) -> list[float]:
    """What `predict` writes for the dataset."""
    out = folder / f"{name}.dataset.parquet"
    if not out.exists():
        assert paceline.predict(folder / f"{name}.run", folder / f"{name}.data", out) == ROWS
    found: list[float] = pyarrow.parquet.read_table(out)["probability"].to_pylist()
    return found


def probabilities(out: Path) -> list[float]:
    found: list[float] = pyarrow.csv.read_csv(out)["probability"].to_pylist()
    return found


@pytest.mark.parametrize("name", ["csv", "criteo", "libsvm"])
def test_a_file_is_scored_like_its_dataset(folder: Path, tmp_path: Path, name: str) -> None:
    assert paceline.predict(folder / f"{name}.run", folder / name, tmp_path / "out.parquet") == ROWS
    found = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert found.column_names == ["file", "row", "probability"]
    assert set(found["file"].to_pylist()) == {str(folder / name)}
    first = 2 if name == "csv" else 1  # as in messages: the header is row 1
    assert found["row"].to_pylist() == [*range(first, ROWS + first)]
    assert found["probability"].to_pylist() == scores(folder, name)


def test_rows_need_no_labels(folder: Path, tmp_path: Path) -> None:
    bare = "".join(line.partition("\t")[2] + "\n" for line in (folder / "criteo").read_text().splitlines())
    (tmp_path / "bare.tsv").write_text(bare)
    paceline.predict(folder / "criteo.run", tmp_path / "bare.tsv", tmp_path / "a.csv")
    assert pyarrow.csv.read_csv(tmp_path / "a.csv")["probability"].to_pylist() == pytest.approx(
        scores(folder, "criteo")
    )
    paceline.predict(folder / "libsvm.run", folder / "bare.libsvm", tmp_path / "b.csv")
    assert pyarrow.csv.read_csv(tmp_path / "b.csv")["probability"].to_pylist() == pytest.approx(
        scores(folder, "libsvm")
    )


def test_other_table_formats_and_a_column_to_join_by(folder: Path, tmp_path: Path, table: pd.DataFrame) -> None:
    paceline.predict(folder / "csv.run", folder / "unlabelled.parquet", tmp_path / "a.parquet", id="customer")
    paceline.predict(folder / "csv.run", table, tmp_path / "b.parquet", id="id")
    for name, column in (("a", "customer"), ("b", "id")):
        found = pyarrow.parquet.read_table(tmp_path / f"{name}.parquet")
        assert found.column_names == [column, "probability"]
        assert found[column].to_pylist() == table["id"].tolist()
        assert found["probability"].to_pylist() == scores(folder, "csv")


BLANK = {"town": None, "when": pd.NaT, "tags": []}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[paceline.Run, pd.DataFrame]:
    """A model of text, times and lists, and the rows that it was trained on."""
    rows = pd.DataFrame({
        "town": ["a", "b", None] * 20, "when": pd.date_range("2026-01-01", periods=60, freq="h"),
        "tags": [["p"], ["q", "p"], []] * 20, "x": np.arange(60) / 60,
    })  # fmt: skip
    folder = tmp_path_factory.mktemp("trained") / "run"
    return paceline.train(data=rows.assign(y=[0, 1, 1] * 20), label="y", run=folder, progress=False), rows


@pytest.mark.parametrize("missing", [np.nan, None])
@pytest.mark.parametrize("column", [*BLANK])
def test_a_column_may_have_no_cell_at_all(
    trained: tuple[paceline.Run, pd.DataFrame], tmp_path: Path, column: str, missing: Any
) -> None:
    """pandas has no type for it but numbers; one row to score, with a town that is not known, is enough."""
    run, rows = trained
    model = paceline.load(run.path)
    known = rows.astype({column: object})
    known.at[0, column] = BLANK[column]
    expected = model.predict_proba(known)[:1]
    one = rows[:1].assign(**{column: missing})
    np.testing.assert_array_equal(model.predict_proba(one), expected)
    np.testing.assert_array_equal(model.predict_proba([rows[:1], one])[1:], expected)
    one.to_parquet(tmp_path / "one.parquet")
    paceline.predict(run, tmp_path / "one.parquet", tmp_path / "out.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "out.parquet")["probability"].to_pylist() == expected[:, 1].tolist()
    later = rows.assign(y=[0, 1, 1] * 20, **{column: missing})
    assert paceline.train(data=later, start_from=run, run=tmp_path / "run", progress=False).result["rows_before"] > 0


def test_categories_may_have_no_cell_at_all(trained: tuple[paceline.Run, pd.DataFrame]) -> None:
    run, rows = trained
    model = paceline.load(run.path)
    expected = model.predict_proba(rows[:2].assign(town=None))
    blank = rows[:2].assign(town=pd.Categorical([None, None]))
    np.testing.assert_array_equal(model.predict_proba(blank), expected)
    table = pa.Table.from_pandas(rows[:2], preserve_index=False)
    nothing = pa.DictionaryArray.from_arrays(pa.array([None, None], pa.int8()), pa.nulls(0))
    table = table.set_column(table.column_names.index("town"), "town", nothing)
    np.testing.assert_array_equal(model.predict_proba(table), expected)


def test_lists_may_all_be_empty(trained: tuple[paceline.Run, pd.DataFrame], tmp_path: Path) -> None:
    run, rows = trained
    empty = rows[:2].assign(tags=[[], []])
    expected = paceline.load(run.path).predict_proba(rows[:2].assign(tags=None))[:, 1].tolist()
    assert paceline.load(run.path).predict_proba(empty)[:, 1].tolist() == expected
    empty.to_parquet(tmp_path / "empty.parquet")
    paceline.predict(run, tmp_path / "empty.parquet", tmp_path / "out.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "out.parquet")["probability"].to_pylist() == expected


def test_a_column_of_another_kind_is_refused(trained: tuple[paceline.Run, pd.DataFrame]) -> None:
    run, rows = trained
    model = paceline.load(run.path)
    with pytest.raises(DataError, match="town is number instead of text"):
        model.predict_proba(rows.assign(town=1.5))
    late = pa.concat_tables([pa.Table.from_pandas(rows[:1].assign(town=cell)) for cell in (np.nan, 1.5)])
    with pytest.raises(DataError, match="column town has numbers, and no cell in the first rows"):
        model.predict_proba(late)


@pytest.mark.parametrize("column", ["town", "when", "tags"])
def test_a_feature_may_tell_rows_apart(trained: tuple[paceline.Run, pd.DataFrame], tmp_path: Path, column: str) -> None:
    run, rows = trained
    expected = paceline.load(run.path).predict_proba(rows)[:, 1].tolist()
    rows.to_parquet(tmp_path / "rows.parquet")
    for data, out in ((rows, tmp_path / "frame.parquet"), (tmp_path / "rows.parquet", tmp_path / "file.parquet")):
        paceline.predict(run, data, out, id=column)
        found = pyarrow.parquet.read_table(out)
        assert found.column_names == [column, "probability"]
        assert found["probability"].to_pylist() == expected


def test_a_feature_of_a_csv_file_may_tell_rows_apart(folder: Path, tmp_path: Path, table: pd.DataFrame) -> None:
    paceline.predict(folder / "csv.run", folder / "csv", tmp_path / "out.parquet", id="town")
    found = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert found["town"].to_pylist() == table["town"].tolist()
    assert found["probability"].to_pylist() == scores(folder, "csv")


def test_what_csv_cannot_hold_is_refused(trained: tuple[paceline.Run, pd.DataFrame], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot write the columns tags, probability") as error:
        paceline.predict(trained[0], trained[1], tmp_path / "out.csv", id="tags")
    assert "write Parquet" in error.value.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("model", ["linear", "fwfm"])
def test_rows_are_divided_into_bins_and_crossed_as_the_training_rows(
    folder: Path, tmp_path: Path, table: pd.DataFrame, model: str
) -> None:
    options: dict[str, Any] = {"label": "y", "drop": ["id"], "bins": {"x": 5}, "cross": ["town,x"], "fields": True}
    paceline.prepare(folder / "csv", data := tmp_path / "data", **options)
    run = paceline.train(data=data, model=model, run=tmp_path / "run", progress=False)
    paceline.predict(run, data, tmp_path / "expected.parquet")
    expected = pyarrow.parquet.read_table(tmp_path / "expected.parquet")["probability"].to_pylist()
    table.drop(columns="y").to_parquet(tmp_path / "rows.parquet")
    for number, rows in enumerate((folder / "csv", tmp_path / "rows.parquet", table)):
        paceline.predict(run, rows, tmp_path / f"{number}.parquet")
        found = pyarrow.parquet.read_table(tmp_path / f"{number}.parquet")["probability"].to_pylist()
        assert found == pytest.approx(expected)


def test_standard_input_and_output(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream:
        def __init__(self, content: bytes) -> None:
            self.buffer = io.BytesIO(content)

    monkeypatch.setattr(sys, "stdin", Stream((folder / "criteo").read_bytes()))
    monkeypatch.setattr(sys, "stdout", out := Stream(b""))
    assert paceline.predict(folder / "criteo.run", "-", "-") == ROWS
    lines = out.buffer.getvalue().decode().splitlines()
    assert lines[0] == '"file","row","probability"'
    assert [float(line.split(",")[2]) for line in lines[1:]] == pytest.approx(scores(folder, "criteo"))


def test_bad_rows_are_named_or_skipped(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "criteo").read_text().splitlines()
    lines[4] = lines[4].replace("\t", "\tx", 1)
    lines[6] = "1\t2"
    (tmp_path / "bad.tsv").write_text("\n".join(lines) + "\n")
    run = folder / "criteo.run"
    with pytest.raises(DataError, match=r"bad.tsv`, row 5, column I1: `x\d` is not a number"):
        paceline.predict(run, tmp_path / "bad.tsv", tmp_path / "out.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.tsv"]
    assert paceline.predict(run, tmp_path / "bad.tsv", tmp_path / "out.csv", skip_bad_rows=2) == ROWS - 2
    assert pyarrow.csv.read_csv(tmp_path / "out.csv")["row"].to_pylist()[:6] == [1, 2, 3, 4, 6, 8]


@pytest.mark.parametrize(
    ("name", "other", "words"),
    [
        ("criteo", "libsvm", "trained on Criteo's columns .* has plain indices"),
        ("libsvm", "criteo", "trained on plain indices .* has Criteo's columns"),
        ("csv", "criteo", "trained on the columns of a table .* has Criteo's columns"),
    ],
)
def test_other_formats_are_refused(folder: Path, tmp_path: Path, name: str, other: str, words: str) -> None:
    for data in (folder / other, folder / f"{other}.data"):
        with pytest.raises(DataError, match=words):
            paceline.predict(folder / f"{name}.run", data, tmp_path / "out.csv")
    with pytest.raises(DataError, match=words):
        paceline.evaluate(folder / f"{name}.run", folder / f"{other}.data")
    assert not [*tmp_path.iterdir()]


def test_a_missing_column_is_named(folder: Path, tmp_path: Path, table: pd.DataFrame) -> None:
    table.drop(columns="x").to_csv(tmp_path / "less.csv", index=False)
    with pytest.raises(DataError, match=r"other columns than the data that the model was trained on: x is missing"):
        paceline.predict(folder / "csv.run", tmp_path / "less.csv", tmp_path / "out.csv")
    with pytest.raises(DataError, match="no id column `nope`"):
        paceline.predict(folder / "csv.run", folder / "csv", tmp_path / "out.csv", id="nope")


def test_frames_arrays_and_matrices_in_python(folder: Path, table: pd.DataFrame) -> None:
    model = paceline.load(folder / "csv.run")
    assert model.classes == [0, 1]
    expected = scores(folder, "csv")
    for rows in (table, table[["n", "town", "x"]], [table[:100], table[100:]], (table.drop(columns="y"), table["y"])):
        found = model.predict_proba(rows)
        assert found.shape == (ROWS, 2)
        assert found[:, 1].tolist() == expected
    assert (model.predict(table) == (found[:, 1] > 0.5)).all()
    quality = paceline.evaluate(folder / "csv.run", table)
    assert quality == pytest.approx(paceline.evaluate(folder / "csv.run", folder / "csv.data"))
    with pytest.raises(UsageError, match="the matrix has 3 columns"):
        model.predict_proba(np.eye(3))


def test_matrices_of_every_type(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    dense = np.where(rng.random((300, 6)) < 0.5, rng.normal(size=(300, 6)), 0)
    run = paceline.train(data=(dense, dense[:, 0] > 0), run=tmp_path / "run", workers=1, progress=False)
    model = paceline.load(run.path)
    expected = model.predict_proba(dense)
    for values, indices in ((np.float32, np.int64), (np.float64, np.int32)):
        matrix = scipy.sparse.csr_matrix(dense.astype(values))
        matrix.indices, matrix.indptr = matrix.indices.astype(indices), matrix.indptr.astype(indices)
        assert model.predict_proba(matrix) == pytest.approx(expected)
    assert paceline.evaluate(run, (dense, dense[:, 0] > 0))["rows"] == 300
    with pytest.raises(UsageError, match="the matrix has 5 columns; the model was trained on 6"):
        model.predict_proba(dense[:, :5])
    (tmp_path / "rows.svm").write_text("1:1\n")
    with pytest.raises(UsageError, match="does not say where its indices count from"):
        paceline.predict(run, tmp_path / "rows.svm", tmp_path / "out.csv")


def test_categories_that_are_numbers_are_spelled_alike_everywhere(tmp_path: Path) -> None:
    """pandas turns whole numbers into floats where one is missing, and writes 100.0; other tools write 0100 or 1e2."""
    rng = np.random.default_rng(0)
    shops = rng.integers(100, 110, ROWS).astype(float)
    shops[::20] = np.nan
    frame = pd.DataFrame({"shop": shops, "x": rng.normal(size=ROWS)}).assign(y=(np.nan_to_num(shops) % 2 == 0) * 1)
    frame.to_csv(tmp_path / "floats.csv", index=False)
    frame.to_parquet(tmp_path / "floats.parquet")
    spelled = frame.assign(shop=["" if np.isnan(shop) else f"+0{shop:.0f}" for shop in shops])
    spelled.to_csv(tmp_path / "zeros.csv", index=False)
    whole = frame.assign(shop=frame["shop"].astype("Int64"))
    as_text = frame.assign(shop=whole["shop"].astype("string"))
    for i, data in enumerate((frame, tmp_path / "floats.csv", tmp_path / "floats.parquet", whole)):
        rows: dict[str, Any] = {"data": data, "label": "y", "categorical": ["shop"]}
        if isinstance(data, Path):
            paceline.prepare(data, tmp_path / f"{i}.data", label="y", categorical=["shop"])
            rows = {"data": tmp_path / f"{i}.data"}
        run = paceline.train(**rows, run=tmp_path / f"{i}.run", epochs=5, workers=1, progress=False)
        model = paceline.load(run.path)
        expected = model.predict_proba(frame)[:, 1]
        assert ((expected > 0.5) == frame["y"]).mean() > 0.95
        for other in (whole, as_text):
            np.testing.assert_array_equal(model.predict_proba(other)[:, 1], expected)
        for name in ("floats.csv", "zeros.csv", "floats.parquet"):
            out = tmp_path / f"{i}.{name}.scores.csv"
            paceline.predict(run, tmp_path / name, out)
            np.testing.assert_allclose(pd.read_csv(out)["probability"], expected, rtol=1e-6)


def test_a_frame_without_rows_has_no_predictions(folder: Path, tmp_path: Path, table: pd.DataFrame) -> None:
    """Services get empty batches, too."""
    model, none = paceline.load(folder / "csv.run"), table[:0]
    for rows in (none, pd.DataFrame(columns=table.columns), pyarrow.Table.from_pandas(none), [none, none]):
        assert model.predict_proba(rows).shape == (0, 2)
        assert model.predict(rows).shape == model.decision_function(rows).shape == (0,)
    assert model.predict_proba([none, table]).shape == (ROWS, 2)
    for number, id_column in enumerate(("", "id")):
        assert paceline.predict(folder / "csv.run", none, tmp_path / f"{number}.csv", id=id_column) == 0
        assert (tmp_path / f"{number}.csv").read_text() == f'"{id_column or "row"}","probability"\n'


@pytest.mark.parametrize("name", ["csv", "parquet", "criteo", "libsvm"])
def test_a_file_without_rows_has_no_predictions(
    folder: Path, tmp_path: Path, table: pd.DataFrame, name: str, command: Command
) -> None:
    run, path = folder / f"{'csv' if name == 'parquet' else name}.run", tmp_path / name
    if name == "csv":
        table[:0].to_csv(path, index=False)
    elif name == "parquet":
        table.to_parquet(path)
        pyarrow.parquet.write_table(pyarrow.parquet.read_table(path)[:0], path)
    else:
        path.touch()
    done = command("predict", run, path, "--out", tmp_path / "out.csv")
    assert (done.code, done.out) == (0, f"0 rows written to {tmp_path / 'out.csv'}\n")
    assert done.err == f"note: no rows in `{path}`: nothing is predicted\n"
    assert (tmp_path / "out.csv").read_text() == '"file","row","probability"\n'
    if name in ("csv", "parquet"):
        assert paceline.predict(run, path, tmp_path / "ids.parquet", id="id") == 0
        assert pyarrow.parquet.read_table(tmp_path / "ids.parquet").column_names == ["id", "probability"]


def test_an_empty_csv_file_has_lost_its_header(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.csv").touch()
    with pytest.raises(DataError, match="the input is empty"):
        paceline.predict(folder / "csv.run", tmp_path / "empty.csv", tmp_path / "out.csv")


def test_two_predictions_to_one_file_do_not_meet(tmp_path: Path) -> None:
    """Each has a file of its own until it is complete."""
    part, out = pyarrow.table({"row": [1]}), tmp_path / "out.csv"

    def tables() -> Iterator[pyarrow.Table]:
        yield part
        assert write_tables(out, iter([part])) == 1
        yield part

    assert write_tables(out, tables()) == 2
    assert out.read_text() == '"row"\n1\n1\n'
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


@pytest.mark.parametrize("model", ["linear", "ffm"])
def test_bins_crosses_and_times_of_files_are_those_of_the_training_data(tmp_path: Path, model: str) -> None:
    lines = [f"{i % 2},{i},t{i % 3},2026-11-18 {i % 24:02d}:30:00,{i % 5}\n" for i in range(200)]
    header = "label,age,town,at,shop\n"
    (tmp_path / "rows.csv").write_text(header + "".join(lines))
    (tmp_path / "few.csv").write_text(header + "".join(lines[:10]))
    paceline.prepare(
        tmp_path / "rows.csv", tmp_path / "data", bins={"age": 4}, cross=[["town", "age"]], timestamp=["at"],
        categorical=["shop"], hash_bits=10, fields=True, progress=False,
    )  # fmt: skip
    run = paceline.train(data=tmp_path / "data", model=model, workers=1, run=tmp_path / "run", progress=False)
    assert paceline.predict(run, tmp_path / "data", tmp_path / "dataset.csv") == 200
    assert paceline.predict(run, tmp_path / "few.csv", tmp_path / "file.csv") == 10
    assert probabilities(tmp_path / "file.csv") == pytest.approx(probabilities(tmp_path / "dataset.csv")[:10])
