"""Names of features: the first text of each key, whatever the timing, kept beside the dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.data.blocks.folders import LocalFolder
from paceline.data.blocks.manifests import seal
from paceline.data.prepare import prepare
from paceline.data.prepare_settings import PrepareConfig
from paceline.data.sparse import name_collector
from paceline.data.sparse import names as names_of
from paceline.data.sparse.dataset import SparseDataset
from paceline.errors import DataError, PacelineWarning
from paceline.kernels.hashing import hash_bytes, mix, salt_of


def key_of(column: str, text: bytes, bits: int) -> int:
    cell = np.frombuffer(text, np.uint8)
    state = np.uint64(hash_bytes(salt_of(column), cell, 0, len(cell)))
    return int(mix(state)) & ((1 << bits) - 1)


def make(folder: Path, text: str, **settings: Any) -> SparseDataset:
    source = folder / "rows"
    source.write_text(text)
    config = PrepareConfig(sources=[str(source)], out=str(folder / "data"), **settings)
    made: SparseDataset = prepare(config, lambda _: None).dataset
    return made


CSV = "label,age,town,device\n1,30,Rome,phone\n0,40,Oslo,pc\n1,50,,phone\n"


def test_keys_are_called_by_column_and_value(tmp_path: Path) -> None:
    data = make(tmp_path, CSV)
    rome = 1 + key_of("town", b"Rome", 22)
    assert data.names.of([0, rome, 1 + key_of("device", b"pc", 22)]) == ["age", "town=Rome", "device=pc"]
    assert data.names.info.rows == 4
    unknown = next(key for key in range(1, 10) if not data.names.has([key])[0])
    assert data.names.of([unknown]) == [str(unknown)]
    assert data.names.count_by_column() == {"town": 2, "device": 2}


def test_crosses_are_called_by_their_values(tmp_path: Path) -> None:
    data = make(tmp_path, CSV, cross=[["town", "device"]])
    assert {"town×device=Rome×phone", "town×device=Oslo×pc"} <= set(data.names.of(data.manifest.hot_keys))
    assert data.names.count_by_column()["town×device"] == 2


def test_a_key_of_several_texts_is_called_by_the_first(tmp_path: Path) -> None:
    text = "label,town\n" + "".join(f"{i % 2},t{i}\n" for i in range(50))
    data = make(tmp_path, text, hash_bits=3)
    first: dict[int, str] = {}
    for i in range(50):
        first.setdefault(key_of("town", f"t{i}".encode(), 3), f"town=t{i}")
    assert data.names.of(sorted(first)) == [first[key] for key in sorted(first)]


@pytest.mark.parametrize("integers", ["log", "bucket"])
def test_criteo_has_names_for_every_key(tmp_path: Path, integers: str) -> None:
    random = np.random.default_rng(1)
    lines = []
    for i in range(300):
        numbers = [str(n) if n < 40 else "" for n in random.integers(-2, 50, 13)]
        lines.append("\t".join([str(i % 2), *numbers, *(f"{n:x}" for n in random.integers(0, 999, 26))]))
    data = make(tmp_path, "\n".join(lines) + "\n", integers=integers)
    keys = data.manifest.hot_keys
    assert data.names.has(keys).all()
    called = set(data.names.of(keys))
    if integers == "log":
        assert {"I1", "I13", "I1="} <= called
    else:
        assert {"I1=", "I1=2", "I1=-2", "I1=b11"} <= called
    column, text = lines[0].split("\t")[14 + 3], 3
    assert f"C{text + 1}={column}" in called


def test_names_do_not_depend_on_which_thread_parses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "label,a\n" + "".join(f"{i % 2},x{i * 7919 % 5000}\n" for i in range(20_000))
    found = []
    for number, chunk in enumerate((1 << 12, 1 << 14, 1 << 22)):
        monkeypatch.setattr("paceline.data.sources.files.CHUNK_BYTES", chunk)
        (tmp_path / str(number)).mkdir()
        found.append(make(tmp_path / str(number), text, hash_bits=10).manifest.names.checksum)
    assert len(set(found)) == 1


def test_names_stop_where_there_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_collector, "MOST_BYTES", 100)
    monkeypatch.setattr("paceline.data.sources.files.CHUNK_BYTES", 1 << 12)
    source = tmp_path / "rows.csv"
    source.write_text("label,a\n" + "".join(f"{i % 2},x{i}\n" for i in range(5000)))
    made = prepare(PrepareConfig(sources=[str(source)], out=str(tmp_path / "data")), lambda _: None)
    assert any("names are kept of the first features only" in note for note in made.notes)
    assert not made.dataset.manifest.names.complete
    assert 0 < made.dataset.manifest.names.rows < 5000
    assert made.dataset.names.of([key_of("a", b"x0", 22)]) == ["a=x0"]


def test_without_names_numeric_columns_keep_theirs(tmp_path: Path) -> None:
    data = make(tmp_path, CSV, names=False)
    assert not (tmp_path / "data" / names_of.FILE).exists()
    rome = 1 + key_of("town", b"Rome", 22)
    assert data.names.of([0, rome]) == ["age", str(rome)]


def test_libsvm_keys_are_called_by_their_index(tmp_path: Path) -> None:
    assert make(tmp_path, "1 1:1 7:2\n0 2:1\n").names.of([0, 6]) == ["1", "7"]


def test_a_removed_file_is_noticed_and_a_damaged_one_refused(tmp_path: Path) -> None:
    make(tmp_path, CSV)
    file = tmp_path / "data" / names_of.FILE
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match="wrong checksum"):
        SparseDataset(tmp_path / "data").names.of([1])
    file.unlink()
    with pytest.warns(PacelineWarning, match=r"names\.arrow.* is missing"):
        assert SparseDataset(tmp_path / "data").names.of([0, 5]) == ["age", "5"]


def test_the_file_of_names_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset may be behind a slow network."""
    data, opened, read = make(tmp_path, CSV), [], LocalFolder.read

    def read_and_note(folder: LocalFolder, file: str) -> Any:
        opened.append(file)
        return read(folder, file)

    monkeypatch.setattr(LocalFolder, "read", read_and_note)
    assert data.names.has(data.manifest.hot_keys).all()
    assert opened == [names_of.FILE]


def test_a_dataset_cannot_name_a_file_of_the_user(tmp_path: Path) -> None:
    """A run copies the names to its model, where they replace what has their name."""
    make(tmp_path, CSV)
    precious, path = tmp_path / "precious", tmp_path / "data" / "manifest.json"
    precious.write_text("precious")
    manifest = json.loads(path.read_text())
    del manifest["checksum"]
    for file in (str(precious), "../../precious", "model.json"):
        manifest["names"]["file"] = file
        path.write_bytes(seal(json.dumps(manifest).encode()))
        with pytest.raises(DataError, match=r"manifest\.json` cannot be read: Invalid enum value"):
            paceline.train(data=tmp_path / "data", run=tmp_path / "run", progress=False)
        assert precious.read_text() == "precious"


def test_a_model_cannot_name_a_file_of_the_user(tmp_path: Path) -> None:
    make(tmp_path, CSV)
    run = paceline.train(data=tmp_path / "data", run=tmp_path / "run", progress=False)
    path = run.path / "model" / "model.json"
    info = json.loads(path.read_text())
    info["names"]["file"] = str(tmp_path / "data" / names_of.FILE)
    path.write_text(json.dumps(info))
    with pytest.raises(DataError, match="cannot be read: Invalid enum value"):
        paceline.load(run.path)
