"""How is a trained model kept and used? `model/` of a run folder: safetensors and `model.json`, in the input's keys."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from paceline.config import SPARSE_MODEL
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import Dataset
from paceline.errors import DataError, UsageError
from paceline.files import replace_file, translated_disk_errors, write_tensors
from paceline.parameters.optimizers import Rules
from paceline.parameters.optimizers.sgd import Sgd
from paceline.training.evaluate import Scorer

if TYPE_CHECKING:
    from paceline.training.dense_files import ImageModel

# Weights that are read and never updated: any rule whose state is the weight itself reads them.
PLAIN_WEIGHTS = Rules(*[Sgd(np.float32(0), np.float32(0), np.float32(0))] * 2)
# What must agree between the data a model was trained on and data it is asked about.
SAME_KEYS = ("hash_bits", "integers", "columns", "index_base")


class NamedModel(msgspec.Struct, frozen=True):
    """What every `model.json` has."""

    model: str


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`model.json`. `source` tells how the training data was made."""

    model: str
    features: int
    sha256: str
    source: dict[str, Any]


class Model:
    """A trained logistic regression: `weights` float32 [features], `bias`, and what they were trained on."""

    def __init__(self, info: ModelInfo, weights: NDArray[np.float32], bias: float) -> None:
        self.info = info
        self.weights = weights
        self.bias = bias

    def predict_proba(self, rows: Any) -> NDArray[np.float32]:
        """P(label = 1) of each row of a `Batch` or of a SciPy CSR matrix, in the input's keys.

        Keys that the model has never heard of count nothing.
        """
        if not isinstance(rows, Batch):
            rows = _batch_of_csr(rows)
        return probabilities(self._scorer(self.weights).scores(_read_only(rows)))

    def scorer_for(self, dataset: Dataset) -> Scorer:
        """What scores a dataset's blocks: the weights in the order of its keys."""
        for name in SAME_KEYS:
            ours, theirs = self.info.source.get(name), dataset.manifest.source.get(name)
            if ours != theirs and None not in (ours, theirs):
                raise DataError(
                    f"the model was trained on data prepared with {name} {ours}; `{dataset.folder}` has {theirs}",
                    "prepare it in the same way",
                )
        weights = np.zeros(max(len(self.weights), dataset.features), np.float32)
        weights[: len(self.weights)] = self.weights
        return self._scorer(dataset.key_order.to_blocks(weights))

    def _scorer(self, weights: NDArray[np.float32]) -> Scorer:
        table = np.append(weights, np.float32(self.bias))
        return Scorer(PLAIN_WEIGHTS, table, bias=len(weights), num_keys=len(weights))


def probabilities(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """σ of scores, without overflow."""
    shrunk = np.exp(-np.abs(scores))
    result: NDArray[np.float32] = (np.where(scores >= 0, 1, shrunk) / (1 + shrunk)).astype(np.float32)
    return result


def save_model(folder: Path, parameters: NDArray[np.float32], source: dict[str, Any]) -> str:
    """Write `parameters` [features + 1], the bias last, in the input's order; returns their SHA-256."""
    sha256 = hashlib.sha256(parameters.data).hexdigest()
    info = ModelInfo(model=SPARSE_MODEL, features=len(parameters) - 1, sha256=sha256, source=source)
    path = folder / "model.safetensors"
    with translated_disk_errors(path):
        folder.mkdir(exist_ok=True)
    write_tensors(path, {"weight": parameters[:-1], "bias": parameters[-1:]})
    replace_file(folder / "model.json", msgspec.json.encode(info))
    return sha256


def load_model(run: Path) -> Model | ImageModel:
    """The model of a run folder."""
    folder = run / "model"
    if not run.is_dir():
        raise UsageError(f"no run at `{run}`", "give a folder that `train` made")
    if not (folder / "model.json").is_file():
        resumable = (run / "checkpoints").is_dir()
        hint = f"`paceline resume {run}` finishes it" if resumable else "it failed before it was trained: train again"
        raise UsageError(f"`{run}` holds no trained model", hint)
    try:
        content = (folder / "model.json").read_bytes()
        tensors = safetensors.numpy.load_file(folder / "model.safetensors")
        if msgspec.json.decode(content, type=NamedModel).model != SPARSE_MODEL:
            from paceline.training.dense_files import read_dense_model

            return read_dense_model(content, tensors, folder)
        info = msgspec.json.decode(content, type=ModelInfo)
        weights, bias = tensors["weight"], tensors["bias"]
    except KeyError as error:
        raise DataError(f"the model in `{folder}` has no tensor {error}", "train again") from None
    except (OSError, msgspec.DecodeError, SafetensorError) as error:
        raise DataError(f"the model in `{folder}` does not read: {error}", "train again") from None
    digest = hashlib.sha256(weights.data)
    digest.update(bias.data)
    if digest.hexdigest() != info.sha256:
        raise DataError(f"the model in `{folder}` has a wrong checksum", "train again")
    return Model(info, weights, float(bias[0]))


def _batch_of_csr(rows: Any) -> Batch:
    if not hasattr(rows, "tocsr"):
        raise UsageError(f"cannot predict for a {type(rows).__name__}", "give a paceline Batch or a SciPy CSR matrix")
    rows = rows.tocsr()
    offsets, keys, values = rows.indptr, rows.indices, rows.data
    keys = np.ascontiguousarray(keys)
    if keys.size and keys.min() < 0:
        raise UsageError("a CSR matrix with negative column numbers", "columns are keys: 0, 1, …")
    return Batch(
        np.zeros(len(offsets) - 1, np.uint8),
        np.ascontiguousarray(offsets, np.int64),
        keys.astype(np.uint32 if not keys.size or keys.max() < 1 << 32 else np.uint64),
        np.ascontiguousarray(values, np.float32),
    )


def _read_only(rows: Batch) -> Batch:
    """The same rows as compiled loops get them from blocks: views that cannot be written."""
    views = Batch(rows.labels.view(), rows.offsets.view(), rows.keys.view(), rows.values.view())
    for view in views:
        view.flags.writeable = False
    return views
