"""Scores on a GPU are those of the CPU: with the table of a run, and with that of a trained model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline.errors import ConfigError
from paceline.models.model import Parameters, TableView
from paceline.torch.sparse import scoring
from paceline.torch.sparse.scoring import SparseScorer, open_scorer
from paceline.torch.sparse.training import SparseTraining
from tests.torch.sparse.test_training import FEATURES, ROWS, Data, classes, fm, linear, on_cpu, some_rows

MODELS = [
    pytest.param(linear("ftrl"), "two-classes", id="linear"),
    pytest.param(classes("adagrad"), "classes", id="softmax"),
    pytest.param(fm("ftrl"), "two-classes", id="fm"),
]


def trained_table(model: Any, kind: str) -> tuple[Any, TableView]:
    """Rows, and a table after an update by each of them."""
    rows = some_rows(kind, longest=28)
    store, _ = on_cpu(model, rows, np.arange(ROWS, dtype=np.int32))
    return rows, TableView(store.rules_at(0), store.table, store.layout)


def as_values(model: Any, view: TableView) -> TableView:
    """The same table as a trained model has it."""
    layout = model.layout.table
    training = SparseTraining(model, Data(some_rows()))
    training.table.load(0, view.rows)
    return TableView.of_values(training.table.read(0, layout.num_keys, 0), layout)


def strangers(rows: Any, keys: Any, key: int) -> Any:
    """The same rows with a key that no model knows in the place of the last one."""
    found = rows.keys.astype(keys)
    found[rows.keys == FEATURES - 1] = key
    return rows._replace(keys=found)


@pytest.mark.parametrize(("model", "kind"), MODELS)
def test_scores_are_those_of_the_cpu(model: Any, kind: str) -> None:
    rows, view = trained_table(model, kind)
    training = SparseTraining(model, Data(rows))
    training.table.load(0, view.rows)
    # A key that the model does not know counts nothing.
    for scored in (rows, strangers(rows, np.uint32, FEATURES + 5)):
        expected = model.scores(Parameters(view), scored)
        np.testing.assert_allclose(training.scorer.scores(scored), expected, rtol=1e-4, atol=1e-5)
    none = rows.slice(0, 0)
    assert training.scorer.scores(none).shape == model.scores(Parameters(view), none).shape


@pytest.mark.parametrize(("model", "kind"), MODELS)
def test_a_trained_model_has_values_alone(model: Any, kind: str) -> None:
    rows, view = trained_table(model, kind)
    values = as_values(model, view)
    found = open_scorer(model)(values).scores(rows)
    np.testing.assert_allclose(found, model.scores(Parameters(values), rows), rtol=1e-5, atol=1e-5)
    assert np.ptp(found) > 0.1


@pytest.mark.parametrize(("keys", "key"), [(np.uint32, 3 << 30), (np.uint64, (1 << 40) + 3), (np.uint64, 1 << 63)])
def test_keys_that_the_integers_of_a_gpu_cannot_hold_count_nothing(keys: Any, key: int) -> None:
    model: Any = linear("sgd")
    rows, view = trained_table(model, "two-classes")
    assert (rows.keys == FEATURES - 1).any()
    scorer = open_scorer(model)(view)
    expected = scorer.scores(strangers(rows, np.uint32, FEATURES))
    assert (scorer.scores(strangers(rows, keys, key)) == expected).all()
    assert (scorer.scores(rows) != expected).any()


def test_several_threads_may_score(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = linear("sgd")
    rows, view = trained_table(model, "two-classes")
    scorer = open_scorer(model)(view)
    launching, most = [0], [0]
    launch = SparseScorer._launch

    def noting(*given: Any) -> Any:
        launching[0] += 1
        most[0] = max(most[0], launching[0])
        try:
            return launch(*given)
        finally:
            launching[0] -= 1

    monkeypatch.setattr(SparseScorer, "_launch", noting)
    parts = [rows.slice(at, at + 1) for at in range(ROWS)]
    with ThreadPoolExecutor(4) as threads:
        found = np.concatenate([*threads.map(scorer.scores, parts)])
    assert most == [1]
    np.testing.assert_allclose(found, scorer.scores(rows), rtol=1e-5, atol=1e-6)


def test_a_model_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = fm("sgd")
    _, view = trained_table(model, "two-classes")
    monkeypatch.setattr(scoring, "find_device", lambda: SimpleNamespace(type="cuda"))
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _: (900, 2_000_000_000))
    with pytest.raises(ConfigError, match=r"40 features need 0.0 GB on the GPU, of whose 2.0 GB 0.0 are free") as error:
        open_scorer(model)(view)
    # How the model was trained cannot be changed any more.
    assert error.value.hint == "--device cpu"
