"""How does a trained PyTorch module become an ONNX graph? PyTorch runs it once and writes down its operators."""

from __future__ import annotations

import io
import warnings
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


def traced(entry: Entry, settings: ImageSettings, tensors: dict[str, NDArray[Any]]) -> bytes:
    """The ONNX file of a module with these tensors: bytes in, probabilities of classes out."""
    module, _ = build_module(entry, Crops(settings.images, settings.shape, 0).shape, settings.classes)
    with torch.no_grad():
        module.load_state_dict({name: torch.from_numpy(np.array(values)) for name, values in tensors.items()})
    whole = FromBytes(module, settings).eval()
    example = torch.zeros(2, *settings.shape, dtype=torch.uint8)
    out: Any = io.BytesIO()
    hint = "use other layers, or --to mlflow, which keeps the module as it is"
    with warnings.catch_warnings(), explained(f"PyTorch cannot write `{entry.name}` as ONNX", hint):
        # This exporter is the older one. The newer one needs another package.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            whole, (example,), out, input_names=["images"], output_names=["probability"], opset_version=OPSET,
            dynamic_axes={"images": {0: "rows"}, "probability": {0: "rows"}}, dynamo=False,
        )  # fmt: skip
    found: bytes = out.getvalue()
    return found
