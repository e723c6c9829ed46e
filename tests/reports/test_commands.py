"""Commands that a user can copy."""

from __future__ import annotations

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


def test_a_matrix_job_is_repeated_with_its_settings(tmp_path: Path) -> None:
    run = RunFolder.make(str(tmp_path / "trace"), "trace", b'job = "trace"\nsize = 10\nblocks = 2\nseed = 1\n')
    assert repeat(run) == "paceline trace --size 10 --blocks 2 --seed 1"


def test_advice_without_flags_has_no_command() -> None:
    assert flags_in("train for longer") == ""
