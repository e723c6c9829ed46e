"""What PyTorch can write as ONNX, and how it says what it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paceline
import torch
from paceline.errors import ConfigError
from paceline.torch.traced import FixedAdaptivePooling

SPECTRAL = "tests.exports.modules:spectral"


@pytest.mark.parametrize(("height", "width", "size"), [(7, 5, 3), (1, 2, 6), (6, 6, (2, None)), (13, 4, (5, 4))])
def test_pooling_by_matrices_is_adaptive_pooling(height: int, width: int, size: Any) -> None:
    images = torch.randn(2, 3, height, width)
    torch.testing.assert_close(FixedAdaptivePooling(size)(images), torch.nn.AdaptiveAvgPool2d(size)(images))


def test_a_module_that_onnx_cannot_hold_is_refused_in_one_line(
    tmp_path: Path, drawings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = paceline.train(data=drawings, model=SPECTRAL, train_rows=100, run=tmp_path / "run", progress=False)
    with pytest.raises(ConfigError, match=r"PyTorch cannot write `tests\..*:spectral` as ONNX") as refused:
        paceline.export(run, to="onnx", out=tmp_path / "model.onnx", model=SPECTRAL)
    assert "--to mlflow" in refused.value.hint
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "model.onnx").exists()
