"""The weights of a model over rows as a table to read: a line per feature, the largest weights first.

Columns are separated by tabs. What belongs to no feature stands in front, in lines that begin with `#`. Features whose
weights are 0 are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data.sparse.scaling import Scaling
from paceline.errors import UsageError, printable
from paceline.models.trained import TrainedModel
from paceline.models.trained_inputs import SparseInput

LINES_AT_ONCE = 100_000
Floats = NDArray[np.float32]
# Of each feature: its numbers, [features, numbers in a cell], by column of the table.
Columns = dict[str, Floats]


def write_text(model: TrainedModel, _run: Path, path: Path) -> None:
    """Write the table of a model's weights."""
    table = model.model.layout.table
    if table is None:
        raise UsageError(f"the model `{model.info.model}` has no features to list", "--to onnx, or --to mlflow")
    tensors, scaling = weights_of_source(model)
    groups = [[name for name in tensors if name in (group.name, f"table.{group.name}")] for group in table.groups]
    parts = [_columns(model, name, tensors.pop(name)) for names in groups for name in names]
    columns = {name: numbers for part in parts for name, numbers in part.items()}
    # By the weights: factors of features that training never met are random numbers.
    sizes = np.abs(np.concatenate([*parts[0].values()], axis=1)).max(axis=1)
    order = np.argsort(-sizes, kind="stable")[: np.count_nonzero(sizes)]
    with path.open("x", encoding="utf-8") as file:
        file.writelines(f"# {line}\n" for line in _of_whole_model(model, tensors, scaling))
        file.write("\t".join(["feature", "key", *columns]) + "\n")
        for start in range(0, len(order), LINES_AT_ONCE):
            keys = order[start : start + LINES_AT_ONCE]
            file.writelines(_lines(model.names.of(keys), keys, columns))


def weights_of_source(model: TrainedModel) -> tuple[dict[str, Any], Scaling]:
    """The tensors of a model, and how values must be scaled for them. Those of linear models are for values as the
    source has them.
    """
    tensors, scaling = dict(model.tensors), model.input.scaling
    if {*tensors} != {"weight", "bias"}:
        return tensors, scaling
    weight, bias = scaling.weights_of_source(tensors["weight"], tensors["bias"])
    return {"weight": weight, "bias": bias}, Scaling()


def _columns(model: TrainedModel, name: str, tensor: Floats) -> Columns:
    """A tensor as columns; if it has numbers for each class or field, as one column for each of them."""
    output: Any = model.model.output
    name = name.removeprefix("table.")
    if output.num_classes:
        return {f"{name} of {printable(one)}": tensor[:, [i]] for i, one in enumerate(output.names)}
    if tensor.ndim == 3:
        return {f"{name} for {one}": tensor[:, i] for i, one in enumerate(_fields_of(model))}
    return {name: tensor.reshape(len(tensor), -1)}


def _fields_of(model: TrainedModel) -> list[str]:
    assert isinstance(model.input, SparseInput)
    return [printable(field) for field in model.input.fields]


def _of_whole_model(model: TrainedModel, tensors: dict[str, Floats], scaling: Scaling) -> Iterator[str]:
    """What is true of all features."""
    output: Any = model.model.output
    yield f"model: {printable(model.info.model)}; predicts: {output.task.column}"
    if fields := _fields_of(model):
        yield f"fields: {', '.join(fields)}"
    for name, tensor in tensors.items():
        for row in np.atleast_2d(tensor):
            yield f"{name}: {' '.join(row.reshape(-1).astype(str))}"
    for key, scale, centre in zip(scaling.keys, scaling.scales, scaling.centres, strict=True):
        yield f"the value of feature {key} counts as (value - {centre:g}) / {scale:g}"


def _lines(names: list[str], keys: NDArray[np.int64], columns: Columns) -> Iterator[str]:
    """The lines of these features."""
    cells = [numbers[keys].astype(str).tolist() for numbers in columns.values()]
    for name, key, *row in zip(names, keys.tolist(), *cells, strict=True):
        yield "\t".join([name, str(key), *(" ".join(cell) for cell in row)]) + "\n"
