"""The loops of linear models, under the logistic loss, against float64 NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data.sparse.batch import Batch, concatenate
from paceline.kernels import linear as kernels
from paceline.kernels.linear import Linear
from paceline.kernels.numbering import number_keys
from paceline.kernels.private import NoCopies, Private, merge_all, with_room_ahead
from paceline.kernels.reading import RowSlice, addresses
from paceline.kernels.row_loop import train_rows
from paceline.kernels.rules import update, weight
from paceline.kernels.steps import GateView, compute_step, train_batches
from paceline.kernels.tables import TableArrays
from paceline.models.losses import Logistic
from paceline.parameters.keyed import PrivateCopies
from paceline.parameters.layout import Group, TableLayout
from paceline.parameters.scratch import Scratch
from paceline.settings import OptimizerConfig

FEATURES = 300
MODEL = Linear(Logistic())


def layout(features: int = FEATURES) -> TableLayout:
    return TableLayout(features, (Group("weight", 1, OptimizerConfig(name="sgd", learning_rate=0.5)),))


RULES = layout().rules_at(0)


def arrays(table: np.ndarray[Any, Any]) -> TableArrays:
    return TableArrays(*RULES, table, FEATURES)


def random_rows(rng: np.random.Generator, num_rows: int, longest: int = 12) -> Batch:
    """Rows of 0 to `longest` distinct keys."""
    lengths = rng.integers(0, longest + 1, num_rows)
    keys = [rng.choice(FEATURES, n, replace=False) for n in lengths]
    values = [rng.normal(size=n) for n in lengths]
    labels = rng.integers(0, 2, num_rows)
    return Batch.from_lists(labels.tolist(), [k.tolist() for k in keys], [v.tolist() for v in values])


def dense(rows: Batch) -> np.ndarray[Any, Any]:
    """The rows as a float64 matrix, the bias as its last column."""
    matrix = np.zeros((rows.num_rows, FEATURES + 1))
    matrix[np.repeat(np.arange(rows.num_rows), np.diff(rows.offsets)), rows.keys] = rows.values
    matrix[:, -1] = 1
    return matrix


def mean_loss(weights: np.ndarray[Any, Any], rows: Batch) -> float:
    """log(1 + exp(−y z)) for y = ±1, as the issue's formula has it."""
    y = 2.0 * rows.labels - 1
    return float(np.logaddexp(0, -y * (dense(rows) @ weights)).mean())


def compute(weights: np.ndarray[Any, Any], rows: Batch) -> tuple[np.ndarray[Any, Any], float]:
    """The sums of the gradient as a dense vector, and of the losses, from the compiled step."""
    buffers = Scratch(layout()).room_for(rows.num_nonzeros)
    count, losses = compute_step(MODEL, arrays(weights.astype(np.float32)), rows, rows.num_rows, buffers, 0, 0)
    sums = np.zeros(FEATURES + 1)
    assert len(set(buffers.distinct[:count].tolist())) == count
    sums[buffers.distinct[:count]] = buffers.sums[:count]
    return sums, losses


@given(seed=st.integers(0, 2**32 - 1), num_rows=st.integers(1, 200))
@settings(max_examples=40, deadline=None)
def test_gradient_is_the_formula(seed: int, num_rows: int) -> None:
    rng = np.random.default_rng(seed)
    rows, weights = random_rows(rng, num_rows), rng.normal(size=FEATURES + 1)
    x, y = dense(rows), 2.0 * rows.labels - 1
    z = x @ weights
    expected = x.T @ (y * (1 / (1 + np.exp(-y * z)) - 1))
    sums, losses = compute(weights, rows)
    assert sums == pytest.approx(expected, rel=1e-3, abs=1e-3)
    assert losses == pytest.approx(num_rows * mean_loss(weights, rows), rel=1e-4, abs=1e-6)


def test_gradient_by_finite_differences() -> None:
    rng = np.random.default_rng(5)
    rows, weights = random_rows(rng, 50), rng.normal(size=FEATURES + 1) * 0.3
    sums, _ = compute(weights, rows)
    for key in [*rng.choice(FEATURES, 20, replace=False), FEATURES]:
        step = np.zeros(FEATURES + 1)
        step[key] = 1e-5
        slope = (mean_loss(weights + step, rows) - mean_loss(weights - step, rows)) / 2e-5
        assert sums[key] / rows.num_rows == pytest.approx(slope, rel=1e-3, abs=1e-5)


def test_numbering_survives_many_turns() -> None:
    """The tables are not cleared between batches; their marks run out after 255 and start again."""
    rng = np.random.default_rng(1)
    buffers = Scratch(layout()).room_for(2_000)
    buffers = buffers._replace(direct=buffers.direct[:100])
    for _ in range(600):
        keys = rng.integers(0, FEATURES, rng.integers(0, 40)).astype(np.uint32)
        count = number_keys(
            keys, FEATURES, buffers.slots, buffers.direct, buffers.turn, buffers.distinct, buffers.local
        )
        distinct = buffers.distinct[:count]
        assert sorted(distinct.tolist()) == sorted({*keys.tolist(), FEATURES})
        assert distinct[buffers.local[: keys.size]].tolist() == keys.tolist()


def test_numbering_takes_more_slots_as_batches_need_them() -> None:
    rng = np.random.default_rng(2)
    features = 1 << 20
    buffers = Scratch(layout(features)).room_for(100_000)
    buffers = buffers._replace(direct=buffers.direct[:100])
    used = []
    for size in (10, 1_500, 1_600, 100_000, 100_000, 10):
        keys = rng.permutation(features)[:size].astype(np.uint32)
        count = number_keys(
            keys, features, buffers.slots, buffers.direct, buffers.turn, buffers.distinct, buffers.local
        )
        assert count == size + 1
        assert buffers.distinct[buffers.local[:size]].tolist() == keys.tolist()
        used.append(int(buffers.turn[1]))
    assert used[:3] == [4096, 4096, 8192]
    assert used[3:] == [len(buffers.slots)] * 3


def own_copies(first: int, num_hot: int, base: Any, batch_size: int) -> Private:
    """Those of the only worker."""
    kind = Private if num_hot else NoCopies
    copies = kind(first, num_hot, base, np.zeros(8, np.int64), 1, batch_size, 0.25, np.ones(num_hot + 1, np.float32))
    return with_room_ahead(copies, FEATURES)


def room_for(rows: Batch, num_rows: int) -> RowSlice:
    return RowSlice(
        np.zeros(num_rows + 1, np.int64), np.empty_like(rows.keys), np.empty_like(rows.values),
        np.zeros(num_rows, np.uint8), np.zeros(1, np.int64),
    )  # fmt: skip


def train_everywhere(rows: Batch, batch_size: int, private: int) -> np.ndarray[Any, Any]:
    """One pass of the fused loops over rows in order; the weights."""
    first_private = 320
    table = np.zeros(first_private + private + 16, np.float32)
    base = np.zeros(private + 16, np.float32)
    clocks, leads = np.zeros((1, 8), np.int64), np.zeros((1, 8), np.int64)
    gate = GateView(clocks, 0, 1 << 60, 10, leads)
    order, copies = np.arange(rows.num_rows, dtype=np.int32), own_copies(first_private, private, base, batch_size)
    if batch_size == 1:
        done, _ = train_rows(MODEL, arrays(table), rows, order, 0, copies, gate)
    else:
        buffers, blocks = Scratch(layout()).room_for(rows.num_nonzeros), addresses([(0, order, rows)])
        done, _ = train_batches(
            MODEL, arrays(table), blocks, 0, rows.num_rows, room_for(rows, batch_size), buffers, copies, gate
        )
    if private:
        merge_all(arrays(table), copies)
    assert done == rows.num_rows
    assert clocks[0, 0] == -(-rows.num_rows // batch_size)
    return table[: FEATURES + 1]


@pytest.mark.parametrize(
    ("batch_size", "private"), [(1, 0), (1, 1), (1, 50), (1, 300), (7, 0), (64, 0), (500, 0), (7, 50), (64, 300)]
)
def test_fused_loops_are_gradient_descent(batch_size: int, private: int) -> None:
    rows = random_rows(np.random.default_rng(8), 300)
    weights, x = np.zeros(FEATURES + 1), dense(rows)
    for start in range(0, rows.num_rows, batch_size):
        part = slice(start, start + batch_size)
        slopes = 1 / (1 + np.exp(-(x[part] @ weights))) - rows.labels[part]
        weights -= 0.5 * (x[part].T @ slopes) / len(slopes)
    assert train_everywhere(rows, batch_size, private) == pytest.approx(weights, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("optimizer", ["adagrad", "ftrl"])
def test_single_rows_follow_the_formula_of_the_optimizer(optimizer: str) -> None:
    """The loop divides more quickly than the formula does by itself; only the last digits may show it."""
    settings = OptimizerConfig(name=optimizer, learning_rate=0.3, l1=0.01, l2=0.01)
    rule, bias_rule = TableLayout(FEATURES, (Group("weight", 1, settings),)).rules_at(0)
    rows = random_rows(np.random.default_rng(5), 200)
    table, expected = np.zeros((2, 2 * (FEATURES + 1)), np.float32)
    gate = GateView(np.zeros((1, 8), np.int64), 0, 1 << 60, 10, np.zeros((1, 8), np.int64))
    train_rows(
        MODEL, TableArrays(rule, bias_rule, table, FEATURES), rows, np.arange(200, dtype=np.int32), 0,
        own_copies(0, 0, np.zeros(1, np.float32), 1), gate,
    )  # fmt: skip
    for row in range(rows.num_rows):
        part = slice(rows.offsets[row], rows.offsets[row + 1])
        nonzeros = [*zip(rows.keys[part].tolist(), rows.values[part].tolist(), strict=True)]
        score = weight(bias_rule, expected, 2 * FEATURES, 1)
        score += sum(weight(rule, expected, 2 * key, 1) * value for key, value in nonzeros)
        slope = 1 / (1 + np.exp(-score)) - rows.labels[row]
        update(bias_rule, expected, 2 * FEATURES, 1, np.float32(slope))
        for key, value in nonzeros:
            update(rule, expected, 2 * key, 1, np.float32(slope * value))
    assert table == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_a_shut_gate_stops_the_loops_and_they_go_on_where_they_stopped() -> None:
    rows = random_rows(np.random.default_rng(2), 40)
    table, base = np.zeros(400, np.float32), np.zeros(16, np.float32)
    clocks, leads = np.zeros((2, 8), np.int64), np.zeros((2, 8), np.int64)
    order = np.arange(40, dtype=np.int32)

    def go_on(start: int) -> int:
        gate = GateView(clocks, 0, 3, 5, leads)
        nothing = own_copies(0, 0, base, 1)
        done, _ = train_rows(MODEL, arrays(table), rows, order, start, nothing, gate)
        return done

    assert go_on(0) == 4  # clocks 0 to 3 may begin while the other worker is at 0
    clocks[1, 0] = 10
    assert go_on(4) == 14
    clocks[1, 0] = np.iinfo(np.int64).max
    assert go_on(14) == 40
    assert leads[0, 0] == 3
    assert table[: FEATURES + 1] == pytest.approx(train_everywhere(rows, 1, 0), rel=1e-5)


def test_scores_leave_unknown_keys_out() -> None:
    rows = Batch.from_lists([0, 0], [[1, 7], []], [[2.0, 100.0], []])
    out = np.zeros(2, np.float32)
    kernels.score(*RULES, np.array([0, 3, 0, 0.5], np.float32), 3, 3, rows.offsets, rows.keys, rows.values, out)
    assert out.tolist() == [6.5, 0.5]


def test_a_row_counts_as_much_as_its_weight() -> None:
    rng = np.random.default_rng(7)
    rows, weights = random_rows(rng, 60), rng.normal(size=FEATURES + 1)
    counts = rng.integers(0, 4, rows.num_rows)
    repeated = concatenate([rows.slice(i, i + 1) for i in range(rows.num_rows) for _ in range(counts[i])])
    weighted = rows._replace(weights=counts.astype(np.float32))
    (sums, losses), (expected, all_losses) = compute(weights, weighted), compute(weights, repeated)
    np.testing.assert_allclose(sums, expected, rtol=1e-4, atol=1e-4)
    assert losses == pytest.approx(all_losses, rel=1e-5)


def test_single_rows_count_as_much_as_their_weights() -> None:
    rows = Batch.from_lists([1, 0], [[3], [5]], [[1.0], [2.0]])._replace(weights=np.array([2, 0], np.float32))
    table = np.zeros(FEATURES + 1, np.float32)
    leads, clocks = np.zeros((1, 8), np.int64), np.zeros((1, 8), np.int64)
    gate = GateView(clocks, 0, 1 << 40, 1, leads)
    nothing = PrivateCopies(layout(), 1, 0).of(0)
    _, losses = train_rows(MODEL, arrays(table), rows, np.array([0, 1], np.int32), 0, nothing, gate)
    # Rate 0.5, twice the slope of -0.5 of the first row, nothing for the second.
    assert table[[3, 5, FEATURES]].tolist() == [0.5, 0, 0.5]
    assert losses == pytest.approx(2 * np.log(2))
