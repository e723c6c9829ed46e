"""How is a trained model kept and used? `model/` of a run folder: safetensors and `model.json`, in the input's keys."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from paceline.errors import BAD_TEXT, DataError, UsageError
from paceline.files import read_file, refuse_running, replace_file, translated_disk_errors, write_tensors
from paceline.imports import import_from
from paceline.models import linear, sparse
from paceline.models.images import ImageClassifier, ImageSettings
from paceline.models.model import Floats, Model, Parameters, TableView, values_of
from paceline.models.registry import Entry, check_code, find
from paceline.models.trained_inputs import ImageInput, Input, SparseInput
from paceline.settings import RunConfig

Tensors = dict[str, NDArray[Any]]


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of every `model.json`. `source` says how the training data was prepared."""

    model: str
    sha256: str
    source: dict[str, Any]


class SparseInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A field of `model.json` for models over sparse rows."""

    features: int


Loaded = tuple[Model, Parameters, Input]


@dataclass(frozen=True, eq=False, repr=False)
class TrainedModel:
    """A trained model: its `tensors` by name, and its predictions for rows."""

    entry: Entry
    info: ModelInfo
    tensors: Tensors
    model: Model
    parameters: Parameters
    input: Input

    @property
    def weights(self) -> Floats:
        """The weights of a linear model, [features]."""
        return self._of_linear("weight")

    @property
    def bias(self) -> float:
        """The bias of a linear model."""
        return float(self._of_linear("bias")[0])

    def _of_linear(self, name: str) -> Floats:
        if name not in self.tensors:
            raise UsageError(f"the model `{self.info.model}` has no `{name}`", f"it has {', '.join(self.tensors)}")
        return self.tensors[name]

    def predict_proba(self, rows: Any) -> Floats:
        """The probability of label 1 of each row of a `Batch` or a SciPy CSR matrix, in the input's keys.

        For images, the probability of each class [images, classes]. They are given as `Images`, or as bytes [images,
        height, width, channels]; grey images may leave the channel out. Unknown keys are ignored.
        """
        return self.model.output.probabilities(self.model.scores(self.parameters, self.input.rows_of(rows)))

    def parameters_for(self, dataset: Any) -> Parameters:
        """The parameters in the order of a dataset's keys; `DataError` if the model is not for it."""
        return self.input.parameters_for(self.parameters, dataset, self.info.source)


def save_model(folder: Path, model: Model, parameters: Parameters, name: str, source: dict[str, Any]) -> str:
    """Write a model whose parameters are values in the input's order; returns their SHA-256."""
    tensors, said = model.save(parameters)
    sha256 = _sha256(parameters)
    path = folder / "model.safetensors"
    with translated_disk_errors(path):
        folder.mkdir(exist_ok=True)
    write_tensors(path, tensors)
    info = {"model": name, **said, "sha256": sha256, "source": source}
    replace_file(folder / "model.json", msgspec.json.encode(info))
    return sha256


def load_model(run: Path, code: str = "", allow_code: bool = False) -> TrainedModel:
    """The model of a run folder. If it needs a user's code, that must be `code` (PACKAGE:FUNCTION) or be allowed."""
    folder = run / "model"
    if not run.is_dir():
        raise UsageError(f"no run at `{run}`", "give a folder that `train` made")
    if not (folder / "model.json").is_file():
        refuse_running(run)
        raise UsageError(f"`{run}` holds no trained model", _how_to_get_one(run))
    try:
        content = read_file(folder / "model.json", "train again")
        info = msgspec.json.decode(content, type=ModelInfo)
        if not allow_code:
            check_code(run, info.model, code, f"--model {info.model}, in Python allow_code=True")
        if not (folder / "model.safetensors").is_file():
            raise DataError(f"`{folder / 'model.safetensors'}` is missing, or not a regular file", "train again")
        tensors = safetensors.numpy.load_file(folder / "model.safetensors")
        entry = find(info.model)
        model, parameters, data = entry.load(content, tensors)
        if _sha256(parameters) != info.sha256:
            raise DataError(f"the model in `{folder}` has a wrong checksum", "train again")
        return TrainedModel(entry, info, tensors, model, parameters, data)
    except (OSError, *BAD_TEXT, SafetensorError) as error:
        raise DataError(f"the model in `{folder}` cannot be read: {error}", "train again") from None


def _how_to_get_one(run: Path) -> str:
    """What to do about a run folder without a model."""
    result: dict[str, Any] = {}
    with suppress(OSError, DataError, *BAD_TEXT):
        result = msgspec.json.decode(read_file(run / "result.json", ""), type=dict[str, Any])
    if result and "model" not in result:
        return "give a folder that `paceline train` made"
    if result.get("status") == "done":
        return "its folder `model` was removed or damaged after the training: put it back, or train again"
    if (run / "checkpoints").is_dir():
        return f"`paceline resume {run}` finishes it"
    return (
        "it failed before it was trained: train again"
        if result
        else "no training in this folder has ended: train again"
    )


def load_linear_model(entry: Entry, content: bytes, tensors: Tensors) -> Loaded:
    """A linear model from its file."""
    features = msgspec.json.decode(content, type=SparseInfo).features
    _check_shapes(tensors, {"weight": (features,), "bias": (1,)})
    _check_types(tensors, {"weight": "float32", "bias": "float32"})
    model = linear.build_for(RunConfig(), features)
    return _load_sparse(model, np.concatenate([tensors["weight"], tensors["bias"]]), {})


def load_declared_model(entry: Entry, content: bytes, tensors: Tensors) -> Loaded:
    """A user's model over sparse rows from its file."""
    features = msgspec.json.decode(content, type=SparseInfo).features
    model = sparse.build_for(entry, RunConfig(), features, 1, 1)
    layout = model.layout.table
    assert layout is not None
    groups = {f"table.{group.name}": (layout.num_keys, group.dim) for group in layout.groups}
    _check_shapes(tensors, groups)
    _check_types(tensors, dict.fromkeys(groups, "float32"))
    return _load_sparse(model, np.concatenate([tensors[name] for name in groups], axis=1).reshape(-1), tensors)


def _load_sparse(model: Model, table: Floats, tensors: Tensors) -> Loaded:
    assert model.layout.table is not None
    view = TableView.of_values(np.ascontiguousarray(table), model.layout.table)
    return model, Parameters(view, _dense_of(model, tensors)), SparseInput()


def load_image_model(entry: Entry, content: bytes, tensors: Tensors) -> Loaded:
    """A classifier of images from its file."""
    settings = msgspec.json.decode(content, type=ImageSettings)
    if entry.shapes:
        _check_shapes(tensors, import_from(entry.shapes)(entry, settings))
    model = ImageClassifier(entry, RunConfig(data="-", model=entry.name, images=settings.images), settings)
    return model, Parameters(dense=_dense_of(model, tensors)), ImageInput(settings)


def _dense_of(model: Model, tensors: Tensors) -> Floats:
    _check_shapes(tensors, {tensor.name: tensor.shape for tensor in model.tensors})
    _check_types(tensors, {tensor.name: tensor.dtype for tensor in model.tensors})
    return values_of(model.tensors, tensors)


def _check_shapes(found: Tensors, wanted: Mapping[str, tuple[int, ...]]) -> None:
    for name, shape in wanted.items():
        if name not in found or found[name].shape != shape:
            has = found[name].shape if name in found else "missing"
            raise DataError(f"tensor `{name}` is {has}, expected {shape}", "train again")


def _check_types(found: Tensors, wanted: Mapping[str, str]) -> None:
    """The numbers are covered by a checksum, but what they mean is not."""
    for name, dtype in wanted.items():
        if str(found[name].dtype) != dtype:
            raise DataError(f"tensor `{name}` is {found[name].dtype}, expected {dtype}", "train again")


def _sha256(parameters: Parameters) -> str:
    digest = hashlib.sha256(parameters.table.rows.data if parameters.table is not None else b"")
    if parameters.dense is not None:
        digest.update(parameters.dense.data)
    return digest.hexdigest()
