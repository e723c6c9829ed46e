"""What every pace promises, with every optimizer, any number of workers and any batch size."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.data.blocks.reader import EpochBlocks
from paceline.data.rows import QueueRows
from paceline.kernels.gate import GONE
from paceline.models.metrics import TwoClassSums
from paceline.models.registry import MODELS
from paceline.training.pace import Gate

PACES = ["sync", "async", 1, 3]


def train(tmp_path: Path, data: Path, **flags: Any) -> paceline.Run:
    name = f"run-{len(list(tmp_path.iterdir()))}"
    return paceline.train(data=data, run=tmp_path / name, **flags)


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("optimizer", MODELS["linear"].optimizers)
@pytest.mark.parametrize("batch_size", [1, 50])
def test_learns(tmp_path: Path, clicks: Path, pace: Any, optimizer: str, batch_size: int) -> None:
    """The held-out loss falls below that of always predicting the base rate (0.64 here)."""
    rate = 0.02 * batch_size**0.5 if optimizer == "sgd" else 0.1
    run = train(
        tmp_path, clicks, pace=pace, optimizer=optimizer, batch_size=batch_size, workers=2, learning_rate=rate, epochs=5
    )
    test = run.result["test"]
    assert test["loss"] < 0.6
    assert test["auc"] > 0.7
    assert run.result["rows"] == 5 * 6_000
    assert run.metrics[-1]["train_loss"] < 0.62


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize(("workers", "batch_size"), [(1, 1), (3, 1), (2, 10), (4, 7), (8, 50), (3, 1000)])
def test_each_row_counts_once_per_epoch(
    tmp_path: Path, one_key_per_row: Path, pace: Any, workers: int, batch_size: int
) -> None:
    """At a tiny rate every score is 0, so a row moves its own weight by just rate / 2 / (rows of the update).

    Only sync is asked for several epochs: elsewhere a worker at the end of one may meet another at the start of the
    next on the same weight, and of two additions at the same time one may be lost.
    """
    rate, epochs = 2.0**-40, 3 if pace == "sync" else 1
    run = train(
        tmp_path, one_key_per_row, pace=pace, workers=workers, batch_size=batch_size, optimizer="sgd",
        learning_rate=rate, epochs=epochs,
    )  # fmt: skip
    assert run.result["rows"] == epochs * 997
    clock = batch_size * (workers if pace == "sync" else 1)
    visits = np.abs(paceline.load(run.path).weights) / (rate / 2)
    if clock == 1:
        assert visits.tolist() == [float(epochs)] * 997
        return
    # A row adds 1 / n, n being the rows of its update: a whole clock, or the short one at the end of an epoch.
    whole, short = 1 / min(clock, 997), 1 / (997 % clock or clock)
    possible = [i * whole + (epochs - i) * short for i in range(epochs + 1)]
    distance = np.abs(visits[:, None] - np.array(possible)).min(axis=1)
    assert distance.max() < 1e-6
    assert visits.sum() == pytest.approx(epochs * -(-997 // clock), rel=1e-6)


class TestSyncIsExact:
    def test_same_bits_however_threads_are_scheduled(
        self, tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings = {"pace": "sync", "workers": 4, "batch_size": 30, "epochs": 2, "optimizer": "adagrad", "seed": 5}
        plain = train(tmp_path, clicks, **settings).result["model_sha256"]
        rng, between = np.random.default_rng(0), EpochBlocks.between

        def dawdle(blocks: EpochBlocks, *arguments: int) -> Any:
            if rng.random() < 0.3:
                time.sleep(rng.random() / 200)
            return between(blocks, *arguments)

        monkeypatch.setattr(EpochBlocks, "between", dawdle)
        monkeypatch.setattr("paceline.training.embedded.compiled_steps.rows_per_call", lambda _: 240)
        for cores in (1, 2, 3, 4):
            for place in ("paceline.training.embedded.backend", "paceline.training.pace"):
                monkeypatch.setattr(f"{place}.num_cores", lambda cores=cores: cores)
            assert train(tmp_path, clicks, **settings).result["model_sha256"] == plain
        assert train(tmp_path, clicks, **{**settings, "seed": 6}).result["model_sha256"] != plain

    @pytest.mark.parametrize("optimizer", MODELS["linear"].optimizers)
    @pytest.mark.parametrize(("l1", "l2"), [(0.0, 0.0), (0.001, 0.01)])
    def test_workers_times_batch_is_one_large_batch(
        self, tmp_path: Path, clicks: Path, optimizer: str, l1: float, l2: float
    ) -> None:
        """Equal to 2e-4 of a weight: sums of float32 are grouped differently, no more."""
        flags = {"pace": "sync", "optimizer": optimizer, "l1": l1, "l2": l2, "learning_rate": 0.1, "epochs": 2}
        one = paceline.load(train(tmp_path, clicks, workers=1, batch_size=240, **flags).path)
        for workers, batch_size in ((2, 120), (5, 48), (8, 30)):
            many = paceline.load(train(tmp_path, clicks, workers=workers, batch_size=batch_size, **flags).path)
            assert many.weights == pytest.approx(one.weights, rel=2e-4, abs=2e-6)
            assert many.bias == pytest.approx(one.bias, rel=2e-4)

    def test_is_gradient_descent_on_the_mean(self, tmp_path: Path, one_key_per_row: Path) -> None:
        """One clock from zero weights, worked out by hand: w = rate · ±1/2 / rows, the rate never scaled."""
        run = train(
            tmp_path,
            one_key_per_row,
            pace="sync",
            workers=4,
            batch_size=250,
            optimizer="sgd",
            learning_rate=2.0,
            steps=1,
        )
        model = paceline.load(run.path)
        labels = np.arange(997) % 2
        assert model.weights == pytest.approx(2.0 * (labels - 0.5) / 997)
        assert model.bias == pytest.approx(2.0 * (labels - 0.5).sum() / 997)


@pytest.mark.parametrize("pace", ["sync", "async", 2])
@pytest.mark.parametrize("optimizer", MODELS["linear"].optimizers)
@pytest.mark.parametrize("batch_size", [1, 20])
def test_the_bias_is_never_regularised(
    tmp_path: Path, mostly_clicks: Path, pace: Any, optimizer: str, batch_size: int
) -> None:
    """However strong L1 and L2 are, the bias learns the log-odds of the label, and predictions use it."""
    run = train(
        tmp_path, mostly_clicks, pace=pace, optimizer=optimizer, batch_size=batch_size, l1=1e3, l2=10.0, epochs=40,
        learning_rate=0.2 if optimizer != "sgd" else 0.02 * batch_size,
    )  # fmt: skip
    model = paceline.load(run.path)
    assert not model.weights.any()
    assert model.bias == pytest.approx(np.log(4), abs=0.25)
    assert run.result["test"]["loss"] == pytest.approx(0.5004, abs=0.01)


@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_decaying_rate_decays_alike_at_every_pace(tmp_path: Path, clicks: Path, batch_size: int) -> None:
    """One worker does the same steps at every pace; a rate may lag by a hundredth outside of sync."""
    settings = ["optimizer.decay_rows=40", "optimizer.decay_power=0.7"]
    weights = [
        paceline.load(
            train(
                tmp_path,
                clicks,
                pace=pace,
                optimizer="sgd",
                learning_rate=0.5,
                batch_size=batch_size,
                settings=settings,
            ).path
        ).weights
        for pace in ("sync", "async", 3)
    ]
    constant = paceline.load(train(tmp_path, clicks, optimizer="sgd", learning_rate=0.5, batch_size=batch_size).path)
    size = np.abs(weights[0]).max()
    assert np.abs(weights[1] - weights[0]).max() < 0.03 * size
    assert np.abs(weights[2] - weights[0]).max() < 0.03 * size
    assert np.abs(constant.weights - weights[0]).max() > 0.3 * size


class TestTheBoundHolds:
    @pytest.mark.parametrize("pace", [1, 4])
    @pytest.mark.parametrize("batch_size", [1, 10])
    def test_with_a_slowed_worker(
        self, tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch, pace: int, batch_size: int
    ) -> None:
        """Worker 0 sleeps before each of its pieces; the others wait for it, and an observer watches all clocks.

        A clock may begin at most `pace` ahead of the slowest, so finished clocks are at most one more apart.
        """
        take, widest, done = QueueRows.take, [0], threading.Event()
        gates: list[Gate] = []
        make_gate = Gate.__init__

        def remember(gate: Gate, *arguments: Any) -> None:
            make_gate(gate, *arguments)
            gates.append(gate)

        def slowed(feed: QueueRows, rank: int, most: int) -> Any:
            if rank == 0:
                time.sleep(0.003)
            return take(feed, rank, most)

        def observe() -> None:
            while not done.is_set():
                for gate in gates:
                    # Clocks only grow, so the slowest, read second, can make a lead look smaller but never larger.
                    before, after = gate.clocks[:, 0].copy(), gate.clocks[:, 0].copy()
                    present = before[before != GONE]
                    if present.size and after.min() != GONE:
                        widest[0] = max(widest[0], int(present.max() - after.min()))

        monkeypatch.setattr(Gate, "__init__", remember)
        monkeypatch.setattr(QueueRows, "take", slowed)
        monkeypatch.setattr("paceline.training.embedded.compiled_steps.rows_per_call", lambda _: 60)
        monkeypatch.setattr("paceline.data.rows.SMALLEST_PIECE_ROWS", 20)
        observer = threading.Thread(target=observe)
        observer.start()
        try:
            run = train(tmp_path, clicks, pace=pace, workers=3, batch_size=batch_size, optimizer="sgd")
        finally:
            done.set()
            observer.join()
        assert 0 < run.result["max_staleness"] <= pace
        assert 0 < widest[0] <= pace + 1

    def test_sync_never_leads_and_async_may(self, tmp_path: Path, clicks: Path) -> None:
        assert train(tmp_path, clicks, pace="sync", workers=3).result["max_staleness"] == 0
        assert train(tmp_path, clicks, pace="async", workers=3, batch_size=1).result["max_staleness"] > 0


class TestWhenItStops:
    @pytest.mark.parametrize("pace", PACES)
    def test_steps(self, tmp_path: Path, clicks: Path, pace: Any) -> None:
        run = train(tmp_path, clicks, pace=pace, workers=2, batch_size=10, steps=37, epochs=0)
        assert run.result["steps"] == 37
        assert run.result["rows"] == 37 * 20 if pace == "sync" else 370 <= run.result["rows"] <= 740

    def test_evaluation_is_not_training_time(
        self, tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add = TwoClassSums.add

        def slow(*arguments: Any) -> None:
            time.sleep(0.1)
            add(*arguments)

        monkeypatch.setattr(TwoClassSums, "add", slow)
        began = time.monotonic()
        run = train(tmp_path, clicks, test_every=1_000)
        assert time.monotonic() - began > 6 * 2 * 0.1
        assert run.result["train_seconds"] < 1.0

    @pytest.mark.parametrize("pace", PACES)
    def test_seconds_count_training(self, tmp_path: Path, clicks: Path, pace: Any) -> None:
        run = train(tmp_path, clicks, pace=pace, workers=2, batch_size=20, seconds=0.3, epochs=0)
        assert 0.3 <= run.result["train_seconds"] < 2
        assert run.result["rows"] > 0

    @pytest.mark.parametrize("pace", ["sync", "async", 2])
    def test_evaluates_at_row_counts(self, tmp_path: Path, clicks: Path, pace: Any) -> None:
        run = train(tmp_path, clicks, pace=pace, workers=2, batch_size=10, epochs=1, test_every=1_700)
        assert [line["rows"] for line in run.metrics] == [1700, 3400, 5100, 6000]
        assert [line["epoch"] for line in run.metrics] == [rows / 6000 for rows in (1700, 3400, 5100, 6000)]
        seconds = [line["seconds"] for line in run.metrics]
        assert seconds == sorted(seconds)
        assert run.metrics[-1]["test_loss"] == run.result["test"]["loss"]
        assert set(run.metrics[0]) == {
            "rows", "steps", "epoch", "seconds", "train_loss", "test_loss", "test_baseline_loss", "test_error",
            "test_auc",
        }  # fmt: skip
