"""What an ONNX file says about itself, and which models cannot be one."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

import paceline
from paceline.errors import UsageError
from paceline.exports import onnx_file
from tests.exports.models import train


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    run = train(tmp_path, "classes")
    made = onnx.load(paceline.export(run, to="onnx", out=tmp_path / "model.onnx"))
    said = {entry.key: entry.value for entry in made.metadata_props}
    assert (said["model"], said["loss"], json.loads(said["classes"])) == ("linear", "softmax", ["0", "1", "2"])
    assert json.loads(said["source"])["format"] == "made"
    assert said["model_sha256"] == run.result["model_sha256"]
    assert [value.name for value in made.graph.input] == ["ids", "values"]
    assert [value.name for value in made.graph.output] == ["probability"]
    # What runtimes of the last years can read.
    assert (made.ir_version, [opset.version for opset in made.opset_import]) == (8, [17])


def test_models_that_one_file_cannot_hold_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "MOST_BYTES", 100)
    with pytest.raises(UsageError, match="GB of weights") as refused:
        paceline.export(train(tmp_path), to="onnx", out=tmp_path / "model.onnx")
    assert "--to mlflow" in refused.value.hint
    assert not (tmp_path / "model.onnx").exists()
