"""Models over sparse rows that users declare: what is refused before a compiled loop sees it."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from paceline.data.sparse.batch import Batch
from paceline.errors import ConfigError
from paceline.models.model import Parameters, Step, TableView
from paceline.models.registry import OF_DECLARED, ROWS, Entry
from paceline.models.sparse import Columns, DeclaredModel, NumberedRows, SparseModel, build_for, sparse_model
from paceline.parameters.layout import Initial
from paceline.settings import OptimizerConfig, RunConfig


def built(declared: Any, optimizer: str = "adagrad") -> DeclaredModel:
    """The model of a function that returns this, over ten features."""

    @sparse_model(loss="squared", optimizers=("sgd", "adagrad", "ftrl"))
    def build(features: int) -> Any:
        return declared

    entry = Entry("mine:build", ROWS, True, ("squared",), ("adagrad",), "", "", OF_DECLARED, function=build)
    return build_for(entry, RunConfig(data="-", optimizer=OptimizerConfig(name=optimizer)), 10, 1, 1)


def declare(*columns: Columns, score: Any = None, **tensors: Any) -> SparseModel:
    return SparseModel(columns, score, lambda *_: None, tensors)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (None, "returned None, expected a SparseModel"),
        (declare(), "expected a SparseModel with columns"),
        (declare(Columns("weight", 0)), "`dim` is at least 1"),
        (declare(Columns("weight", 1, Initial("gauss", 0.1))), "values begin as zeros, uniform, normal"),
        (declare(Columns("weight", 1, optimizer="adam")), "tables are trained by sgd, adagrad, ftrl"),
        (declare(Columns("weight", 1, learning_rate=0.0)), "rates are positive"),
        (declare(Columns("weight", 1, l2=-1.0)), "`l2` is not negative"),
        (declare(Columns("weight", 1, Initial("normal", 0.1), optimizer="ftrl")), "only columns that begin as zeros"),
    ],
)
def test_a_declaration_that_cannot_be_trained_is_refused(declared: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        built(declared)


@pytest.mark.parametrize(
    "declared", [declare(Columns("w", 1, Initial("normal", 0.1))), declare(Columns("w", 1), mix=np.ones(2))]
)
def test_ftrl_trains_tables_that_begin_as_zeros_alone(declared: SparseModel) -> None:
    built(declared)
    with pytest.raises(ConfigError, match="`optimizer` is `ftrl`"):
        built(declared, "ftrl")


def test_an_optimizer_that_is_not_for_tables_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"tables are trained by sgd, adagrad, ftrl"):
        sparse_model(optimizers=("sgd", "adam"))


@pytest.mark.parametrize("shape", [(5,), (2, 1), ()])
def test_a_score_that_is_not_one_number_per_row_is_refused(shape: tuple[int, ...]) -> None:
    compute = built(declare(Columns("weight", 1), score=lambda *_: np.zeros(shape))).compute()
    rows = Batch(
        np.zeros(2, np.float32), np.array([0, 1, 2]), np.array([3, 4], np.uint32), np.ones(2, np.float32)
    )  # fmt: skip
    step = Step(rows, local=np.array([0, 1], np.uint32), weights=np.zeros(2, np.float32), sums=np.zeros(2, np.float32))
    with pytest.raises(ConfigError, match="for 2 rows"):
        compute.gradient(step)


def test_keys_of_a_dataset_with_more_features_keep_their_values() -> None:
    """Datasets number keys by how often they occur: what the model knows may have any number there."""

    def score(rows: NumberedRows, table: Any, tensors: Any) -> Any:
        return np.bincount(rows.row_of, rows.values * table[rows.numbers, 0], minlength=len(rows.offsets) - 1)

    model = built(declare(Columns("weight", 1), score=score))
    table = model.layout.table
    assert table is not None
    wider = TableView.of_values(np.arange(15, dtype=np.float32), msgspec.structs.replace(table, features=15))
    rows = Batch(
        np.zeros(2, np.float32), np.array([0, 1, 3]), np.array([12, 3, 15], np.uint32), np.ones(3, np.float32)
    )  # fmt: skip
    assert model.scores(Parameters(wider), rows).tolist() == [12, 3], "15 is unknown"
