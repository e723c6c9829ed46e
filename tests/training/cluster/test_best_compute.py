"""How long a step computes, alone and beside other cores: measured on the run's own rows, which stay as they are."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline.models.model import Step
from paceline.parameters.layout import Group, Layout, TableLayout
from paceline.parameters.scratch import Scratch
from paceline.training.cluster import best_compute
from paceline.training.cluster.best_compute import compute_at_best, compute_in_company, one_row
from paceline.training.cluster.numbered_batch import NumberedBatch
from tests.training.cluster.test_numbered_batch import FEATURES, SGD, Rows

PER_ROW = 0.0002


class Slow:
    """A gradient that takes this long per row, and notes who else was running."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.threads = 0

    def gradient(self, step: Step) -> float:
        count = len(step.rows.labels)
        self.sizes.append(count)
        self.threads = max(self.threads, threading.active_count())
        end = time.thread_time() + PER_ROW * count
        while time.thread_time() < end:
            pass
        return 0.0


def make(num_shards: int = 2) -> tuple[NumberedBatch, Slow]:
    table = TableLayout(FEATURES, (Group("weight", 1, SGD),))
    model: Any = SimpleNamespace(layout=Layout(table, None), make_kernel=None)
    compute, reader = Slow(), Rows()
    found: Any = compute
    rows: Any = reader
    return NumberedBatch(rows, model, found, Scratch(table), 1, num_shards, False), compute


@pytest.mark.parametrize("measure", [compute_at_best, compute_in_company])
def test_the_time_of_a_step_is_that_of_its_rows(measure: Any) -> None:
    batch, compute = make()
    found = measure(batch, 10, 100)
    assert set(compute.sizes) == {10}
    assert PER_ROW * 10 <= found < PER_ROW * 40


def test_a_batch_with_more_rows_than_there_are_is_scaled_up() -> None:
    batch, compute = make()
    assert compute_at_best(batch, 40, 10) >= PER_ROW * 40
    assert set(compute.sizes) == {10}


def test_other_cores_are_busy_meanwhile_and_idle_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best_compute, "num_cores", lambda: 3)
    batch, compute = make()
    before = threading.active_count()
    compute_in_company(batch, 10, 100)
    assert compute.threads == before + 2
    assert threading.active_count() == before


def test_it_takes_little_time_however_large_the_batches() -> None:
    batch, compute = make()
    began = time.monotonic()
    compute_at_best(batch, 10**9, 100)
    assert np.unique(compute.sizes).tolist() == [100]
    assert time.monotonic() - began < 5


def test_slow_steps_of_one_row_are_not_measured_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best_compute, "ONE_ROW_SECONDS", PER_ROW)
    batch, compute = make()
    assert one_row(batch) >= PER_ROW
    assert 1 <= len(compute.sizes) <= 2


def test_a_step_of_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best_compute, "ONE_ROW_TIMES", 5)
    batch, compute = make()
    assert one_row(batch) >= PER_ROW
    assert compute.sizes == [1] * 5
