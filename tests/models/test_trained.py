"""A model speaks in the input's keys, whatever order the blocks keep them in."""

from __future__ import annotations

import json
import os
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import scipy.sparse
from safetensors.numpy import load_file, save_file

import paceline
from paceline.data.images.blocks import Images
from paceline.data.images.dataset import image_writer
from paceline.data.limits import LabelKind
from paceline.data.sparse.dataset import SparseDataset, sparse_writer
from paceline.errors import ConfigError, DataError, UsageError
from paceline.models import trained
from paceline.predictions import evaluate_model, write_predictions
from tests.conftest import all_rows
from tests.exports.models import FIELDS, train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, clicks: Path) -> paceline.Run:
    return paceline.train(
        data=clicks,
        run=tmp_path_factory.mktemp("runs") / "run",
        pace="async",
        batch_size=1,
        epochs=2,
        learning_rate=0.1,
    )


def test_weights_are_by_input_key(run: paceline.Run, clicks: Path) -> None:
    """Score the test rows with the saved weights in plain NumPy: the run's own test loss comes out."""
    tensors = load_file(run.path / "model" / "model.safetensors")
    rows = all_rows(SparseDataset(clicks), "test")
    z = np.add.reduceat(tensors["weight"].astype(np.float64)[rows.keys] * rows.values, rows.offsets[:-1])
    z += tensors["bias"][0]
    loss = np.logaddexp(0, -(2.0 * rows.labels - 1) * z).mean()
    assert loss == pytest.approx(run.result["test"]["loss"], rel=1e-5)
    assert json.loads((run.path / "model" / "model.json").read_text())["sha256"] == run.result["model_sha256"]


def test_predict_proba_takes_batches_and_csr(run: paceline.Run, clicks: Path) -> None:
    model, rows = paceline.load(run.path), all_rows(SparseDataset(clicks), "test")
    by_batch = model.predict_proba(rows)
    matrix = scipy.sparse.csr_matrix((rows.values, rows.keys.astype(np.int32), rows.offsets), shape=(2_000, 5_000))
    assert np.array_equal(model.predict_proba(matrix), by_batch)
    assert by_batch.shape == (2_000, 2)
    assert (model.predict(rows) != rows.labels).mean() == pytest.approx(run.result["test"]["error"])
    assert ((by_batch[:, 1] > 0.5) != rows.labels).mean() == pytest.approx(run.result["test"]["error"])
    with pytest.raises(UsageError, match="the data is a list of list"):
        model.predict_proba([[1, 2]])
    with pytest.raises(UsageError, match=r"the matrix has the shape \(50,\)"):
        model.predict_proba(scipy.sparse.coo_array(np.ones(50)))


def test_no_rows_have_no_predictions(run: paceline.Run) -> None:
    """Services get empty batches, too."""
    model, none = paceline.load(run.path), scipy.sparse.csr_matrix((0, 5_000))
    for rows in (none, none.toarray(), paceline.Batch.from_lists([], [], [])):
        assert model.predict_proba(rows).shape == (0, 2)
        assert model.predict(rows).shape == model.decision_function(rows).shape == (0,)
    assert model.decision_function([none, scipy.sparse.eye(3, 5_000, format="csr")]).shape == (3,)


def test_large_matrices_are_scored_in_pieces(run: paceline.Run, clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = paceline.load(run.path), all_rows(SparseDataset(clicks), "test")
    expected = model.decision_function(rows)
    monkeypatch.setattr("paceline.data.memory.matrices.CHUNK_NONZEROS", 1_000)
    assert np.array_equal(model.decision_function(rows), expected)


@pytest.mark.parametrize(
    ("part", "at", "wrong", "words"),
    [
        ("indptr", -1, 100_000, "`indptr` does not fit 3 rows and 4 nonzeros"),
        ("indptr", 0, 1, "offsets do not rise from 0"),
        ("indptr", 1, -5, "offsets do not rise from 0"),
        ("indices", 0, -1, "column numbers from -1"),
        ("indices", 0, 1 << 30, "in a matrix of 5000 columns"),
        ("data", 0, np.nan, "`nan` is not a finite value"),
        ("data", 0, np.inf, "`inf` is not a finite value"),
    ],
)
def test_predict_proba_refuses_a_broken_matrix(run: paceline.Run, part: str, at: int, wrong: float, words: str) -> None:
    """SciPy does not look at what is inside of a matrix, and compiled loops would read anywhere."""
    matrix = scipy.sparse.csr_matrix(([1.0, 2, 3, 4], [1, 2, 3, 4], [0, 1, 3, 4]), shape=(3, 5_000))
    getattr(matrix, part)[at] = wrong
    with pytest.raises(UsageError, match=words):
        paceline.load(run.path).predict_proba(matrix)


def test_predict_proba_refuses_a_broken_batch(run: paceline.Run) -> None:
    model, rows = paceline.load(run.path), paceline.Batch.from_lists([1, 0], [[3, 5], [7]], [[1.0, 0.5], [2.0]])
    for broken, words in (
        (rows._replace(offsets=np.array([0, 900_000, 3])), "offsets do not rise"),
        (rows._replace(offsets=np.array([0, 3])), "`offsets` does not fit 2 rows and 3 nonzeros"),
        (rows._replace(keys=np.array([-3, 5, 7])), "the key -3"),
        (rows._replace(values=np.ones(2, np.float32)), r"\(3,\) keys and \(2,\) values"),
        (rows._replace(fields=np.zeros(2, np.uint16)), r"\(2,\) fields of uint16 and \(3,\) keys"),
    ):
        with pytest.raises(UsageError, match=words):
            model.predict_proba(broken)


def test_evaluate_agrees_with_the_run(run: paceline.Run, clicks: Path) -> None:
    rows, quality = evaluate_model(run.path, clicks, None)
    assert rows == 2_000
    assert quality == pytest.approx(run.result["test"], rel=1e-6)
    assert evaluate_model(run.path, clicks, "train")[0] == 6_000


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_predictions_by_suffix(run: paceline.Run, clicks: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"scores{suffix}"
    assert write_predictions(run.path, clicks, out, None).rows == 2_000
    table = pyarrow.parquet.read_table(out) if suffix == ".parquet" else pyarrow.csv.read_csv(out)
    rows = all_rows(SparseDataset(clicks), "test")
    assert table.column_names == ["row", "label", "probability"]
    assert table["row"].to_pylist() == list(range(2_000))
    assert table["label"].to_pylist() == rows.labels.tolist()
    assert np.allclose(table["probability"], paceline.load(run.path).predict_proba(rows)[:, 1], rtol=1e-6)
    with pytest.raises(UsageError, match="exists already"):
        write_predictions(run.path, clicks, out, None)


def test_predictions_need_a_known_suffix(run: paceline.Run, clicks: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"suffix `\.json`"):
        write_predictions(run.path, clicks, tmp_path / "scores.json", None)
    assert not list(tmp_path.iterdir())


def test_data_hashed_otherwise_is_refused(run: paceline.Run, clicks: Path, tmp_path: Path) -> None:
    model = json.loads((run.path / "model" / "model.json").read_text())
    path = run.path / "model" / "model.json"
    path.write_text(json.dumps(model | {"source": {"hash_bits": 20}}))
    with sparse_writer(tmp_path / "other", features=100, source={"hash_bits": 18}) as writer:
        writer.add("train", paceline.Batch.from_lists([1], [[3]], [[1.0]]))
        writer.finish()
    try:
        with pytest.raises(DataError, match="hash_bits 20"):
            evaluate_model(run.path, tmp_path / "other", None)
    finally:
        path.write_text(json.dumps(model))


def test_a_dataset_with_more_features_than_the_model(run: paceline.Run, tmp_path: Path) -> None:
    """Keys that the model has not seen count nothing."""
    with sparse_writer(tmp_path / "more", features=9_000, source={}) as writer:
        writer.add("train", paceline.Batch.from_lists([1, 0], [[8_999, 14], [14]], [[50.0, 1.0], [1.0]]))
        writer.finish()
    write_predictions(run.path, tmp_path / "more", tmp_path / "out.csv", None)
    p = pyarrow.csv.read_csv(tmp_path / "out.csv")["probability"].to_pylist()
    assert p[0] == p[1]


@pytest.mark.parametrize("features", [1 << 45, (1 << 62) - 1])
def test_a_dataset_with_more_features_than_memory_is_refused(run: paceline.Run, tmp_path: Path, features: int) -> None:
    with sparse_writer(tmp_path / "many", features=features, source={}) as writer:
        writer.add("train", paceline.Batch.from_lists([1, 0], [[14], [15]], [[1.0], [1.0]]))
        writer.finish()
    with pytest.raises(ConfigError, match=f"a model of {features:,} features needs .* GB are free"):
        evaluate_model(run.path, tmp_path / "many", None)


def test_a_wider_dataset_takes_the_memory_of_one_table(run: paceline.Run, tmp_path: Path) -> None:
    with sparse_writer(tmp_path / "wide", features=50_000_000, source={}) as writer:
        writer.add("train", paceline.Batch.from_lists([1, 0], [[14], [15]], [[1.0], [1.0]]))
        writer.finish()
    tracemalloc.start()
    evaluate_model(run.path, tmp_path / "wide", None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.5 * 4 * 50_000_000


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("model/model.safetensors", b'"F32"', b'"I32"', "is int32, expected float32"),
        ("model/model.json", b'"logistic"', b'"logist\xffc"', "cannot be read"),
        ("metrics.jsonl", b'"rows"', b'"ro\xffs"', "is broken"),
    ],
)
def test_other_headers_and_bytes_that_are_not_text_are_refused(
    run: paceline.Run, tmp_path: Path, file: str, old: bytes, new: bytes, words: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    content = (copy / file).read_bytes()
    assert old in content
    (copy / file).write_bytes(content.replace(old, new))
    with pytest.raises(DataError, match=words):
        _ = paceline.Run(copy).metrics, paceline.load(copy)


@pytest.mark.parametrize(
    ("result", "hint"),
    [
        (None, "was removed or damaged after the training"),
        (b'{"status": "failed", "model": "logistic"}', "it failed before it was trained"),
        (b'{"status": "done", "trace": 1.5}', "give a folder that `paceline train` made"),
        (b"", "this run did not finish, and left no checkpoint"),
    ],
)
def test_a_missing_model_is_explained(run: paceline.Run, tmp_path: Path, result: bytes | None, hint: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    shutil.rmtree(copy / "model")
    shutil.rmtree(copy / "checkpoints", ignore_errors=True)
    if result is not None:
        (copy / "result.json").write_bytes(result)
    with pytest.raises(UsageError, match="holds no trained model") as caught:
        paceline.load(copy)
    assert hint in caught.value.hint


def test_a_folder_that_is_not_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a run folder: it has no config\.toml"):
        paceline.load(tmp_path)


def test_other_columns_are_named(run: paceline.Run, tmp_path: Path) -> None:
    path = run.path / "model" / "model.json"
    model = json.loads(path.read_text())
    path.write_text(json.dumps(model | {"source": {"columns": {"age": "number", "town": "text"}}}))
    with sparse_writer(tmp_path / "other", features=100, source={"columns": {"a": "text"}}) as writer:
        writer.add("train", paceline.Batch.from_lists([1], [[3]], [[1.0]]))
        writer.finish()
    try:
        with pytest.raises(
            DataError, match=r"`.*other` has other columns than .* trained on: age is missing, town is m"
        ):
            evaluate_model(run.path, tmp_path / "other", None)
    finally:
        path.write_text(json.dumps(model))


def test_data_of_another_kind_is_refused_first(run: paceline.Run, drawings: Path) -> None:
    """Labels that do not fit either are not what the user wants to know."""
    with pytest.raises(DataError, match=r"the model is for rows of features; .* has images"):
        evaluate_model(run.path, drawings, None)


def test_a_damaged_model_is_refused(run: paceline.Run, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "copy")
    path = tmp_path / "copy" / "model" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-500] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"the model in `.*copy/model` has a wrong checksum"):
        paceline.load(tmp_path / "copy")


@pytest.mark.parametrize(
    ("model", "shape", "classes", "words"),
    [
        ("alexnet", [224, 224, 3], 500_000, "classes"),
        ("alexnet", [224, 224, 3], 60_000, r"tensor `\S+` is missing, expected"),
        ("softmax", [4_000, 4_000, 3], 60_000, "tensor `weight` is missing, expected"),
        ("softmax", [1 << 40, 1 << 40, 3], 10, "they must have 1 byte to 64 MiB"),
        ("softmax", [-1, -5, 3], 10, "they must have 1 byte to 64 MiB"),
    ],
)
def test_a_model_larger_than_its_file_is_refused_before_it_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, shape: list[int], classes: int, words: str
) -> None:
    monkeypatch.setattr(trained, "ImageClassifier", None)  # building it would fill the memory
    (tmp_path / "model").mkdir()
    save_file({"bias": np.zeros(10, np.float32)}, tmp_path / "model" / "model.safetensors")
    info = {"model": model, "sha256": "", "source": {}, "shape": shape, "classes": classes, "class_names": []}
    (tmp_path / "model" / "model.json").write_text(json.dumps(info | {"images": {}}))
    with pytest.raises(DataError, match=words):
        paceline.load(tmp_path)


def test_a_pipe_in_the_place_of_the_tensors_is_not_waited_for(run: paceline.Run, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "copy")
    path = tmp_path / "copy" / "model" / "model.safetensors"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match="not a regular file"):
        paceline.load(tmp_path / "copy")


@pytest.mark.parametrize("model", ["ffm", "fwfm"])
def test_scaled_keys_in_fields_that_the_model_does_not_have_are_refused(tmp_path: Path, model: str) -> None:
    """Compiled loops would read and write beyond their memory."""
    run = train(tmp_path, fields=True, model=model)
    path = run.path / "model" / "model.json"
    info = json.loads(path.read_text())
    info["scaling"]["fields"] = [FIELDS for _ in info["scaling"]["fields"]]
    path.write_text(json.dumps(info))
    with pytest.raises(DataError, match=f"scaled keys that are not in its {FIELDS} fields"):
        paceline.load(run.path)
    with pytest.raises(DataError, match=f"the scaled keys are not in the {FIELDS} fields"):
        paceline.train(data=tmp_path / "data", start_from=run, run=tmp_path / "later", progress=False)


@pytest.mark.parametrize(
    "source",
    [
        {"format": ["csv"]},
        {"format": {}},
        {"columns": ["age"]},
        {"class_names": [1, 2]},
        {"class_names": ["only"]},
        {"hash_bits": -1},
    ],
)
def test_what_cannot_be_a_source_is_refused(run: paceline.Run, tmp_path: Path, source: dict[str, Any]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    path = copy / "model" / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"source": source}))
    with pytest.raises(DataError, match=r"the model in `.*copy/model` "):
        paceline.load(copy)


def write_labels(folder: Path, labels: list[str], kind: LabelKind = "two-classes") -> Path:
    """A dataset with a number per row that tells the label."""
    table = "label,x\n" + "".join(f"{label},{labels.index(label)}\n" for label in labels)
    folder.with_suffix(".csv").write_text(table)
    paceline.prepare(folder.with_suffix(".csv"), folder, labels=kind, progress=False)
    return folder


def test_classes_with_names_are_not_those_of_a_model_that_knows_numbers(tmp_path: Path) -> None:
    """Numbered in the order of their names, they would be evaluated against the wrong ones."""
    kinds: dict[LabelKind, list[str]] = {"two-classes": ["0", "1"], "classes": ["0", "1", "2"]}
    for kind, labels in kinds.items():
        run = paceline.train(
            data=write_labels(tmp_path / kind, labels * 9, kind), run=tmp_path / f"{kind}-run", progress=False
        )
        named = write_labels(tmp_path / f"{kind}-named", ["yes", "no", "maybe"][: len(labels)], kind)
        with pytest.raises(DataError, match=r"the class `.*` is not one of the . that the model knows"):
            evaluate_model(run.path, named, None)


def test_classes_of_images_may_have_names(tmp_path: Path) -> None:
    for folder, names in (("pictures", ["cat", "dog", "owl"]), ("others", ["dog", "owl"])):
        pixels = np.arange(12, dtype=np.uint8).reshape(6, 2) * 20
        labels = np.arange(6, dtype=np.uint16) % len(names)
        with image_writer(tmp_path / folder, shape=(2, 1, 1), class_names=names, source={}) as writer:
            writer.add("train", Images(pixels, labels))
            writer.finish()
    run = paceline.train(data=tmp_path / "pictures", model="softmax", run=tmp_path / "run", progress=False)
    rows, quality = evaluate_model(run.path, tmp_path / "pictures", "train")
    assert (rows, quality["accuracy"]) == (6, pytest.approx(1 - quality["error"]))
    assert evaluate_model(run.path, tmp_path / "others", "train")[0] == 6


def test_data_with_two_of_several_classes_is_evaluated(tmp_path: Path) -> None:
    data = write_labels(tmp_path / "all", ["a", "b", "c"] * 50, "classes")
    run = paceline.train(data=data, run=tmp_path / "run", progress=False)
    rows, quality = evaluate_model(run.path, write_labels(tmp_path / "some", ["a", "b"]), None)
    assert rows == 2
    labels = {"a": 0, "b": 1}
    probabilities = paceline.load(run.path).predict_proba(np.array([[0.0], [1.0]]))
    assert quality["loss"] == pytest.approx(-np.log([probabilities[i, labels[n]] for i, n in enumerate("ab")]).mean())


def test_numbers_are_not_the_classes_of_a_model(tmp_path: Path) -> None:
    data = write_labels(tmp_path / "named", ["no", "yes"] * 9)
    run = paceline.train(data=data, loss="squared", run=tmp_path / "run", progress=False)
    with pytest.raises(DataError, match="labels of kind `numbers` with 2 names"):
        evaluate_model(run.path, write_labels(tmp_path / "numbers", ["0.5", "2"], "numbers"), None)
