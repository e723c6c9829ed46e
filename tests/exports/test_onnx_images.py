"""ONNX Runtime predicts for images what `predict_proba` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import paceline

NORMALISED = "tests.exports.modules:normalised"


@pytest.mark.parametrize(("model", "crop"), [("softmax", 0), ("softmax", 9), ("alexnet-small", 0), (NORMALISED, 9)])
def test_images_as_bytes(tmp_path: Path, drawings: Path, model: str, crop: int) -> None:
    run = paceline.train(
        data=drawings, model=model, run=tmp_path / "run", train_rows=600, settings=[f"images.crop={crop}"],
        pace="sync", workers=1, progress=False,
    )  # fmt: skip
    code: dict[str, Any] = {"model": model} if ":" in model else {}
    out = paceline.export(run, to="onnx", out=tmp_path / "model.onnx", **code)
    images = np.random.default_rng(1).integers(0, 256, (1_000, 12, 12, 1), np.uint8)
    expected = paceline.load(run.path, allow_code=True).predict_proba(images)
    found = onnxruntime.InferenceSession(out).run(None, {"images": images})[0]
    assert expected.std(axis=0).max() > 0.001
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
