"""A recipe that asks for four runs, and how to read the tables of a sweep."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

GRID = """
data = "{data}"
optimizer = {{ name = "sgd", learning_rate = 0.1 }}
epochs = 1

[sweep]
pace = ["sync", "async"]
batch_size = [50, 500]
"""


@pytest.fixture
def recipe(tmp_path: Path, clicks: Path) -> Path:
    path = tmp_path / "grid.toml"
    path.write_text(GRID.format(data=clicks))
    return path


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))
