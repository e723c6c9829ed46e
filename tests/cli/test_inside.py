"""`paceline top` and `paceline info`: what is printed, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import Command


def test_prepare_train_top_info(command: Command, tmp_path: Path) -> None:
    source, data, run = tmp_path / "towns.csv", tmp_path / "data", tmp_path / "run"
    source.write_text("label,town,same\n" + "1,Rome,a\n0,Oslo,a\n0,Bonn,a\n" * 40)
    assert command("prepare", source, "--out", data).code == 0
    assert command("train", "--data", data, "--run", run, "--epochs", 5).code == 0
    shown = command("top", run, "--count", 1)
    assert shown.code == 0
    assert shown.out.splitlines()[0].split() == ["feature", "weight", "rows", "of", "all"]
    assert shown.out.splitlines()[1].split()[0] == "town=Rome"
    assert shown.out.splitlines()[1].split()[2:] == ["40", "33.33%"]
    found = json.loads(command("top", run, "--count", 1, "--json").out)
    assert found["features"][0]["feature"] == "town=Rome"
    told = command("info", data)
    assert told.code == 0
    assert "120 train" in told.out
    assert "best constant  0.33333: logistic loss 0.63651, error 0.3333" in told.out
    assert json.loads(command("info", data, "--json").out)["keys_used"] == 4


def test_without_names_keys_are_shown(command: Command, tmp_path: Path) -> None:
    source, data, run = tmp_path / "towns.csv", tmp_path / "data", tmp_path / "run"
    source.write_text("label,town\n" + "1,Rome\n0,Oslo\n" * 40)
    assert command("prepare", source, "--out", data, "--no-names").code == 0
    assert not (data / "names.arrow").exists()
    assert command("train", "--data", data, "--run", run, "--epochs", 5).code == 0
    shown = command("top", run)
    assert shown.code == 0
    assert "town" not in shown.out
    assert "features without a name are called by their keys" in shown.err


def test_what_is_not_there_is_refused(command: Command, tmp_path: Path) -> None:
    for given in (("info", tmp_path / "none"), ("top", tmp_path / "none"), ("top", tmp_path, "--count", 0)):
        refused = command(*given)
        assert refused.code == 2
        assert refused.err.startswith("error: ")
        assert "hint: " in refused.err
