"""The trained dense model in a run folder: safetensors with its tensors by name, and `model.json`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.config import ImageConfig, RunConfig
from paceline.data.images.dataset import ImageDataset, Images
from paceline.errors import DataError, UsageError
from paceline.files import replace_file, translated_disk_errors, write_tensors
from paceline.models.dense import DenseModel, Floats, Tensor, build_model, probabilities


class DenseInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`model.json` of a dense model: what it is, and what images it is for. `source` tells how those were made."""

    model: str
    shape: tuple[int, int, int]
    classes: int
    class_names: list[str]
    images: ImageConfig
    sha256: str
    source: dict[str, Any]


class ImageModel:
    """A trained model of images: its `tensors` by name, and what it says of images."""

    def __init__(self, info: DenseInfo, tensors: dict[str, NDArray[Any]]) -> None:
        self.info = info
        self.tensors = tensors
        config = RunConfig(data="-", model=info.model, images=info.images)
        self._model: DenseModel = build_model(config, info.shape, info.classes)
        self._values = values_of(self._model.tensors, tensors)

    def predict_proba(self, images: Any) -> Floats:
        """The probability of each class [images, classes]: of `Images`, or of bytes [images, height, width, channels].

        Grey images may leave the channel out.
        """
        return probabilities(self.scores(images if isinstance(images, Images) else self._images_of(images)))

    def scores(self, rows: Images) -> Floats:
        return self._model.scores(self._values, rows)

    def check(self, dataset: ImageDataset) -> None:
        """Refuse images that this model is not for."""
        for name in ("shape", "classes"):
            ours, theirs = getattr(self.info, name), getattr(dataset, name)
            if tuple(np.atleast_1d(ours)) != tuple(np.atleast_1d(theirs)):
                raise DataError(
                    f"the model is for {name} {ours}; `{dataset.folder}` has {theirs}", "prepare it in the same way"
                )

    @property
    def model(self) -> DenseModel:
        return self._model

    @property
    def values(self) -> Floats:
        return self._values

    def _images_of(self, images: Any) -> Images:
        pixels = np.asarray(images)
        height, width, channels = self.info.shape
        wanted = [(height, width, channels)] + ([(height, width)] if channels == 1 else [])
        if pixels.dtype != np.uint8 or pixels.shape[1:] not in wanted:
            raise UsageError(
                f"cannot predict for {pixels.dtype} of shape {pixels.shape}",
                f"give bytes (uint8) of shape [images, {height}, {width}, {channels}]",
            )
        flat = np.ascontiguousarray(pixels.reshape(len(pixels), -1))
        return Images(flat, np.zeros(len(flat), np.uint16))


def values_of(tensors: Sequence[Tensor], found: dict[str, NDArray[Any]]) -> Floats:
    """All values of a model, from its tensors by name."""
    values = np.zeros(tensors[-1].stop, np.float32)
    for tensor in tensors:
        if tensor.name not in found or found[tensor.name].shape != tensor.shape:
            shape = found[tensor.name].shape if tensor.name in found else "missing"
            raise DataError(f"tensor `{tensor.name}` is {shape}, expected {tensor.shape}", "train again")
        tensor.of(values)[...] = found[tensor.name]
    return values


def save_dense_model(folder: Path, values: Floats, model: DenseModel, config: RunConfig, dataset: ImageDataset) -> str:
    """Write all tensors under their names; returns the SHA-256 of the values, whose counts become whole numbers."""
    for tensor in model.tensors:
        if "int" in tensor.dtype:
            np.rint(tensor.of(values), out=tensor.of(values))
    sha256 = hashlib.sha256(values.data).hexdigest()
    info = DenseInfo(
        model=config.model, shape=dataset.shape, classes=dataset.classes, class_names=dataset.manifest.class_names,
        images=config.images, sha256=sha256, source=dataset.manifest.source,
    )  # fmt: skip
    path = folder / "model.safetensors"
    with translated_disk_errors(path):
        folder.mkdir(exist_ok=True)
    saved = {tensor.name: tensor.of(values).astype(tensor.dtype, copy=False) for tensor in model.tensors}
    write_tensors(path, saved | {name: saved[first] for name, first in model.aliases.items()})
    replace_file(folder / "model.json", msgspec.json.encode(info))
    return sha256


def read_dense_model(content: bytes, tensors: dict[str, NDArray[Any]], folder: Path) -> ImageModel:
    """The model that `model.json` and its tensors describe."""
    info = msgspec.json.decode(content, type=DenseInfo)
    model = ImageModel(info, tensors)
    if hashlib.sha256(model.values.data).hexdigest() != info.sha256:
        raise DataError(f"the model in `{folder}` has a wrong checksum", "train again")
    return model
