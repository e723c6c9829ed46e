"""CONTRIBUTING.md shows the order of imports that import-linter enforces."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_contributors_read_the_order_that_is_enforced() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    enforced = [", ".join(room.strip().removeprefix("paceline.") for room in layer.split(":")) for layer in layers]
    shown = re.search(r"```text\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert shown
    assert shown[1].splitlines() == enforced


def test_every_room_has_a_layer() -> None:
    """import-linter does not complain about a room that no layer names."""
    package = ROOT / "src" / "paceline"
    rooms = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    shown = re.search(r"```text\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert shown
    assert rooms - {"__init__"} == set(re.split(r"[,\n ]+", shown[1].strip()))
