"""Whatever the engine, a run is the same: bits in sync, every row once elsewhere, the same files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.telemetry.recorder import Telemetry
from paceline.telemetry.records import ShardChunk, WorkerChunk
from tests.ray_cluster import RayCluster


@pytest.fixture
def train(tmp_path: Path, ray_cluster: RayCluster) -> Any:
    """Train on the cluster; `engine="local"` embedded."""
    count = [0]

    def run(data: Path, engine: str = "ray", **flags: Any) -> paceline.Run:
        count[0] += 1
        if engine == "ray":
            flags["address"] = ray_cluster.address
        return paceline.train(data=data, engine=engine, run=tmp_path / f"run-{count[0]}", **flags)

    return run


@pytest.mark.parametrize(("shards", "optimizer"), [(1, "sgd"), (2, "adagrad"), (3, "ftrl")])
def test_sync_has_the_bits_of_the_embedded_engine(train: Any, clicks: Path, shards: int, optimizer: str) -> None:
    flags: dict[str, Any] = {"pace": "sync", "workers": 3, "batch_size": 70, "epochs": 2, "optimizer": optimizer,
                             "l1": 0.001, "l2": 0.01, "seed": 4, "test_every": 4_000}  # fmt: skip
    local = train(clicks, "local", **flags)
    cluster = train(clicks, shards=shards, **flags)
    assert cluster.result["model_sha256"] == local.result["model_sha256"]
    assert cluster.result["rows"] == local.result["rows"] == 12_000
    assert cluster.result["steps"] == local.result["steps"]
    assert len(local.metrics) > 1
    for ours, theirs in zip(cluster.metrics, local.metrics, strict=True):
        for name in ("rows", "steps", "epoch", "train_loss", "test_loss", "test_error", "test_auc"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-7)
    assert set(cluster.result) == set(local.result)
    assert {path.name for path in cluster.path.iterdir()} == {path.name for path in local.path.iterdir()}


def test_a_decaying_rate_and_a_short_last_clock_too(train: Any, one_key_per_row: Path) -> None:
    flags: dict[str, Any] = {"pace": "sync", "workers": 3, "batch_size": 11, "epochs": 2, "optimizer": "sgd",
                             "settings": ["optimizer.decay_rows=100"]}  # fmt: skip
    local, cluster = train(one_key_per_row, "local", **flags), train(one_key_per_row, shards=2, **flags)
    assert cluster.result["model_sha256"] == local.result["model_sha256"]


@pytest.mark.parametrize("pace", ["async", 1])
def test_every_row_counts_once(train: Any, one_key_per_row: Path, pace: Any) -> None:
    rate = 2.0**-40
    run = train(
        one_key_per_row, pace=pace, workers=3, shards=2, batch_size=16, epochs=4, optimizer="sgd", learning_rate=rate,
        test_every=1_500,
    )  # fmt: skip
    assert run.result["rows"] == 4 * 997
    assert visits(run, rate, 16) == pytest.approx([4.0] * 997, abs=4 * (16 / 5 - 1) + 1e-6)
    exact = np.array(visits(run, rate, 16))
    # Rows of the short last batch of an epoch, 5 of them, count 16 / 5.
    assert ((exact - 4) / (16 / 5 - 1)).round(6).sum() == pytest.approx(4 * 5)
    if pace == 1:
        assert run.result["max_staleness"] <= 1


def visits(run: paceline.Run, rate: float, batch_size: int) -> list[float]:
    """How often each row was trained on, where row i has key i alone and weights are too small to matter."""
    return [float(x) for x in np.abs(paceline.load(run.path).weights) / (rate / 2) * batch_size]


def test_roles_and_bytes_are_told(train: Any, clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.training.coordinator import Coordinator

    seen: list[Any] = []
    look = Coordinator._look_around

    def spy(coordinator: Coordinator, tally: Any) -> Any:
        seen.append(coordinator.backend.roles())
        return look(coordinator, tally)

    monkeypatch.setattr(Coordinator, "_look_around", spy)
    # Long enough for shards to report: they do about once per second.
    run = train(clicks, pace="async", workers=2, shards=2, batch_size=100, seconds=3)
    roles = seen[-1]
    assert [(role["role"], role["rank"]) for role in roles] == [
        ("coordinator", 0), ("shard", 0), ("shard", 1), ("worker", 0), ("worker", 1)
    ]  # fmt: skip
    assert {role["node"] for role in roles} == {"head"}
    assert len({role["pid"] for role in roles}) == 5
    assert all(role["address"].startswith("127.0.0.1:") for role in roles if role["role"] == "shard")
    wire = run.result["wire"]
    assert wire["bytes_per_row"] == pytest.approx((wire["bytes_sent"] + wire["bytes_received"]) / run.result["rows"])
    assert json.loads((run.path / "roles.json").read_text()) == []
    chunks, shards = Telemetry(run.path).read(WorkerChunk), Telemetry(run.path).read(ShardChunk)
    assert {chunk.rank for chunk in chunks} == {shard.rank for shard in shards} == {0, 1}
    for chunk in chunks:
        # What computing a step takes at best: more than a microsecond, and no more than some steps took.
        assert 1e-6 < chunk.compute_alone < 1
        assert 1e-6 < chunk.compute_in_company < 1
        assert 1e-6 < chunk.one_row < 1
        assert 0 <= chunk.spun <= chunk.processor
    for shard in shards:
        assert 0 <= shard.spun <= shard.processor


class TestWire:
    """What goes over the wire, and how much of it."""

    FLAGS: dict[str, Any] = {"pace": "sync", "workers": 2, "shards": 2, "batch_size": 200, "optimizer": "sgd"}  # noqa: RUF012

    def per_row(self, run: paceline.Run) -> float:
        return float(run.result["wire"]["bytes_per_row"])

    def test_exact_codings_keep_the_bits_and_save_bytes(self, train: Any, clicks: Path) -> None:
        plain = train(clicks, **self.FLAGS)
        for settings in (["wire.key_deltas=true"], ["wire.tls=true"], ["wire.mac=true"]):
            run = train(clicks, settings=settings, **self.FLAGS)
            assert run.result["model_sha256"] == plain.result["model_sha256"]
            if settings == ["wire.key_deltas=true"]:
                assert self.per_row(run) < 0.85 * self.per_row(plain)
        everything = train(clicks, settings=["wire.pull=all"], **self.FLAGS)
        assert everything.result["model_sha256"] == plain.result["model_sha256"]
        assert self.per_row(everything) > 1.5 * self.per_row(plain)

    @pytest.mark.parametrize("values", ["float16", "bfloat16"])
    def test_short_values_learn_nearly_the_same(self, train: Any, clicks: Path, values: str) -> None:
        plain = train(clicks, "local", **{**self.FLAGS, "shards": 1})
        run = train(clicks, settings=[f"wire.values={values}"], **self.FLAGS)
        assert run.result["test"]["loss"] == pytest.approx(plain.result["test"]["loss"], rel=0.01)
        assert run.result["model_sha256"] != plain.result["model_sha256"]
