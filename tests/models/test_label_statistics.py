"""What is known about labels before training: weights of classes, and labels that a loss cannot have."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

import paceline
from paceline.data.label_statistics import LabelStatistics, weighted_quantiles
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import SparseDataset, sparse_writer
from paceline.errors import ConfigError
from paceline.models.label_statistics import class_weights, first_labels, labels_like
from paceline.models.losses import best_score, constant_loss, rule_of
from paceline.settings import LossConfig
from tests.conftest import Command


def write(folder: Path, labels: list[float], kind: str, weights: list[float] | None = None) -> SparseDataset:
    dtype = {"classes": np.uint16, "two-classes": np.uint8, "numbers": np.float32}[kind]
    count = len(labels)
    rows = Batch(
        np.array(labels, dtype), np.arange(count + 1), np.zeros(count, np.uint32), np.ones(count, np.float32),
        None if weights is None else np.array(weights, np.float32),
    )  # fmt: skip
    with sparse_writer(folder, features=1, source={}, labels=kind) as writer:  # type: ignore[arg-type]
        writer.add("train", rows)
        return writer.finish()


def test_classes_count_the_same_in_total(tmp_path: Path) -> None:
    dataset = write(tmp_path / "plain", [0, 0, 0, 1, 2, 2], "classes")
    assert class_weights(dataset) == pytest.approx([6 / 9, 6 / 3, 6 / 6])
    weighted = write(tmp_path / "weighted", [0, 1, 1], "two-classes", [3, 0.5, 0.5])
    assert class_weights(weighted) == pytest.approx([4 / 6, 4 / 2])


def test_a_class_without_rows_cannot_be_balanced(tmp_path: Path) -> None:
    dataset = write(tmp_path / "data", [0, 2, 2], "classes")
    with pytest.raises(ConfigError, match="no training row has the class `1`"):
        class_weights(dataset)


def test_labels_and_weights_of_the_first_rows(tmp_path: Path) -> None:
    labels, weights = first_labels(write(tmp_path / "data", [1.5, -2], "numbers", [1, 2]))
    assert labels.tolist() == [1.5, -2]
    assert weights is not None
    assert weights.tolist() == [1, 2]


def test_a_count_below_zero_is_refused_before_anything_starts(tmp_path: Path) -> None:
    write(tmp_path / "data", [3, -1, 2], "numbers")
    with pytest.raises(ConfigError, match="the loss `poisson` needs labels of at least 0; the training rows have -1"):
        paceline.train(data=tmp_path / "data", loss="poisson", run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_class_that_no_training_row_has_is_refused_before_anything_starts(tmp_path: Path) -> None:
    write(tmp_path / "data", [0, 2, 2], "classes")
    with pytest.raises(ConfigError, match=r"no training row of `.*data` has the class `1`"):
        paceline.train(data=tmp_path / "data", run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("model", ["linear", "fm"])
def test_numbers_have_no_classes_to_balance(tmp_path: Path, command: Command, model: str) -> None:
    write(tmp_path / "data", [0.5, 2, 7], "numbers")
    flags = ["--data", tmp_path / "data", "--class-weight", "balanced", "--model", model, "--run", tmp_path / "run"]
    outcome = command("train", *flags)
    assert outcome.code == 2
    assert "`class_weight` is `balanced`, but the labels of the data are numbers" in outcome.err
    assert "hint: leave --class-weight out" in outcome.err
    assert not (tmp_path / "run").exists()


def test_numbers_in_memory_have_no_classes_to_balance(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(50, 3)), rng.normal(size=50)
    with pytest.raises(ConfigError, match="`class_weight` is `balanced`, but the labels of the data are numbers"):
        paceline.train(data=rows, labels="numbers", class_weight="balanced", run=tmp_path / "run", progress=False)


@pytest.mark.parametrize("kind", ["two-classes", "classes"])
def test_a_class_that_weighs_nothing_is_refused_before_anything_starts(
    tmp_path: Path, command: Command, kind: str
) -> None:
    write(tmp_path / "data", [0, 1, 1, 0], kind, [1, 0, 0, 2])
    outcome = command("train", "--data", tmp_path / "data", "--run", tmp_path / "run")
    assert outcome.code == 2
    assert "with the class `1` weigh 0" in outcome.err
    assert "hint: give some of them a weight above 0" in outcome.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("kind", "loss"),
    [("two-classes", "logistic"), ("two-classes", "hinge"), ("classes", "softmax"), ("numbers", "squared"),
     ("numbers", "poisson"), ("numbers", "quantile"), ("numbers", "huber")],
)  # fmt: skip
def test_the_manifest_tells_what_a_constant_prediction_has(tmp_path: Path, kind: str, loss: str) -> None:
    """The same as metrics on the training rows say."""
    rng = np.random.default_rng(1)
    found = {"two-classes": rng.random(500) < 0.2, "classes": rng.integers(0, 3, 500), "numbers": rng.gamma(2, 3, 500)}
    write(tmp_path / "data", [*found[kind]], kind, [*rng.random(500)])
    run = paceline.train(data=tmp_path / "data", loss=loss, run=tmp_path / "run", progress=False)
    told = run.result["train"]
    assert told["loss"] == run.metrics[-1]["train_loss"]
    measured = paceline.evaluate(run, tmp_path / "data", split="train")
    assert told["baseline_loss"] == pytest.approx(measured["baseline_loss"], rel=0.005)


@pytest.mark.parametrize("loss", ["squared", "huber", "quantile"])
@pytest.mark.parametrize("labels", ["counts", "prices", "losses", "rare", "years"])
def test_far_tails_of_labels_hardly_change_what_a_constant_has(labels: str, loss: str) -> None:
    """A few very large labels must not make a model look worse than a constant."""
    rng = np.random.default_rng(2)
    found = {
        "counts": rng.negative_binomial(0.3, 0.05, 5000),
        "prices": rng.lognormal(12, 1.5, 5000),
        "losses": -rng.lognormal(0, 2, 5000),
        "rare": rng.random(5000) < 0.003,
        "years": 2000 + rng.gamma(2, 3, 5000),
    }[labels].astype(np.float32)
    quantiles = weighted_quantiles(found, np.ones(len(found)), np.linspace(0, 1, 101))
    mean, deviation = found.mean(dtype=np.float64), found.std(dtype=np.float64)
    known = LabelStatistics(mean=float(mean), deviation=float(deviation), quantiles=tuple(quantiles.tolist()))
    like, weights = labels_like(known)
    rule = rule_of(LossConfig(name=loss, quantile=0.9, delta=float(deviation) / 2))
    assert weights.sum() == pytest.approx(1)
    assert weights.min() >= 0
    told = constant_loss(rule, best_score(rule, like, weights), like.astype(np.float32), weights.astype(np.float32))
    assert told == pytest.approx(constant_loss(rule, best_score(rule, found), found), rel=0.01)


@pytest.mark.parametrize("labels", [[3.0], [1.0, 5.0], [0.0] * 99 + [1.0], [-2.0, -2.0, -2.0, 7.0]])
def test_few_labels_keep_their_mean_and_deviation(labels: list[float]) -> None:
    found = np.array(labels)
    quantiles = weighted_quantiles(found, np.ones(len(found)), np.linspace(0, 1, 101))
    known = LabelStatistics(mean=float(found.mean()), deviation=float(found.std()), quantiles=tuple(quantiles.tolist()))
    like, weights = labels_like(known)
    assert weights @ like == pytest.approx(found.mean())
    assert weights @ (like - found.mean()) ** 2 == pytest.approx(found.var())


def test_class_weights_count_in_the_constant_of_training(tmp_path: Path) -> None:
    write(tmp_path / "data", [0.0] * 90 + [1.0] * 10, "two-classes")
    run = paceline.train(data=tmp_path / "data", class_weight="balanced", run=tmp_path / "run", progress=False)
    assert run.result["train"]["baseline_loss"] == pytest.approx(np.log(2))


def test_datasets_without_statistics_are_read(tmp_path: Path) -> None:
    dataset = write(tmp_path / "plain", [0, 0, 0, 1, 2, 2], "classes")
    dataset.manifest = msgspec.structs.replace(dataset.manifest, label_statistics=None)
    assert class_weights(dataset) == pytest.approx([6 / 9, 6 / 3, 6 / 6])
