"""Which models are there? Each has an entry, which declares what others need to know before the model is built.

Code outside of a model's own files asks its entry, or the `Model` that the entry builds, and never compares names.
`PACKAGE.MODULE:FUNCTION` is a model that a user wrote. The function either builds a model over sparse rows, as
`sparse_model` declares (`sparse.py`), or a PyTorch module for images (`torch/model.py`).
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.errors import ConfigError, PacelineError, in_short
from paceline.parameters.optimizers import DENSE_OPTIMIZERS, TABLE_OPTIMIZERS
from paceline.settings import RunConfig

if TYPE_CHECKING:
    from paceline.models.model import Model

ROWS, IMAGES = "rows", "images"


class Task(NamedTuple):
    """What a model predicts: the kinds of labels it is for, its metrics in the order in which they are shown, and the
    one that people compare first.
    """

    name: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    headline: str


TWO_CLASSES = Task("two-classes", ("two-classes",), ("loss", "error", "auc"), "auc")
CLASSES = Task("classes", ("classes",), ("loss", "error", "accuracy"), "accuracy")
NUMBERS = Task("numbers", ("numbers", "two-classes"), ("loss", "rmse"), "rmse")
TASK_OF_LOSS = {"logistic": TWO_CLASSES, "squared": NUMBERS}


class Entry(NamedTuple):
    """The declaration of a model. `builder` and `loader` are "module:function", imported when they are needed; so is
    `network`, which makes a classifier of images for one worker.

    `keyed` says that parameters are in a table by key, so that a step moves only those of its batch's keys; otherwise
    all take part in every step. `input` is what it learns from, `rows` or `images`. `operations` says that
    `paceline diagnose --ops` can time the operations of a step.
    """

    name: str
    input: str
    keyed: bool
    task: Task
    optimizers: tuple[str, ...]
    builder: str
    loader: str
    exchanges: tuple[str, ...] = ("shard",)
    devices: tuple[str, ...] = ("cpu",)
    precisions: tuple[str, ...] = ("float32",)
    network: str = ""
    operations: bool = False
    function: Any = None

    @property
    def metrics(self) -> tuple[str, ...]:
        return self.task.metrics

    @property
    def headline(self) -> str:
        """The metric that people compare first."""
        return self.task.headline

    def build(self, config: RunConfig, dataset: Any, rows_per_update: int) -> Model:
        """The model of a run on this dataset; an update takes this many rows."""
        model: Model = import_from(self.builder)(self, config, dataset, rows_per_update)
        return model

    def load(self, info: bytes, tensors: dict[str, Any]) -> Any:
        """The model that `model.json` and its tensors describe, its parameters, and what it takes as input."""
        return import_from(self.loader)(self, info, tensors)


def _torch(name: str, function: Any = None) -> Entry:
    return Entry(
        name, IMAGES, keyed=False, task=CLASSES, optimizers=DENSE_OPTIMIZERS,
        builder="paceline.models.images:build", loader="paceline.models.trained:load_image_model",
        network="paceline.torch.model:TorchModel", exchanges=("shard", "allreduce"), devices=("cpu", "cuda"),
        precisions=("float32", "bfloat16"), function=function,
    )  # fmt: skip


MODELS = {
    "logistic": Entry(
        "logistic", ROWS, keyed=True, task=TWO_CLASSES, optimizers=TABLE_OPTIMIZERS,
        builder="paceline.models.linear:build", loader="paceline.models.trained:load_linear_model", operations=True,
    ),
    "softmax": Entry(
        "softmax", IMAGES, keyed=False, task=CLASSES, optimizers=DENSE_OPTIMIZERS,
        builder="paceline.models.images:build", loader="paceline.models.trained:load_image_model",
        network="paceline.models.softmax:make_network",
    ),
    "alexnet": _torch("alexnet"),
    "alexnet-small": _torch("alexnet-small"),
}  # fmt: skip


def find(name: str) -> Entry:
    """The entry of a model; `ConfigError` if there is none."""
    if name in MODELS:
        return MODELS[name]
    module, colon, function = name.partition(":")
    if colon and all(part.isidentifier() for part in (*module.split("."), function)):
        return _declared(name)
    if colon:
        raise ConfigError(f"`model` is `{name}`; a function is PACKAGE.MODULE:FUNCTION", "--model mine.nets:build")
    near = difflib.get_close_matches(name, MODELS, n=1)
    raise ConfigError(
        f"`model` is `{name}`; it is one of {', '.join(MODELS)}",
        f"did you mean `{near[0]}`?" if near else f"--model {next(iter(MODELS))}",
    )


def _declared(name: str) -> Entry:
    """The entry of a user's function: what it declares, or else a PyTorch module."""
    function = import_function(name)
    declaration = getattr(function, "declares", None)
    if declaration is None:
        return _torch(name, function)
    return Entry(
        name, ROWS, keyed=True, task=TASK_OF_LOSS[declaration.loss], optimizers=declaration.optimizers,
        builder="paceline.models.sparse:build", loader="paceline.models.trained:load_declared_model",
        function=function,
    )  # fmt: skip


def import_function(name: str) -> Any:
    """A user's function by its name, `PACKAGE.MODULE:FUNCTION`."""
    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path:
        # As with `python -m`: modules in the current folder can be imported.
        sys.path.insert(0, os.getcwd())
    hint = "install its package, or run the command in its folder; on a cluster every node needs it"
    with explained(f"`{name}` cannot be imported", hint):
        imported = importlib.import_module(module)
    if not hasattr(imported, function):
        raise ConfigError(f"`{module}` has no `{function}`", "--model PACKAGE.MODULE:FUNCTION")
    return getattr(imported, function)


@contextmanager
def explained(what: str, hint: str) -> Iterator[None]:
    """Say what went wrong in a user's code, which may raise anything."""
    try:
        yield
    except PacelineError:
        raise
    except Exception as error:  # noqa: BLE001
        raise ConfigError(f"{what}: {in_short(error)}", hint) from None


def import_from(name: str) -> Any:
    """What `module:name` names."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)
