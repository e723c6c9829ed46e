"""What every loss promises: linear models learn with it at every pace, embedded and on a cluster, with the default
rate, whatever the size of the labels; sync has the same bits on every engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

import paceline
from paceline.data.sparse.batch import Batch
from paceline.errors import DataError, InterruptedRunError
from paceline.models.loss_entries import LOSSES
from paceline.predictions import evaluate_model, write_predictions
from paceline.run import resume
from tests.conformance.labelled_rows import DATA_OF_LOSS, make_rows, write_rows
from tests.ray_cluster import RayCluster
from tests.training.test_checkpoint import stop_after

PACES = ["sync", "async", 3]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("labelled")
    return {kind: write_rows(folder / kind, kind) for kind in {*DATA_OF_LOSS.values()}}


def test_every_loss_is_tried() -> None:
    assert set(DATA_OF_LOSS) == set(LOSSES)


@pytest.mark.parametrize("batch_size", [1, 20])
@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("loss", LOSSES)
def test_learns(tmp_path: Path, datasets: dict[str, Path], loss: str, pace: Any, batch_size: int) -> None:
    data = datasets[DATA_OF_LOSS[loss]]
    settings = ["loss.delta=500"] if loss == "huber" else []
    run = paceline.train(
        data=data, run=tmp_path / "run", loss=loss, pace=pace, batch_size=batch_size, workers=2, epochs=8,
        settings=settings,
    )  # fmt: skip
    test = run.result["test"]
    assert run.result["loss"] == loss
    assert {*test} == {*LOSSES[loss].task.metrics}
    gain = test["baseline_loss"] - test["loss"]
    assert gain > 0.15 * abs(test["baseline_loss"])


@pytest.mark.parametrize("optimizer", ["sgd", "ftrl"])
@pytest.mark.parametrize("loss", ["squared", "poisson", "quantile", "softmax"])
def test_other_optimizers_learn_too(tmp_path: Path, datasets: dict[str, Path], loss: str, optimizer: str) -> None:
    data = datasets[DATA_OF_LOSS[loss]]
    run = paceline.train(data=data, run=tmp_path / "run", loss=loss, optimizer=optimizer, workers=1, epochs=8)
    test = run.result["test"]
    assert test["baseline_loss"] - test["loss"] > 0.1 * abs(test["baseline_loss"])


@pytest.mark.parametrize("loss", LOSSES)
def test_sync_has_the_same_bits_on_a_cluster(
    tmp_path: Path, datasets: dict[str, Path], loss: str, ray_cluster: RayCluster
) -> None:
    flags: dict[str, Any] = {"data": datasets[DATA_OF_LOSS[loss]], "loss": loss, "pace": "sync", "workers": 2,
                             "batch_size": 50}  # fmt: skip
    local = paceline.train(run=tmp_path / "local", **flags)
    cluster = paceline.train(run=tmp_path / "ray", engine="ray", shards=2, address=ray_cluster.address, **flags)
    assert cluster.result["model_sha256"] == local.result["model_sha256"]
    assert cluster.result["test"] == pytest.approx(local.result["test"], rel=1e-6)


@pytest.mark.parametrize("kind", ["two-classes", "classes", "numbers"])
def test_a_weight_of_two_is_two_rows(tmp_path: Path, kind: str) -> None:
    """One update of all rows: sums of weighted gradients over rows; metrics as if rows were there that many times."""
    data = write_rows(tmp_path / "weighted", kind, weighted=True)
    train, test = make_rows(kind, weighted=True)
    assert train.weights is not None
    assert test.weights is not None
    flags: dict[str, Any] = {"pace": "sync", "workers": 1, "batch_size": 2_000, "steps": 3, "optimizer": "sgd"}
    model = paceline.load(paceline.train(data=data, run=tmp_path / "run", **flags).path)
    scores = model.model.scores(model.parameters, test)
    sums = model.model.output.metric_sums()
    times = test.weights.astype(int)
    sums.add(np.repeat(scores, times, axis=0), np.repeat(test.labels, times))
    assert paceline.Run(tmp_path / "run").result["test"] == pytest.approx(sums.quality(), rel=1e-4)


@pytest.mark.parametrize("loss", ["squared", "softmax"])
def test_resumed_runs_have_the_bits_of_whole_ones(
    tmp_path: Path, datasets: dict[str, Path], monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    """Also with a bias that did not start at 0, and a table with several columns."""
    flags: dict[str, Any] = {"data": datasets[DATA_OF_LOSS[loss]], "pace": "sync", "workers": 2, "batch_size": 50,
                             "epochs": 2, "test_every": 1_000}  # fmt: skip
    whole = paceline.train(run=tmp_path / "whole", **flags)
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(InterruptedRunError):
            paceline.train(run=tmp_path / "parts", **flags)
    assert resume(tmp_path / "parts").result["model_sha256"] == whole.result["model_sha256"]


def test_models_are_saved_with_their_loss(tmp_path: Path, datasets: dict[str, Path]) -> None:
    for loss, column in (("poisson", "prediction"), ("hinge", "score"), ("softmax", "class")):
        data, run = datasets[DATA_OF_LOSS[loss]], tmp_path / loss
        result = paceline.train(data=data, run=run, loss=loss, epochs=2, workers=1).result
        _, quality = evaluate_model(run, data, "test")
        assert quality == pytest.approx(result["test"], rel=1e-5)
        out = tmp_path / f"{loss}.parquet"
        write_predictions(run, data, out, "test")
        assert column in pyarrow.parquet.read_table(out).column_names


def test_rows_of_classes_that_a_model_does_not_have_are_refused(tmp_path: Path, datasets: dict[str, Path]) -> None:
    run = paceline.train(data=datasets["two-classes"], run=tmp_path / "run", loss="softmax", workers=1)
    with pytest.raises(DataError, match=r"the model is for 2 classes; .* has 4"):
        evaluate_model(run.path, datasets["classes"], "test")


def test_balanced_classes_count_the_same(tmp_path: Path, mostly_clicks: Path) -> None:
    """Four of five rows are clicks, and keys tell nothing: balanced, both classes are as probable."""
    flags: dict[str, Any] = {"data": mostly_clicks, "epochs": 20, "workers": 1, "pace": "sync"}
    plain = paceline.load(paceline.train(run=tmp_path / "plain", **flags).path)
    balanced = paceline.load(paceline.train(run=tmp_path / "balanced", class_weight="balanced", **flags).path)
    nothing = Batch.from_lists([0], [[]], [[]])
    assert plain.predict_proba(nothing)[0, 1] > 0.65
    assert balanced.predict_proba(nothing)[0, 1] == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("pace", ["async", 64])
def test_copies_of_hot_keys_begin_as_the_table_does(tmp_path: Path, datasets: dict[str, Path], pace: Any) -> None:
    """The bias begins at the best constant, so the first batches are no worse than that, also with several workers."""
    run = paceline.train(
        data=datasets["numbers"], run=tmp_path / "run", loss="squared", pace=pace, batch_size=20, workers=2, steps=3
    )
    assert run.metrics[-1]["train_loss"] < 1.5 * run.result["test"]["baseline_loss"]
