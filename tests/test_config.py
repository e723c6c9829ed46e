"""What was asked for is checked before anything starts, and said in one line with a hint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from paceline.config import config_of, load_config, read_config, read_recipe, settings_of_run, to_toml, tree_of
from paceline.errors import ConfigError
from paceline.settings import OptimizerConfig
from tests.ray_cluster import RayCluster

RECIPES = Path(__file__).parent.parent / "recipes"


def test_flags_override_the_recipe_and_settings_override_both(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text('data = "d"\npace = 4\nworkers = 2\n[optimizer]\nname = "ftrl"\nbeta = 2.0\nl1 = 0.5\n')
    config = read_config(recipe, {"workers": 3, "learning_rate": 0.3}, ["optimizer.beta=0.25", "workers=8"])
    assert (config.pace, config.workers) == (4, 8)
    assert config.optimizer == OptimizerConfig(name="ftrl", own={"beta": 0.25}, l1=0.5, learning_rate=0.3)


def test_settings_may_be_numbers_of_numpy() -> None:
    flags = {"pace": np.int64(2), "workers": np.int32(3), "epochs": np.uint8(4), "learning_rate": np.float64(0.25)}
    config = read_config(None, {"data": "d", **flags})
    assert (config.pace, config.workers, config.epochs, config.optimizer.learning_rate) == (2, 3, 4, 0.25)
    with pytest.raises(ConfigError, match=r"`epochs` is 1.5; it must be a whole number"):
        read_config(None, {"data": "d", "epochs": np.float64(1.5)})


def test_config_toml_reads_back(tmp_path: Path) -> None:
    config = read_config(None, {"data": "d", "pace": "3", "l2": 0.1, "seconds": 2.5})
    (tmp_path / "config.toml").write_bytes(to_toml(config))
    assert load_config(tmp_path / "config.toml") == config
    # As a recipe, it gives all settings.
    assert config.chosen
    assert read_config(tmp_path / "config.toml", {}) == msgspec.structs.replace(config, chosen=())


def test_runs_and_checkpoints_of_earlier_versions_have_the_same_settings() -> None:
    """They list the settings of all optimizers next to each other."""
    before = {
        "name": "adam", "learning_rate": 0.1, "momentum": 0.0, "l1": 0.0, "l2": 0.0, "decay_rows": 0,
        "decay_power": 0.5, "epsilon": 1e-6, "beta": 1.0, "beta1": 0.8, "beta2": 0.999,
    }  # fmt: skip
    config = config_of({"data": "d", "model": "softmax", "optimizer": dict(before)}, {})
    assert config.optimizer == OptimizerConfig(name="adam", learning_rate=0.1, own={"beta1": 0.8})
    assert tree_of(config)["optimizer"] == before


def test_what_a_run_lists_for_other_optimizers_does_not_count() -> None:
    """Other versions may have other defaults for it."""
    config = settings_of_run({"optimizer": {"name": "sgd", "momentum": 0.5, "epsilon": 0.125}})
    assert config.optimizer == OptimizerConfig(name="sgd", own={"momentum": 0.5})


@pytest.mark.parametrize(
    ("settings", "message", "hint"),
    [
        (["loss=hing"], "`loss` is `hing`", "did you mean `hinge`?"),
        (["loss.name=quantile", "loss.quantile=1"], "`loss.quantile` is 1; it must be above 0 and below 1", "=0.5"),
        (["loss=huber", "loss.delta=0"], "`loss.delta` is 0; it must be above 0", "loss.delta=1"),
        (["loss=huber", "loss.delta=nan"], "`loss.delta` is nan", "loss.delta=1"),
        (["loss=squared", "loss.delta=2"], "but the loss `squared` does not use it", "--loss huber"),
        (["loss.quantile=0.9"], "`loss.quantile` is 0.9, but no loss is named", "--loss quantile"),
        (["loss.quantil=0.9"], "unknown setting `loss.quantil`", "`loss.quantile`"),
    ],
)
def test_wrong_losses(settings: list[str], message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_config(None, {"data": "d"}, settings)
    assert message in error.value.message
    assert hint in error.value.hint


def test_a_loss_is_a_name_or_a_section() -> None:
    for tree in ({"loss": "huber"}, {"loss": {"name": "huber"}}):
        config = config_of({"data": "d", **tree}, {}, ["loss.delta=3"])
        assert (config.loss.name, config.loss.delta, config.model) == ("huber", 3.0, "linear")
    assert config_of({"data": "d", "loss": {"delta": 3}}, {"loss": "huber"}).loss.delta == 3


@pytest.mark.parametrize(
    ("flags", "message", "hint"),
    [
        ({"pace": "-1"}, "`pace` is `-1`; it must be `sync`, `async`, or how many steps", "--pace async"),
        ({"pace": "0"}, "`pace` is `0`", "--pace sync"),
        ({"pace": "fast"}, "`pace` is `fast`", "never waits"),
        ({"pace": "+-5"}, "`pace` is `+-5`", "never waits"),
        ({"pace": "²"}, "`pace` is `²`", "never waits"),
        ({"pace": "9" * 5_000}, "`pace` is `9", "never waits"),
        ({"workers": 0}, "`workers` is 0; it must be at least 1", "--workers 1"),
        ({"batch_size": -5}, "`batch_size` is -5", "--batch-size 1"),
        ({"shards": 2}, "the engine `local` has one", "--engine ray, or leave it out"),
        ({"optimizer": "adagard"}, "`optimizer` is `adagard`", "did you mean `adagrad`?"),
        ({"loss": "hing"}, "`loss` is `hing`; it must be one of logistic", "did you mean `hinge`?"),
        ({"class_weight": "even"}, "`loss.class_weight` is `even`; it must be one of balanced", "leave it out"),
        ({"model": "softmax", "loss": "hinge"}, "the model `softmax` is trained with softmax", "leave --loss out"),
        ({"model": "softmax", "class_weight": "balanced"}, "has no class weights", "leave --class-weight out"),
        ({"model": "tree"}, "`model` is `tree`; it must be one of linear", "--model linear"),
        ({"learning_rate": 0.0}, "`learning_rate` is 0; it must be above 0", "usual"),
        ({"learning_rate": float("nan")}, "`learning_rate` is nan", "0.05"),
        ({"learning_rate": 1e39}, "`learning_rate` is 1e+39; it must be at most 3.40282e+38", "0.05"),
        ({"pace": "Sync"}, "`pace` is `Sync`", "did you mean `--pace sync`?"),
        ({"pace": 10**20}, "`pace` is `100000000000000000000`", "never waits"),
        ({"workers": 100_000}, "the limit is 1024", "--workers"),
        ({"engine": "ray", "shards": 2_000_000}, "`shards` is 2000000; the limit is 1024", "--shards"),
        ({"learning_rte": 0.1}, "unknown setting `learning_rte`", "did you mean `optimizer.learning_rate`?"),
        ({"epochs": 0}, "nothing ends this run", "--steps N"),
        ({"l1": -1.0}, "`l1` is -1; it must be at least 0", "--l1"),
        ({"l1": 1e39}, "`l1` is 1e+39; it must be at most 3.40282e+38", "--l1"),
        (
            {"optimizer": "sgd", "momentum": 1e39},
            "`momentum` is 1e+39; it must be at least 0 and below 1",
            "momentum=0",
        ),
        ({"wrokers": 3}, "unknown setting `wrokers`", "did you mean `workers`?"),
        ({"batch_size": "many"}, "`batch_size` is `many`; it must be a whole number", "--help"),
        ({"data": ""}, "no data to train on", "--data DIR"),
    ],
)
def test_wrong_flags(flags: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_config(None, {"data": "d", **flags})
    assert message in error.value.message
    assert hint in error.value.hint


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("optimizer.decay_rows=100", "but adagrad does not use it"),
        ("optimizer.beta=2.0", "`optimizer.beta` is 2, but adagrad does not use it"),
        ("optimizer.beat=1", "unknown setting `optimizer.beat`"),
        ("optimizer.own=1", "unknown setting `optimizer.own`"),
        ("optimizer.epsilon=small", "`optimizer.epsilon` is `small`; it must be a number"),
        ("optimizer.decay_power=0.7", "`optimizer.decay_power` is 0.7, but adagrad does not use it"),
        ("nonsense", "is not KEY=VALUE"),
        ("a.b.c=1", "is not KEY=VALUE"),
        ("workers.many=3", "`workers` is a section; it must be a whole number"),
        ("wire.tls=maybe", "`wire.tls` is `maybe`; it must be true or false"),
        ("wire.tls=true", "`wire.tls` is for processes of a cluster, but the engine is `local`"),
        ("data.folder=x", "`data.folder` is set, but `data` is not a section"),
        ("chosen=workers", "`chosen` cannot be set"),
        ("optimizer.epsilon=0", "`optimizer.epsilon` is 0; it must be at least 1e-30"),
        ("optimizer.epsilon=1e39", r"`optimizer.epsilon` is 1e\+39; it must be at most 3.40282e\+38"),
        ("precision=float8", "`precision` is `float8`; it must be one of float32, bfloat16"),
    ],
)
def test_wrong_settings(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(None, {"data": "d"}, [setting])


def test_settings_are_checked_before_numpy_is_loaded() -> None:
    """The engine starts meanwhile. Only settings that some optimizers have need their files, and so NumPy."""
    flags = {"data": "d", "optimizer": "ftrl", "learning_rate": 0.1, "l1": 0.5, "pace": "4", "engine": "ray"}
    program = f"import sys; from paceline.config import read_config; read_config(None, {flags})"
    subprocess.run([sys.executable, "-c", f"{program}; sys.exit('numpy' in sys.modules)"], check=True)


def test_recipes_that_do_not_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path / "none.toml", {})
    with pytest.raises(ConfigError, match="Is a directory") as caught:
        read_config(tmp_path, {})
    assert f"--data {tmp_path}" in caught.value.hint
    (tmp_path / "bad.toml").write_text("pace = async")
    with pytest.raises(ConfigError, match="is not TOML"):
        read_config(tmp_path / "bad.toml", {})
    (tmp_path / "flat.toml").write_text('data = "d"\noptimizer = "sgd"')
    with pytest.raises(ConfigError, match="must be a section"):
        read_config(tmp_path / "flat.toml", {})


ALL_RECIPES = sorted(RECIPES.glob("*.toml"))
SWEPT = [path for path in ALL_RECIPES if {"sweep", "points"} & read_recipe(path).keys()]


@pytest.mark.parametrize("recipe", [path for path in ALL_RECIPES if path not in SWEPT], ids=lambda path: path.name)
def test_shipped_recipes_run(recipe: Path, clicks: Path, drawings: Path, tmp_path: Path) -> None:
    """Every recipe trains for one step on made-up data."""
    import paceline

    data = drawings if "model" in read_recipe(recipe) else clicks
    run = paceline.train(recipe, data=data, run=tmp_path / "run", steps=1)
    assert run.result["steps"] == 1
    assert recipe.read_text().startswith("#")


@pytest.mark.parametrize("recipe", SWEPT, ids=lambda path: path.name)
def test_shipped_sweeps_run(
    recipe: Path, clicks: Path, drawings: Path, tmp_path: Path, ray_cluster: RayCluster
) -> None:
    """The last point of every recipe that varies something trains for one step; AlexNet as its small sister."""
    import paceline
    from paceline.matrices.jobs import run_trace
    from paceline.matrices.settings import TraceSettings
    from paceline.sweeps.points import read_sweep

    tree = read_recipe(recipe)
    if tree.get("job") == "trace":
        points = read_sweep(recipe, {}, ["size=200"])
        assert len(points) > 1
        trace = points[-1].config
        assert isinstance(trace, TraceSettings)
        run = run_trace(msgspec.structs.replace(trace, run=str(tmp_path / "run")), lambda *_: None, lambda _: None)
        assert run.result["status"] == "done"
        return
    flags: dict[str, Any] = {
        "data": str(drawings if "model" in tree else clicks),
        "steps": 1,
        "epochs": 0,
        "train_rows": 0,
    }
    if tree.get("engine") == "ray":
        flags["address"] = ray_cluster.address
    small = ['model="alexnet-small"', "images.crop=0"] if tree.get("model") == "alexnet" else []
    points = read_sweep(recipe, flags, small)
    assert len(points) > 1
    settings = [f"{key}={json.dumps(value)}" for key, value in points[-1].settings.items()]
    part = tmp_path / "one.toml"
    part.write_text("".join(line for line in _without_sweep(recipe) if not line.startswith("ops = ")))
    run = paceline.train(part, run=tmp_path / "run", settings=[*small, *settings], **flags)
    assert run.result["steps"] == 1
    assert recipe.read_text().startswith("#")


def _without_sweep(recipe: Path) -> list[str]:
    """The lines of a recipe before what it varies."""
    lines = recipe.read_text().splitlines(keepends=True)
    ends = [number for number, line in enumerate(lines) if line.startswith(("[sweep", "[[points"))]
    return lines[: min(ends)]


def test_a_recipe_for_several_runs_is_sent_where_it_belongs(tmp_path: Path) -> None:
    recipe = tmp_path / "grid.toml"
    recipe.write_text('data = "clicks"\n[sweep]\npace = ["sync", "async"]\n')
    with pytest.raises(ConfigError, match="is a recipe for several runs") as caught:
        read_config(recipe, {})
    assert f"paceline sweep {recipe}" in caught.value.hint


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "workers = " + "9" * 5_000])
def test_a_recipe_made_to_break_the_parser_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"recipe.toml` is not TOML"):
        read_config(path, {})


def test_a_recipe_that_never_ends_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"recipe `/dev/zero` has more than 1 MiB"):
        read_recipe(Path("/dev/zero"))
