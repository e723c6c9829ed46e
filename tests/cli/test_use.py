"""From `generate` to `predict`: what is printed, and which files are left."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import paceline
from paceline.data.sources import files
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
        "config.toml", "metrics.jsonl", "model/counts.arrow", "model/model.json",
        "model/model.safetensors", "model/optimizer.safetensors",
        "result.json", "roles.json",
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


def test_data_with_other_hash_bits_is_refused(command: Command, tmp_path: Path) -> None:
    """Its keys mean something else: scores would be noise. Data with the same hash bits is scored."""
    row = "\t".join(["{}", *map(str, range(13)), *("abcdefghijklmnopqrstuvwxyz")]) + "\n"
    (tmp_path / "rows.tsv").write_text("".join(row.format(number % 2) for number in range(40)))
    for name, bits in (("trained", 12), ("same", 12), ("other", 14)):
        made = ("prepare", tmp_path / "rows.tsv", "--format", "criteo", "--hash-bits", bits, "--out", tmp_path / name)
        assert command(*made).code == 0
    run, scores = tmp_path / "run", tmp_path / "scores.csv"
    assert command("train", "--data", tmp_path / "trained", "--epochs", 1, "--run", run).code == 0
    for subcommand, out in (("evaluate", ()), ("predict", ("--out", scores))):
        refused = command(subcommand, run, "--data", tmp_path / "other", *out)
        assert (refused.code, refused.out) == (2, "")
        error, hint = refused.err.splitlines()
        assert f"hash_bits 12; `{tmp_path}/other` has 14" in error
        assert hint.startswith("hint: ")
        assert "--hash-bits 12" in hint
        assert not scores.exists()
        assert command(subcommand, run, "--data", tmp_path / "same", *out).code == 0
    assert scores.exists()


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


def test_predictions_name_the_classes_of_any_split(command: Command, tmp_path: Path) -> None:
    lines = [f"{'no' if i % 3 else 'yes'},{i % 7}" for i in range(60)]
    (tmp_path / "a.csv").write_text("label,x\n" + "\n".join(lines) + "\n")
    data, scores = tmp_path / "data", tmp_path / "scores.csv"
    assert command("prepare", tmp_path / "a.csv", "--validation-fraction", 0.3, "--out", data).code == 0
    assert command("train", "--data", data, "--pace", "sync", "--run", tmp_path / "run").code == 0
    done = command("predict", tmp_path / "run", "--data", data, "--split", "validation", "--out", scores)
    assert done.code == 0
    labels = [line.split(",")[1] for line in scores.read_text().splitlines()[1:]]
    assert 5 < len(labels) < 40
    assert set(labels) == {'"yes"', '"no"'}
    assert command("evaluate", tmp_path / "run", "--data", data, "--split", "test").code == 2


@pytest.mark.parametrize(
    ("loss", "words"),
    [("logistic", "probability is that of `yes`"), ("hinge", "score is above 0 for `yes`, and below for `no`")],
)
def test_predictions_say_of_which_class_they_are(command: Command, tmp_path: Path, loss: str, words: str) -> None:
    lines = [f"{'no' if i % 3 else 'yes'},{i % 7}" for i in range(60)]
    (tmp_path / "a.csv").write_text("label,x\n" + "\n".join(lines) + "\n")
    data, run = tmp_path / "data", tmp_path / "run"
    prepare = ("prepare", tmp_path / "a.csv", "--labels", "two-classes", "--out", data)
    assert command(*prepare).code == 0
    assert command("train", "--data", data, "--loss", loss, "--run", run).code == 0
    raw = command("predict", run, tmp_path / "a.csv", "--out", tmp_path / "raw.csv")
    prepared = command("predict", run, "--data", data, "--out", tmp_path / "prepared.csv")
    for done in (raw, prepared):
        assert done.code == 0
        assert done.err == f"note: {words}\n"
    column = words.split()[0]
    assert f'"{column}"' in (tmp_path / "raw.csv").read_text().splitlines()[0]


def test_classes_without_names_need_no_words(command: Command, clicks: Path, tmp_path: Path) -> None:
    run = paceline.train(data=clicks, run=tmp_path / "run", progress=False)
    assert command("predict", run.path, "--data", clicks, "--out", tmp_path / "scores.csv").err == ""


def test_classes_are_the_same_by_name_not_by_number(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "CHUNK_BYTES", 100)
    rows = {"no": ["no,1", "no,2"], "yes": ["yes,8", "yes,9"]}
    for name, order in (("a", ("no", "yes")), ("b", ("yes", "no"))):
        lines = ["label,x", *(line for label in order for line in rows[label] * 20)]  # more than one chunk
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
        assert command("prepare", tmp_path / f"{name}.csv", "--out", tmp_path / name).code == 0
    run = tmp_path / "run"
    assert command("train", "--data", tmp_path / "a", "--pace", "sync", "--epochs", 1, "--run", run).code == 0
    found = [json.loads(command("evaluate", run, "--data", tmp_path / name, "--json").out) for name in "ab"]
    assert found[0] == pytest.approx(found[1])


def test_raw_rows_are_scored(command: Command, tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("1 1:1 2:0.5\n0 2:1\n" * 50)
    (tmp_path / "new").write_text("1:1 2:0.5\nwhat\n2:1\n")
    run, scores = tmp_path / "run", tmp_path / "scores.csv"
    assert command("prepare", tmp_path / "rows", "--out", tmp_path / "data").code == 0
    assert command("train", "--data", tmp_path / "data", "--run", run).code == 0
    done = command("predict", run, tmp_path / "new", "--format", "libsvm", "--skip-bad-rows", 1, "--out", scores)
    assert done.code == 0, done.err
    assert f"skipped `{tmp_path / 'new'}`, row 2, column 1: `what` is not `index:value`" in done.err
    assert done.out == f"2 rows written to {scores}\n"
    assert [line.split(",")[1] for line in scores.read_text().splitlines()] == ['"row"', "1", "3"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "neither a SOURCE nor --data is given"),
        (("rows", "--data", "data"), "both a SOURCE and --data are given"),
        (("rows", "--split", "test"), "raw rows are not in splits"),
        (("--data", "data", "--id", "customer"), "`id` is for files of raw rows"),
    ],
)
def test_what_to_score_is_said_once(command: Command, arguments: tuple[str, ...], words: str) -> None:
    done = command("predict", "run", *arguments, "--out", "scores.csv")
    assert done.code == 2
    assert words in done.err


def test_a_dataset_among_raw_rows_is_recognised(command: Command, clicks: Path) -> None:
    done = command("predict", "run", clicks, "--out", "scores.csv")
    assert done.code == 2
    assert done.err == f"error: `{clicks}` is a dataset\nhint: --data {clicks}\n"
