"""Steps on a GPU: which rows they ask for, at once and in sync. `conformance/test_sparse_on_gpu.py` has whole runs."""

from __future__ import annotations

from typing import Any

from paceline.data.rows import Clocks, Piece
from paceline.training.embedded.gpu_steps import ROWS_PER_PIECE, GpuClockSteps, GpuRowSteps


class Training:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def train(self, *given: Any) -> float:
        self.calls.append(given)
        return 1.5

    def update(self, *given: Any) -> float:
        self.calls.append(given)
        return 0.5


def test_a_piece_is_trained_on_in_batches() -> None:
    training = Training()
    steps = GpuRowSteps(training, 1000)
    steps.read(Piece(200, 4200))
    assert steps.advance() == (True, 1.5)
    assert training.calls == [(200, 4200, 1000)]
    assert steps.most == ROWS_PER_PIECE // 1000
    assert GpuRowSteps(training, 1 << 30).most == 1


def test_each_clock_is_an_update_and_the_last_of_an_epoch_may_be_short() -> None:
    training = Training()
    steps = GpuClockSteps(training)
    steps.read(Clocks(300, 550, 3, 100, 1))
    assert steps.advance() == (True, 1.5)
    assert training.calls == [(300, 400), (400, 500), (500, 550)]
