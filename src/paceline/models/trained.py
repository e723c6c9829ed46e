"""How is a trained model kept and used? `model/` of a run folder: safetensors and `model.json`, in the input's keys."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from paceline.data.images.blocks import Images
from paceline.data.sparse.batch import Batch
from paceline.errors import BAD_TEXT, DataError, UsageError
from paceline.files import read_file, refuse_running, replace_file, translated_disk_errors, write_tensors
from paceline.imports import import_from
from paceline.models import linear, sparse
from paceline.models.images import ImageClassifier, ImageSettings
from paceline.models.model import Floats, Model, Parameters, TableView, values_of
from paceline.models.registry import Entry, check_code, find
from paceline.parameters.store import check_memory
from paceline.settings import RunConfig

Tensors = dict[str, NDArray[Any]]
CSR = "rebuild the matrix: its `check_format()` says what is wrong with it"
# Must be the same for the data that a model was trained on and the data that it predicts for.
SAME_KEYS = ("hash_bits", "integers", "columns", "index_base")


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of every `model.json`. `source` says how the training data was prepared."""

    model: str
    sha256: str
    source: dict[str, Any]


class SparseInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A field of `model.json` for models over sparse rows."""

    features: int


class Input(Protocol):
    """What a trained model takes: how rows are given to it, and which datasets fit."""

    def rows_of(self, given: Any) -> Any:
        """Rows as the model takes them, from what a user gives."""

    def parameters_for(self, parameters: Parameters, dataset: Any, source: dict[str, Any]) -> Parameters:
        """The parameters in the order of a dataset's keys; `DataError` if a model of this source is not for it."""


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


class SparseInput:
    """Sparse rows, in the keys that the model was trained on."""

    def rows_of(self, given: Any) -> Batch:
        return _read_only(_checked(given) if isinstance(given, Batch) else _batch_of_csr(given))

    def parameters_for(self, parameters: Parameters, dataset: Any, source: dict[str, Any]) -> Parameters:
        for name in SAME_KEYS:
            ours, theirs = source.get(name), dataset.manifest.source.get(name)
            if ours != theirs and None not in (ours, theirs):
                ours, theirs = _in_words(ours), _in_words(theirs)
                raise DataError(
                    f"the model was trained on data prepared with {name} {ours}; `{dataset.folder}` has {theirs}",
                    "prepare it in the same way",
                )
        view = parameters.table
        assert view is not None
        layout = view.layout
        rows = view.rows.reshape(layout.num_keys, layout.dim)
        features = max(layout.features, dataset.features)
        wider = msgspec.structs.replace(layout, features=features)
        hint = "check the dataset's number of features, or prepare it with fewer (--hash-bits)"
        check_memory(4 * wider.num_keys * layout.dim, f"{features:,} features", hint)
        values = np.zeros((wider.num_keys, layout.dim), np.float32)
        values[: layout.features], values[features:] = rows[: layout.features], rows[layout.features :]
        dataset.key_order.to_blocks(values)
        return Parameters(TableView.of_values(values.reshape(-1), wider), parameters.dense)


def _in_words(value: Any) -> str:
    """A setting of `prepare`, as messages show it.

    >>> _in_words({"age": "number", "town": "text"})
    'age (number), town (text)'
    """
    return ", ".join(f"{name} ({kind})" for name, kind in value.items()) if isinstance(value, dict) else str(value)


class ImageInput(NamedTuple):
    """Images of one shape."""

    settings: ImageSettings

    def rows_of(self, given: Any) -> Images:
        if isinstance(given, Images):
            return given
        pixels = np.asarray(given)
        height, width, channels = self.settings.shape
        wanted = [(height, width, channels)] + ([(height, width)] if channels == 1 else [])
        if pixels.dtype != np.uint8 or pixels.shape[1:] not in wanted:
            raise UsageError(
                f"cannot predict for {pixels.dtype} of shape {pixels.shape}",
                f"give bytes (uint8) of shape [images, {height}, {width}, {channels}]",
            )
        flat = np.ascontiguousarray(pixels.reshape(len(pixels), -1))
        return Images(flat, np.zeros(len(flat), np.uint16))

    def parameters_for(self, parameters: Parameters, dataset: Any, source: dict[str, Any]) -> Parameters:
        for name in ("shape", "classes"):
            ours, theirs = getattr(self.settings, name), getattr(dataset, name)
            if tuple(np.atleast_1d(ours)) != tuple(np.atleast_1d(theirs)):
                raise DataError(
                    f"the model is for {name} {ours}; `{dataset.folder}` has {theirs}", "prepare it in the same way"
                )
        return parameters


# -- files


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


def _batch_of_csr(rows: Any) -> Batch:
    if not hasattr(rows, "tocsr"):
        raise UsageError(f"cannot predict for a {type(rows).__name__}", "give a paceline Batch or a SciPy CSR matrix")
    rows = rows.tocsr()
    keys = np.asarray(rows.indices)
    stop = int(rows.indptr[-1]) if len(rows.indptr) else 0  # SciPy allows room after the last nonzero
    if len(rows.indptr) != rows.shape[0] + 1 or not 0 <= stop <= min(len(keys), len(rows.data)):
        raise UsageError(f"cannot predict: `indptr` does not fit {rows.shape[0]} rows and {len(keys)} nonzeros", CSR)
    keys, values = keys[:stop], rows.data[:stop]
    if keys.size and not 0 <= keys.min() <= keys.max() < rows.shape[1]:
        raise UsageError(
            f"cannot predict: column numbers from {keys.min()} to {keys.max()} in a matrix of {rows.shape[1]} columns",
            CSR,
        )
    keys = keys.astype(np.uint32 if not keys.size or keys.max() < 1 << 32 else np.uint64)
    return _checked(Batch(np.zeros(rows.shape[0], np.uint8), rows.indptr, keys, values))


def _checked(rows: Batch) -> Batch:
    """The same rows as compiled loops take them; raises if offsets, keys or values are wrong."""
    labels, offsets, keys, values = (np.asarray(part) for part in rows)
    if offsets.dtype.kind not in "iu" or keys.dtype not in (np.uint32, np.uint64) or values.dtype.kind not in "biuf":
        raise UsageError(
            f"cannot predict for offsets of {offsets.dtype}, keys of {keys.dtype} and values of {values.dtype}",
            "offsets are int64, keys uint32 or uint64, and values float32",
        )
    with np.errstate(over="ignore"):
        offsets, values = np.ascontiguousarray(offsets, np.int64), np.ascontiguousarray(values, np.float32)
    if offsets.shape != (len(labels) + 1,) or keys.shape != values.shape or keys.ndim != 1:
        raise UsageError(
            f"cannot predict for {len(labels)} rows: {offsets.shape} offsets, {keys.shape} keys, {values.shape} values",
            "there is one offset more than rows, and a value for each key",
        )
    if offsets[0] != 0 or offsets[-1] != len(keys) or (np.diff(offsets) < 0).any():
        raise UsageError(f"cannot predict: offsets do not rise from 0 to the number of nonzeros, {len(keys)}", CSR)
    if not np.isfinite(values).all():
        raise UsageError(f"cannot predict: `{values[~np.isfinite(values)][0]}` is not a finite value", "replace it")
    return Batch(labels, offsets, np.ascontiguousarray(keys), values)


def _read_only(rows: Batch) -> Batch:
    """The same rows as read-only views, which compiled loops get from blocks too."""
    views = Batch(rows.labels.view(), rows.offsets.view(), rows.keys.view(), rows.values.view())
    for view in views:
        view.flags.writeable = False
    return views
