"""The command `export`: where it writes, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

import paceline
from paceline.data.synthetic import generate_clicks
from tests.conftest import Command


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports")
    generate_clicks(folder / "data", rows=500, features=200, test_rows=0, seed=3, progress=lambda _: None)
    return paceline.train(data=folder / "data", run=folder / "run", progress=False).path


@pytest.mark.parametrize("to", ["onnx", "text", "vw"])
def test_a_file_is_written_and_named(command: Command, tmp_path: Path, run: Path, to: str) -> None:
    done = command("export", run, "--to", to, "--out", tmp_path / "model")
    assert (done.code, done.out) == (0, f"{to}: {tmp_path / 'model'}\n"), done.err
    assert (tmp_path / "model").stat().st_size > 500
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_wrong_requests_are_refused_with_a_hint(command: Command, tmp_path: Path, run: Path) -> None:
    (tmp_path / "there").write_text("mine")
    for arguments, told in (
        ((run, "--to", "onx", "--out", tmp_path / "a"), "hint: did you mean `onnx`?"),
        ((run, "--to", "onnx", "--out", tmp_path / "there"), f"`{tmp_path / 'there'}` exists already"),
        ((run, "--to", "onnx", "--out", tmp_path / "no" / "a"), f"the folder `{tmp_path / 'no'}` does not exist"),
        ((tmp_path / "nowhere", "--to", "text", "--out", tmp_path / "a"), "does not exist"),
    ):
        done = command("export", *arguments)
        assert done.code == 2
        assert told in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    assert (tmp_path / "there").read_text() == "mine"


def test_without_an_extra_its_name_is_told(
    command: Command, tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for to in ("onnx",):
        monkeypatch.setitem(__import__("sys").modules, to, None)
        done = command("export", run, "--to", to, "--out", tmp_path / "model")
        assert done.code == 2
        assert f"hint: pip install 'paceline[{to}]'" in done.err
    assert [*tmp_path.iterdir()] == []


def test_a_planted_link_is_not_followed(command: Command, tmp_path: Path, run: Path) -> None:
    (tmp_path / "precious").write_text("years of work")
    (tmp_path / "model").symlink_to(tmp_path / "precious")
    assert command("export", run, "--to", "text", "--out", tmp_path / "model").code == 2
    assert (tmp_path / "precious").read_text() == "years of work"
