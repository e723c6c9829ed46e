"""A run that starts from the model of another one: what it takes over, what it refuses, and what a kill leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import paceline
from paceline.errors import ConfigError, DataError, InterruptedRunError
from tests.conftest import Command

FLAGS: dict[str, Any] = {"pace": "sync", "workers": 2, "batch_size": 50, "epochs": 1, "progress": False}


def rows(count: int = 400, features: int = 30, seed: int = 0, labels: Any = (0, 1)) -> tuple[Any, Any]:
    chance = np.random.default_rng(seed)
    found = (chance.random((count, features)) < 0.2).astype(np.float32)
    return found, np.asarray(labels)[(found[:, :3].sum(axis=1) > 0).astype(int)]


def sparse_file(path: Path, features: int, seed: int = 0) -> Path:
    """A LIBSVM file whose largest key is the last of this many features."""
    found, labels = rows(300, features, seed)
    found[:, -1] = 1
    lines = [
        " ".join([str(y), *(f"{key + 1}:1" for key in np.flatnonzero(x))]) for x, y in zip(found, labels, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_new_keys_begin_as_new(tmp_path: Path) -> None:
    """Plain indices may grow; with shuffling off and no row left that has an old key alone, old weights are kept."""
    for name, features in (("small", 20), ("large", 50)):
        paceline.prepare(sparse_file(tmp_path / f"{name}.txt", features), tmp_path / name)
    first = paceline.train(data=tmp_path / "small", run=tmp_path / "first", **FLAGS)
    second = paceline.train(data=tmp_path / "large", start_from=first, run=tmp_path / "second", learning_rate=1e-30,
                            progress=False)  # fmt: skip
    weights = paceline.load(second.path).weights
    assert len(weights) == 50
    assert weights[:20].tolist() == paceline.load(first.path).weights.tolist()
    assert np.abs(weights[20:]).max() < 1e-20
    third = paceline.train(data=tmp_path / "small", start_from=second, run=tmp_path / "third", progress=False)
    assert len(paceline.load(third.path).weights) == 50


def test_other_data_and_other_models_are_refused(tmp_path: Path, command: Command) -> None:
    first = paceline.train(data=rows(), run=tmp_path / "first", **FLAGS)
    with pytest.raises(DataError, match=r"trained on 30 features; .* has 31"):
        paceline.train(data=rows(features=31), start_from=first, progress=False)
    with pytest.raises(DataError, match="class `no` is not one of the 2 that the model knows"):
        paceline.train(data=rows(labels=("no", "yes")), start_from=first, progress=False)
    for flags, what in (({"loss": "hinge"}, "`loss` is `hinge`, but the model of .* was trained with `logistic`"),
                        ({"start_from": tmp_path / "none"}, "does not exist")):  # fmt: skip
        settings: dict[str, Any] = {"start_from": first, "progress": False, **flags}
        with pytest.raises(ConfigError, match=what):
            paceline.train(data=rows(), **settings)
    found = command("train", "--from", first.path, "--data", tmp_path / "first")
    assert found.code == 2
    assert "is not a dataset" in found.err or "manifest" in found.err
    assert len(list(tmp_path.iterdir())) == 1


def test_what_was_chosen_is_chosen_anew(tmp_path: Path) -> None:
    paceline.prepare(rows(60), tmp_path / "small", progress=False)
    paceline.prepare(rows(400), tmp_path / "large", progress=False)
    first = paceline.train(data=tmp_path / "small", run=tmp_path / "first", learning_rate=0.3, progress=False)
    assert set(first.config.chosen) == {"pace", "workers", "batch_size", "epochs", "test_every"}
    later = paceline.train(data=tmp_path / "large", run=tmp_path / "later", start_from=first, progress=False)
    alone = paceline.train(data=tmp_path / "large", run=tmp_path / "alone", progress=False)
    assert later.config.optimizer.own == first.config.optimizer.own
    assert first.config.epochs != later.config.epochs == alone.config.epochs > 0
    given = paceline.train(
        data=tmp_path / "large", run=tmp_path / "given", start_from=later, epochs=2, workers=2, progress=False
    )
    last = paceline.train(data=tmp_path / "small", run=tmp_path / "last", start_from=given, progress=False)
    assert (last.config.epochs, last.config.workers) == (2, 2)
    assert set(last.config.chosen) == {"pace", "batch_size", "test_every"}
    again = paceline.train(first.path / "config.toml", run=tmp_path / "again", progress=False)
    assert (again.config.epochs, again.config.chosen) == (first.config.epochs, ())


def test_a_limit_of_the_first_run_is_kept(tmp_path: Path) -> None:
    first = paceline.train(data=rows(), steps=7, run=tmp_path / "first", progress=False)
    assert "epochs" not in first.config.chosen
    later = paceline.train(data=rows(seed=1), run=tmp_path / "later", start_from=first, progress=False)
    assert (later.config.epochs, later.config.steps) == (0, 7)


def test_without_a_state_the_optimizer_begins_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the weights of the model, for every optimizer, and of an older version, too."""
    first = paceline.train(data=rows(), run=tmp_path / "first", settings=["save_optimizer=false"], **FLAGS)
    assert not (first.path / "model" / "optimizer.safetensors").exists()
    weights = paceline.load(first.path).weights
    described = first.path / "model" / "model.json"
    older = {name: value for name, value in json.loads(described.read_text()).items() if name != "training"}
    for name, optimizer in (("a", "adagrad"), ("b", "ftrl"), ("c", "sgd")):
        flags: dict[str, Any] = {
            "optimizer": optimizer,
            "learning_rate": 1e-6,
            "l1": 1e-4,
            "settings": ["save_optimizer=true"],
        }
        later = paceline.train(data=rows(), start_from=first, run=tmp_path / name, progress=False, **flags)
        assert "did not keep its optimizer's state" in capsys.readouterr().err
        assert np.abs(paceline.load(later.path).weights - weights).max() < 1e-2 * np.abs(weights).max()
        described.write_text(json.dumps(older))
    kept = paceline.train(data=rows(), start_from=later, run=tmp_path / "d", optimizer="adagrad", progress=False)
    assert "was trained with another optimizer" in capsys.readouterr().err
    assert kept.config.epochs == 1


def test_a_damaged_state_is_noticed(tmp_path: Path) -> None:
    first = paceline.train(data=rows(), run=tmp_path / "first", **FLAGS)
    path = first.path / "model" / "optimizer.safetensors"
    tensors = load_file(path)
    save_file({name: values + 1 for name, values in tensors.items()}, path)
    with pytest.raises(DataError, match="wrong checksum"):
        paceline.train(data=rows(), start_from=first, progress=False)
    path.unlink()
    with pytest.raises(DataError, match=r"optimizer's state in .* cannot be read"):
        paceline.train(data=rows(), start_from=first, progress=False)


THREE = np.arange(400) % 3


@pytest.mark.parametrize(
    ("labels", "field", "value", "what"),
    [
        (THREE, "class_weights", [1.0], "1 class weights for 3 classes"),
        (THREE, "class_weights", [1.0] * 4, "4 class weights for 3 classes"),
        (THREE, "class_weights", [1.0, 1e-60, 1.0], "3 class weights for 3 classes, all of which must be positive"),
        (THREE % 2, "class_weights", [1.0], "1 class weights for 2 classes"),
        (THREE % 2, "class_names", ["0"], "with 1 names"),
        (THREE % 2, "class_names", ["0", "1", "2"], "with 3 names"),
        (THREE, "class_names", ["0", "1", "0"], "two classes have the same name"),
        (THREE, "class_names", ["0", "1", "2", "3"], "3 parameters per feature; this run has 4"),
        (THREE, "class_names", ["2", "1"], "class `0` is not one of the 2"),
        (THREE + 0.5, "scales", [0.0, 1e-60, 1.0, 1.0], "the scales"),
        (THREE + 0.5, "scales", [1e300, 1.0, 1.0, 1.0], "the scales"),
        (THREE + 0.5, "class_weights", [1.0, 1.0], "2 class weights for 0 classes"),
    ],
)
def test_what_a_model_says_of_its_labels_is_checked(
    tmp_path: Path, labels: Any, field: str, value: Any, what: str
) -> None:
    """No checksum covers it, and compiled loops would read beyond the weights of the classes."""
    kind = "numbers" if labels.dtype.kind == "f" else "two-classes" if labels.max() == 1 else "classes"
    data: dict[str, Any] = {"data": (rows()[0], labels), "labels": kind}
    balanced: dict[str, Any] = {"class_weight": "balanced"} if field == "class_weights" and kind != "numbers" else {}
    first = paceline.train(**data, run=tmp_path / "first", **balanced, **FLAGS)
    path = first.path / "model" / "model.json"
    info = json.loads(path.read_text())
    assert info["training"][field] or kind == "numbers"
    info["training"][field] = value
    path.write_text(json.dumps(info))
    with pytest.raises(DataError, match=what):
        paceline.train(**data, start_from=first, run=tmp_path / "second", progress=False)


def test_values_are_scaled_as_the_model_knows_them(tmp_path: Path) -> None:
    """The second data would get another scaling of its own; the model's centres are in every row."""
    chance = np.random.default_rng(0)
    first_rows, second_rows = (
        chance.normal(at, size, (500, 3)).astype(np.float32) for at, size in ((900, 50), (80, 9))
    )
    labels = chance.integers(0, 2, 500)
    for name, found in (("first", first_rows), ("second", second_rows)):
        paceline.prepare((found, labels), tmp_path / f"data-{name}", progress=False)
    first = paceline.train(data=tmp_path / "data-first", run=tmp_path / "first", **FLAGS)
    scaling = paceline.load(first.path).input.scaling
    assert len(scaling.keys) == 3
    stored = paceline.train(data=tmp_path / "data-second", start_from=first, run=tmp_path / "stored", progress=False)
    assert paceline.load(stored.path).input.scaling == scaling
    given = paceline.train(data=(second_rows, labels), start_from=first, run=tmp_path / "given", progress=False)
    assert np.allclose(paceline.load(given.path).weights, paceline.load(stored.path).weights, rtol=1e-3, atol=1e-6)


def test_the_state_is_that_of_the_best_model(tmp_path: Path) -> None:
    data = rows(2_000)
    first = paceline.train(data=data, run=tmp_path / "first", validation_fraction=0.3, learning_rate=2.0,
                           **FLAGS | {"epochs": 4, "test_every": 300})  # fmt: skip
    said = json.loads((first.path / "model" / "model.json").read_text())["training"]
    assert said["rows"] == first.result["best_rows"]
    assert (first.path / "model" / "optimizer.safetensors").is_file()
    assert paceline.train(data=data, start_from=first, run=tmp_path / "second", progress=False).result["rows_before"] \
        == first.result["best_rows"]  # fmt: skip


def test_a_stopped_run_is_resumed_with_the_same_bits(tmp_path: Path) -> None:
    first = paceline.train(data=rows(), run=tmp_path / "first", **FLAGS)
    later = rows(4_000, seed=1)
    whole = paceline.train(data=later, start_from=first, run=tmp_path / "whole", epochs=3, progress=False)

    def stop(at: Any) -> None:
        if at.rows:
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, InterruptedRunError)):
        paceline.train(data=later, start_from=first, run=tmp_path / "cut", epochs=300, test_every=400, callbacks=[stop],
                       settings=["checkpoint_every=0.0001"], progress=False)  # fmt: skip
    cut = tmp_path / "cut"
    settings = cut / "config.toml"
    settings.write_text(settings.read_text().replace("epochs = 300", "epochs = 3"))
    (first.path / "model" / "model.json").unlink()
    resumed = paceline.resume(cut, data=later, progress=False)
    assert resumed.result["model_sha256"] == whole.result["model_sha256"]


def test_a_model_in_python_names_its_run(tmp_path: Path) -> None:
    first = paceline.train(data=rows(), run=tmp_path / "first", **FLAGS)
    later = paceline.train(data=rows(), start_from=paceline.load(first.path), run=tmp_path / "second", progress=False)
    assert later.result["from"] == str(first.path)


def test_a_batch_may_lack_classes(tmp_path: Path) -> None:
    found, _ = rows()
    labels = np.arange(400) % 3
    first = paceline.train(data=(found, labels), labels="classes", run=tmp_path / "first", **FLAGS)
    some = labels < 2
    later = paceline.train(data=(found[some], labels[some]), start_from=first, run=tmp_path / "second", progress=False)
    assert paceline.load(later.path).predict_proba(later_rows(found)).shape == (400, 3)
    paceline.train(data=(found, labels * 0), start_from=first, run=tmp_path / "third", progress=False)


def later_rows(found: Any) -> Any:
    import scipy.sparse

    return scipy.sparse.csr_matrix(found)


def test_runs_that_start_anew_do_not_load_what_scores_files() -> None:
    """It took a sixth of the time to the first step."""
    code = "import sys, paceline.training.coordinator, paceline.training.embedded.backend; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "paceline.training.embedded.loops" in loaded
    assert not [name for name in loaded if ".data.sources" in name or name == "paceline.training.scorers"]
