"""Users say what becomes of columns, and manifests record it."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import paceline
from paceline.data.preparation import config_of
from paceline.data.prepare import prepare
from paceline.data.sources.table_columns import natural_kind
from paceline.errors import ConfigError, UsageError
from tests.data.inputs import rows_of, run, write
from tests.kernels.test_hashing import WORD, reference, reference_mix

BITS = 12
MOMENTS = [datetime.datetime(2026, 11, 18, 21, 30), None, datetime.datetime(2026, 11, 22, 0, 5)]
TABLE = pa.table(
    {
        "id": [7, 8, 9],
        "shop": [3, 4, None],
        "town": ["Rome", None, "Oslo"],
        "age": [17, 40, 70],
        "code": ["1", "", "2.5"],
        "when": MOMENTS,
        "tags": pa.array([["a", "b", "a", None], None, []], pa.list_(pa.string())),
        "label": [1, 0, 1],
    }
)


def parquet(path: Path, table: Any = TABLE) -> Path:
    pa.parquet.write_table(table, path, row_group_size=2)
    return path


def key(name: str, text: str, first: int) -> int:
    return first + reference(name, text.encode()) % (1 << BITS)


def cross_key(parts: list[tuple[str, str]], first: int) -> int:
    state = reference(parts[0][0], parts[0][1].encode())
    for name, text in parts[1:]:
        state = reference_mix((state * 0x100000001B3 & WORD) ^ reference(name, text.encode()))
    return first + state % (1 << BITS)


SETTINGS: dict[str, Any] = {
    "drop": ["id"], "categorical": ["shop"], "numeric": ["code"], "bins": {"age": [18, 65]}, "hash_bits": BITS,
    "cross": [["shop", "town"], ["town", "age", "when.hour"]],
}  # fmt: skip
EXPECTED = [
    (
        1,
        {
            0: 1.0,
            key("shop", "3", 1): 1.0,
            key("town", "Rome", 1): 1.0,
            key("age", "..18", 1): 1.0,
            key("when.hour", "21", 1): 1.0,
            key("when.weekday", "Wed", 1): 1.0,
            key("tags", "a", 1): 2.0,
            key("tags", "b", 1): 1.0,
            cross_key([("shop", "3"), ("town", "Rome")], 1): 1.0,
            cross_key([("town", "Rome"), ("age", "..18"), ("when.hour", "21")], 1): 1.0,
        },
    ),
    (0, {key("shop", "4", 1): 1.0, key("age", "18..65", 1): 1.0}),
    (
        1,
        {
            0: 2.5,
            key("town", "Oslo", 1): 1.0,
            key("age", "65..", 1): 1.0,
            key("when.hour", "0", 1): 1.0,
            key("when.weekday", "Sun", 1): 1.0,
            cross_key([("town", "Oslo"), ("age", "65.."), ("when.hour", "0")], 1): 1.0,
        },
    ),
]


def test_columns_become_what_was_asked(tmp_path: Path) -> None:
    made = run(tmp_path, parquet(tmp_path / "a.parquet"), **SETTINGS)
    assert rows_of(made.dataset) == EXPECTED
    assert made.dataset.features == 1 + 2**BITS
    assert made.notes == (
        "numeric columns: code; text columns: town; categories that are numbers: shop; columns in bins: age (3); "
        "timestamps (hour and day of the week): when; lists (each element is a category): tags; crosses: shop×town, "
        "town×age×when.hour",
    )


def test_csv_gives_the_same_rows(tmp_path: Path) -> None:
    lines = ["7,3,Rome,17,1,2026-11-18 21:30,1", "8,4,,40,,,0", "9,,Oslo,70,2.5,2026-11-22 00:05,1"]
    text = "\n".join(["id,shop,town,age,code,when,label", *lines, ""])
    made = run(tmp_path, write(tmp_path / "a.csv", text), timestamp=["when"], **SETTINGS)
    tags = {key("tags", "a", 1), key("tags", "b", 1)}
    expected = [(label, {k: v for k, v in row.items() if k not in tags}) for label, row in EXPECTED]
    assert rows_of(made.dataset) == expected


def test_each_feature_is_a_field(tmp_path: Path) -> None:
    dataset = run(tmp_path, parquet(tmp_path / "a.parquet"), fields=True, **SETTINGS).dataset
    names = dataset.manifest.fields
    assert names == (
        "shop",
        "town",
        "age",
        "code",
        "when.hour",
        "when.weekday",
        "tags",
        "shop×town",
        "town×age×when.hour",
    )
    block = dataset.block("train", 0)
    assert block.fields is not None
    last = [names[field] for field in block.fields[block.offsets[2] :]]
    assert last == ["town", "age", "code", "when.hour", "when.weekday", "town×age×when.hour"]
    assert sorted(block.fields[: block.offsets[1]].tolist()) == [0, 1, 2, 3, 4, 5, 6, 6, 7, 8]


def test_a_manifest_has_all_that_is_needed_to_read_more_rows(tmp_path: Path) -> None:
    """Rows that alone would look different: no label of both kinds, an empty column, one more column."""
    settings = {**SETTINGS, "bins": {"age": 2}}
    made = run(tmp_path, parquet(tmp_path / "a.parquet"), **settings)
    source = made.dataset.manifest.source
    assert source["bins"] == {"age": [40.0]}
    assert source["columns"] == {
        "shop": "category", "town": "text", "age": "bins", "code": "number", "when": "timestamp", "tags": "list",
    }  # fmt: skip
    again = prepare(config_of(source, [str(tmp_path / "a.parquet")], out=str(tmp_path / "b")), lambda _: None)
    assert again.dataset.fingerprint == made.dataset.fingerprint
    new = TABLE.slice(1, 1).drop_columns(["id"]).append_column("more", pa.array(["x"]))
    for name in ("town", "tags", "when", "code"):
        new = new.set_column(new.column_names.index(name), name, pa.nulls(1))
    path = parquet(tmp_path / "new.parquet", new)
    read = prepare(config_of(source, [str(path)], out=str(tmp_path / "c")), lambda _: None).dataset
    assert rows_of(read)[0][1].keys() == {key("shop", "4", 1), key("age", "40..", 1)}
    csv = write(tmp_path / "new.csv", "label,town,age,code,shop,when,tags\n1,5,0,0,1,2026-11-18,\n")
    with pytest.raises(UsageError, match="tags"):  # CSV has no lists
        prepare(config_of({**source, "format": "csv"}, [str(csv)], out=str(tmp_path / "d")), lambda _: None)


def test_files_of_csv_are_read_as_recorded(tmp_path: Path) -> None:
    """Kinds are not found out from cells again: a town may look like a number."""
    made = run(tmp_path, write(tmp_path / "a.csv", "label,town,n\n1,Rome,1\n0,5,2\n"), hash_bits=BITS)
    new = write(tmp_path / "b.csv", "label,n,town\n1,3,5\n")
    config = config_of(made.dataset.manifest.source, [str(new)], out=str(tmp_path / "b"))
    assert rows_of(prepare(config, lambda _: None).dataset) == [(1, {0: 3.0, key("town", "5", 1): 1.0})]


def test_dropped_columns_may_be_of_any_type_and_missing_later(tmp_path: Path) -> None:
    odd = TABLE.set_column(0, "id", pa.array([{"a": 1}] * 3))
    paths = parquet(tmp_path / "a.parquet", odd), parquet(tmp_path / "b.parquet", TABLE.drop_columns(["id"]))
    assert run(tmp_path, *paths, **SETTINGS).rows == 6


@pytest.mark.parametrize(
    ("settings", "words", "hint"),
    [
        ({"drop": ["idd"]}, "`drop` has `idd`, which is not a column", "did you mean `id`?"),
        ({"drop": ["label"]}, "`drop` has `label`, which is the label", "--drop"),
        ({"bins": {"zzz": 3}}, "`bins` has `zzz`, which is not a column", "there are id, shop"),
        ({"bins": {"town": 3}}, "`bins` has `town`, which holds text", "--numeric"),
        ({"bins": {"age": 1}}, "`bins of age` is 1", "--bins age=10"),
        ({"bins": {"age": [3.0, 1.0]}}, "the edges of the bins of `age` are 3, 1", "--bins age=18,30,65"),
        ({"categorical": ["tags"]}, "`categorical` has `tags`, which holds lists", "categories already"),
        ({"timestamp": ["age"]}, "`timestamp` has `age`, which holds numbers", "2026-11-18"),
        ({"drop": ["id"], "numeric": ["id"]}, "`id` is in both `drop` and `numeric`", "one of them"),
        ({"cross": [["town", "townn"]]}, "`cross` has `townn`, which is not a column", "did you mean `town`?"),
        ({"cross": [["town", "age"]]}, "`cross` has `age`, which holds numbers", "--bins age=10"),
        ({"cross": [["town", "when"]]}, "`cross` has `when`, which holds timestamps", "when.hour or when.weekday"),
        ({"cross": [["town", "tags"]]}, "`cross` has `tags`, which holds lists", "one value per row"),
        ({"cross": [["town", "town"]]}, "`cross` has `town`, `town`; it must be two or more columns", "--cross A,B"),
        ({"drop": [name for name in TABLE.column_names if name != "label"]}, "no column left", "drop fewer"),
    ],
)
def test_settings_that_do_not_fit_the_columns(tmp_path: Path, settings: dict[str, Any], words: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        run(tmp_path, parquet(tmp_path / "a.parquet"), **settings)
    assert words in error.value.message
    assert hint in error.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def test_settings_of_columns_are_for_tables(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it is for parquet, arrow, csv"):
        run(tmp_path, write(tmp_path / "a.svm", "1 1:1\n"), drop=["a"])


def test_two_columns_cannot_become_one_feature(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", TABLE.append_column("when.hour", pa.array(["x"] * 3)))
    with pytest.raises(UsageError, match=r"`when` and `when.hour` both become `when.hour`"):
        run(tmp_path, path)


@pytest.mark.parametrize(("cell", "column"), [("oops", "when"), ("x", "age")])
def test_a_bad_cell_is_named(tmp_path: Path, cell: str, column: str) -> None:
    row = {"age": "3", "when": "2026-11-18", column: cell}
    text = f"label,age,when\n1,2,2026-11-17\n0,{row['age']},{row['when']}\n1,5,\n"
    settings: dict[str, Any] = {"timestamp": ["when"], "numeric": ["age"], "bins": {"age": 2}, "hash_bits": BITS}
    path = write(tmp_path / "a.csv", text)
    with pytest.raises(UsageError, match=rf"a.csv`, row 3, column {column}: `{cell}` is not a"):
        run(tmp_path, path, **settings)
    assert run(tmp_path, path, skip_bad_rows=1, **settings).rows == 2


def test_a_frame_gives_the_same_dataset(tmp_path: Path) -> None:
    import paceline

    frame: Any = TABLE.to_pandas()
    frame["shop"] = frame["shop"].astype("Int64")
    made = paceline.prepare(
        frame, tmp_path / "memory", label="label", drop="id", categorical=["shop"], numeric=("code",),
        bins={"age": [18, 65]}, cross=[("shop", "town"), "town,age,when.hour"], hash_bits=BITS, progress=False,
    )  # fmt: skip
    of_file = run(tmp_path, parquet(tmp_path / "a.parquet"), **SETTINGS)
    assert made.dataset.fingerprint == of_file.dataset.fingerprint


def test_types_that_cannot_be_used() -> None:
    for kind in (pa.null(), pa.struct([("a", pa.int8())]), pa.list_(pa.list_(pa.int8())), pa.binary(4)):
        assert natural_kind(kind) is None
    assert natural_kind(pa.dictionary(pa.int8(), pa.list_(pa.int8()))) is None


@pytest.mark.parametrize("values", [MOMENTS, [[1], [0], [1]], [{"a": 1}] * 3])
def test_labels_and_weights_of_other_types_are_refused(tmp_path: Path, values: list[Any]) -> None:
    table = pa.table({"x": [1, 2, 3], "label": [0, 1, 0], "other": pa.array(values)})
    path = parquet(tmp_path / "rows.parquet", table)
    with pytest.raises(UsageError, match=r"`.*rows.parquet`, column other: the label is of the type "):
        paceline.prepare(path, tmp_path / "out", label="other", progress=False)
    with pytest.raises(UsageError, match=r"column other: the weight is of the type "):
        paceline.prepare(path, tmp_path / "out", weight="other", progress=False)
    with pytest.raises(UsageError, match=r"`the table`, column other: the label is of the type "):
        paceline.prepare(table, tmp_path / "out", label="other", progress=False)
