"""Vectors: every operation gives the bits of the same operation number by number, whatever the number of lanes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.kernels.jit import compiled
from paceline.kernels.rules import update
from paceline.kernels.vectors import Vectors, filled, lanes, load, store
from paceline.parameters.optimizers import rule_at
from paceline.settings import OptimizerConfig

COUNTS = [1, 2, 5, 16, 33]
X = np.float32(1.7)


@compiled
def calculate(a: Any, b: Any, x: Any, length: Any, out: Any) -> Any:
    v, w = load(a, 3, length), load(b, 0, length)
    n = np.uint64(len(length))
    store(out, 0, v + w)
    store(out, n, x - v)
    store(out, 2 * n, v * w * x)
    store(out, 3 * n, x / w)
    store(out, 4 * n, np.sqrt(abs(v)))
    store(out, 5 * n, np.sign(v) * max(abs(v) - x, np.float32(0)))
    w += filled(x, length)
    w -= v
    store(out, 6 * n, w)
    return np.sum(v)


@pytest.mark.parametrize("count", COUNTS)
def test_operations(count: int) -> None:
    random = np.random.default_rng(count)
    a, b = (random.normal(size=count + 7).astype(np.float32) for _ in range(2))
    out = np.zeros(7 * count, np.float32)
    total = calculate(a, b, X, lanes(count), out)
    v, w = a[3 : count + 3], b[:count]
    expected = [v + w, X - v, v * w * X, X / w, np.sqrt(abs(v)), np.sign(v) * np.maximum(abs(v) - X, 0), w + X - v]
    np.testing.assert_array_equal(out.reshape(7, count), np.array(expected, np.float32))
    assert total == pytest.approx(v.astype(np.float64).sum(), abs=1e-5)


@compiled
def update_together(rule: Any, numbers: Any, at: Any, length: Any, gradient: Any) -> None:
    vectors: Any = Vectors(numbers, length)
    update(rule, vectors, np.uint64(at), np.uint64(len(length)), load(gradient, 0, length))


@pytest.mark.parametrize("count", [3, 16])
@pytest.mark.parametrize(
    "settings",
    [
        OptimizerConfig(name="sgd", l1=0.01, l2=0.1), OptimizerConfig(name="sgd", own={"momentum": 0.9}),
        OptimizerConfig(name="adagrad", l1=0.01, l2=0.1),
    ],
    ids=["sgd", "momentum", "adagrad"],
)  # fmt: skip
def test_the_formula_of_an_optimizer_updates_all_columns_at_once(count: int, settings: OptimizerConfig) -> None:
    random = np.random.default_rng(count)
    numbers, gradient = (random.uniform(0.1, 1, 4 * count).astype(np.float32) for _ in range(2))
    one_by_one, rule = numbers.copy(), rule_at(settings, 0)
    for column in range(count):
        update(rule, one_by_one, 2 + column, count, gradient[column])
    update_together(rule, numbers, 2, lanes(count), gradient)
    np.testing.assert_array_equal(numbers, one_by_one)
