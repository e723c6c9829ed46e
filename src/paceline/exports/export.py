"""How does a trained model get to other tools? As a new file or folder, in the form that the tool reads."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import NamedTuple

from paceline.errors import UsageError, one_of
from paceline.files import new_path
from paceline.imports import import_from
from paceline.models.trained import load_model
from paceline.run_folder import RunFolder


class Target(NamedTuple):
    """What a model is exported to. `writer`, "module:function", writes a `TrainedModel`, that of a run folder,
    to a new path."""

    what: str
    writer: str


TARGETS = {
    "onnx": Target("a file for ONNX Runtime and others", "paceline.exports.onnx_file:write_onnx"),
    "mlflow": Target("a folder that MLflow loads and serves", "paceline.exports.mlflow_model:write_mlflow"),
    "text": Target("a table of weights to read", "paceline.exports.text:write_text"),
    "vw": Target("a readable model of Vowpal Wabbit", "paceline.exports.vw:write_vw"),
}


def export_model(run: str | Path, to: str, out: str | Path, code: str = "") -> Path:
    """Write the model of a run to a new file or folder; returns its path. `code` is PACKAGE:FUNCTION, if needed."""
    if to not in TARGETS:
        near = difflib.get_close_matches(to, TARGETS, n=1)
        hint = f"did you mean `{near[0]}`?" if near else "--to onnx is for serving, --to text for reading"
        raise UsageError(f"`to` is `{to}`; it must be {one_of([*TARGETS])}", hint)
    out = Path(out)
    with new_path(out) as place:
        folder = RunFolder(run).path
        import_from(TARGETS[to].writer)(load_model(folder, code), folder, place)
    return out
