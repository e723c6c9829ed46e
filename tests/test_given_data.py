"""Rows in memory become a temporary dataset that is gone afterwards."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import paceline
from paceline.config import read_config
from paceline.data.datasets import open_dataset
from paceline.errors import ConfigError, DataError, PacelineError, UsageError
from paceline.given_data import dataset_for, without_rows

X = np.eye(6)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def kind_of(labels: list[float], **flags: Any) -> str:
    config = read_config(None, {"data": "memory", **flags})
    with dataset_for(config, (X[: len(labels)], labels), {}, progress=False) as folder:
        return open_dataset(folder).labels.kind


def test_labels_suit_the_model(temporary: Path) -> None:
    assert kind_of([0, 1, 1]) == "two-classes"
    assert kind_of([0, 1, 2], loss="softmax") == "classes"
    assert kind_of([0, 1, 2], loss="poisson") == "numbers"
    assert list(temporary.iterdir()) == []


def test_nothing_is_left_after_an_error(temporary: Path) -> None:
    with pytest.raises(UsageError, match="classes, or numbers to predict"):
        kind_of([0, 1, 2])
    assert list(temporary.iterdir()) == []


def test_a_dataset_is_taken_as_it_is() -> None:
    config = read_config(None, {"data": "memory"})
    with dataset_for(config, Path("data/clicks"), {}, progress=False) as folder:
        assert folder == "data/clicks"
    with (
        pytest.raises(UsageError, match="`label` is given, but `data` is a dataset"),
        dataset_for(config, "data/clicks", {"label": "y"}, progress=False),
    ):
        pass


def test_a_file_of_raw_rows_is_not_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("y,x\n1,2\n")
    with pytest.raises(UsageError, match=r"rows.csv` is a file, and `label` is for rows in memory"):
        paceline.train(data=tmp_path / "rows.csv", label="y", run=tmp_path / "run")


def test_messages_do_not_name_the_temporary_dataset(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no training row of the data has the class `1`"):
        paceline.train(data=(X, np.zeros(6)), progress=False)
    run = paceline.train(data=(X, [0, 1] * 3), run=tmp_path / "run", progress=False)
    with pytest.raises(PacelineError) as error:
        paceline.evaluate(run, (X, ["no", "yes"] * 3))
    assert "the class `no` is not one of the 2" in error.value.message
    with pytest.raises(PacelineError) as error:
        paceline.evaluate(run, (X, np.arange(6.0) / 2), labels="numbers")
    assert "paceline-" not in error.value.message
    assert "the data" in error.value.message


def test_a_column_may_be_called_by_a_number(tmp_path: Path) -> None:
    frame = pd.DataFrame(np.column_stack([X, [0, 1, 0, 1, 0, 1], np.ones(6)]))
    run = paceline.train(data=frame, label=6, weight=np.int64(7), run=tmp_path / "run", progress=False)
    assert paceline.evaluate(run, frame, label=6, weight=7)["rows"] == 6
    with pytest.raises(UsageError, match="columns of a matrix have no names"):
        paceline.train(data=X, label=5, progress=False)


def test_a_name_where_rows_are_wanted_is_said_to_be_one() -> None:
    with pytest.raises(UsageError, match=r"`rows.csv` is a name, and rows in memory are wanted") as error:
        paceline.train(data=(X, [0, 1] * 3), validation="rows.csv", progress=False)
    assert error.value.hint == "read the file first"


def test_the_same_bins_may_be_an_array_when_training_goes_on(tmp_path: Path) -> None:
    frame = pd.DataFrame({"age": np.arange(40) % 9, "code": np.arange(40) % 7, "y": [0, 1] * 20})
    bins: dict[str, Any] = {"age": np.array([3, 6]), "code": np.int64(3)}
    first = paceline.train(data=frame, label="y", bins=bins, run=tmp_path / "first", progress=False)
    again = paceline.train(data=frame, start_from=first, bins=bins, run=tmp_path / "again", progress=False)
    assert again.result["rows_before"] == first.result["rows"]
    told: dict[str, Any] = {"bins": "age=3", "progress": False}
    first = paceline.train(data=frame, label="y", run=tmp_path / "one", **told)
    again = paceline.train(data=frame, start_from=first, run=tmp_path / "two", **told)
    assert again.result["rows_before"] == first.result["rows"]


def test_batches_of_tables_have_the_label_of_the_first_run(tmp_path: Path) -> None:
    frame = pd.DataFrame({"age": np.arange(40.0) % 9, "y": [0, 1] * 20})
    first = paceline.train(data=frame, label="y", run=tmp_path / "first", progress=False)
    assert paceline.evaluate(first, (frame[at : at + 10] for at in range(0, 40, 10)))["rows"] == 40
    assert paceline.evaluate(first, [(frame[["age"]], frame.y)])["rows"] == 40
    batches = [frame[:30], (frame[30:][["age"]], frame.y[30:])]
    later = paceline.train(data=iter(batches), start_from=first, run=tmp_path / "later", progress=False)
    assert later.result["rows_before"] == first.result["rows"]


def test_rows_are_no_images() -> None:
    config = read_config(None, {"data": "memory", "model": "softmax"})
    with (
        pytest.raises(UsageError, match="`softmax` learns from images"),
        dataset_for(config, (X, [0] * 6), {}, progress=False),
    ):
        pass


def test_a_wrong_option_is_named() -> None:
    config = read_config(None, {"data": "memory"})
    with (
        pytest.raises(ConfigError, match="hash_bits"),
        dataset_for(config, (X, [0] * 6), {"hash_bits": "many"}, progress=False),
    ):
        pass


def test_what_is_said_about_rows_is_told_apart() -> None:
    said = {"label": None, "weight": "w", "epochs": 3, "test_fraction": 0.1}
    assert without_rows(said) == ({"weight": "w", "test_fraction": 0.1}, {"epochs": 3})


def test_rows_for_a_model_are_read_as_those_that_it_was_trained_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"shop": rng.integers(100, 110, 500), "age": rng.integers(18, 90, 500)})
    bought = (frame["shop"] % 2 == 0).astype(int).rename("bought")
    columns: dict[str, Any] = {"categorical": ["shop"], "bins": {"age": 4}}
    run = paceline.train(data=(frame, bought), run=tmp_path / "first", progress=False, **columns)
    # Alone, half of the rows would have other bins.
    older = frame["age"] > 50
    for number, options in enumerate(({}, columns)):
        path = tmp_path / str(number)
        later = paceline.train(
            data=(frame[older], bought[older]), start_from=run, run=path, progress=False, **options
        )  # fmt: skip
        assert later.result["rows_before"] == run.result["rows"]
    with pytest.raises(DataError, match="prepared with bins"):
        paceline.train(data=(frame, bought), start_from=run, run=tmp_path / "other", progress=False, bins={"age": 5})
