"""What factorization machines refuse, before anything starts, and what their layouts have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.config import config_of
from paceline.data.sparse.batch import Batch
from paceline.errors import ConfigError, DataError, UsageError
from paceline.models.factorization import build_field_aware_for, build_for
from paceline.models.field_weighted import build_for as build_field_weighted_for
from tests.conftest import Command


@pytest.mark.parametrize(
    ("tree", "message", "hint"),
    [
        ({"factors": {"dim": 0}}, "`dim` is 0; it must be from 1 to 64", "--dim 8 is usual"),
        ({"factors": {"dim": 65}}, "`dim` is 65; it must be from 1 to 64", "--dim 8 is usual"),
        ({"factors": {"optimizer": "adagard"}}, "must be one of adagrad, sgd", "did you mean `adagrad`?"),
        ({"factors": {"learning_rate": 0}}, "`factors.learning_rate` is 0; it must be above 0", "0.02"),
        ({"factors": {"initial": 0}}, "`factors.initial` is 0; it must be above 0", "0.01"),
        ({"factors": {"l2": -1}}, "`factors.l2` is -1; it must be at least 0", "--set factors.l2=0"),
        ({"factors": {"dims": 4}}, "unknown setting `factors.dims`", "did you mean `factors.dim`?"),
        ({"optimizer": {"row_wise": 1.0}}, "unknown setting `optimizer.row_wise`", "known are name"),
        ({"model": "logistic", "factors": {"dim": 4}}, "`factors.dim` is set, but the model `logistic` has no factors",
         "--model fm"),
        ({"model": "fwfm", "optimizer": {"name": "adam"}}, "`adam`, which cannot train the model `fwfm`", "adagrad"),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused(tree: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of({"data": "clicks", "model": "fm"} | tree, {})
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize("model", ["ffm", "fwfm"])
def test_models_that_need_fields_say_so(tmp_path: Path, clicks: Path, command: Command, model: str) -> None:
    done = command("train", "--data", clicks, "--model", model, "--run", tmp_path / "run")
    assert done.code == 2
    assert "needs the field of each nonzero" in done.err
    assert "--fields" in done.err
    assert not (tmp_path / "run").exists()


def test_more_factors_than_a_key_can_have_are_refused() -> None:
    config = config_of({"data": "clicks", "model": "ffm", "factors": {"dim": 64}}, {})
    with pytest.raises(ConfigError, match=r"65 fields with 64 factors each are 4,160 per key; the limit is 4,096"):
        build_field_aware_for(config, 10, tuple(map(str, range(65))))


@pytest.mark.parametrize(
    ("factors", "numbers"),
    [({"row_wise": True}, 1 + 1), ({"row_wise": False}, 1 + 8), ({"optimizer": "sgd", "row_wise": True}, 1)],
)
def test_what_an_optimizer_remembers_of_a_key(factors: dict[str, Any], numbers: int) -> None:
    config = config_of({"data": "clicks", "model": "fm", "factors": {"dim": 8} | factors}, {})
    table = build_for(config, 100, ()).layout.table
    assert table is not None
    assert (table.dim, table.width) == (9, 9 + numbers)


@pytest.mark.parametrize(
    ("optimizer", "name", "penalty"), [("sgd", "sgd", 0.5), ("adagrad", "adagrad", 0.5), ("ftrl", "adagrad", 0.0)]
)
def test_what_trains_the_weights_of_pairs(optimizer: str, name: str, penalty: float) -> None:
    """FTRL cannot, because it trains only tables, and its penalties mean something else."""
    tree = {"data": "clicks", "model": "fwfm", "optimizer": {"name": optimizer, "l1": 0.5, "l2": 0.5}}
    layout = build_field_weighted_for(config_of(tree, {}), 10, tuple("ab")).layout
    assert layout.table is not None
    assert layout.dense is not None
    assert layout.table.groups[0].optimizer.name == optimizer
    dense = layout.dense.optimizer
    assert (dense.name, dense.learning_rate, dense.l1, dense.l2) == (name, 0.05, penalty, penalty)


def test_predictions_need_the_fields_that_the_model_knows(tmp_path: Path) -> None:
    from paceline.data.sparse.dataset import sparse_writer
    from tests.data.inputs import with_weights_and_fields

    rows = with_weights_and_fields(50)
    for name, fields in (("data", "abcde"), ("other", "abcdf")):
        with sparse_writer(tmp_path / name, features=300, source={}, fields=tuple(fields)) as writer:
            for split in ("train", "test"):
                writer.add(split, rows._replace(keys=rows.keys.copy()))
            writer.finish()
    run = paceline.train(data=tmp_path / "data", model="ffm", dim=3, workers=1, run=tmp_path / "run")
    model = paceline.load(run.path)
    assert model.predict_proba(rows).shape == (50, 2)
    assert model.predict_proba(Batch.from_lists([], [], [])).shape == (0, 2)
    with pytest.raises(UsageError, match="the model needs the field of each nonzero"):
        model.predict_proba(rows._replace(fields=None))
    with pytest.raises(UsageError, match="fields up to 5; the model has 5"):
        model.predict_proba(Batch.from_lists([0], [[1, 2]], [[1.0, 1.0]])._replace(fields=np.array([0, 5], np.uint16)))
    from paceline.data.sparse.dataset import SparseDataset

    with pytest.raises(DataError, match="the model has 5 fields, a, b, c, …"):
        model.parameters_for(SparseDataset(tmp_path / "other"))


def test_values_of_a_key_that_a_row_has_twice_are_added(tmp_path: Path) -> None:
    """As in training: otherwise the key would make a pair with itself."""
    chance = np.random.default_rng(2)
    matrix = (chance.random((300, 6)) < 0.5).astype(np.float32)
    run = paceline.train(data=(matrix, matrix[:, 0] != matrix[:, 1]), model="fm", epochs=20, workers=1,
                         run=tmp_path / "run", progress=False)  # fmt: skip
    model = paceline.load(run.path)
    once, twice = Batch.from_lists([0], [[0, 3]], [[1.0, 1.0]]), Batch.from_lists([0], [[0, 3, 0]], [[0.5, 1.0, 0.5]])
    assert model.decision_function(twice) == pytest.approx(model.decision_function(once), abs=1e-6)
