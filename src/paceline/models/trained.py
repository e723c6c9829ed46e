"""How is a trained model kept and used? `model/` of a run folder: safetensors and `model.json`, in the input's keys."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from paceline.data.blocks.folders import LocalFolder
from paceline.data.labels import MOST_CLASSES, Labels
from paceline.data.preparation import check_source
from paceline.data.sparse.feature_counts import CountsInfo
from paceline.data.sparse.names import FeatureNames, NamesInfo
from paceline.data.sparse.scaling import Scaling
from paceline.errors import BAD_TEXT, DataError, UsageError
from paceline.files import read_file, refuse_running, replace_file, translated_disk_errors, write_tensors
from paceline.imports import import_from
from paceline.models import linear, sparse
from paceline.models.images import ImageClassifier, ImageSettings
from paceline.models.loss_entries import LOSSES
from paceline.models.model import Floats, Model, Parameters, TableView, values_of
from paceline.models.output import class_labels, class_probabilities, predicted
from paceline.models.registry import Entry, check_code, find
from paceline.models.tasks import TWO_CLASSES
from paceline.models.trained_inputs import ImageInput, Input, SparseInput, TrainedOn
from paceline.settings import LossConfig, RunConfig

Tensors = dict[str, NDArray[Any]]


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of every `model.json`. `source` says how the training data was prepared, and `names` what its features
    are called. `counts` says how many rows have them.
    """

    model: str
    sha256: str
    source: dict[str, Any]
    names: NamesInfo = NamesInfo()
    counts: CountsInfo = CountsInfo()
    loss: dict[str, Any] = {}
    class_names: list[str] = []

    def __post_init__(self) -> None:
        check_source(self.source)


class SparseInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of `model.json` for models over sparse rows."""

    features: int
    scaling: Scaling = Scaling()

    def __post_init__(self) -> None:
        if max(self.scaling.keys, default=-1) >= self.features:
            raise ValueError(f"the scaled keys are not below the {self.features} features")


class LinearInfo(SparseInfo, frozen=True, kw_only=True):
    """The fields of `model.json` for linear models. Older versions had only the logistic loss."""

    loss: LossConfig = LossConfig(name="logistic")
    class_names: tuple[str, ...] = ("0", "1")


class TopFeature(NamedTuple):
    """A feature, its key and its weight, and the class that the weight is for, if there are several."""

    feature: str
    key: int
    weight: float
    label: str = ""


Loaded = tuple[Model, Parameters, Input]


@dataclass(frozen=True, eq=False, repr=False)
class TrainedModel:
    """A trained model: its `tensors` by name, its predictions for rows, and the `names` of its features.

    `run` is the folder that it is from.
    """

    entry: Entry
    info: ModelInfo
    tensors: Tensors
    model: Model
    parameters: Parameters
    input: Input
    names: FeatureNames
    run: Path = Path()

    @property
    def weights(self) -> Floats:
        """The weights of a linear model, [features], for values as the source has them."""
        return self._linear()[0]

    def top(self, count: int = 20) -> list[TopFeature]:
        """The features with the largest weights, by absolute value, for values as the source has them.

        If there are several classes, `count` features for each of them. Features of weight 0 are left out.
        """
        weights = self.weights
        columns = weights.reshape(len(weights), -1)
        labels = getattr(self.model.output, "names", ()) if columns.shape[1] > 1 else ("",)
        found: list[TopFeature] = []
        for column, label in zip(columns.T, labels, strict=True):
            sizes = np.abs(column)
            keys = np.argpartition(-sizes, min(count, len(sizes)) - 1)[:count]
            keys = keys[np.lexsort((keys, -sizes[keys]))]
            keys = keys[sizes[keys] > 0]
            found += [
                TopFeature(name, int(key), float(column[key]), label)
                for name, key in zip(self.names.of(keys), keys.tolist(), strict=True)
            ]
        return found

    @property
    def bias(self) -> float:
        """The bias of a linear model with one score per row, for values as the source has them."""
        found = self._linear()[1]
        if len(found) != 1:
            raise UsageError(f"the model has {len(found)} biases, one per class", "tensors['bias'] has all of them")
        return float(found[0])

    def _linear(self) -> tuple[Floats, Floats]:
        return self.input.scaling.weights_of_source(self._of_linear("weight"), self._of_linear("bias"))

    def _of_linear(self, name: str) -> Floats:
        if name not in self.tensors:
            raise UsageError(f"the model `{self.info.model}` has no `{name}`", f"it has {', '.join(self.tensors)}")
        return self.tensors[name]

    @property
    def classes(self) -> list[Any]:
        """The classes in the order of the columns of `predict_proba`: names or numbers; none if labels are numbers."""
        found: list[Any] = class_labels(self.model.output, self.class_names).tolist()
        return found

    @property
    def class_names(self) -> list[str]:
        """The names of the classes by number; none if the numbers were the names."""
        try:
            return msgspec.convert(self.info.source.get("class_names", []), list[str])
        except msgspec.ValidationError as error:
            raise DataError(f"the class names of the model cannot be read: {error}", "train again") from None

    @property
    def meaning(self) -> str:
        """Which of two classes with names the column of predictions is about; empty if the column needs no words."""
        task, names = self.model.output.task, self.class_names
        if task.name != TWO_CLASSES.name or names in ([], ["0", "1"]):
            return ""
        if task.column == TWO_CLASSES.column:
            return f"{task.column} is that of `{names[1]}`"
        return f"{task.column} is above 0 for `{names[1]}`, and below for `{names[0]}`"

    @property
    def trained(self) -> TrainedOn:
        """What the model was trained on."""
        table = self.parameters.table
        return TrainedOn(self.info.source, 0 if table is None else table.layout.features)

    def predict_proba(self, rows: Any) -> Floats:
        """The probability of each class [rows, classes]; that of label 1 is `predict_proba(rows)[:, 1]`.

        `rows` is whatever `paceline.train` takes: a SciPy sparse matrix or a `Batch` in the input's keys, a NumPy
        array, a frame, an Arrow table, or batches of these. Labels are ignored, and so are keys and columns that the
        model does not know. Images are given as `Images`, or as bytes [images, height, width, channels]; grey images
        may leave the channel out. `UsageError` if the loss gives no probabilities.
        """
        return class_probabilities(self.model.output, self.decision_function(rows))

    def predict(self, rows: Any) -> NDArray[Any]:
        """The class of each row, as the training data called it, or the number predicted for it."""
        return predicted(self.model.output, self.decision_function(rows), self.class_names)

    def decision_function(self, rows: Any) -> Floats:
        """The score of each row [rows], or of each row and class [rows, classes]."""
        parts = self.input.parts_of(self.trained, rows, partial(self.model.scores, self.parameters))
        return np.concatenate([part.made for part in parts])

    def parameters_for(self, dataset: Any) -> Parameters:
        """The parameters in the order of a dataset's keys; `DataError` if the model is not for it.

        From now on, the dataset's rows are read with the values that the model was trained on.
        """
        return self.input.parameters_for(self.parameters, dataset, self.info.source)


def save_model(folder: Path, model: Model, parameters: Parameters, name: str, data: dict[str, Any]) -> str:
    """Write a model whose parameters are values in the input's order; returns their SHA-256.

    `data` is what the file says about the training data: a dataset's `model_info`.
    """
    tensors, said = model.save(parameters)
    sha256 = _sha256(parameters)
    path = folder / "model.safetensors"
    with translated_disk_errors(path):
        folder.mkdir(exist_ok=True)
    write_tensors(path, tensors)
    info = {"model": name, **said, "sha256": sha256, **data}
    replace_file(folder / "model.json", msgspec.json.encode(info))
    return sha256


def load_model(run: Path, code: str = "", allow_code: bool = False) -> TrainedModel:
    """The model of a run folder. If it needs a user's code, that must be `code` (PACKAGE:FUNCTION) or be allowed."""
    folder = run / "model"
    if not run.is_dir():
        raise UsageError(f"no run at `{run}`", "give a folder that `train` made")
    if not (folder / "model.json").is_file():
        if not (run / "config.toml").is_file():
            raise UsageError(f"`{run}` is not a run folder: it has no config.toml", "give a folder that `train` made")
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
        names = FeatureNames(LocalFolder(folder), info.names, info.source)
        loaded = TrainedModel(entry, info, tensors, model, parameters, data, names, run)
        if model.output.task.name == TWO_CLASSES.name and len(loaded.class_names) not in (0, 2):
            known = loaded.class_names
            raise DataError(f"the model in `{folder}` has {len(known)} class names for two classes", "train again")
        return loaded
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
        else "this run did not finish, and left no checkpoint: train again"
    )


def load_linear_model(entry: Entry, content: bytes, tensors: Tensors) -> Loaded:
    """A linear model from its file."""
    info = msgspec.json.decode(content, type=LinearInfo)
    if info.loss.name not in LOSSES or not 2 <= len(info.class_names) <= MOST_CLASSES:
        said = f"the loss `{info.loss.name}` and {len(info.class_names)} classes"
        raise DataError(f"`model.json` has {said}", "train again")
    model = linear.build_for(RunConfig(loss=info.loss), info.features, Labels("classes", info.class_names))
    check_shapes(tensors, model.shapes)
    check_types(tensors, dict.fromkeys(model.shapes, "float32"))
    return load_sparse(model, np.concatenate([tensors["weight"].reshape(-1), tensors["bias"]]), {}, info)


def load_declared_model(entry: Entry, content: bytes, tensors: Tensors) -> Loaded:
    """A user's model over sparse rows from its file."""
    info = msgspec.json.decode(content, type=SparseInfo)
    features = info.features
    model = sparse.build_for(entry, RunConfig(), features, 1, 1)
    layout = model.layout.table
    assert layout is not None
    groups = {f"table.{group.name}": (layout.num_keys, group.dim) for group in layout.groups}
    check_shapes(tensors, groups)
    check_types(tensors, dict.fromkeys(groups, "float32"))
    return load_sparse(model, np.concatenate([tensors[name] for name in groups], axis=1).reshape(-1), tensors, info)


def load_sparse(
    model: Model, table: Floats, tensors: Tensors, info: SparseInfo, fields: tuple[str, ...] = ()
) -> Loaded:
    """A model over sparse rows with this table; its input has these fields, if it must have any."""
    assert model.layout.table is not None
    # Compiled loops do not check fields, and rows get the keys that are centred with those that the scaling says.
    if fields and max(info.scaling.fields, default=-1) >= len(fields):
        raise DataError(f"`model.json` has scaled keys that are not in its {len(fields)} fields", "train again")
    view = TableView.of_values(np.ascontiguousarray(table), model.layout.table)
    return model, Parameters(view, _dense_of(model, tensors)), SparseInput(info.scaling, fields)


def load_image_model(entry: Entry, content: bytes, tensors: Tensors) -> Loaded:
    """A classifier of images from its file."""
    settings = msgspec.json.decode(content, type=ImageSettings)
    if entry.shapes:
        check_shapes(tensors, import_from(entry.shapes)(entry, settings))
    model = ImageClassifier(entry, RunConfig(data="-", model=entry.name, images=settings.images), settings)
    return model, Parameters(dense=_dense_of(model, tensors)), ImageInput(settings)


def _dense_of(model: Model, tensors: Tensors) -> Floats:
    check_shapes(tensors, {tensor.name: tensor.shape for tensor in model.tensors})
    check_types(tensors, {tensor.name: tensor.dtype for tensor in model.tensors})
    return values_of(model.tensors, tensors)


def check_shapes(found: Tensors, wanted: Mapping[str, tuple[int, ...]]) -> None:
    """Raise unless tensors have these shapes."""
    for name, shape in wanted.items():
        if name not in found or found[name].shape != shape:
            has = found[name].shape if name in found else "missing"
            raise DataError(f"tensor `{name}` is {has}, expected {shape}", "train again")


def check_types(found: Tensors, wanted: Mapping[str, str]) -> None:
    """The numbers are covered by a checksum, but what they mean is not."""
    for name, dtype in wanted.items():
        if str(found[name].dtype) != dtype:
            raise DataError(f"tensor `{name}` is {found[name].dtype}, expected {dtype}", "train again")


def _sha256(parameters: Parameters) -> str:
    digest = hashlib.sha256(parameters.table.rows.data if parameters.table is not None else b"")
    if parameters.dense is not None:
        digest.update(parameters.dense.data)
    return digest.hexdigest()
