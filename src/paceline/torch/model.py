"""How does a PyTorch module become a dense model? Its parameters become views of one flat array.

A module is what the function that the model's entry names returns, ours or a user's: a module, or a module and its loss
(scores and labels in, the mean over the rows out). The function is given `shape` (height, width, channels) and
`classes` if it has parameters with these names. A module sees images as float32 from 0 to 1, [rows, channels, height,
width]. Its buffers (the averages of batch normalisation) come behind its parameters.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data.images.blocks import Images
from paceline.data.images.crops import Crops
from paceline.errors import ConfigError, UsageError
from paceline.imports import explained, import_from
from paceline.models.images import ImageSettings, cross_entropy
from paceline.models.model import Floats, Step, Tensor, lay_out, values_of
from paceline.models.registry import Entry
from paceline.settings import RunConfig

MOST_SEED = 1 << 62


def import_torch() -> Any:
    """PyTorch, or the error that it is missing."""
    try:
        import torch
    except ImportError:
        raise UsageError("this model needs PyTorch, which is not installed", "pip install 'paceline[torch]'") from None
    return torch


torch = import_torch()


def build_module(entry: Entry, shape: tuple[int, int, int], classes: int) -> tuple[Any, Callable[..., Any]]:
    """The module of a model and its loss."""
    make = import_from(entry.module)
    with explained(f"`{entry.name}` fails", "it is called with `shape` and `classes`, if it takes them"):
        wanted = inspect.signature(make).parameters
        given = {"shape": shape, "classes": classes}
        found = make(**{name: value for name, value in given.items() if name in wanted})
    module, loss = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if not isinstance(module, torch.nn.Module):
        raise ConfigError(
            f"`{entry.name}` returned a {type(module).__name__}, expected a torch.nn.Module, or a module and its loss",
            "return the module from the function",
        )
    return module, loss or torch.nn.functional.cross_entropy


def shapes_of(entry: Entry, settings: ImageSettings) -> dict[str, tuple[int, ...]]:
    """The shapes of a module's tensors, without memory for them."""
    with torch.device("meta"):
        module, _ = build_module(entry, Crops(settings.images, settings.shape, 0).shape, settings.classes)
    return {name: tuple(tensor.shape) for name, tensor in _tensors_of(module).items()}


class TorchModel:
    """One worker's module. Values and gradients are float32 arrays, or tensors if the module is on a GPU."""

    holds_values = True

    def __init__(self, entry: Entry, config: RunConfig, settings: ImageSettings) -> None:
        self._crops = crops = Crops(settings.images, settings.shape, config.seed)
        self._seed = config.seed
        self._entry = entry
        self._name = config.model
        self._classes = settings.classes
        self._device = _device(config.device)
        self._autocast = config.precision != "float32"
        # Workers that do not wait for each other each move buffers from where they were before the others did.
        self._share_of_moves = 1.0 if config.pace == "sync" else 1 / config.workers
        torch.manual_seed(config.seed)
        self._module, self._loss = build_module(entry, crops.shape, settings.classes)
        self._check_output(config.model, settings.classes)
        modules = [one for one in (self._module, self._loss) if isinstance(one, torch.nn.Module)]
        self._modules = torch.nn.ModuleList(modules).to(self._device)
        found, saved = _tensors_of(self._module), self._module.state_dict()
        trained = [name for name, parameter in self._module.named_parameters() if parameter.requires_grad]
        if not trained:
            raise ConfigError(f"`{config.model}` has no parameters to train", "check `requires_grad` of its parameters")
        # What is frozen is kept like buffers, behind what is trained: weight decay is not for it.
        kept = [name for name in found if name not in trained and name in saved]
        self.tensors = lay_out(
            (name, found[name].shape, str(found[name].dtype).removeprefix("torch.")) for name in [*trained, *kept]
        )
        self.aliases = _aliases(self._module, {tensor.name for tensor in self.tensors})
        self._parameters = [found[name] for name in trained]
        self._buffers = [found[name].detach() for name in kept]
        self.num_trained = sum(parameter.numel() for parameter in self._parameters)
        self._values = _Bound()
        self._sums = _Bound()
        self._num_rows = 0
        self._missing: set[int] = set()
        self.filled: Callable[[int], None] | None = None
        # Not of this object itself: it would outlive its last user, and keep the values that its module has views of.
        take = partial(TorchModel._take_gradient, weakref.proxy(self))
        for number, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(partial(take, number))

    def initial(self) -> Floats:
        """The values of the module as it was built. If they have changed, the module is built again."""
        module = self._module
        if self._values.place:
            torch.manual_seed(self._seed)
            module, _ = build_module(self._entry, self._crops.shape, self._classes)
        found = _tensors_of(module)
        return values_of(self.tensors, {name: one.detach().float().cpu().numpy() for name, one in found.items()})

    def gradient(self, step: Step) -> Any:
        """As for every model. On a GPU the losses are a tensor: reading it waits for the GPU."""
        rows, out = step.rows, step.dense_sums
        if not rows.num_rows:
            out[...] = 0
            return 0.0
        self._bind_values(step.dense)
        sums = self._sums.bind(out, self.tensors, self._device)
        torch.manual_seed(hash((self._seed, *step.turn)) % MOST_SEED)
        self._modules.train()
        images, labels = self._batch(self._crops.training(rows, step.turn))
        self._num_rows, self._missing = rows.num_rows, set(range(len(self._parameters)))
        hint = "check that it and its loss (a mean over the rows) work in training mode, even with a smaller last batch"
        with explained(f"`{self._name}` fails in training, with {rows.num_rows} rows", hint):
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
                loss = self._loss(self._module(images), labels)
            loss.backward()
        for number in self._missing:
            sums[number].zero_()
        # How far buffers have moved, times the number of rows, by which an update divides. All workers together
        # move averages as far as one would, as in sync, where it is the mean; counts count them all.
        first = len(self._parameters)
        for buffer, before, moved in zip(self._buffers, self._values.parts[first:], sums[first:], strict=True):
            after = buffer.detach().float()
            weight = rows.num_rows * (self._share_of_moves if buffer.is_floating_point() else 1.0)
            # What has not moved may be infinite, as masks are.
            moved.copy_(torch.where(after == before, torch.zeros_like(after), before - after) * weight)
        self._sums.copy_back(out)
        losses = loss.detach() * rows.num_rows
        return losses if isinstance(out, torch.Tensor) else float(losses)

    def _take_gradient(self, number: int, parameter: Any) -> None:
        """Take a parameter's gradient as soon as PyTorch has it, while it computes those of the layers before."""
        part = self._sums.parts[number]
        if number in self._missing:
            self._missing.remove(number)
            torch.mul(parameter.grad, self._num_rows, out=part)
            if self.filled is not None and not self._sums.is_copy:
                self.filled(number)
        elif self.filled is None:
            part.add_(parameter.grad, alpha=self._num_rows)
        else:
            name = self.tensors[number].name
            raise ConfigError(f"the gradient of `{name}` comes in several pieces", "use --exchange shard")
        parameter.grad = None

    def scores(self, values: Any, rows: Images) -> Floats:
        self._bind_values(values)
        self._module.eval()
        images, _ = self._batch(self._crops.testing(rows))
        with torch.no_grad(), torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
            scores: Floats = self._module(images).float().cpu().numpy()
        return scores

    def losses(self, scores: Floats, labels: NDArray[np.uint16]) -> float:
        if self._loss is torch.nn.functional.cross_entropy:
            return cross_entropy(scores, labels)
        given = torch.from_numpy(scores).to(self._device), torch.from_numpy(labels.astype(np.int64)).to(self._device)
        self._modules.eval()
        hint = "check that it accepts any number of rows, and needs only scores and labels"
        with (
            torch.no_grad(),
            explained(f"the loss of `{self._name}` fails in an evaluation, with {len(labels)} rows", hint),
        ):
            return float(self._loss(*given)) * len(labels)

    def use_threads(self, count: int) -> None:
        torch.set_num_threads(max(1, count))

    # -- values

    def _bind_values(self, values: Any) -> None:
        """Make the parameters views of these values, and copy the buffers."""
        before = self._values.place
        parts = self._values.bind(values, self.tensors, self._device, copy=True)
        if self._values.place != before:
            for parameter, part in zip(self._parameters, parts, strict=False):
                parameter.data = part
        for buffer, part in zip(self._buffers, parts[len(self._parameters) :], strict=True):
            buffer.copy_(part if buffer.is_floating_point() else part.round())

    # -- images

    def _batch(self, rows: Images) -> tuple[Any, Any]:
        """Images as the module sees them, and their labels."""
        height, width, channels = self._crops.shape
        pixels, labels = rows
        if not isinstance(pixels, torch.Tensor):
            # PyTorch warns of memory that cannot be written, as blocks on disk are.
            own = pixels if pixels.flags.writeable else pixels.copy()
            pixels = torch.from_numpy(own).to(self._device)
            labels = torch.from_numpy(labels.astype(np.int64)).to(self._device)
        images = pixels.view(-1, height, width, channels).permute(0, 3, 1, 2)
        return images.contiguous().float().div_(255), labels

    def _check_output(self, model: str, classes: int) -> None:
        """Check that the module turns an image into a score for each class."""
        height, width, channels = self._crops.shape
        self._module.eval()
        hint = "choose another model, or prepare images of another size"
        with torch.no_grad(), explained(f"`{model}` does not take images of {height} × {width} pixels", hint):
            found = self._module(torch.zeros(1, channels, height, width))
        shape = tuple(getattr(found, "shape", ()))
        if shape != (1, classes):
            raise ConfigError(
                f"`{model}` turns an image into {shape}; the data has {classes} classes",
                f"its last layer must have {classes} outputs",
            )


class _Bound:
    """A flat array as a module sees it: `parts`, a tensor each, that share its memory; on a GPU, that of a copy."""

    place = 0
    parts: Sequence[Any] = ()
    is_copy = False
    _flat: Any = None

    def bind(self, flat: Any, tensors: tuple[Tensor, ...], device: Any, copy: bool = False) -> Sequence[Any]:
        """The parts of a flat array, which are rebuilt only when the array changes.

        An array in this machine's memory has a copy on the GPU, which is brought up to date if `copy` is set.
        """
        given = flat if isinstance(flat, torch.Tensor) else torch.from_numpy(flat)
        if given.data_ptr() != self.place:
            self.place = given.data_ptr()
            self._flat = given if given.device.type == device.type else torch.empty_like(given, device=device)
            self.is_copy = self._flat is not given
            self.parts = [self._flat[tensor.start : tensor.stop].view(tensor.shape) for tensor in tensors]
        if copy and self.is_copy:
            self._flat.copy_(given)
        return self.parts

    def copy_back(self, flat: Any) -> None:
        """What was written to the copy on a GPU, to the array itself."""
        if self.is_copy:
            flat[...] = self._flat.cpu().numpy()


def _tensors_of(module: Any) -> dict[str, Any]:
    """A module's parameters and buffers by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _aliases(module: Any, names: set[str]) -> dict[str, str]:
    """Tensors that a module has under several names: each other name, and the one in `names`."""
    tensors = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    first = {id(tensor): name for name, tensor in tensors if name in names}
    return {name: first[id(tensor)] for name, tensor in tensors if name not in names and id(tensor) in first}


def to_device(values: Floats, device: str) -> Any:
    """Dense values on this device, for a module there; `ConfigError` if the device does not exist."""
    return torch.from_numpy(values).to(_device(device))


def has_gpu() -> bool:
    """Whether PyTorch can use a GPU of this machine."""
    return bool(torch.cuda.is_available())


def _device(name: str) -> Any:
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("`device` is `cuda`, but PyTorch finds no GPU here", "--device cpu, or see `nvidia-smi`")
    return torch.device(name)
