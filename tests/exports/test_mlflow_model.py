"""What MLflow loads from an exported folder."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import paceline
from paceline.errors import UsageError
from tests.exports.models import FEATURES, make_rows, train

NORMALISED = "tests.exports.modules:normalised"


def loaded(path: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mlflow.pyfunc

        return mlflow.pyfunc.load_model(str(path))


def test_a_model_of_rows_takes_sparse_matrices(tmp_path: Path) -> None:
    run = train(tmp_path, "classes")
    out = paceline.export(run, to="mlflow", out=tmp_path / "model")
    rows = make_rows(seed=8)
    matrix = scipy.sparse.csr_matrix((rows.values, rows.keys, rows.offsets), shape=(rows.num_rows, FEATURES))
    model = paceline.load(run.path)
    # The folder is enough: the run may be gone.
    run.path.rename(tmp_path / "elsewhere")
    np.testing.assert_array_equal(loaded(out).predict(matrix), model.predict_proba(matrix))
    assert not [path for path in out.rglob("*") if path.suffix == ".pkl"]
    assert (out / "requirements.txt").read_text().endswith(f"\npaceline=={paceline.__version__}")


def test_a_model_of_a_table_takes_frames(tmp_path: Path) -> None:
    frame = pd.DataFrame({"label": [0, 1] * 100, "town": ["Oslo", "Rome"] * 100, "age": range(200)})
    run = paceline.train(data=frame, label="label", categorical=["town"], run=tmp_path / "run", progress=False)
    out = paceline.export(run, to="mlflow", out=tmp_path / "model")
    expected = paceline.load(run.path).predict_proba(frame)
    assert expected[1, 1] > 0.5 > expected[0, 1]
    np.testing.assert_array_equal(loaded(out).predict(frame.drop(columns="label")), expected)


def test_a_module_of_ones_own_takes_images(tmp_path: Path, drawings: Path) -> None:
    run = paceline.train(data=drawings, model=NORMALISED, train_rows=100, run=tmp_path / "run", progress=False)
    with pytest.raises(UsageError, match="would be imported and run"):
        paceline.export(run, to="mlflow", out=tmp_path / "model")
    out = paceline.export(run, to="mlflow", out=tmp_path / "model", model=NORMALISED)
    images = np.zeros((3, 12, 12, 1), np.uint8)
    expected = paceline.load(run.path, allow_code=True).predict_proba(images)
    np.testing.assert_array_equal(loaded(out).predict(images), expected)
    assert (out / "requirements.txt").read_text().endswith(f"\npaceline[torch]=={paceline.__version__}")


def test_nothing_but_the_model_is_exported(tmp_path: Path) -> None:
    """Someone may have put links to other files of the user into the folder of a run."""
    run = train(tmp_path)
    (tmp_path / "secret").write_text("of the user")
    folder = run.path / "model"
    (folder / "more.json").symlink_to(tmp_path / "secret")
    (folder / "counts.arrow").unlink()
    (folder / "counts.arrow").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "pipe")
    out = paceline.export(run, to="mlflow", out=tmp_path / "model")
    exported = out / "data" / "model"
    assert sorted(path.name for path in exported.iterdir()) == ["model.json", "model.safetensors"]
    assert not [path for path in out.rglob("*") if path.is_symlink()]
    rows = make_rows(seed=8)
    matrix = scipy.sparse.csr_matrix((rows.values, rows.keys, rows.offsets), shape=(rows.num_rows, FEATURES))
    np.testing.assert_array_equal(loaded(out).predict(matrix), paceline.load(run.path).predict_proba(matrix))
