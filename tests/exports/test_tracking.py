"""What MLflow knows about a run, however it went."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import scipy.sparse

import paceline
from paceline.errors import InterruptedRunError, UsageError
from paceline.exports.mlflow_model import import_mlflow
from tests.conftest import Command
from tests.training.test_checkpoint import stop_after


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """MLflow's files are in a folder, and nothing goes over the network."""
    uri = (tmp_path / "mlruns").as_uri()
    for name, value in (
        ("MLFLOW_TRACKING_URI", uri), ("MLFLOW_ALLOW_FILE_STORE", "true"), ("MLFLOW_DISABLE_TELEMETRY", "true"),
        ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0"), ("MLFLOW_HTTP_REQUEST_TIMEOUT", "5"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    return uri


def tracked(uri: str) -> list[Any]:
    """The runs that MLflow has."""
    return list(client(uri).search_runs(["0"]))


def client(uri: str) -> Any:
    return import_mlflow().MlflowClient(tracking_uri=uri)


def test_settings_curves_result_page_and_model_are_there(tmp_path: Path, clicks: Path, store: str) -> None:
    run = paceline.train(
        data=clicks, run=tmp_path / "run", track="mlflow", epochs=1, test_every=2_000, progress=False,
    )  # fmt: skip
    (found,) = tracked(store)
    assert (found.info.status, found.info.run_name) == ("FINISHED", "run")
    assert found.data.params["optimizer.name"] == "adagrad"
    assert found.data.metrics["test.auc"] == pytest.approx(run.result["test"]["auc"])
    curve = client(store).get_metric_history(found.info.run_id, "test_loss")
    assert [(one.step, one.value) for one in curve] == [(line["rows"], line["test_loss"]) for line in run.metrics]
    files = {file.path for file in client(store).list_artifacts(found.info.run_id)}
    assert files >= {"config.toml", "metrics.jsonl", "result.json", "diagnosis.json", "report.html", "model"}
    model = client(store).download_artifacts(found.info.run_id, "model", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        served = import_mlflow().pyfunc.load_model(model)
    row = scipy.sparse.csr_matrix([[0.0, 1.0, 0.0, 2.0]])
    assert (served.predict(row) == paceline.load(run.path).predict_proba(row)).all()


def test_a_stopped_run_is_killed_and_a_resumed_one_is_the_same(
    tmp_path: Path, clicks: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags: dict[str, Any] = {"epochs": 3, "pace": "sync", "workers": 1, "test_every": 1_000, "progress": False}
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(InterruptedRunError):
            paceline.train(data=clicks, run=tmp_path / "run", track="mlflow", **flags)
    (found,) = tracked(store)
    assert found.info.status == "KILLED"
    paceline.resume(tmp_path / "run", progress=False)
    assert [(one.info.run_id, one.info.status) for one in tracked(store)] == [(found.info.run_id, "FINISHED")]


def test_a_failed_run_is_failed(tmp_path: Path, clicks: Path, store: str) -> None:
    with pytest.raises(paceline.PacelineError):
        paceline.train(data=clicks, run=tmp_path / "run", track="mlflow", learning_rate=1e9, progress=False)
    assert [one.info.status for one in tracked(store)] == ["FAILED"]


def test_a_sweep_has_a_run_per_point(tmp_path: Path, clicks: Path, store: str) -> None:
    recipe = {"track": "mlflow", "epochs": 1, "sweep": {"seed": [1, 2]}}
    paceline.sweep(recipe, data=str(clicks), out=tmp_path / "sweep", progress=False)
    assert sorted(one.data.params["seed"] for one in tracked(store)) == ["1", "2"]


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", "nonsense://x"])
def test_a_run_goes_on_if_mlflow_does_not(
    command: Command, tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    done = command("train", "--data", clicks, "--track", "mlflow", "--epochs", 1, "--run", tmp_path / "run")
    assert done.code == 0
    assert done.err.count("MLflow failed (") == 1
    assert "the run goes on without it" in done.err
    assert (tmp_path / "run" / "model" / "model.json").is_file()


def test_wrong_names_and_a_missing_package_are_refused_before_anything_starts(
    tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="`track` is `mlflw`; it must be one of mlflow") as refused:
        paceline.train(data=clicks, run=tmp_path / "run", track="mlflw")
    assert refused.value.hint == "did you mean `mlflow`?"
    monkeypatch.setitem(__import__("sys").modules, "mlflow.pyfunc", None)
    with pytest.raises(UsageError, match="MLflow, which is not installed") as refused:
        paceline.train(data=clicks, run=tmp_path / "run", track="mlflow")
    assert refused.value.hint == "pip install 'paceline[mlflow]'"
    assert not (tmp_path / "run").exists()
