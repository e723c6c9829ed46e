"""What `paceline info` says about a dataset."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.data.synthetic_images import generate_images


def info_of(folder: Path, text: str, **settings: Any) -> dict[str, Any]:
    source = folder / "rows"
    source.write_text(text)
    paceline.prepare(source, folder / "data", **settings)
    found = paceline.info(folder / "data")
    assert json.loads(json.dumps(found)) == found
    return found


def table(columns: str, row: Any, rows: int = 2000) -> str:
    random = np.random.default_rng(0)
    lines = (f"{i % 4 // 3},{random.normal():.3f},{row(i, random)}\n" for i in range(rows))
    return f"label,x,{columns}\n" + "".join(lines)


def warnings_of(found: dict[str, Any]) -> str:
    return "\n".join(f"{one['warning']} ({one['hint']})" for one in found["warnings"])


def test_a_clean_table_has_no_warnings(tmp_path: Path) -> None:
    found = info_of(tmp_path, table("town", lambda i, _: f"t{i % 7}"), test_fraction=0.2)
    assert found["warnings"] == []
    assert found["rows"]["train"] + found["rows"]["test"] == 2000
    assert found["keys_used"] == 8
    assert found["hot_keys"][0]["feature"] in ("x", "town=t0")
    train = found["labels"]["train"]
    share = train["1"] / (train["0"] + train["1"])
    assert found["baseline"]["error"] == pytest.approx(share)
    entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
    assert found["baseline"]["value"] == pytest.approx(entropy)
    assert found["model_bytes"]["adagrad"] == 2 * found["model_bytes"]["sgd"] == 8 * (found["features"] + 1)


def test_numbers_as_labels(tmp_path: Path) -> None:
    text = "label,x\n" + "".join(f"{i},{i % 5}\n" for i in range(100))
    found = info_of(tmp_path, text, labels="numbers")
    labels = np.arange(100)
    assert found["labels"]["train"]["mean"] == pytest.approx(49.5)
    assert found["baseline"]["value"] == pytest.approx(labels.var() / 2)
    assert found["baseline"]["rmse"] == pytest.approx(labels.std())


@pytest.mark.parametrize(
    ("columns", "row", "said"),
    [
        ("id", lambda i, random: f"u{i}", "different values in 2,000 rows: an id or a time"),
        ("number", lambda i, random: str(random.integers(10**9)), "column number has another whole number"),
        ("number", lambda i, random: str(i + 7), "column number grows with the row number"),
        ("at", lambda i, random: str(1_700_000_000 + random.integers(10**7)), "column at holds times"),
        ("same", lambda i, random: "3", "column same is 3 in all"),
        ("a,b", lambda i, random: f"{i % 9},{i % 9}", "column b has the same values as a"),
    ],
)
def test_columns_that_hurt_are_named(tmp_path: Path, columns: str, row: Any, said: str) -> None:
    found = info_of(tmp_path, table(columns, row))
    assert said in warnings_of(found)
    assert f"--drop {columns[-1] if ',' in columns else columns}" in warnings_of(found)
    assert len(found["warnings"]) == 1


def test_a_stray_key_is_found_in_the_blocks(tmp_path: Path) -> None:
    found = info_of(tmp_path, "1 1:1 3:1\n0 2:1\n" * 100 + "1 2000000000:1\n")
    assert "key 2000000000 (training rows, row 201) makes a model of 2,000,000,000 weights" in warnings_of(found)
    assert found["keys_used"] == 4


def test_one_sided_labels_and_other_test_rows(tmp_path: Path) -> None:
    test = tmp_path / "test"
    test.write_text("1 1:1\n0 2:1\n" * 300)
    found = info_of(tmp_path, "0 1:1\n0 2:1\n" * 1000 + "1 2:1\n" * 5, test=[str(test)])
    assert "99.75% of the training rows have the label 0" in warnings_of(found)
    assert "50.0% of test rows" in warnings_of(found)


def test_a_class_that_no_training_row_has_is_named(tmp_path: Path) -> None:
    found = info_of(tmp_path, "1 1:1\n1 2:1\n" * 1000)
    assert warnings_of(found).startswith("no training row has the label 0: no model can learn it")
    assert len(found["warnings"]) == 1
    assert math.copysign(1, found["baseline"]["value"]) == 1  # not -0


def test_full_hash_spaces_are_told(tmp_path: Path) -> None:
    found = info_of(tmp_path, table("t", lambda i, _: f"t{i % 40}"), hash_bits=5)
    assert "so many values share one (--hash-bits 7)" in warnings_of(found)


def test_images_have_a_short_answer(tmp_path: Path) -> None:
    out = tmp_path / "images"
    generate_images(rows=20, test_rows=4, size=8, classes=3, channels=3, seed=0, out=out, progress=lambda _: None)
    found = paceline.info(tmp_path / "images")
    assert (found["kind"], found["shape"], found["classes"]) == ("images", [8, 8, 3], 3)
    assert found["rows"] == {"train": 20, "validation": 0, "test": 4}
