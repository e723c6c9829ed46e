"""Errors are two lines, whatever the names in them are."""

from __future__ import annotations

import json
from pathlib import Path

import paceline
from paceline.errors import DataError
from tests.conftest import Command

OBEYED = "\x1b]0;title\x07\x1b[2J"
SHOWN = r"\x1b]0;title\x07\x1b[2J"


def test_neither_the_error_nor_its_hint_takes_over_the_terminal() -> None:
    assert str(DataError(f"no `{OBEYED}`", f"remove\n`{OBEYED}`")) == f"no `{SHOWN}`\nhint: remove\\n`{SHOWN}`"


def test_the_model_of_a_foreign_folder(command: Command, tmp_path: Path, clicks: Path) -> None:
    paceline.train(data=clicks, run=tmp_path / "run")
    path = tmp_path / "run" / "model" / "model.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"model": f"os:{OBEYED}"}))
    done = command("evaluate", tmp_path / "run", "--data", clicks)
    assert done.code == 2
    assert SHOWN in done.err
    assert not {"\x1b", "\x07"} & set(done.err)
