"""How does a PyTorch module become a dense model? Its parameters become views of one flat array. Only here is PyTorch.

A module is one of ours by name, or what a function `PACKAGE.MODULE:FUNCTION` returns: a module, or a module and its
loss (scores and labels in, the mean over the rows out). The function is given `shape` (height, width, channels) and
`classes` where it has parameters of these names. A module sees images as float32 from 0 to 1, [rows, channels, height,
width]. Its buffers (the averages of batch normalisation) come behind its parameters.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from paceline.config import RunConfig
from paceline.data.crops import Crops
from paceline.data.images import Images
from paceline.errors import ConfigError, UsageError
from paceline.models.dense import Floats, Tensor

OURS = {"alexnet": "alexnet", "alexnet-small": "alexnet_small"}
MOST_SEED = 1 << 62


def import_torch() -> Any:
    """PyTorch, or the error that it is missing."""
    try:
        import torch
    except ImportError:
        raise UsageError("this model needs PyTorch, which is not installed", "pip install 'paceline[torch]'") from None
    return torch


def build_module(model: str, shape: tuple[int, int, int], classes: int) -> tuple[Any, Callable[..., Any]]:
    """The module of this name and its loss."""
    torch = import_torch()
    if model in OURS:
        found = getattr(importlib.import_module("paceline.models.alexnet"), OURS[model])(shape, classes)
    else:
        found = _call(model, {"shape": shape, "classes": classes})
    module, loss = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if not isinstance(module, torch.nn.Module):
        raise ConfigError(
            f"`{model}` returned a {type(module).__name__}, expected a torch.nn.Module, or one and its loss",
            "return the module from the function",
        )
    return module, loss or torch.nn.functional.cross_entropy


def _call(model: str, given: dict[str, Any]) -> Any:
    name, _, function = model.partition(":")
    if os.getcwd() not in sys.path:
        # As `python -m` has it: what lies where the command was given can be imported.
        sys.path.insert(0, os.getcwd())
    try:
        build = getattr(importlib.import_module(name), function)
    except ImportError as error:
        raise ConfigError(
            f"`{model}` cannot be imported: {error}",
            "install its package, or run where it lies; on a cluster every node needs it",
        ) from None
    except AttributeError:
        raise ConfigError(f"`{name}` has no `{function}`", "--model PACKAGE.MODULE:FUNCTION") from None
    wanted = inspect.signature(build).parameters
    return build(**{name: value for name, value in given.items() if name in wanted})


class TorchModel:
    """A module as one worker has it."""

    shares_threads = True
    holds_values = True

    def __init__(self, config: RunConfig, crops: Crops, classes: int) -> None:
        torch = import_torch()
        self._torch = torch
        self._crops = crops
        self._seed = config.seed
        self._device = _device(torch, config.device)
        self._autocast = config.precision != "float32"
        torch.manual_seed(config.seed)
        self._module, self._loss = build_module(config.model, crops.shape, classes)
        self._check_output(config.model, classes)
        self._parameters = [p for _, p in self._module.named_parameters()]
        names = list(self._module.state_dict())
        self._buffers = [(name, b) for name, b in self._module.named_buffers() if name in names]
        self.tensors = self._lay_out()
        self.num_trained = sum(parameter.numel() for parameter in self._parameters)
        self._initial = self._gather()
        self._module.to(self._device)
        # What the parameters are views of, and where the gradients go, as last seen.
        self._bound: tuple[int, int] = (0, 0)
        self._gradients: list[Any] = []
        self._moved: list[Any] = []

    def initial(self, seed: int) -> Floats:
        return self._initial

    def gradient(self, values: Floats, rows: Images, out: Floats, turn: tuple[int, int]) -> float:
        torch, module = self._torch, self._module
        if not rows.num_rows:
            out[...] = 0
            return 0.0
        self._bind(values, out)
        torch.manual_seed(hash((self._seed, *turn)) % MOST_SEED)
        module.train()
        images, labels = self._batch(self._crops.training(rows, turn))
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
            loss = self._loss(module(images), labels)
        loss.backward()
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            if parameter.grad is None:
                gradient.zero_()
            else:
                torch.mul(parameter.grad, rows.num_rows, out=gradient)
                parameter.grad = None
        self._book_buffers(values, rows.num_rows)
        return float(loss.detach()) * rows.num_rows

    def scores(self, values: Floats, rows: Images) -> Floats:
        torch = self._torch
        self._bind(values, None)
        self._module.eval()
        images, _ = self._batch(self._crops.testing(rows))
        with torch.no_grad(), torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
            scores: Floats = self._module(images).float().cpu().numpy()
        return scores

    def use_threads(self, count: int) -> None:
        self._torch.set_num_threads(max(1, count))

    def close(self) -> None:
        """Let parameters be views of nothing, so that what they were views of can go."""
        with self._torch.no_grad():
            for parameter in self._parameters:
                parameter.data = self._torch.empty(0)
        self._gradients, self._moved, self._bound = [], [], (0, 0)

    # -- values

    def _lay_out(self) -> tuple[Tensor, ...]:
        found, start = [], 0
        named = [*self._module.named_parameters(), *self._buffers]
        for name, tensor in named:
            dtype = str(tensor.dtype).removeprefix("torch.")
            found.append(Tensor(name, tuple(tensor.shape), start, dtype))
            start = found[-1].stop
        return tuple(found)

    def _gather(self) -> Floats:
        """The values of the module as it was built."""
        values = np.zeros(self.tensors[-1].stop, np.float32)
        parts = [*self._parameters, *(buffer for _, buffer in self._buffers)]
        for tensor, part in zip(self.tensors, parts, strict=True):
            tensor.of(values)[...] = part.detach().numpy()
        return values

    def _bind(self, values: Floats, out: Floats | None) -> None:
        """Let parameters and gradients be views of these arrays, and take the buffers over."""
        torch = self._torch
        places = values.ctypes.data, self._bound[1] if out is None else out.ctypes.data
        if places[0] != self._bound[0]:
            flat = _shared(torch, values)
            with torch.no_grad():
                for parameter, tensor in zip(self._parameters, self.tensors, strict=False):
                    parameter.data = flat[tensor.start : tensor.stop].view(tensor.shape)
        if out is not None and places[1] != self._bound[1]:
            flat = _shared(torch, out)
            views = [flat[tensor.start : tensor.stop].view(tensor.shape) for tensor in self.tensors]
            self._gradients, self._moved = views[: len(self._parameters)], views[len(self._parameters) :]
        self._bound = places
        for (_, buffer), tensor in zip(self._buffers, self.tensors[len(self._parameters) :], strict=True):
            buffer.copy_(torch.from_numpy(tensor.of(values).copy()))

    def _book_buffers(self, values: Floats, rows: int) -> None:
        """How far buffers have moved, as often as there are rows: an update divides by those."""
        tensors = self.tensors[len(self._parameters) :]
        for (_, buffer), tensor, moved in zip(self._buffers, tensors, self._moved, strict=True):
            before = self._torch.from_numpy(tensor.of(values).copy())
            moved.copy_((before - buffer.detach().float().cpu()) * rows)

    def _batch(self, rows: Images) -> tuple[Any, Any]:
        """Images as the module sees them, and their labels."""
        torch = self._torch
        height, width, channels = self._crops.shape
        # PyTorch warns of memory that cannot be written, as blocks on disk are.
        own = rows.pixels if rows.pixels.flags.writeable else rows.pixels.copy()
        pixels = torch.from_numpy(own).to(self._device).view(-1, height, width, channels)
        images = pixels.permute(0, 3, 1, 2).contiguous().float().div_(255)
        return images, torch.from_numpy(rows.labels.astype(np.int64)).to(self._device)

    def _check_output(self, model: str, classes: int) -> None:
        """See that the module turns an image into a score for each class."""
        torch, (height, width, channels) = self._torch, self._crops.shape
        self._module.eval()
        try:
            with torch.no_grad():
                found = self._module(torch.zeros(1, channels, height, width))
        except RuntimeError as error:
            raise ConfigError(
                f"`{model}` does not take images of {height} × {width} pixels: {str(error).splitlines()[0]}",
                "choose another model, or prepare images of another size",
            ) from None
        if tuple(found.shape) != (1, classes):
            raise ConfigError(
                f"`{model}` turns an image into {tuple(found.shape)}; the data has {classes} classes",
                f"its last layer must have {classes} outputs",
            )


def _device(torch: Any, name: str) -> Any:
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("`device` is `cuda`, but PyTorch finds no GPU here", "--device cpu, or see `nvidia-smi`")
    return torch.device(name)


def _shared(torch: Any, values: Floats) -> Any:
    """A tensor over an array's memory."""
    return torch.from_numpy(values)


def make_group(notes: Any, rank: int, size: int, host: str, device: str) -> Any:
    """A process group of PyTorch's, whose members find each other by `notes` (`set`, `get`, `find`): over gloo, at this
    host's address, or between GPUs over nccl.
    """
    torch = import_torch()
    distributed = torch.distributed

    class Store(distributed.Store):  # type: ignore[misc, name-defined]
        """What PyTorch asks of a place for notes."""

        def set(self, key: str, value: Any) -> None:
            notes.set(key, value if isinstance(value, bytes) else bytes(value, "utf-8"))

        def get(self, key: str) -> bytes:
            return bytes(notes.get(key))

        def wait(self, keys: list[str], timeout: Any = None) -> None:
            for key in keys:
                notes.get(key)

        def check(self, keys: list[str]) -> bool:
            return all(notes.find(key) is not None for key in keys)

    if device == "cuda":
        return distributed.ProcessGroupNCCL(Store(), rank, size)
    options = distributed.ProcessGroupGloo._Options()
    options._devices = [distributed.ProcessGroupGloo.create_device(hostname=host)]
    return distributed.ProcessGroupGloo(Store(), rank, size, options)
