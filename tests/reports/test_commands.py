"""Commands that a user can copy."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path

from paceline.reports.commands import flags_in, repeat
from paceline.run_folder import RunFolder
from tests.reports.folders import make_run


def test_a_run_is_repeated_with_a_change(run: RunFolder) -> None:
    assert repeat(run, "--pace sync") == f"paceline train {run.path}/config.toml --pace sync --run {run.path}-next"


def test_paths_are_quoted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "my run", telemetry=False)
    assert f"'{run.path}/config.toml'" in repeat(run)


def test_rows_in_memory_are_given_in_python(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", data="/tmp/paceline-abc/memory", telemetry=False)
    told = repeat(run, "--pace sync --workers 4 --set wire.values=bfloat16")
    recipe = str(run.path / "config.toml")
    assert told == (
        f"paceline.train(data=…, recipe={recipe!r}, pace='sync', workers=4, settings=['wire.values=bfloat16'])"
    )


def test_keywords_are_python_whatever_the_flags(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", data="/tmp/paceline-abc/memory", telemetry=False)
    told = repeat(run, "--from runs/a --workers 08 --seed ² --batch-size 100")
    ast.parse(told.replace("…", "..."))
    assert told.endswith("start_from='runs/a', workers='08', seed='²', batch_size=100)")


def test_a_matrix_job_is_repeated_with_its_settings(tmp_path: Path) -> None:
    run = RunFolder.make(str(tmp_path / "trace"), "trace", b'job = "trace"\nsize = 10\nblocks = 2\nseed = 1\n')
    assert repeat(run) == "paceline trace --size 10 --blocks 2 --seed 1"


def test_advice_without_flags_has_no_command() -> None:
    assert flags_in("train for longer") == ""


def test_flags_of_a_file_stay_flags(run: RunFolder, tmp_path: Path) -> None:
    """Nothing else may come of a command that someone copies from the page of a foreign run."""
    words = shlex.split(repeat(run, "--workers 2; reboot\n`id` $(id)"))
    assert words[3:9] == ["--workers", "2;", "reboot", "`id`", "$(id)", "--run"]
    assert "; reboot" not in repeat(run, "--workers 2; reboot")
    assert "'" not in repeat(run, "--workers '2")
    job = RunFolder.make(str(tmp_path / "trace"), "trace", b'job = "trace; reboot"\nsize = "1; reboot"\n')
    assert shlex.split(repeat(job)) == ["paceline", "trace; reboot", "--size", "1; reboot"]
    (tmp_path / "config.toml").write_text('data = "/tmp/paceline-x1y2z3/memory"\n')
    call = ast.parse(repeat(RunFolder(tmp_path), "--x=exit(),y 1 --workers 2")[:-1].replace("…", "0") + ")").body[0]
    assert isinstance(call, ast.Expr)
    assert isinstance(call.value, ast.Call)
    assert [keyword.arg for keyword in call.value.keywords] == ["data", "recipe", "workers"]
