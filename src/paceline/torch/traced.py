"""How does a trained PyTorch module become an ONNX graph? PyTorch runs it once and writes down its operators."""

from __future__ import annotations

import io
import warnings
from contextlib import redirect_stdout
from typing import Any

import numpy as np
from numpy.typing import NDArray

import torch
from paceline.data.images.crops import Crops
from paceline.imports import explained
from paceline.models.images import ImageSettings
from paceline.models.registry import Entry
from paceline.torch.model import build_module

OPSET = 17


class FromBytes(torch.nn.Module):
    """Probabilities of classes, from images as datasets have them."""

    def __init__(self, module: Any, settings: ImageSettings) -> None:
        super().__init__()
        self._module = module
        self._height, self._width, _ = Crops(settings.images, settings.shape, 0).shape
        self._top = (settings.shape[0] - self._height) // 2
        self._left = (settings.shape[1] - self._width) // 2

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rows, columns = slice(self._top, self._top + self._height), slice(self._left, self._left + self._width)
        pixels = images[:, rows, columns].permute(0, 3, 1, 2).float() / 255
        return torch.softmax(self._module(pixels), 1)


class FixedAdaptivePooling(torch.nn.Module):
    """Adaptive average pooling as two products of matrices, for images of the size that they have while it is traced:
    ONNX itself has it only for sizes that can be divided.
    """

    def __init__(self, size: Any) -> None:
        super().__init__()
        self._size = size if isinstance(size, tuple) else (size, size)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rows, columns = (
            _averages(int(found), found if wanted is None else wanted)
            for found, wanted in zip(images.shape[-2:], self._size, strict=True)
        )
        return rows @ images @ columns.T


def _averages(size: int, parts: int) -> torch.Tensor:
    """The matrix [parts, size] of a mean over each part of that many numbers; parts may overlap."""
    found = torch.zeros(parts, size)
    for part in range(parts):
        first, last = part * size // parts, -(-(part + 1) * size // parts)
        found[part, first:last] = 1 / (last - first)
    return found


def _fix_pooling(module: Any) -> Any:
    """The module with pooling that can be traced."""
    if isinstance(module, torch.nn.AdaptiveAvgPool2d):
        return FixedAdaptivePooling(module.output_size)
    for name, child in module.named_children():
        setattr(module, name, _fix_pooling(child))
    return module


def traced(entry: Entry, settings: ImageSettings, tensors: dict[str, NDArray[Any]]) -> bytes:
    """The ONNX file of a module with these tensors: bytes in, probabilities of classes out."""
    module, _ = build_module(entry, Crops(settings.images, settings.shape, 0).shape, settings.classes)
    with torch.no_grad():
        module.load_state_dict({name: torch.from_numpy(np.array(values)) for name, values in tensors.items()})
    whole = FromBytes(_fix_pooling(module), settings).eval()
    example = torch.zeros(2, *settings.shape, dtype=torch.uint8)
    out: Any = io.BytesIO()
    hint = "use other layers, or --to mlflow, which keeps the module as it is"
    what = f"PyTorch cannot write `{entry.name}` as ONNX"
    # PyTorch prints the whole graph if it fails.
    with redirect_stdout(io.StringIO()), warnings.catch_warnings(), explained(what, hint):
        # This exporter is the older one. The newer one needs another package.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            whole, (example,), out, input_names=["images"], output_names=["probability"], opset_version=OPSET,
            dynamic_axes={"images": {0: "rows"}, "probability": {0: "rows"}}, dynamo=False,
        )  # fmt: skip
    found: bytes = out.getvalue()
    return found
