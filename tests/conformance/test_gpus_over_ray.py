"""Sparse models over Ray with `device="cuda"`: in Triton's interpreter where there is no GPU.

Then the cluster of the tests says that it has three GPUs. Where there are GPUs, Ray finds out how many: with one, two
workers share it.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.config import read_config
from paceline.engines import PendingEngine
from paceline.errors import ConfigError
from paceline.models.linear import build_for
from paceline.models.sparse import SparseModel, sparse_model
from paceline.torch.sparse.triton_ import interpreted
from paceline.training.cluster.keyed_exchange import KeyedExchange
from tests.conformance.test_sparse_on_gpu import data
from tests.faults.conftest import arguments
from tests.faults.running import Running
from tests.ray_cluster import RayCluster
from tests.skips import needs_no_gpu

__all__ = ["data"]


@sparse_model()
def declared(features: int) -> SparseModel:
    raise AssertionError("not to be built")


@pytest.fixture
def train(request: pytest.FixtureRequest, data: Path, tmp_path: Path) -> Any:
    """Train over Ray with GPUs, or with `device="cpu"` in this process."""
    address = request.getfixturevalue("ray_cluster").address if interpreted() else ""

    def run(name: str, device: str = "cuda", **settings: Any) -> paceline.Run:
        if device == "cuda":
            settings |= {"engine": "ray", "address": address}
        settings = {"data": data, **settings}
        return paceline.train(run=tmp_path / name, device=device, progress=False, **settings)

    return run


def test_sync_is_what_the_cpu_does_and_the_same_seed_gives_the_same_bits(train: Any) -> None:
    settings: dict[str, Any] = {"pace": "sync", "workers": 2, "batch_size": 30, "optimizer": "ftrl", "epochs": 1,
                                "learning_rate": 0.1, "l2": 0.01, "seed": 2}  # fmt: skip
    expected = train("cpu", device="cpu", **settings)
    one, two = (train(name, **settings) for name in ("one", "two"))
    assert one.result["device"] == "cuda"
    assert one.result["rows"] == expected.result["rows"] > 200
    assert one.result["test"]["loss"] == pytest.approx(expected.result["test"]["loss"], rel=1e-4)
    weights = [paceline.load(run.path).tensors["weight"] for run in (expected, one)]
    np.testing.assert_allclose(weights[1], weights[0], rtol=1e-3, atol=1e-5)
    assert one.result["model_sha256"] == two.result["model_sha256"]


def test_every_row_counts_once_at_async(train: Any, one_key_per_row: Path) -> None:
    rate = 2.0**-40
    run = train("run", data=one_key_per_row, pace="async", workers=2, shards=2, batch_size=16, train_rows=160,
                epochs=1, optimizer="sgd", learning_rate=rate)  # fmt: skip
    # Row i has key i alone, and weights are too small to matter.
    visits = np.abs(paceline.load(run.path).weights) / (rate / 2) * 16
    assert visits == pytest.approx([1.0] * 160 + [0.0] * 837, abs=1e-6)


@needs_no_gpu
def test_a_node_without_a_gpu_is_named(data: Path, tmp_path: Path, ray_cluster: RayCluster) -> None:
    flags = arguments(data=data, engine="ray", address=ray_cluster.address, workers=1, device="cuda",
                      run=tmp_path / "run")  # fmt: skip
    said = Running(ray_cluster, ["train", *flags], tmp_path / "run", "without_an_interpreter").end(2)
    assert "worker 0 on node head: `device` is `cuda`, but PyTorch finds no GPU here" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("model", ["ffm", "fwfm", f"{__name__}:declared"])
def test_models_without_kernels_are_refused_before_ray_starts(
    data: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setattr(PendingEngine, "start", lambda engine: pytest.fail("Ray starts"))
    with pytest.raises(ConfigError, match=f"`device` is `cuda`; the model `{model}` takes cpu") as caught:
        paceline.train(data=data, engine="ray", device="cuda", model=model, progress=False)
    assert caught.value.hint


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_compiled_model_is_computed_where_the_settings_say(device: str) -> None:
    config = read_config(None, {"data": "d", "engine": "ray", "workers": 1, "device": device})
    model, compute = build_for(config, 10), SimpleNamespace(gradient=lambda step: 2.5)
    rows = SimpleNamespace(num_rows=1, num_nonzeros=1, labels=np.ones(1, np.uint8), offsets=np.arange(2),
                           keys=np.array([3], np.uint32), values=np.ones(1, np.float32), weights=None,
                           fields=None)  # fmt: skip
    reader = SimpleNamespace(between=lambda start, stop: rows)
    setup: Any = SimpleNamespace(
        config=config, model=model, compute=compute, readers=[reader], meter=None, spec=SimpleNamespace(rank=0),
        queue=SimpleNamespace(recalled=None),
    )  # fmt: skip
    (batch,) = KeyedExchange(setup).batches
    batch.read(lambda: 0, 1, 0, 1, 0)
    batch.put(0, np.zeros(2, np.float32))
    assert batch.gradient() == pytest.approx(2.5 if device == "cuda" else np.log(2))
