"""Models over sparse rows as ONNX graphs: gather what the table has for each id, multiply by the values, add up.

A graph takes `ids` and `values` [rows, nonzeros]. Ids that the model does not know are ignored, whatever their value,
and so is what has the value 0; so both −1 and a value of 0 pad a row. Models with fields take `fields`, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from paceline.data.sparse.scaling import Scaling
from paceline.exports.graph import Graph
from paceline.models.losses import (
    LARGEST_LOG,
    CrossEntropy,
    Hinge,
    Huber,
    Logistic,
    Poisson,
    Quantile,
    Squared,
    SquaredHinge,
)
from paceline.models.trained import TrainedModel

CELLS = ("rows", "nonzeros")
Link = Callable[[Graph, str], str]


def _score_itself(graph: Graph, score: str) -> str:
    return score


def _exponential(graph: Graph, score: str) -> str:
    return graph.node("Exp", graph.node("Min", score, graph.constant(LARGEST_LOG)))


# What a score predicts, by loss.
LINKS: dict[type, Link] = {
    Logistic: lambda graph, score: graph.node("Sigmoid", score),
    Squared: _score_itself,
    Hinge: _score_itself,
    SquaredHinge: _score_itself,
    Poisson: _exponential,
    Quantile: _score_itself,
    Huber: _score_itself,
    CrossEntropy: lambda graph, score: graph.node("Softmax", score, axis=-1),
}


class Nonzeros(NamedTuple):
    """The nonzeros of rows in a graph, [rows, nonzeros] each: ids that the table has, and their values as the model
    was trained on them. `fields` is empty for models without fields.
    """

    ids: str
    values: str
    fields: str = ""


def linear(model: TrainedModel) -> Any:
    """A linear model under any loss. Values are scaled in the graph, in float64: float32 weights for values as the
    source has them would lose digits of columns far from zero.
    """
    weight, bias = model.tensors["weight"], model.tensors["bias"]
    graph = Graph("linear")
    rows = _nonzeros(graph, len(weight), model.input.scaling)
    gathered = graph.node("Gather", graph.constant(weight, name="weight"), rows.ids)
    values = rows.values if weight.ndim == 1 else graph.with_axis(rows.values, 2)
    score = graph.node("Add", graph.sum(graph.node("Mul", gathered, values), 1), graph.constant(bias, name="bias"))
    return _predicting(graph, model, score, weight.shape[1:])


def fm(model: TrainedModel) -> Any:
    """A factorization machine: Σᵢ<ⱼ ⟨vᵢ, vⱼ⟩ xᵢ xⱼ = ½ Σ (S² − Σᵢ (vᵢ xᵢ)²) with S = Σᵢ vᵢ xᵢ."""
    graph, _, score, factors = _factorization("fm", model)
    total = graph.sum(factors, 1)
    squares = graph.sum(graph.node("Mul", factors, factors), 1)
    pairs = graph.sum(graph.node("Sub", graph.node("Mul", total, total), squares), 1)
    return _predicting(graph, model, _with_pairs(graph, score, pairs))


def fwfm(model: TrainedModel) -> Any:
    """A field-weighted one: with S(f) = Σ vᵢ xᵢ over the nonzeros of field f, ½ Σ r(f, g) ⟨S(f), S(g)⟩ without those
    pairs that are one nonzero twice.
    """
    graph, rows, score, factors = _factorization("fwfm", model)
    weights = model.tensors["field_weights"]
    weights = np.triu(weights) + np.triu(weights, 1).T
    is_of_field = _is_of_field(graph, rows, len(weights))
    by_field = graph.node("MatMul", graph.node("Transpose", is_of_field, perm=[0, 2, 1]), factors)
    crossed = graph.node("MatMul", graph.constant(weights, name="field_weights"), by_field)
    both = graph.sum(graph.sum(graph.node("Mul", by_field, crossed), 2), 1)
    squares = graph.sum(graph.node("Mul", factors, factors), 2)
    own = graph.node("MatMul", is_of_field, graph.constant(np.diag(weights)))
    twice = graph.sum(graph.node("Mul", own, squares), 1)
    return _predicting(graph, model, _with_pairs(graph, score, graph.node("Sub", both, twice)))


def ffm(model: TrainedModel) -> Any:
    """A field-aware one: with C(f, g) = Σ vᵢ(g) xᵢ over the nonzeros of field f, ½ Σ ⟨C(f, g), C(g, f)⟩ without those
    pairs that are one nonzero twice.
    """
    graph, rows, score, factors = _factorization("ffm", model)
    _, num_fields, dim = model.tensors["factors"].shape
    is_of_field = _is_of_field(graph, rows, num_fields)
    shape = graph.constant([0, -1, num_fields * dim], np.int64)
    flat = graph.node("Reshape", factors, shape)
    by_field = graph.node("MatMul", graph.node("Transpose", is_of_field, perm=[0, 2, 1]), flat)
    by_field = graph.node("Reshape", by_field, graph.constant([0, num_fields, num_fields, dim], np.int64))
    turned = graph.node("Transpose", by_field, perm=[0, 2, 1, 3])
    both = graph.sum(graph.sum(graph.sum(graph.node("Mul", by_field, turned), 3), 2), 1)
    squares = graph.sum(graph.node("Mul", factors, factors), 3)
    twice = graph.sum(graph.sum(graph.node("Mul", squares, is_of_field), 2), 1)
    return _predicting(graph, model, _with_pairs(graph, score, graph.node("Sub", both, twice)))


def _factorization(name: str, model: TrainedModel) -> tuple[Graph, Nonzeros, str, str]:
    """A graph with what all kinds have: the nonzeros, the score without pairs, and factors times values."""
    tensors, graph = model.tensors, Graph(name)
    rows = _nonzeros(graph, len(tensors["weight"]), model.input.scaling, has_fields=name != "fm")
    gathered = graph.node("Gather", graph.constant(tensors["weight"], name="weight"), rows.ids)
    score = graph.sum(graph.node("Mul", gathered, rows.values), 1)
    score = graph.node("Add", score, graph.constant(tensors["bias"], name="bias"))
    values = rows.values
    for axis in range(2, tensors["factors"].ndim + 1):
        values = graph.with_axis(values, axis)
    factors = graph.node("Gather", graph.constant(tensors["factors"], name="factors"), rows.ids)
    return graph, rows, score, graph.node("Mul", factors, values)


def _nonzeros(graph: Graph, features: int, scaling: Scaling, has_fields: bool = False) -> Nonzeros:
    """The inputs of a graph, without ids that the model does not know, and with values as it was trained on them."""
    ids, values = graph.input("ids", np.int64, CELLS), graph.input("values", np.float32, CELLS)
    fields = graph.input("fields", np.int64, CELLS) if has_fields else ""
    at_least = graph.node("GreaterOrEqual", ids, graph.constant(0, np.int64))
    known = graph.node("And", at_least, graph.node("Less", ids, graph.constant(features, np.int64)))
    rows = Nonzeros(
        graph.node("Where", known, ids, graph.constant(0, np.int64)),
        graph.node("Where", known, values, graph.constant(0.0)),
        fields,
    )
    return _scaled(graph, rows, features, scaling) if scaling.keys else rows


def _scaled(graph: Graph, rows: Nonzeros, features: int, scaling: Scaling) -> Nonzeros:
    """Nonzeros whose scaled ids stand at the end of each row, all of them: those with a centre are in every row."""
    count = len(scaling.keys)
    places = np.full(features, count, np.int32)
    places[list(scaling.keys)] = np.arange(count)
    # The value of each scaled id, in a column of its own, and of all others together, in the last one.
    place = graph.node("Gather", graph.constant(places, np.int32, "scaled"), rows.ids)
    height = graph.node("Shape", rows.ids, start=0, end=1)
    shape = graph.node("Concat", height, graph.constant([count + 1], np.int64), axis=0)
    nothing = graph.node("Expand", graph.constant(0.0), shape)
    added = graph.node("ScatterElements", nothing, graph.cast(place, np.int64), rows.values, axis=1, reduction="add")
    columns = graph.node(
        "Slice", added, graph.constant([0], np.int64), graph.constant([count], np.int64), graph.constant([1], np.int64)
    )
    away = graph.node("Sub", graph.cast(columns, np.float64), graph.constant(scaling.centres, np.float64))
    inside = graph.cast(graph.node("Div", away, graph.constant(scaling.scales, np.float64)), np.float32)
    whole = graph.node("Concat", height, graph.constant([count], np.int64), axis=0)
    plain = graph.node("Equal", place, graph.constant(count, np.int32))

    def with_scaled(part: str, of_scaled: Any) -> str:
        return graph.node("Concat", part, graph.node("Expand", graph.constant(of_scaled, np.int64), whole), axis=1)

    return Nonzeros(
        with_scaled(rows.ids, scaling.keys),
        graph.node("Concat", graph.node("Where", plain, rows.values, graph.constant(0.0)), inside, axis=1),
        with_scaled(rows.fields, scaling.fields) if rows.fields else "",
    )


def _is_of_field(graph: Graph, rows: Nonzeros, count: int) -> str:
    """1 where a nonzero is of a field, [rows, nonzeros, fields], else 0."""
    same = graph.node("Equal", graph.with_axis(rows.fields, 2), graph.constant(np.arange(count), np.int64))
    return graph.cast(same, np.float32)


def _with_pairs(graph: Graph, score: str, pairs: str) -> str:
    return graph.node("Add", score, graph.node("Mul", pairs, graph.constant(0.5)))


def _predicting(graph: Graph, model: TrainedModel, score: str, classes: tuple[int, ...] = ()) -> Any:
    """The model whose output is what scores predict."""
    output: Any = model.model.output
    return graph.finish(LINKS[type(output.loss)](graph, score), output.task.column, ("rows", *classes))
