"""A shell asks the command what could follow, and gets names, folders of datasets and of runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete

from paceline.cli import cli
from paceline.data.prepare_settings import FORMATS
from paceline.models.loss_entries import LOSSES
from paceline.models.registry import MODELS
from paceline.parameters.optimizers import OPTIMIZERS

ROOT = Path(__file__).parents[2]
VARIABLE = "_PACELINE_COMPLETE"


def offered(*words: str) -> list[tuple[str, str]]:
    """(type, value) of everything that may follow; the last word is what was typed so far."""
    found = BashComplete(cli, {}, "paceline", VARIABLE).get_completions([*words[:-1]], words[-1])
    return [(item.type, item.value) for item in found]


def values(*words: str) -> list[str]:
    return [value for _, value in offered(*words)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for file in (
        "data/clicks/manifest.json", "data/ads/manifest.json", "data/raw/rows.csv", "day/manifest.json",
        "runs/first/config.toml", "runs/second/config.toml", ".hidden/x/config.toml",
    ):  # fmt: skip
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_names() -> None:
    assert values("train", "--pace", "") == ["sync", "async"]
    assert values("train", "--pace", "a") == ["async"]
    assert values("train", "--optimizer", "") == list(OPTIMIZERS)
    assert values("train", "--loss", "") == list(LOSSES)
    assert values("train", "--model", "") == list(MODELS)
    assert values("train", "--model", "mine.nets:") == []
    assert values("prepare", "--format", "") == ["auto", *FORMATS]
    assert "--optimizer" in values("train", "--opt")
    assert values("generate", "cl") == ["clicks"]


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with its name."""
    context = click.Context(cli)
    for name in cli.list_commands(context):
        found = cli.get_command(context, name)
        assert found is not None
        yield name, found


def test_every_argument_that_is_a_run_or_a_dataset_is_completed(here: Path) -> None:
    folders = {"run": ["runs/first", "runs/second"], "runs": ["runs/first", "runs/second"]}
    folders["dataset"] = ["data/ads", "data/clicks", "day"]
    page = (ROOT / "docs" / "completion.md").read_text()
    tried = set()
    for name, found in commands():
        first = next((one for one in found.params if isinstance(one, click.Argument)), None)
        if first is not None and first.name in folders:
            assert values(name, "") == folders[first.name], name
            assert f"`{name}`" in page
            tried.add(name)
    assert {"resume", "evaluate", "predict", "top", "info", "export", "diagnose", "plan", "report", "compare"} <= tried


def test_every_option_that_is_a_run_or_a_dataset_is_completed(here: Path) -> None:
    tried = set()
    for name, found in commands():
        for flag in {flag for one in found.params for flag in one.opts} & {"--data", "--from"}:
            wanted = ["data/ads", "data/clicks", "day"] if flag == "--data" else ["runs/first", "runs/second"]
            assert values(name, flag, "") == wanted, (name, flag)
            tried.add((name, flag))
    assert {("train", "--data"), ("train", "--from"), ("predict", "--data"), ("evaluate", "--data")} <= tried


def test_datasets(here: Path) -> None:
    assert values("train", "--data", "") == ["data/ads", "data/clicks", "day"]
    assert values("evaluate", "runs/first", "--data", "data/c") == ["data/clicks"]
    assert values("train", "--data", f"{here}/da") == [f"{here}/data/ads", f"{here}/data/clicks", f"{here}/day"]


def test_run_folders(here: Path) -> None:
    assert values("resume", "") == ["runs/first", "runs/second"]
    assert values("compare", "runs/first", "runs/s") == ["runs/second"]
    assert values("diagnose", ".hidden/") == [".hidden/x"]


def test_the_shell_completes_other_files_and_folders(here: Path) -> None:
    assert offered("train", "--data", "elsewhere/d") == [("dir", "elsewhere/d")]
    assert offered("prepare", "da") == offered("prepare", "--weights", "da") == [("file", "da")]
    assert offered("train", "--run", "r") == [("dir", "r")]
    assert offered("train", "rec") == [("file", "rec")]


def test_a_shell_asks_in_a_process(here: Path) -> None:
    """As bash does it, and quickly: nothing that trains is loaded."""
    probe = (
        "import sys; from paceline.__main__ import main; import os; leave = os._exit\n"
        "os._exit = lambda code: (print(*{'numba', 'torch', 'ray', 'pyarrow'} & {*sys.modules}), leave(code))\n"
        "main()"
    )
    asked = {VARIABLE: "bash_complete", "COMP_WORDS": "paceline resume runs/f", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", probe], env=os.environ | asked, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stdout.splitlines() == ["plain,runs/first", ""]
    assert done.stderr == ""
