"""Weights in a file of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.data.sources import files
from paceline.data.sparse.dataset import SparseDataset
from paceline.errors import ConfigError, DataError
from tests.data.inputs import criteo_row, record, run, sparse_example, write


def weights_of(dataset: SparseDataset, split: Any = "train") -> list[float]:
    weights = dataset.block(split, 0).weights
    assert weights is not None
    return list(weights)


def test_each_row_has_the_weight_of_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHUNK_BYTES", 30)
    rows = "".join("rubbish\n" if i % 5 == 3 else f"{i % 2} {i + 1}:1\n# {i}\n" for i in range(40))
    path = write(tmp_path / "a", f"1 1:1\n{rows}")
    weights = write(tmp_path / "w", "# weights\n" + "".join(f"{i / 4}\n\n" for i in range(41)))
    made = run(tmp_path, path, weights=[weights], skip_bad_rows=8)
    assert weights_of(made.dataset) == [i / 4 for i in range(41) if i % 5 != 4]
    assert made.dataset.manifest.source["weights"] == [str(weights)]


def test_files_of_weights_belong_to_files_of_rows(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, "1 1:1\n0 2:1\n") for name in "abc"]
    weights = [write(tmp_path / f"{name}.weights", f"{i}\n{i + 0.5}\n") for i, name in enumerate("abc", 1)]
    settings: dict[str, Any] = {"validation": paths[1:2], "test": paths[2:]}
    all_of_them = run(tmp_path, paths[0], weights=weights, **settings).dataset
    splits = ("train", "validation", "test")
    assert [weights_of(all_of_them, split) for split in splits] == [[1, 1.5], [2, 2.5], [3, 3.5]]
    training = run(tmp_path, paths[0], weights=weights[2:], **settings).dataset
    assert [weights_of(training, split) for split in splits] == [[3, 3.5], [1, 1], [1, 1]]
    with pytest.raises(ConfigError, match="2 files of weights for 1 training file"):
        run(tmp_path, paths[0], weights=weights[:2], **settings)


@pytest.mark.parametrize("case", ["criteo", "tfrecord"])
def test_every_format_without_a_weight_of_its_own_takes_them(tmp_path: Path, case: str) -> None:
    content = {"criteo": criteo_row("1").encode() * 2, "tfrecord": record(sparse_example(1, [1], [1.0])) * 2}[case]
    made = run(tmp_path, write(tmp_path / "a", content), weights=[write(tmp_path / "w", "2\n3\n")])
    assert weights_of(made.dataset) == [2, 3]


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ("1\n", "w` has 1 weight, but `.*a` has more rows"),
        ("1\n2\n3\n", r"w` has more weights than `.*a` has rows \(2\)"),
        ("1\n\n-2\n", "w`, row 3: `-2` is not a weight"),
        ("1\nnan\n", "w`, row 2: `nan` is not a weight"),
        ("1\nx\n", "w`, row 2: `x` is not a weight"),
        ("1\n2 3:1\n", "w`, row 2: `2 3:1` is not a weight"),
        ("0\n0\n", "all training rows have the weight 0"),
    ],
)
def test_weights_that_do_not_fit(tmp_path: Path, weights: str, words: str) -> None:
    path = write(tmp_path / "a", "1 1:1\n0 2:1\n")
    with pytest.raises(DataError, match=words):
        run(tmp_path, path, weights=[write(tmp_path / "w", weights)])
    assert not list(tmp_path.glob("*out*"))


def test_weights_twice_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "1:2 1:1\n0 2:1\n")
    with pytest.raises(ConfigError, match="but the rows have weights"):
        run(tmp_path, path, weights=[write(tmp_path / "w", "1\n1\n")])
    table = write(tmp_path / "b.csv", "label,x\n1,2\n")
    with pytest.raises(ConfigError, match=r"`weights` is .*, but the input is csv"):
        run(tmp_path, table, weights=[tmp_path / "w"])
