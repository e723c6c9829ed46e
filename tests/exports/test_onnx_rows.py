"""ONNX Runtime predicts what `predict_proba` does, for every loss and every model over rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import paceline
from paceline.models.loss_entries import LOSSES
from paceline.models.registry import MODELS
from tests.conformance.labelled_rows import DATA_OF_LOSS
from tests.exports.models import FEATURES, ROWS, make_rows, padded, predicted, train

MACHINES = [name for name, entry in MODELS.items() if entry.has_factors]


def predictions(path: Path, given: dict[str, Any]) -> Any:
    return onnxruntime.InferenceSession(path).run(None, given)[0]


def assert_same(tmp_path: Path, run: paceline.Run, fields: bool = False) -> None:
    out = paceline.export(run, to="onnx", out=tmp_path / "model.onnx")
    model, rows = paceline.load(run.path), make_rows(seed=8)
    assert model.input.scaling.keys == (0, 1)
    # A row without the key that every training row had, and one with a key that is unknown.
    rows.keys[0], rows.keys[rows.offsets[5]] = 17, FEATURES + 3
    rows = rows if fields else rows._replace(fields=None)
    found, expected = predictions(out, padded(rows)), predicted(model, rows)
    assert len(found) == ROWS > 1_000
    assert expected.std(axis=0).min() > 0.01
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-4 * np.abs(expected).max())
    # What has the value 0 pads a row, too.
    np.testing.assert_allclose(predictions(out, padded(rows, padding=3)), found, rtol=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_linear_models_under_every_loss(tmp_path: Path, loss: str) -> None:
    assert_same(tmp_path, train(tmp_path, DATA_OF_LOSS[loss], loss=loss))


@pytest.mark.parametrize("model", MACHINES)
def test_factorization_machines(tmp_path: Path, model: str) -> None:
    settings = ["factors.initial=0.3"]
    run = train(tmp_path, fields=True, model=model, dim=3, settings=settings)
    assert_same(tmp_path, run, fields=model != "fm")


def test_factorization_machines_without_scaled_values(tmp_path: Path, clicks: Path) -> None:
    run = paceline.train(data=clicks, model="fm", dim=4, run=tmp_path / "run", progress=False)
    out = paceline.export(run, to="onnx", out=tmp_path / "model.onnx")
    rows = paceline.Batch.from_lists([0, 0], [[3, 5, 99], [7]], [[1.0, 0.5, 1.0], [2.0]])
    expected = predicted(paceline.load(run.path), rows)
    np.testing.assert_allclose(predictions(out, padded(rows)), expected, rtol=1e-5)


def test_columns_far_from_0_keep_their_digits(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    far = rng.normal(1e6, 10, (2_000, 1))
    run = paceline.train(data=(far, far[:, 0] > 1e6), epochs=5, run=tmp_path / "run", progress=False)
    out = paceline.export(run, to="onnx", out=tmp_path / "model.onnx")
    rows = {"ids": np.zeros((2_000, 1), np.int64), "values": far.astype(np.float32)}
    expected = paceline.load(run.path).predict_proba(far.astype(np.float32))[:, 1]
    assert expected.std() > 0.2
    np.testing.assert_allclose(np.ravel(predictions(out, rows)), expected, atol=1e-5)
