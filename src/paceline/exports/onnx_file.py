"""A trained model as an ONNX file. It says in its metadata what it is and what it was trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.exports.graph import import_onnx
from paceline.imports import import_from
from paceline.models.trained import TrainedModel

# What one file of Protocol Buffers may have.
MOST_BYTES = (1 << 31) - (1 << 20)


def write_onnx(model: TrainedModel, _run: Path, path: Path) -> None:
    """Write an ONNX file."""
    onnx = import_onnx()
    if not model.entry.onnx:
        raise UsageError(
            f"the model `{model.info.model}` is Python code, which ONNX cannot hold", "--to mlflow calls the code"
        )
    size = sum(tensor.nbytes for tensor in model.tensors.values())
    if size > MOST_BYTES:
        raise UsageError(
            f"the model has {size / 1e9:.1f} GB of weights; an ONNX file holds at most {MOST_BYTES / 1e9:.1f} GB",
            "--to mlflow has no limit; or train with fewer features (prepare --hash-bits), or a smaller --dim",
        )
    made = import_from(model.entry.onnx)(model)
    onnx.helper.set_model_props(made, described(model))
    made.doc_string = "Trained with paceline. The metadata `source` says how rows were prepared."
    onnx.checker.check_model(made)
    path.write_bytes(made.SerializeToString())


def described(model: TrainedModel) -> dict[str, str]:
    """What other tools may want to know about a model, as text."""
    output: Any = model.model.output
    info = model.info
    return {
        "model": info.model,
        "loss": info.loss.get("name") or model.entry.losses[0],
        "task": output.task.name,
        "classes": json.dumps(info.class_names or info.source.get("class_names", [])),
        "model_sha256": info.sha256,
        "source": json.dumps(info.source),
    }
