"""A recipe gives a grid of runs, all of which are checked before the first one starts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paceline.errors import ConfigError
from paceline.settings import RunConfig
from paceline.sweeps import points
from paceline.sweeps.points import read_sweep
from tests.conftest import Command


def test_points_and_grid_combine(recipe: Path, clicks: Path) -> None:
    recipe.write_text(
        f'data = "{clicks}"\n[sweep.optimizer]\nlearning_rate = [0.1, 0.2]\n'
        '[[points]]\nworkers = 1\n[[points]]\nworkers = 2\npace = "async"\n[points.optimizer]\nname = "sgd"\n'
    )
    found = read_sweep(recipe, {"seed": 7}, ["checkpoint_every=0"])
    assert [point.name for point in found] == [
        "workers=1, optimizer.learning_rate=0.1",
        "workers=1, optimizer.learning_rate=0.2",
        "workers=2, pace=async, optimizer.name=sgd, optimizer.learning_rate=0.1",
        "workers=2, pace=async, optimizer.name=sgd, optimizer.learning_rate=0.2",
    ]
    last = found[-1].config
    assert isinstance(last, RunConfig)
    assert (last.workers, last.pace, last.optimizer.name, last.optimizer.learning_rate) == (2, "async", "sgd", 0.2)
    assert (last.seed, last.checkpoint_every) == (7, 0)


def test_lists_of_values_may_be_of_numpy(clicks: Path) -> None:
    grid = {"batch_size": np.array([10, 20]), "optimizer.learning_rate": (np.float64(0.5),)}
    found = read_sweep({"data": str(clicks), "sweep": grid}, {})
    assert [point.name for point in found] == [
        "batch_size=10, optimizer.learning_rate=0.5", "batch_size=20, optimizer.learning_rate=0.5",
    ]  # fmt: skip


def test_names_that_differ_only_in_what_folders_cannot_have(recipe: Path, clicks: Path) -> None:
    recipe.write_text(f'data = "{clicks}"\n[sweep]\nrun = ["a/b", "a-b", "{"x" * 300}"]\n')
    folders = [point.folder for point in read_sweep(recipe, {})]
    assert len(set(folders)) == 3
    assert max(map(len, folders)) <= 255


def test_too_many(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "MOST_POINTS", 3)
    with pytest.raises(ConfigError, match="asks for 4 runs; the limit is 3"):
        read_sweep(recipe, {})


def test_too_many_are_counted_before_they_are_combined(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "itertools", None)  # combining them would fill the memory
    lists = "".join(f"setting{i} = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]\n" for i in range(10))
    recipe.write_text(f"[sweep]\n{lists}")
    with pytest.raises(ConfigError, match="asks for 10,000,000,000 runs; the limit is 1,000"):
        read_sweep(recipe, {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('job = "matmul"\n[sweep]\nblocks = [1]', "is `matmul`; it must be train or trace"),
        ('job = "trace"\nsize = 10\n[sweep]\nblocks = [1, 0]', "point blocks=0: "),
        ('job = "trace"\nsize = 10\npace = "sync"\n[sweep]\nblocks = [1]', "point blocks=1: unknown setting `pace`"),
        ('job = "trace"\n[sweep]\nblocks = [1]', "point blocks=1: object missing required field `size`"),
        (
            'job = "trace"\nsize = 10\nops = true\n[sweep]\nblocks = [1]',
            "point blocks=1: the operations of a step of `trace` cannot be timed",
        ),
        ("ops = 3\n[sweep]\nworkers = [1]", "`ops` in"),
    ],
)
def test_jobs_that_make_no_sense(tmp_path: Path, command: Command, text: str, said: str) -> None:
    recipe = tmp_path / "bad.toml"
    recipe.write_text(text)
    done = command("sweep", recipe, "--out", tmp_path / "out")
    assert done.code == 2
    assert said in done.err
    assert "hint: " in done.err


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ("workerz = [1, 2]", "point pace=sync, batch_size=50, workerz=1: unknown setting `workerz`"),
        ("workers = []", "`sweep.workers` is []; it must be a list of values"),
        ("workers = 3", "`sweep.workers` is 3; it must be a list of values"),
        ("workers = [1, 0]", "point pace=sync, batch_size=50, workers=0: `workers` is 0"),
        ("workers = [0]", "hint: workers = 1"),
        ("shards = [1, 2]", "point pace=sync, batch_size=50, shards=2: `shards` is 2; the engine `local`"),
        (
            'model = ["softmax"]',
            "batch_size=50, model=softmax: the model `softmax` learns from images",
        ),
        ('model = ["softmax"]', 'hint: model = "linear", or a dataset of images'),
        ("seed = [3, 3]", "asks for pace=sync, batch_size=50, seed=3 more than once"),
        ("train_rows = [0, 1_000_000]", "batch_size=50, train_rows=1000000: "),
        ("[[points]]\nseed = 1\nbatch_size = 5", "has `batch_size` in [[points]] and in [sweep]"),
    ],
)
def test_all_is_checked_before_the_first_run(
    recipe: Path, tmp_path: Path, command: Command, added: str, said: str
) -> None:
    recipe.write_text(recipe.read_text() + added + "\n")
    done = command("sweep", recipe, "--out", tmp_path / "out")
    assert done.code == 2
    assert said in done.err
    assert not list((tmp_path / "out").glob("*/*"))


def test_a_recipe_that_varies_nothing(recipe: Path, clicks: Path, command: Command) -> None:
    recipe.write_text(f'data = "{clicks}"\n')
    done = command("sweep", recipe)
    assert done.code == 2
    assert "varies nothing" in done.err


def test_what_is_varied_cannot_be_set(recipe: Path, tmp_path: Path, command: Command) -> None:
    done = command("sweep", recipe, "--out", tmp_path / "out", "--set", "batch_size=5")
    assert done.code == 2
    assert "varies `batch_size`" in done.err
