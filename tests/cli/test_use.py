"""From `generate` to `predict`: what is printed, and which files are left."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import paceline
from tests.cli.files import tree
from tests.conftest import Command


def test_generate_train_evaluate_predict(command: Command, tmp_path: Path) -> None:
    data, run, scores = tmp_path / "clicks", tmp_path / "run", tmp_path / "scores.parquet"
    made = command("generate", "clicks", "--rows", 3000, "--features", 2000, "--test-rows", 500, "--out", data)
    assert made.code == 0
    assert "3,000 training rows, 500 test rows, 2,000 features" in made.out
    trained = command("train", "--data", data, "--pace", "async", "--workers", 2, "--batch-size", 1, "--run", run)
    assert trained.code == 0
    assert trained.out.splitlines()[-1] == f"run: {run}"
    assert re.search(r"async\s+2\s+1\s+[\d,]+\s+\d+\.\d+\s+0\.\d+\s+0\.\d+\s+0\.\d+", trained.out)
    left = tree(run)
    assert {"telemetry/steps.jsonl", "telemetry/workers.jsonl"} <= set(left)
    assert [name for name in left if not name.startswith(("telemetry/", "tensorboard/"))] == [
        "config.toml", "metrics.jsonl", "model/model.json", "model/model.safetensors", "result.json", "roles.json",
    ]  # fmt: skip
    evaluated = command("evaluate", run, "--data", data, "--json")
    assert json.loads(evaluated.out) == pytest.approx({"rows": 500, **paceline.Run(run).result["test"]}, rel=1e-6)
    assert command("predict", run, "--data", data, "--out", scores).code == 0
    assert scores.exists()


def test_every_command_says_once_that_a_manifest_has_no_checksum(command: Command, tmp_path: Path) -> None:
    data, run, recipe = tmp_path / "clicks", tmp_path / "run", tmp_path / "two.toml"
    command("generate", "clicks", "--rows", 500, "--features", 100, "--test-rows", 50, "--out", data)
    path = data / "manifest.json"
    manifest = json.loads(path.read_bytes())
    del manifest["checksum"]
    path.write_text(json.dumps(manifest))
    recipe.write_text(f'data = "{data}"\n[sweep]\nseed = [1, 2]\n')
    for arguments in (
        ("train", "--data", data, "--run", run),
        ("evaluate", run, "--data", data, "--json"),
        ("predict", run, "--data", data, "--out", tmp_path / "scores.csv"),
        ("sweep", recipe, "--out", tmp_path / "sweep"),
        ("diagnose", run, "--ops"),
    ):
        outcome = command(*arguments)
        told = f"note: `{path}` has no checksum, because an older version wrote it\n"
        assert outcome.code == 0, outcome.err
        assert outcome.err.count(told) == 1, (arguments, outcome.err)
        assert "checksum" not in outcome.out


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_predictions_are_not_written_through_a_planted_link(
    command: Command, tmp_path: Path, clicks: Path, suffix: str
) -> None:
    run, scores, precious = tmp_path / "run", tmp_path / f"scores.{suffix}", tmp_path / "precious"
    paceline.train(data=clicks, run=run)
    precious.write_text("years of work")
    (tmp_path / f".{scores.name}.partial").symlink_to(precious)
    done = command("predict", run, "--data", clicks, "--out", scores)
    assert done.code == 0, done.err
    assert precious.read_text() == "years of work"
    assert scores.stat().st_size > 0
    assert not scores.is_symlink()
