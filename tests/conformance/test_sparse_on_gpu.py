"""Whole runs with `device="cuda"`: in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.errors import PacelineError
from paceline.telemetry.recorder import Telemetry
from paceline.telemetry.records import GpuChunk, WorkerChunk

FEATURES = 16


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of which most have a few keys, in two classes."""
    rng = np.random.default_rng(3)
    X = (rng.random((300, FEATURES)) < np.linspace(0.9, 0.02, FEATURES)).astype(np.float32)
    X[:, 1] *= rng.normal(size=300)
    y = (X @ rng.normal(size=FEATURES) + rng.normal(size=300) > 0).astype(int)
    folder = tmp_path_factory.mktemp("gpu") / "rows"
    paceline.prepare((X, y), folder, test_fraction=0.2, progress=False)
    return folder


def train(data: Path, run: Path, device: str = "cuda", **settings: Any) -> Any:
    return paceline.train(data=data, run=run, device=device, workers=1, progress=False, **settings)


class Interrupt:
    """Stops a run, as Ctrl-C does, once: a second one would end the process."""

    stopped = False

    def __call__(self, _status: Any) -> None:
        if not self.stopped:
            self.stopped = True
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(("optimizer", "l1"), [("sgd", 0.0), ("adagrad", 0.01), ("ftrl", 0.01)])
def test_sync_is_what_the_cpu_does_to_the_last_digits(data: Path, tmp_path: Path, optimizer: str, l1: float) -> None:
    settings: dict[str, Any] = {"pace": "sync", "batch_size": 60, "epochs": 1, "learning_rate": 0.1}
    settings |= {"optimizer": optimizer, "l1": l1}
    runs = [train(data, tmp_path / device, device, **settings) for device in ("cpu", "cuda")]
    expected, found = (run.result["test"]["loss"] for run in runs)
    assert found == pytest.approx(expected, rel=1e-5)
    weights = [paceline.load(run.path).tensors["weight"] for run in runs]
    np.testing.assert_allclose(weights[1], weights[0], rtol=1e-3, atol=1e-5)


def test_the_same_seed_gives_the_same_bits_in_sync(data: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"pace": "sync", "batch_size": 60, "epochs": 1, "model": "fm", "dim": 4}
    runs = [train(data, tmp_path / name, **settings) for name in ("one", "two")]
    assert runs[0].result["model_sha256"] == runs[1].result["model_sha256"]
    # The factors begin as on the CPU.
    on_cpu = train(data, tmp_path / "cpu", "cpu", **settings)
    assert runs[0].result["test"]["loss"] == pytest.approx(on_cpu.result["test"]["loss"], rel=1e-4)


def test_rows_that_are_streamed_give_the_same_bits(data: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"pace": "sync", "batch_size": 60, "epochs": 1}
    runs = [train(data, tmp_path / str(i), settings=[f"resident={i}"], **settings) for i in (0, 1)]
    assert runs[0].result["model_sha256"] == runs[1].result["model_sha256"]


def test_async_learns_as_well_as_the_cpu(data: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"pace": "async", "epochs": 6, "learning_rate": 0.1}
    found = train(data, tmp_path / "gpu", **settings)
    expected = train(data, tmp_path / "cpu", "cpu", batch_size=1, **settings)
    assert found.result["rows"] == expected.result["rows"] > 6 * 200
    assert found.result["batch_size"] == 65_536
    assert found.result["test"]["loss"] == pytest.approx(expected.result["test"]["loss"], rel=0.05)


def test_a_run_goes_on_from_its_checkpoint(data: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"pace": "sync", "batch_size": 60, "learning_rate": 0.1, "test_every": 100}
    settings["optimizer"] = "ftrl"
    whole = train(data, tmp_path / "whole", epochs=1, **settings)
    with pytest.raises(PacelineError, match="interrupted"):
        train(data, tmp_path / "parts", epochs=1, callbacks=[Interrupt()], **settings)
    resumed = paceline.resume(tmp_path / "parts", progress=False)
    assert resumed.result["rows"] == whole.result["rows"]
    assert resumed.result["model_sha256"] == whole.result["model_sha256"]


@pytest.mark.parametrize("pace", ["async", "sync"])
@pytest.mark.parametrize("resident", [0, 1])
def test_a_run_records_where_the_time_of_the_gpu_goes(data: Path, tmp_path: Path, pace: str, resident: int) -> None:
    began = time.perf_counter()
    run = train(data, tmp_path / "run", pace=pace, batch_size=60, epochs=1, settings=[f"resident={resident}"])
    lasted = time.perf_counter() - began
    gpu, chunks = run.facts.gpu, Telemetry(run.path).read(GpuChunk)
    assert gpu is not None
    assert gpu.streamed == (resident == 0)
    assert gpu.bytes_per_row > 9
    assert gpu.ceiling.memory_bytes_per_second > 0
    assert sum(chunk.rows for chunk in chunks) == run.result["rows"]
    assert 0 < sum(chunk.kernels for chunk in chunks) <= sum(chunk.seconds for chunk in chunks) < lasted
    copied = sum(chunk.copied_bytes for chunk in chunks)
    assert copied > 0 if gpu.streamed else copied == 0
    assert {chunk.node for chunk in chunks} == {chunk.node for chunk in Telemetry(run.path).read(WorkerChunk)}
    # A second is too short for a verdict.
    found = run.diagnose()
    assert found["bottleneck"] == "inconclusive"
    assert set(found["gains"]) == {"gpu-memory", "bus", "input"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pace": 4}, r"`pace` is 4; sparse rows on a GPU take sync or async"),
        ({"settings": ["resident=1.5"]}, r"`resident` is 1.5; it must be from 0 to 1"),
        ({"workers": 2}, r"`workers` is 2, but one worker trains sparse rows on a GPU"),
        (
            {"pace": "async", "optimizer": "adagrad", "l1": 0.01},
            r"`l1` is 0.01, but adagrad cannot apply it at pace async",
        ),
        ({"model": "ffm"}, r"`device` is `cuda`; the model `ffm` takes `?cpu"),
        ({"engine": "ray", "model": "ffm"}, r"`device` is `cuda`; the model `ffm` takes `?cpu"),
    ],
)
def test_what_a_gpu_cannot_do_is_refused(data: Path, tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"workers": 1, "device": "cuda"} | settings
    with pytest.raises(PacelineError, match=words) as error:
        paceline.train(data=data, run=tmp_path / "run", progress=False, **given)
    assert error.value.hint
    assert not (tmp_path / "run").exists()
