"""How does a run go on with the model of another one? With its parameters, and with what its optimizer remembers.

Beside the model, `model/optimizer.safetensors` of a run folder holds that memory, in the input's keys. What else a run
takes over is in `model.json` (`models/start.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy
import xxhash
from numpy.typing import NDArray
from safetensors import SafetensorError

from paceline.errors import BAD_TEXT, DataError
from paceline.files import translated_disk_errors, write_tensors
from paceline.models.model import Model, Parameters
from paceline.models.start import Training, read_saved
from paceline.parameters.keyed import KeyedStore
from paceline.parameters.layout import Group, Layout, TableLayout
from paceline.parameters.optimizers import OPTIMIZERS, state_of
from paceline.settings import RunConfig
from paceline.training.checkpoint import States

FILE = "optimizer.safetensors"
DENSE = "dense"
TRAIN_AGAIN = "train again"
Tensors = dict[str, NDArray[np.float32]]


class Trained(NamedTuple):
    """A model as a run keeps it: its parameters, and what its optimizer remembers, if that is kept."""

    parameters: Parameters
    memory: Tensors | None = None


class OptimizedColumns(NamedTuple):
    """Where a group of a table is: its values, and in its states the first number of each value and what is beyond the
    values that a model's file has.
    """

    group: Group
    values: slice
    states: slice
    memory: slice


def memory_of(states: States, layout: Layout) -> Tensors:
    """What optimizers remember, in an array per group of the table, [keys, numbers], and one of the dense values,
    [numbers, values]. Copies.
    """
    found: Tensors = {}
    if states.table is not None and layout.table is not None:
        found = {one.group.name: states.table[:, one.memory] for one in _columns(layout.table)}
    if states.dense is not None:
        found[DENSE] = states.dense.T[1:]
    return {name: array.copy() for name, array in found.items() if array.size}


def describe(layout: Layout) -> str:
    """What a state is for: the optimizers, and how many numbers they have per parameter.

    >>> from paceline.settings import OptimizerConfig
    >>> describe(Layout(TableLayout(10, (Group("weight", 1, OptimizerConfig()),))))
    'weight adagrad 1/2'
    """
    groups = () if layout.table is None else layout.table.groups
    found = [f"{group.name} {group.optimizer.name} {group.dim}/{group.width}" for group in groups]
    if layout.dense is not None:
        found.append(f"{DENSE} {layout.dense.optimizer.name} 1/{layout.dense.width}")
    return ", ".join(found)


def save_memory(folder: Path, memory: Tensors) -> str:
    """Write what an optimizer remembers to the folder of a model; returns a checksum."""
    path = folder / FILE
    with translated_disk_errors(path):
        folder.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
    if memory:
        write_tensors(path, memory)
    return _checksum(memory)


def starting_states(config: RunConfig, dataset: Any, model: Model, notice: Callable[[str], None]) -> States:
    """The states that a run begins with that starts from the model of another run. New keys have their initial values.

    `DataError` if the model is for other data.
    """
    # Not at the top: few runs need it, and it would make the start of all others slower.
    from paceline.models.trained import load_model

    run = Path(config.start_from)
    trained = load_model(run, config.model)
    if trained.info.sha256 != config.start.sha256:
        raise DataError(f"the model in `{run}` is not the one that this run began with", "start a new run")
    trained.input.check(trained.parameters, dataset, trained.info.source)
    memory = _read_memory(run, read_saved(run).training, model.layout, notice)
    found, layout = States(), model.layout
    if layout.table is not None:
        view = trained.parameters.table
        assert view is not None
        if view.layout.dim != layout.table.dim:
            message = f"the model in `{run}` has {view.layout.dim} parameters per feature; this run has"
            raise DataError(f"{message} {layout.table.dim}", "use the same model, with data of the same classes")
        values = view.rows.reshape(view.layout.num_keys, view.layout.dim)
        found = found._replace(table=_table_states(layout.table, view.layout, values, memory))
    if layout.dense is not None:
        dense = np.zeros((layout.dense.num_values, layout.dense.width), np.float32, order="F")
        dense[:, 0] = trained.parameters.dense
        if memory and DENSE in memory:
            dense.T[1:] = memory[DENSE]
        found = found._replace(dense=dense)
    return found


def _table_states(layout: TableLayout, before: TableLayout, values: NDArray[np.float32],
                  memory: Tensors | None) -> NDArray[np.float32]:  # fmt: skip
    """The states of a table from those values, [keys, dim], that an earlier one of perhaps fewer keys had."""
    states = KeyedStore(layout).states
    # The bias is behind the features.
    parts = [(slice(0, before.features), slice(0, before.features), True)]
    if layout.bias:
        parts.append((slice(before.features, None), slice(layout.features, None), False))
    for old, new, regularised in parts:
        for one in _columns(layout):
            optimizer = one.group.optimizer
            if memory is None or OPTIMIZERS[optimizer.name].keeps_weights:
                states[new, one.states] = state_of(optimizer, values[old, one.values], regularised)
            if memory is not None and one.group.name in memory:
                states[new, one.memory] = memory[one.group.name][old]
    return states


def _columns(layout: TableLayout) -> Iterator[OptimizedColumns]:
    """The columns of each group."""
    value = state = 0
    for group in layout.groups:
        beyond = state + group.dim if OPTIMIZERS[group.optimizer.name].keeps_weights else state
        yield OptimizedColumns(
            group, slice(value, value + group.dim), slice(state, state + group.dim), slice(beyond, state + group.width)
        )
        value, state = value + group.dim, state + group.width


def _read_memory(run: Path, training: Training, layout: Layout, notice: Callable[[str], None]) -> Tensors | None:
    """What the optimizer of a model remembers; None if that is not known, or not for this run's optimizer."""
    from paceline.models.trained import check_shapes, check_types

    if not training.optimizer:
        notice(f"`{run}` did not keep its optimizer's state: the optimizer begins without it, with that run's model")
        return None
    if training.optimizer != describe(layout):
        notice(f"`{run}` was trained with another optimizer: this one begins without a state, with that run's model")
        return None
    path = run / "model" / FILE
    found: Tensors = {}
    try:
        if training.checksum != _checksum({}):
            found = safetensors.numpy.load_file(path)
            shapes = _shapes(layout, read_saved(run).features)
            check_shapes(found, shapes)
            check_types(found, dict.fromkeys(shapes, "float32"))
    except (OSError, *BAD_TEXT, SafetensorError) as error:
        raise DataError(f"the optimizer's state in `{path}` cannot be read: {error}", TRAIN_AGAIN) from None
    if _checksum(found) != training.checksum:
        raise DataError(f"the optimizer's state in `{path}` has a wrong checksum", TRAIN_AGAIN)
    return found


def _shapes(layout: Layout, features: int) -> dict[str, tuple[int, ...]]:
    """The shapes of what optimizers remember of a model with this many features."""
    found: dict[str, tuple[int, ...]] = {}
    if layout.table is not None:
        rows = features + layout.table.bias
        found = {one.group.name: (rows, one.memory.stop - one.memory.start) for one in _columns(layout.table)}
    if layout.dense is not None:
        found[DENSE] = (layout.dense.width - 1, layout.dense.num_values)
    return {name: shape for name, shape in found.items() if min(shape)}


def _checksum(memory: Tensors) -> str:
    digest = xxhash.xxh3_64()
    for name, array in sorted(memory.items()):
        digest.update(f"{name} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
