"""Which models are there? Each has an entry, which declares what others need to know before the model is built.

Code outside of a model's own files asks its entry, or the `Model` that the entry builds, and never compares names.
`PACKAGE.MODULE:FUNCTION` is a model that a user wrote. The function either builds a model over sparse rows, as
`sparse_model` declares (`sparse.py`), or a PyTorch module for images (`torch/model.py`).
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.errors import ConfigError, UsageError, one_of
from paceline.imports import import_from, import_function
from paceline.models.loss_entries import LOSS_OF_LABELS, LOSSES, LOSSES_OF_ONE_SCORE
from paceline.models.tasks import METRICS as METRICS
from paceline.models.tasks import Task
from paceline.parameters.optimizers import DENSE_OPTIMIZERS, TABLE_OPTIMIZERS
from paceline.settings import RunConfig

if TYPE_CHECKING:
    from paceline.models.model import Model

ROWS, IMAGES = "rows", "images"
STEP_PARTS = "paceline.models.step_operations:StepParts"
ONNX = "paceline.exports.onnx_"


class Defaults(NamedTuple):
    """What a new run of a model gets if nobody says otherwise: its pace, and its batch size (rows per worker per step).

    At pace async, workers that are threads have batches of `async_rows`; workers that are processes have batches of
    `process_rows` at every pace. With `own_threads`, a step uses all cores by itself, so that one worker is enough.
    Small data is repeated, up to `least_rows` rows in all: `repeats` times the square of its rows per key. Its batches
    are smaller, so that an epoch has `least_updates` updates, but not below `fewest_rows` (`defaults.py`).

    On a GPU, batches have up to `gpu_rows` where a batch is one update: in sync, and at every pace if workers are
    processes. They have `gpu_async_rows` at async on one machine, where each of their rows is one. With 0, they have as
    many as on the CPU.
    """

    pace: str
    rows: int
    async_rows: int
    process_rows: int
    own_threads: bool = False
    gpu_rows: int = 0
    gpu_async_rows: int = 0
    least_rows: int = 0
    least_updates: int = 0
    fewest_rows: int = 4
    repeats: float = 0.0

    def batch_size(self, pace: str | int, has_processes: bool, on_gpu: bool = False) -> int:
        """Rows per worker per step.

        >>> OF_LINEAR.batch_size("async", has_processes=False), OF_LINEAR.batch_size("async", has_processes=True)
        (1, 1000)
        >>> [OF_LINEAR.batch_size("async", has_processes, on_gpu=True) for has_processes in (False, True)]
        [65536, 10000]
        """
        if on_gpu and self.gpu_rows:
            return self.gpu_async_rows if pace == "async" and not has_processes else self.gpu_rows
        if has_processes:
            return self.process_rows
        return self.async_rows if pace == "async" else self.rows


# benchmarks/defaults.py and quality.py measure them; decisions 0024 and 0030 explain them.
OF_LINEAR = Defaults(
    "async", rows=100, async_rows=1, process_rows=1000, gpu_rows=10_000, gpu_async_rows=65_536, least_rows=200_000,
    least_updates=500, repeats=1 / 2,
)  # fmt: skip
# Factors fit small data too well sooner than weights do.
OF_FACTORS = OF_LINEAR._replace(repeats=1 / 6)
# Its steps go through Python, so that small ones are slow.
OF_FIELD_WEIGHTED = OF_FACTORS._replace(async_rows=100, fewest_rows=20)
OF_DECLARED = Defaults("async", rows=100, async_rows=100, process_rows=1000)
OF_SOFTMAX = Defaults("async", rows=100, async_rows=100, process_rows=100)
OF_TORCH = Defaults("sync", rows=100, async_rows=100, process_rows=32, own_threads=True)


class Entry(NamedTuple):
    """The declaration of a model.

    `input` is what it learns from, `rows` or `images`. `keyed` says that it has a table of parameters by key, so that a
    step moves only those of its batch's keys; otherwise all parameters take part in every step. `losses` are the names
    of those that it can be trained with, and `class_weights` says that its classes may count differently. `compiled`
    says that it has a kernel, with which threads take whole steps without Python. `has_factors` says that the section
    `factors` of a recipe is for it, and `needs_fields` that each nonzero of a row must belong to a field.

    `builder` and `loader` are "module:function", imported when they are needed. So are `network`, which makes a
    classifier of images for one worker; `shapes`, which tells the shapes of its tensors before it is made, if they are
    known; `module`, which makes the PyTorch module of such a classifier; and `operations`, which makes the operations
    of a step, if they are known. `onnx` makes an ONNX model of a trained one. `function` is a user's own.

    With `scaled`, it learns from values as a dataset scales them; otherwise from those of the source.
    """

    name: str
    input: str
    keyed: bool
    losses: tuple[str, ...]
    optimizers: tuple[str, ...]
    builder: str
    loader: str
    defaults: Defaults
    exchanges: tuple[str, ...] = ("shard",)
    devices: tuple[str, ...] = ("cpu",)
    precisions: tuple[str, ...] = ("float32",)
    network: str = ""
    shapes: str = ""
    module: str = ""
    operations: str = ""
    onnx: str = ""
    function: Any = None
    compiled: bool = False
    class_weights: bool = False
    has_factors: bool = False
    needs_fields: bool = False
    scaled: bool = True

    def build(self, config: RunConfig, dataset: Any, rows_per_update: int) -> Model:
        """The model of a run on this dataset; an update takes this many rows."""
        model: Model = import_from(self.builder)(self, config, dataset, rows_per_update)
        if self.keyed != (model.layout.table is not None):
            raise RuntimeError(f"the entry of `{self.name}` has keyed={self.keyed}, but its layout is {model.layout}")
        if self.compiled != (model.make_kernel is not None):
            raise RuntimeError(
                f"the entry of `{self.name}` has compiled={self.compiled}, but make_kernel is {model.make_kernel}"
            )
        return model

    def loss_for(self, given: str, labels: str) -> str:
        """The loss to train with on labels of this kind, `given` or not; `ConfigError` if there is none."""
        usual = LOSS_OF_LABELS[labels]
        if given:
            wanted, who = given, f"the loss `{given}`"
        else:
            wanted, who = usual if usual in self.losses else self.losses[0], f"the model `{self.name}`"
        if labels in LOSSES[wanted].task.labels:
            return wanted
        fitting = [name for name in self.losses if labels in LOSSES[name].task.labels]
        task = LOSSES[wanted].task
        hints = [f"--loss {one_of(fitting)}"] if fitting else []
        if labels == "classes" and not fitting:
            hints += [f"--model {one_of([one.name for one in MODELS.values() if one.is_for(self.input, usual)])}"]
        # Several classes are neither two nor numbers.
        if labels != "classes":
            hints += [f"prepare the data again with --labels {task.labels[0]}"]
        raise ConfigError(f"{task.needs_labels(who)}; those of the data are `{labels}`", ", or ".join(hints))

    def is_for(self, rows: str, loss: str) -> bool:
        """Whether it learns from such input, with this loss."""
        return self.input == rows and loss in self.losses

    def task_for(self, config: RunConfig, labels: str) -> Task:
        """What the model of a run predicts from labels of this kind."""
        return LOSSES[self.loss_for(config.loss.name, labels)].task

    def load(self, info: bytes, tensors: dict[str, Any]) -> Any:
        """The model that `model.json` and its tensors describe, its parameters, and what it takes as input."""
        return import_from(self.loader)(self, info, tensors)


def _torch(name: str, module: str, shapes: str = "") -> Entry:
    return Entry(
        name, IMAGES, keyed=False, losses=("softmax",), optimizers=DENSE_OPTIMIZERS,
        builder="paceline.models.images:build", loader="paceline.models.trained:load_image_model", defaults=OF_TORCH,
        network="paceline.torch.model:TorchModel", exchanges=("shard", "allreduce"), devices=("cpu", "cuda"),
        precisions=("float32", "bfloat16"), shapes=shapes, module=module, onnx=f"{ONNX}images:module",
    )  # fmt: skip


MODELS = {
    "linear": Entry(
        "linear", ROWS, keyed=True, losses=tuple(LOSSES), optimizers=TABLE_OPTIMIZERS,
        builder="paceline.models.linear:build", loader="paceline.models.trained:load_linear_model",
        defaults=OF_LINEAR, operations="paceline.models.linear_operations:make", compiled=True,
        class_weights=True, onnx=f"{ONNX}rows:linear", devices=("cpu", "cuda"),
    ),
    "fm": Entry(
        "fm", ROWS, keyed=True, losses=LOSSES_OF_ONE_SCORE, optimizers=TABLE_OPTIMIZERS,
        builder="paceline.models.factorization:build", loader="paceline.models.trained_factorization:load_fm",
        defaults=OF_FACTORS, operations=STEP_PARTS, compiled=True, has_factors=True, class_weights=True,
        onnx=f"{ONNX}rows:fm", devices=("cpu", "cuda"),
    ),
    "fwfm": Entry(
        "fwfm", ROWS, keyed=True, losses=LOSSES_OF_ONE_SCORE, optimizers=TABLE_OPTIMIZERS,
        builder="paceline.models.field_weighted:build", loader="paceline.models.trained_factorization:load_fwfm",
        defaults=OF_FIELD_WEIGHTED, operations=STEP_PARTS, has_factors=True, needs_fields=True, class_weights=True,
        onnx=f"{ONNX}rows:fwfm",
    ),
    "ffm": Entry(
        "ffm", ROWS, keyed=True, losses=LOSSES_OF_ONE_SCORE, optimizers=TABLE_OPTIMIZERS,
        builder="paceline.models.factorization:build_field_aware",
        loader="paceline.models.trained_factorization:load_ffm",
        defaults=OF_FACTORS, operations=STEP_PARTS, compiled=True, has_factors=True, needs_fields=True,
        class_weights=True, onnx=f"{ONNX}rows:ffm",
    ),
    "softmax": Entry(
        "softmax", IMAGES, keyed=False, losses=("softmax",), optimizers=DENSE_OPTIMIZERS,
        builder="paceline.models.images:build", loader="paceline.models.trained:load_image_model",
        defaults=OF_SOFTMAX, operations=STEP_PARTS,
        network="paceline.models.softmax:make_network", shapes="paceline.models.softmax:shapes_of",
        onnx=f"{ONNX}images:softmax",
    ),
    "alexnet": _torch("alexnet", "paceline.torch.alexnet:alexnet", "paceline.torch.model:shapes_of"),
    "alexnet-small": _torch("alexnet-small", "paceline.torch.alexnet:alexnet_small", "paceline.torch.model:shapes_of"),
}  # fmt: skip
# Older names, which runs may have.
ALIASES = {"logistic": "linear"}


def is_known(name: str) -> bool:
    """Whether this is the name of a model of paceline, which needs no code of a user."""
    return ALIASES.get(name, name) in MODELS


def find(name: str) -> Entry:
    """The entry of a model; `ConfigError` if there is none."""
    return MODELS[ALIASES.get(name, name)] if is_known(name) else _declared(_function_name(name))


def find_of_old_run(name: str) -> Entry:
    """The same for a run that did not record what its model declares: then users' models were all PyTorch modules.

    A user's module is not imported; it need not exist any more.
    """
    return MODELS[ALIASES.get(name, name)] if is_known(name) else _torch(_function_name(name), name)


def check_code(run: Path | str, model: str, code: str, how: str) -> None:
    """Refuse to import code that only a run folder names, because anyone may have made the folder.

    `code` is what the user named (PACKAGE:FUNCTION), and `how` says what to do to name it.
    """
    if code and ALIASES.get(code, code) != ALIASES.get(model, model):
        raise UsageError(f"the model of `{run}` is `{model}`, not `{code}`", "leave --model out, or name that one")
    if not is_known(model) and not code:
        needed = f"the model of `{run}` needs the code `{_function_name(model)}`, which would be imported and run"
        raise UsageError(needed, f"if you trust it: {how}")


def resume_command(run: Path | str, model: str) -> str:
    """What to type to continue a run; it names the code of a user's own model."""
    return f"paceline resume {run}" + ("" if is_known(model) else f" --model {model}")


def _function_name(name: str) -> str:
    """The name of a user's function; `ConfigError` if it cannot be one."""
    module, colon, function = name.partition(":")
    if colon and all(part.isidentifier() for part in (*module.split("."), function)):
        return name
    if colon:
        raise ConfigError(f"`model` is `{name}`; a function is PACKAGE.MODULE:FUNCTION", "--model mine.nets:build")
    near = difflib.get_close_matches(name, [*MODELS, *ALIASES], n=1)
    raise ConfigError(
        f"`model` is `{name}`; it must be one of {', '.join(MODELS)}, or PACKAGE.MODULE:FUNCTION",
        f"did you mean `{near[0]}`?" if near else f"--model {next(iter(MODELS))}",
    )


def _declared(name: str) -> Entry:
    """The entry of a user's function: what it declares, or else a PyTorch module."""
    function = import_function(name)
    declaration = getattr(function, "declares", None)
    if declaration is None:
        return _torch(name, name)
    return Entry(
        name, ROWS, keyed=True, losses=(declaration.loss,), optimizers=declaration.optimizers,
        builder="paceline.models.sparse:build", loader="paceline.models.trained:load_declared_model",
        defaults=OF_DECLARED, function=function, scaled=False,
    )  # fmt: skip
