"""Where is the data that a call from Python was given? In a dataset's folder, or in memory, from where it is streamed
to a temporary dataset.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any

from paceline.config import converted, plain, refuse_unknown
from paceline.data.limits import LABEL_KINDS, LabelKind
from paceline.data.memory.given import is_in_memory, is_matrix
from paceline.data.memory.prepare import Memory, prepare_memory
from paceline.data.preparation import config_of
from paceline.data.prepare_settings import PrepareConfig, Prepared, PrepareProgress, with_columns
from paceline.errors import PacelineError, UsageError
from paceline.models.inputs import INPUTS
from paceline.models.loss_entries import LOSSES
from paceline.models.registry import ROWS, find
from paceline.models.trained import load_model
from paceline.options import RowOptions, keys_of
from paceline.run_folder import RunFolder
from paceline.settings import RunConfig
from paceline.training.scorers import scoring_on

OF_MEMORY = ("label", "weight", "validation", "test", "labels")
NAMES = keys_of(RowOptions)


def without_rows(flags: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the arguments of a call: what is said about rows in memory, and the rest. None means not given."""
    rows = {name: value for name, value in flags.items() if name in NAMES and value is not None}
    # pandas calls columns 0, 1, … if nobody names them; Arrow calls them by the text.
    for name in ("label", "weight"):
        if isinstance(given := rows.get(name), Integral):
            rows[name] = str(given)
    return rows, {name: value for name, value in flags.items() if name not in NAMES}


@contextmanager
def dataset_for(config: RunConfig, data: Any, options: Mapping[str, Any], *, progress: bool) -> Iterator[str]:
    """The folder of the dataset to train on, while the context lasts.

    Rows in memory get labels of a kind that the model of `config` can learn from.
    """
    if not is_in_memory(data):
        refuse_options(options, data)
        yield str(data)
        return
    entry = find(config.model)
    if entry.input != ROWS:
        found = f"the model `{config.model}` learns from {INPUTS[entry.input]}"
        raise UsageError(f"{found}, and rows in memory are {INPUTS[ROWS]}", f"give a dataset of {INPUTS[entry.input]}")
    names = [config.loss.name] if config.loss.name else entry.losses
    kinds = {kind for name in names for kind in LOSSES[name].task.labels}
    fits = tuple(kind for kind in LABEL_KINDS if kind in kinds)
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        out = str(Path(folder) / "memory")
        if config.start_from:
            _write_more(config, data, out, options, fits, progress=progress)
        else:
            write_rows(data, out, {"seed": config.seed, **options}, fits, progress=progress)
        with _called_the_data(out):
            yield out


@contextmanager
def _called_the_data(out: str) -> Iterator[None]:
    """Errors about a temporary dataset do not name its folder, which nobody knows."""
    try:
        yield
    except PacelineError as error:
        error.message = error.message.replace(f"`{out}`", "the data")
        error.args = (error.message,)
        raise


def _write_more(
    config: RunConfig, data: Any, out: str, options: Mapping[str, Any], fits: tuple[LabelKind, ...], *, progress: bool
) -> None:
    """Write rows in memory for a model that exists: read as those that it was trained on, unless `options` differ."""
    recorded = config.start.source
    told = plain(with_columns({name: value for name, value in options.items() if name not in OF_MEMORY}))
    prepare_config(["memory"], out, told)  # raises if something is wrong with them
    edges = recorded.get("bins", {})
    if "bins" in told:
        # The same number of bins means the same bins.
        told["bins"] = {
            name: edges[name] if isinstance(said, int) and len(edges.get(name, ())) == said - 1 else said
            for name, said in told["bins"].items()
        }
    given = {"label": _label_of(recorded, data), "labels": config.start.labels or None}
    memory = Memory(data, fits=fits, **{**given, **{name: options[name] for name in OF_MEMORY if name in options}})
    usual = {"format": "auto", "weight": "", "index_base": "auto", "scale": "none", "seed": config.seed}
    with _row_meter(progress) as show:
        prepare_memory(memory, config_of(recorded, ["memory"], out=out, **{**usual, **told}), show)


def _label_of(recorded: Mapping[str, Any], data: Any) -> str | None:
    """The label's column in tables like those that a model was trained on; (X, y) have their labels with them."""
    return None if is_matrix(data) else recorded.get("label")


@contextmanager
def dataset_like(
    run: Path, data: Any, options: Mapping[str, Any], code: str = "", device: str = "cpu"
) -> Iterator[str]:
    """The folder of the dataset to evaluate a run's model on, on a device, while the context lasts.

    Rows in memory are prepared as those that it was trained on.
    """
    if not is_in_memory(data):
        refuse_options(options, data)
        yield str(data)
        return
    model = load_model(RunFolder(run).path, code)
    scoring_on(device, model)  # raises before anything is prepared
    if model.entry.input != ROWS:
        found = f"the model learned from {INPUTS[model.entry.input]}"
        raise UsageError(f"{found}, and rows in memory are {INPUTS[ROWS]}", "give a dataset")
    recorded = model.info.source
    label = options.get("label", _label_of(recorded, data))
    kinds = model.model.output.task.labels
    memory = Memory(
        data, label=label, weight=options.get("weight"), labels=options.get("labels", recorded.get("labels")),
        fits=tuple(kind for kind in LABEL_KINDS if kind in kinds),
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        out = str(Path(folder) / "memory")
        prepare_memory(memory, config_of(recorded, ["memory"], out=out, format="auto", weight="", index_base="auto"))
        with _called_the_data(out):
            yield out


def refuse_options(options: Mapping[str, Any], data: Any) -> None:
    """Raise if something is said about rows in memory, although the data is not."""
    if options and Path(str(data)).is_file():
        raise UsageError(
            f"`{data}` is a file, and `{next(iter(options))}` is for rows in memory",
            "read the file, with pandas for example, or make a dataset of it with `paceline prepare`",
        )
    if options:
        raise UsageError(
            f"`{next(iter(options))}` is given, but `data` is a dataset, which has been prepared",
            "leave it out, or give the rows themselves",
        )


def write_rows(
    data: Any, out: str | PathLike[str], options: Mapping[str, Any], fits: tuple[LabelKind, ...] = LABEL_KINDS, *,
    progress: bool,
) -> Prepared[Any]:  # fmt: skip
    """Write rows in memory to a new dataset."""
    memory = Memory(data, fits=fits, **{name: options[name] for name in OF_MEMORY if name in options})
    told = {name: value for name, value in options.items() if name not in OF_MEMORY}
    config = prepare_config(["memory"], out, told)
    with _row_meter(progress) as show:
        return prepare_memory(memory, config, show)


def with_files(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of files with the names of further files as lists of text.

    >>> with_files({"test": Path("a9a.t"), "weights": ["w1", "w2"], "seed": 1})
    {'test': ['a9a.t'], 'weights': ['w1', 'w2'], 'seed': 1}
    """
    found = dict(settings)
    for name in ("validation", "test", "weights"):
        if name in found:
            given = found[name] if isinstance(found[name], (list, tuple)) else [found[name]]
            found[name] = [item if is_in_memory(item) else str(item) for item in given]
    return found


def prepare_config(sources: list[str], out: str | PathLike[str], settings: Mapping[str, Any]) -> PrepareConfig:
    """The flags of `paceline prepare`, given as keywords."""
    tree = {"sources": sources, "out": str(out), **with_columns(settings)}
    refuse_unknown(tree, PrepareConfig, "")
    return converted(tree, PrepareConfig, "see `paceline prepare --help`")


@contextmanager
def _row_meter(progress: bool) -> Iterator[Callable[[PrepareProgress], None]]:
    if not progress:
        yield lambda _: None
        return
    from paceline.reports.progress_bar import meter

    with meter("read") as bar:
        yield lambda at: bar.show(0.0, f"{at.rows:,} rows")
