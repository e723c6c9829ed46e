"""The operations of any model's step are those of the step: together they change parameters as a run does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.data.prepare import prepare
from paceline.data.prepare_settings import PrepareConfig
from paceline.data.sparse.dataset import SparseDataset
from paceline.data.synthetic import generate_clicks
from paceline.diagnosis.operations import READ, time_operations
from paceline.models.factorization import build_for
from paceline.models.step_operations import StepParts
from paceline.parameters.keyed import KeyedStore
from paceline.settings import FactorsConfig, RunConfig

KEYED = ["number keys", "gather", "gradient", "apply"]


@pytest.fixture(scope="module")
def with_fields(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fields") / "data"
    generate_clicks(folder, rows=300, test_rows=10, features=1000, seed=0, fields=True, progress=lambda _: None)
    return folder


def names_of(data: Path, folder: Path, **flags: Any) -> list[str]:
    run = paceline.train(data=data, run=folder / "run", workers=1, **flags)
    found = time_operations(run, batches=2)
    assert all(one["nanoseconds_per_row"] > 0 for one in found)
    return [one["name"] for one in found]


@pytest.mark.parametrize(("model", "more"), [("fm", []), ("ffm", []), ("fwfm", ["apply dense"])])
def test_factorization_machines_have_operations(with_fields: Path, tmp_path: Path, model: str, more: list[str]) -> None:
    assert names_of(with_fields, tmp_path, model=model, dim=2) == [*READ, *KEYED, *more]


def test_softmax_on_images_has_operations(drawings: Path, tmp_path: Path) -> None:
    assert names_of(drawings, tmp_path, model="softmax") == [*READ, "gradient", "apply dense"]


def test_the_softmax_loss_has_operations(tmp_path: Path) -> None:
    """Also if nobody named the loss: then the labels decide."""
    rows = "\n".join(f"{i % 3 / 2},{i % 7 / 6},{'abc'[i % 3]}" for i in range(120))
    (tmp_path / "rows.csv").write_text(f"one,two,label\n{rows}\n")
    source, out = str(tmp_path / "rows.csv"), str(tmp_path / "data")
    prepare(PrepareConfig(sources=[source], out=out, labels="classes"), lambda _: None)
    assert names_of(tmp_path / "data", tmp_path) == [*READ, *KEYED]


def test_the_parts_update_the_keys_of_the_batch(with_fields: Path) -> None:
    dataset = SparseDataset(with_fields)
    batch = dataset.block("train", 0)
    model = build_for(RunConfig(factors=FactorsConfig(dim=2)), dataset.features, ())
    parts = StepParts(model, batch.num_rows)
    assert list(parts.step(batch)) == KEYED == list(parts.what)
    assert model.layout.table is not None
    assert parts._table is not None
    before, after = KeyedStore(model.layout.table).states, parts._table.store.states
    changed = np.flatnonzero((before != after).any(axis=1))
    np.testing.assert_array_equal(changed, np.append(np.unique(batch.keys), dataset.features))
