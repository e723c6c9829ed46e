"""What `paceline top` says about a model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import paceline
from paceline.data.sparse.dataset import SparseDataset
from paceline.data.sparse.names import FeatureNames
from paceline.errors import UsageError
from paceline.inside.top import count_rows


def train(folder: Path, text: str, **flags: object) -> Path:
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


def test_names_stay_when_the_dataset_is_gone(tmp_path: Path) -> None:
    run = train(tmp_path, rows())
    shutil.rmtree(tmp_path / "data")
    found = paceline.top(run, 2)
    assert found["features"][0]["feature"] == "town=Rome"
    assert found["features"][0]["rows"] is None
    assert any("how often features occur is not known" in note for note in found["notes"])
    (run / "model" / "names.arrow").unlink()
    with pytest.warns(paceline.PacelineWarning, match="missing"):
        found = paceline.top(run, 2)
    assert found["features"][0]["feature"] == str(found["features"][0]["key"])


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
