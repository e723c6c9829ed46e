"""What `paceline top` says about a model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import paceline
from paceline.data.sparse.dataset import SparseDataset
from paceline.data.sparse.names import FeatureNames
from paceline.errors import UsageError
from paceline.inside.top import count_rows, top_features
from paceline.reports.inside import print_top


def train(folder: Path, text: str, **flags: Any) -> Path:
    source = folder / "rows.csv"
    source.write_text(text)
    settings = {name: flags.pop(name) for name in ("labels",) if name in flags}
    paceline.prepare(source, folder / "data", **settings)
    run = paceline.train(data=folder / "data", run=str(folder / "run"), epochs=20, progress=False, **flags)
    return run.path


TOWNS = ["Rome", "Oslo", "Bonn", "Cork"]


def rows(count: int = 400) -> str:
    """The label is whether the town is Rome; a few rows have another town."""
    random = np.random.default_rng(0)
    towns = [TOWNS[i] for i in random.integers(0, 4, count)]
    return "label,x,town\n" + "".join(f"{int(town == 'Rome')},{random.normal():.3f},{town}\n" for town in towns)


def test_the_largest_weights_with_their_names_and_rows(tmp_path: Path) -> None:
    text = rows()
    found = paceline.top(train(tmp_path, text), 3)
    assert json.loads(json.dumps(found)) == found
    first = found["features"][0]
    assert first["feature"] == "town=Rome"
    assert first["weight"] > 0 > found["features"][1]["weight"]
    assert first["rows"] == text.count("Rome")
    assert first["share"] == pytest.approx(text.count("Rome") / 400)
    assert found["notes"] == []
    model = paceline.load(tmp_path / "run")
    assert [one.feature for one in model.top(3)] == [one["feature"] for one in found["features"]]
    assert model.weights[first["key"]] == pytest.approx(first["weight"])


def test_names_and_counts_stay_when_the_dataset_is_gone(tmp_path: Path) -> None:
    run = train(tmp_path, rows())
    before = paceline.top(run, 20)
    shutil.rmtree(tmp_path / "data")
    assert paceline.top(run, 20) == before
    (run / "model" / "counts.arrow").unlink()
    found = paceline.top(run, 2)
    assert found["features"][0]["feature"] == "town=Rome"
    assert found["features"][0]["rows"] is None
    assert any("how often features occur is not known" in note for note in found["notes"])
    (run / "model" / "names.arrow").unlink()
    with pytest.warns(paceline.PacelineWarning, match="missing"):
        found = paceline.top(run, 2)
    assert found["features"][0]["feature"] == str(found["features"][0]["key"])


def test_only_the_rows_that_were_trained_on_are_counted(tmp_path: Path) -> None:
    text = rows()
    run = train(tmp_path, text, train_rows=100)
    counts = {one["feature"]: one["rows"] for one in paceline.top(run)["features"]}
    trained = "".join(text.splitlines(keepends=True)[1:101])
    assert {f"town={town}": trained.count(town) for town in TOWNS}.items() <= counts.items()


def test_data_from_memory_is_counted(tmp_path: Path) -> None:
    towns = pa.array(["Rome", "Oslo", None, "Rome"] * 30)
    table = pa.table({"label": [1, 0, 0, 1] * 30, "town": towns})
    run = paceline.train(data=table, label="label", run=str(tmp_path / "frame"), progress=False)
    found = paceline.top(run)
    assert {one["feature"]: (one["rows"], one["share"]) for one in found["features"]} == {
        "town=Rome": (60, 0.5),
        "town=Oslo": (30, 0.25),
    }
    assert found["notes"] == []


def test_plain_indices_are_counted_and_explained(tmp_path: Path) -> None:
    columns = np.tile(np.eye(3, dtype=np.float32), (20, 1))[:50]
    run = paceline.train(data=(columns, columns[:, 2]), run=str(tmp_path / "matrix"), progress=False)
    found = paceline.top(run)
    assert {one["feature"]: one["rows"] for one in found["features"]} == {"0": 17, "1": 17, "2": 16}
    assert found["notes"] == ["features are called by their index, which counts from 0"]
    (tmp_path / "rows.svm").write_text("1 1:1\n0 2:1 3:1\n" * 20)
    paceline.prepare(tmp_path / "rows.svm", tmp_path / "data")
    run = paceline.train(data=tmp_path / "data", run=str(tmp_path / "indices"), progress=False)
    found = paceline.top(run)
    assert {one["feature"]: one["rows"] for one in found["features"]} == {"1": 20, "2": 20, "3": 20}
    assert found["notes"] == ["features are called by their index, which counts from 1"]


def table_of(towns: list[str]) -> pa.Table:
    return pa.table({"label": [int(town == "Rome") for town in towns], "town": towns})


def train_on(towns: list[str], run: Path, start_from: Path | None = None, **options: Any) -> dict[str, int | None]:
    """The counts of all features after training."""
    data = table_of(towns)
    paceline.train(data=data, label="label", run=str(run), start_from=start_from, progress=False, **options)
    return {one["feature"]: one["rows"] for one in paceline.top(run)["features"]}


def test_a_run_knows_the_features_of_the_model_it_starts_from(tmp_path: Path) -> None:
    first, second, third = tmp_path / "first", tmp_path / "second", tmp_path / "third"
    assert train_on(["Rome", "Oslo"] * 40, first) == {"town=Rome": 40, "town=Oslo": 40}
    counts = {"town=Rome": 60, "town=Oslo": 40, "town=Cork": 20}
    assert train_on(["Rome", "Cork"] * 20, second, first) == counts
    assert paceline.top(second)["features"][0]["share"] == pytest.approx(60 / 120)
    shutil.rmtree(first)
    assert train_on(["Cork", "Oslo"] * 10 + ["Rome"], third, second) == {
        "town=Rome": 61,
        "town=Oslo": 50,
        "town=Cork": 30,
    }


def test_training_again_on_the_same_rows_counts_them_once(tmp_path: Path) -> None:
    towns = ["Rome", "Oslo"] * 40
    first = train_on(towns, tmp_path / "first")
    assert train_on(towns, tmp_path / "second", tmp_path / "first") == first


def test_names_of_an_earlier_model_outlive_data_without_names(tmp_path: Path) -> None:
    train_on(["Rome", "Oslo"] * 40, tmp_path / "first")
    paceline.prepare(table_of(["Rome", "Oslo"] * 20), tmp_path / "data", label="label", names=False)
    run = paceline.train(
        data=tmp_path / "data", start_from=tmp_path / "first", run=str(tmp_path / "second"), progress=False
    )
    assert {one["feature"]: one["rows"] for one in paceline.top(run)["features"]} == {"town=Rome": 60, "town=Oslo": 60}


def test_a_model_of_an_older_version_has_no_counts_to_add_to(tmp_path: Path) -> None:
    train_on(["Rome", "Oslo"] * 40, tmp_path / "first")
    (tmp_path / "first" / "model" / "counts.arrow").unlink()
    assert set(train_on(["Rome", "Cork"] * 20, tmp_path / "second", tmp_path / "first").values()) == {None}


def test_of_very_many_features_the_hot_ones_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.data.sparse.feature_counts.MOST_COUNTED", 2)
    monkeypatch.setattr("paceline.data.sparse.dataset.HOT_KEYS", 2)
    counts = train_on(["Rome"] * 40 + ["Oslo"] * 30 + ["Cork"], tmp_path / "run")
    assert counts == {"town=Rome": 40, "town=Oslo": 30, "town=Cork": None}


def test_several_classes_have_their_own_features(tmp_path: Path) -> None:
    text = "label,town\n" + "".join(f"{town},{town}\n" for town in TOWNS * 60)
    found = paceline.top(train(tmp_path, text, labels="classes"), 4)["features"]
    assert len(found) == 16
    best = {town: max((one for one in found if one["class"] == town), key=lambda one: one["weight"]) for town in TOWNS}
    assert {town: one["feature"] for town, one in best.items()} == {town: f"town={town}" for town in TOWNS}


def test_factorization_machines_show_linear_weights(tmp_path: Path) -> None:
    found = paceline.top(train(tmp_path, rows(), model="fm"), 2)
    assert "linear weights" in found["notes"][0]
    assert len(found["features"]) == 2


def test_rare_keys_are_counted_in_the_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.data.sparse.dataset.HOT_KEYS", 2)
    text = rows()
    (tmp_path / "rows.csv").write_text(text)
    data: SparseDataset = paceline.prepare(tmp_path / "rows.csv", tmp_path / "data").dataset
    names = FeatureNames(data.folder, data.manifest.names, {})
    assert names.info.rows == 4
    keys = pa.ipc.open_file(tmp_path / "data" / "names.arrow").read_all()["key"].to_pylist()
    counts = {name: count_rows(data, keys)[key] for key, name in zip(keys, names.of(keys), strict=True)}
    assert counts == {f"town={town}": text.count(town) for town in TOWNS}


def test_impossible_counts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`count` is 0"):
        paceline.top(tmp_path, 0)


def test_a_model_without_rows_and_a_class_without_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files of a foreign run can say both."""
    lines = "label,x\n" + "".join(f"{label},{i}\n" for i, label in enumerate("abc" * 20))
    run = train(tmp_path, lines, labels="classes")
    path = run / "model" / "model.json"
    info = json.loads(path.read_text())
    info["counts"]["rows"], info["class_names"] = 0, ["a", "", "c"]
    path.write_text(json.dumps(info))
    print_top(top_features(run))
    assert "x" in capsys.readouterr().out
