"""Predictions and metrics with `device="cuda"` are those of the CPU: in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest

import paceline
from paceline.data.sparse.dataset import SparseDataset
from tests.conftest import Command, small_blocks

ROWS = 120
LABELS: dict[str, dict[str, Any]] = {
    "logistic": {"label": "clicked"},
    "softmax": {"label": "colour"},
    "squared": {"label": "price"},
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "linear, logistic": ("logistic", {"optimizer": "ftrl"}),
    "linear, squared": ("squared", {}),
    "linear, softmax": ("softmax", {}),
    "fm": ("logistic", {"model": "fm", "dim": 3}),
    "fm, squared": ("squared", {"model": "fm", "dim": 3}),
}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """Rows with text, and numbers that are scaled and centred."""
    rng = np.random.default_rng(5)
    rows = pd.DataFrame({
        "town": rng.choice(["Bern", "Kyoto", "Lagos"], ROWS), "size": rng.normal(5_000, 900, ROWS).round(1),
        "count": rng.poisson(1.0, ROWS),
    })  # fmt: skip
    score = (rows["town"] == "Bern") + (rows["size"] - 5_000) / 900 + rng.normal(size=ROWS)
    return rows.assign(
        clicked=(score > 0.3).astype(int), colour=np.array(["red", "green", "blue"])[np.digitize(score, [-0.5, 1])],
        price=(100 + 20 * score).round(3),
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, table: pd.DataFrame) -> Path:
    """A dataset for each kind of labels, in several blocks; a run of each model; and a file of raw rows."""
    folder = tmp_path_factory.mktemp("scoring")
    kept = ["town", "size", "count"]
    for name, options in LABELS.items():
        with small_blocks(50):
            rows = table[[*kept, options["label"]]]
            paceline.prepare(rows, folder / name, progress=False, **options)
    for name, (labels, settings) in MODELS.items():
        given = {"epochs": 3, "learning_rate": 0.1, "workers": 1, "progress": False, **settings}
        paceline.train(data=folder / labels, run=folder / "runs" / name, **given)
    # Keys that no training row has, and rows without some values.
    rows = table[kept].head(40).assign(town=lambda rows: rows["town"].where(rows.index % 7 > 0, "Oslo"))
    rows.loc[rows.index % 5 == 0, "count"] = None
    rows.to_csv(folder / "raw.csv", index=False)
    return folder


def columns(out: Path) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = pyarrow.parquet.read_table(out).to_pydict()
    return found


def assert_same(found: dict[str, list[Any]], expected: dict[str, list[Any]]) -> None:
    """The same columns; numbers to 1e-5."""
    assert list(found) == list(expected)
    for name, values in expected.items():
        if isinstance(values[0], float):
            assert found[name] == pytest.approx(values, rel=1e-5, abs=1e-5)
            assert np.ptp(values) > 0.05
        else:
            assert found[name] == values


@pytest.mark.parametrize("name", MODELS)
def test_metrics_and_predictions_are_those_of_the_cpu(folder: Path, tmp_path: Path, name: str) -> None:
    run, data = folder / "runs" / name, folder / MODELS[name][0]
    assert len(SparseDataset(data).split("train").blocks) > 1
    on_cpu, on_gpu = (paceline.evaluate(run, data, device=device) for device in ("cpu", "cuda"))
    assert on_gpu == pytest.approx(on_cpu, rel=1e-5, abs=1e-5)
    outs = [tmp_path / f"{device}.parquet" for device in ("cpu", "cuda")]
    for out in outs:
        assert paceline.predict(run, data, out, device=out.stem) == ROWS
    assert_same(columns(outs[1]), columns(outs[0]))


@pytest.mark.parametrize("name", ["linear, logistic", "linear, softmax", "fm, squared"])
def test_raw_rows_are_scored_as_on_the_cpu(folder: Path, tmp_path: Path, name: str) -> None:
    run = folder / "runs" / name
    raw = pd.read_csv(folder / "raw.csv")
    for given in (folder / "raw.csv", raw):
        outs = [tmp_path / f"{device}-{type(given).__name__}.parquet" for device in ("cpu", "cuda")]
        for out in outs:
            assert paceline.predict(run, given, out, device=out.stem.partition("-")[0]) == 40
        assert_same(columns(outs[1]), columns(outs[0]))


def test_no_rows_have_no_predictions(folder: Path, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.csv"
    nothing.write_text("town,size,count\n")
    for name in ("linear, logistic", "linear, softmax"):
        assert paceline.predict(folder / "runs" / name, nothing, tmp_path / f"{name}.csv", device="cuda") == 0


def test_rows_in_memory_are_evaluated(folder: Path, table: pd.DataFrame) -> None:
    run, rows = folder / "runs" / "linear, squared", table[["town", "size", "count", "price"]]
    on_cpu, on_gpu = (paceline.evaluate(run, rows, label="price", device=device) for device in ("cpu", "cuda"))
    assert on_gpu == pytest.approx(on_cpu, rel=1e-5)
    assert on_gpu["rows"] == ROWS


def test_commands_score_on_a_gpu_alone(
    command: Command, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, data = folder / "runs" / "linear, logistic", folder / "logistic"
    expected = paceline.evaluate(run, data)
    # Only the GPU may score.
    monkeypatch.setattr("paceline.models.linear.score", None)
    found = command("evaluate", run, "--data", data, "--device", "cuda", "--json")
    assert json.loads(found.out) == pytest.approx(expected, rel=1e-5)
    out = tmp_path / "out.csv"
    assert command("predict", run, "--data", data, "--device", "cuda", "--out", out).code == 0
    assert len(out.read_text().splitlines()) == ROWS + 1
    assert command("predict", run, folder / "raw.csv", "--device", "cuda", "--out", tmp_path / "raw.csv").code == 0
    raw = pd.read_csv(folder / "raw.csv")
    assert paceline.predict(run, raw, tmp_path / "memory.csv", device="cuda") == len(raw)
