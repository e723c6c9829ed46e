"""Rows with fields, and factorization machines of all kinds in float64, pair by pair as their papers write them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data.sparse.batch import Batch
from paceline.kernels.numbering import number_keys
from paceline.parameters.layout import Group, Initial, TableLayout
from paceline.parameters.scratch import Scratch
from paceline.settings import OptimizerConfig

Doubles = NDArray[np.float64]
FEATURES, FIELDS, DIM = 30, 4, 3


def some_rows(count: int, seed: int = 0) -> Batch:
    """Rows of 0 to 7 keys with values, weights and fields; a field may occur twice in a row, or never."""
    random = np.random.default_rng(seed)
    keys = [random.choice(FEATURES, random.integers(0, 8), replace=False).tolist() for _ in range(count)]
    values = [random.normal(size=len(row)).tolist() for row in keys]
    rows = Batch.from_lists(random.integers(0, 2, count).tolist(), keys, values)
    fields = random.integers(0, FIELDS, rows.num_nonzeros).astype(np.uint16)
    return rows._replace(weights=random.uniform(0, 3, count).astype(np.float32), fields=fields)


def layout(columns: int, settings: OptimizerConfig | None = None, blocks: int = 1) -> TableLayout:
    """A weight and this many factors per key, and a bias."""
    optimizer = settings or OptimizerConfig(name="sgd", learning_rate=0.5)
    weight = OptimizerConfig(name="sgd", learning_rate=0.5)
    groups = Group("weight", 1, weight), Group("factors", columns, optimizer, Initial("normal", 0.5), blocks)
    return TableLayout(FEATURES, groups)


def number(rows: Batch, table: TableLayout) -> tuple[NDArray[Any], NDArray[np.uint32]]:
    """The distinct keys of rows, the bias first, and each nonzero's number among them."""
    room = Scratch(table).room_for(rows.num_nonzeros)
    count = number_keys(rows.keys, FEATURES, room.slots, room.direct, room.turn, room.distinct, room.local)
    return room.distinct[:count], room.local[: rows.num_nonzeros]


def score(kind: str, table: Doubles, field_weights: Doubles, rows: Batch) -> Doubles:
    """The scores of rows, from a table [keys + 1, 1 + factors]; `kind` is that of the machine."""
    found = []
    for row in range(rows.num_rows):
        inside = range(rows.offsets[row], rows.offsets[row + 1])
        z = table[FEATURES, 0] + sum(table[rows.keys[i], 0] * float(rows.values[i]) for i in inside)
        for i in inside:
            for j in range(i + 1, rows.offsets[row + 1]):
                product = PAIRS[kind](table[rows.keys[i], 1:], table[rows.keys[j], 1:], *fields_of(rows, i, j))
                r = field_weights[min(fields_of(rows, i, j)), max(fields_of(rows, i, j))] if kind == "fwfm" else 1.0
                z += r * product * float(rows.values[i]) * float(rows.values[j])
        found.append(z)
    return np.array(found)


def fields_of(rows: Batch, i: int, j: int) -> tuple[int, int]:
    assert rows.fields is not None
    return int(rows.fields[i]), int(rows.fields[j])


def of_plain(one: Doubles, other: Doubles, _f: int, _g: int) -> float:
    return float(one @ other)


def of_field_aware(one: Doubles, other: Doubles, f: int, g: int) -> float:
    return float(one.reshape(FIELDS, -1)[g] @ other.reshape(FIELDS, -1)[f])


PAIRS = {"fm": of_plain, "fwfm": of_plain, "ffm": of_field_aware}


def total_loss(kind: str, table: Doubles, field_weights: Doubles, rows: Batch) -> float:
    """The sum of the logistic losses, each as often as the row's weight says."""
    z = score(kind, table, field_weights, rows)
    assert rows.weights is not None
    return float(rows.weights.astype(np.float64) @ np.logaddexp(0, np.where(rows.labels, -z, z)))


def slopes(kind: str, table: Doubles, field_weights: Doubles, rows: Batch) -> tuple[Doubles, Doubles]:
    """The derivatives of the loss by the table and by the field weights, by finite differences."""
    found = []
    for array in (table, field_weights):
        out = np.zeros(array.size)
        flat = array.reshape(-1)
        for i in range(array.size):
            kept = flat[i]
            flat[i] = kept + 1e-5
            above = total_loss(kind, table, field_weights, rows)
            flat[i] = kept - 1e-5
            out[i] = (above - total_loss(kind, table, field_weights, rows)) / 2e-5
            flat[i] = kept
        found.append(out.reshape(array.shape))
    return found[0], found[1]
