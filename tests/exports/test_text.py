"""The table of weights: what a reader of the file finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import paceline
from paceline.errors import UsageError
from paceline.exports import text
from tests.exports.models import FIELDS, train


def table(run: paceline.Run, out: Path) -> tuple[list[str], list[list[str]]]:
    """The lines about the whole model, and the cells of the others."""
    lines = paceline.export(run, to="text", out=out).read_text().splitlines()
    about = [line.removeprefix("# ") for line in lines if line.startswith("#")]
    return about, [line.split("\t") for line in lines if not line.startswith("#")]


def test_weights_are_those_of_the_source_and_the_largest_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "LINES_AT_ONCE", 7)
    run = train(tmp_path)
    about, (header, *rows) = table(run, tmp_path / "weights.tsv")
    model = paceline.load(run.path)
    assert about == ["model: linear; predicts: probability", f"bias: {np.float32(model.bias).astype(str)}"]
    assert header == ["feature", "key", "weight"]
    found = np.zeros(len(model.weights), np.float32)
    for name, key, weight in rows:
        assert name == key
        found[int(key)] = np.float32(weight)
    np.testing.assert_array_equal(found, model.weights)
    sizes = [abs(float(weight)) for *_, weight in rows]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] > 0


def test_several_classes_have_a_column_each(tmp_path: Path) -> None:
    run = train(tmp_path, "classes")
    about, (header, *rows) = table(run, tmp_path / "weights.tsv")
    assert header == ["feature", "key", "weight of 0", "weight of 1", "weight of 2"]
    assert len(about[1].removeprefix("bias: ").split()) == 3
    assert max(map(abs, map(float, rows[0][2:]))) >= max(map(abs, map(float, rows[-1][2:])))


def test_factors_stand_beside_the_weight(tmp_path: Path) -> None:
    run = train(tmp_path, model="fm", dim=3)
    about, (header, *rows) = table(run, tmp_path / "weights.tsv")
    tensors = paceline.load(run.path).tensors
    assert header == ["feature", "key", "weight", "factors"]
    for _, key, weight, factors in rows:
        assert np.float32(weight) == tensors["weight"][int(key)]
        np.testing.assert_array_equal(np.array(factors.split(), np.float32), tensors["factors"][int(key)])
    assert "the value of feature 0 counts as (value - 900) / 16" in about[2].replace("899", "900").replace("901", "900")


@pytest.mark.parametrize(("model", "columns"), [("fwfm", 1), ("ffm", FIELDS)])
def test_models_with_fields_name_them(tmp_path: Path, model: str, columns: int) -> None:
    run = train(tmp_path, fields=True, model=model, dim=2)
    about, (header, *rows) = table(run, tmp_path / "weights.tsv")
    assert "fields: C0, C1, C2, C3" in about
    assert len([line for line in about if line.startswith("field_weights: ")]) == (FIELDS if model == "fwfm" else 0)
    assert [name.split()[0] for name in header] == ["feature", "key", "weight"] + ["factors"] * columns
    assert {len(cell.split()) for row in rows for cell in row[3:]} == {2}


def test_hashed_features_have_their_names(tmp_path: Path) -> None:
    lines = [f"{i % 2},{'Rome' if i % 2 else 'Oslo'},{i % 7}" for i in range(200)]
    (tmp_path / "rows.csv").write_text("label,town,age\n" + "\n".join(lines) + "\n")
    paceline.prepare(tmp_path / "rows.csv", tmp_path / "data")
    run = paceline.train(data=tmp_path / "data", run=tmp_path / "run", progress=False)
    _, (_, *rows) = table(run, tmp_path / "weights.tsv")
    weights = {name: float(weight) for name, _, weight in rows}
    assert weights.keys() == {"town=Rome", "town=Oslo", "age"}
    assert weights["town=Rome"] > 0 > weights["town=Oslo"]


def test_models_of_images_have_no_features_to_list(tmp_path: Path, drawings: Path) -> None:
    run = paceline.train(data=drawings, model="softmax", run=tmp_path / "run", progress=False)
    with pytest.raises(UsageError, match="has no features to list"):
        paceline.export(run, to="text", out=tmp_path / "weights.tsv")
    assert not (tmp_path / "weights.tsv").exists()
