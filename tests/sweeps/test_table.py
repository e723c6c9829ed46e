"""The tables and the page of a sweep."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import paceline
from paceline.errors import RunError
from paceline.run_folder import RunFolder
from paceline.settings import RunConfig
from paceline.sweeps.points import read_sweep
from paceline.sweeps.table import Outcome, node_table, print_outcomes
from tests.conftest import Command
from tests.reports.folders import DIAGNOSIS, make_run
from tests.reports.test_markup import Reader
from tests.sweeps.conftest import read_csv


def test_each_node_of_a_run_has_its_line(recipe: Path, tmp_path: Path) -> None:
    point = read_sweep(recipe, {})[0]
    run = RunFolder.make(str(tmp_path / "run"), "run", b"")
    nodes = [{"node": name, "cpu": 0.5, "pressure": {"cpu_some": 0.1}} for name in ("a", "b")]
    run.write_json("diagnosis.json", DIAGNOSIS | {"nodes": nodes})
    outcome = Outcome(point, run, "")
    assert node_table([outcome]) == (
        ["pace", "batch_size", "node", "cpu"], [["sync", 50, "a", 0.5], ["sync", 50, "b", 0.5]],
    )  # fmt: skip
    run.write_json("diagnosis.json", DIAGNOSIS | {"nodes": nodes[:1]})
    assert node_table([outcome]) == ([], [])


@pytest.mark.parametrize(("data", "rows"), [("clicks", "test"), ("one_key_per_row", "train")])
def test_a_loss_stands_beside_that_of_a_constant(
    tmp_path: Path, command: Command, request: pytest.FixtureRequest, data: str, rows: str
) -> None:
    """In the tables of a sweep and of a comparison, and without test rows, too."""
    recipe, out = tmp_path / "rates.toml", tmp_path / "out"
    found = request.getfixturevalue(data)
    recipe.write_text(f'data = "{found}"\n[sweep]\n"optimizer.learning_rate" = [0.05, 0.2]\n')
    swept = command("sweep", recipe, "--out", out)
    assert swept.code == 0, swept.err
    for line in read_csv(out / "summary.csv"):
        assert float(line[f"{rows}_baseline_loss"]) == pytest.approx(0.69315, abs=1e-5)
        assert float(line[f"{rows}_loss"]) > 0
    runs = sorted(path.parent for path in out.glob("*/config.toml"))
    compared = command("compare", *runs)
    for told in (swept.out, compared.out):
        assert f"{rows} baseline" in told
        assert told.count("0.69315") == 2
    page = (out / "comparison.html").read_text()
    assert page.count("0.69315</td>") == 2
    assert f"{rows} baseline 0.69315" not in page


def test_the_page_names_what_failed(
    recipe: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = RunFolder.create

    def refuse(config: RunConfig) -> RunFolder:
        if (config.pace, config.batch_size) == ("async", 500):
            raise RunError("no luck today")
        return create(config)

    monkeypatch.setattr(RunFolder, "create", staticmethod(refuse))
    assert command("sweep", recipe, "--out", tmp_path / "out").code != 0
    page = (tmp_path / "out" / "comparison.html").read_text()
    assert "no luck today" in page
    assert "pace=async, batch_size=500" in page


def test_the_operations_of_a_step_are_timed_where_the_recipe_asks(
    recipe: Path, tmp_path: Path, command: Command
) -> None:
    recipe.write_text("ops = true\n" + recipe.read_text())
    out = tmp_path / "out"
    assert command("sweep", recipe, "--out", out).code == 0
    rows = read_csv(out / "summary.csv")
    assert len(rows) == 4
    for row in rows:
        timed = RunFolder(out / f"pace-{row['pace']}_batch_size-{row['batch_size']}").saved_diagnosis["operations"]
        assert {one["name"] for one in timed} >= {"gather", "score", "sigmoid", "scatter"}
        assert float(row["gather_ns_per_row"]) == next(
            one["nanoseconds_per_row"] for one in timed if one["name"] == "gather"
        )
    # A run that is done, but whose operations were not timed, is not done.
    run = RunFolder(out / "pace-sync_batch_size-50")
    run.write_json("diagnosis.json", {**run.saved_diagnosis, "operations": []})
    assert command("sweep", recipe, "--out", out).err.count("done before") == 3


def paste(command_line: str, folder: Path) -> None:
    """Run a printed command in a shell, as users do."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", command_line], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def rated(folder: Path, validation_fraction: float) -> Path:
    """A recipe of two learning rates, on data whose validation rows and test rows like different ones."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 5)).astype(np.float32)
    y = (x[:, 0] + rng.normal(size=600) > 0).astype(int)
    paceline.prepare(
        (x, y), folder / "data", test_fraction=0.2, validation_fraction=validation_fraction, progress=False
    )
    recipe = folder / "rates.toml"
    recipe.write_text(
        'data = "data"\npace = "sync"\nworkers = 1\nbatch_size = 50\nepochs = 2\n'
        "[sweep]\n'optimizer.learning_rate' = [1e-6, 0.1]\n"
    )
    return recipe


@pytest.mark.parametrize("rows", ["validation", "test"])
def test_the_best_run_is_chosen_on_held_out_rows_and_its_command_runs(
    rows: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command("sweep", rated(tmp_path, 0.2 if rows == "validation" else 0.0), "--out", "a sweep")
    assert done.code == 0, done.err
    rate = "optimizer.learning_rate"
    best, last = (RunFolder(tmp_path / "a sweep" / f"{rate}-{value}") for value in ("0.1", "1e-06"))
    losses = [run.result[rows]["loss"] for run in (best, last)]
    lower = f"{100 * (1 - losses[0] / losses[1]):.0f}% lower than {rate}=1e-06"
    assert f"{rate}=0.1 has the lowest {rows} loss, {losses[0]:.5f}: {lower}." in done.out
    chosen = {"validation": "Chosen on the validation rows, so that the test rows still tell how good it is.",
              "test": "Chosen on the test rows, because the data has no validation rows"}  # fmt: skip
    page = Reader((tmp_path / "a sweep" / "comparison.html").read_text("utf-8")).text
    for key, sentence in chosen.items():
        assert (sentence in done.out) == (sentence in page) == (key == rows)
    printed = re.search("^train like the best one: (.*)$", done.out, re.MULTILINE)
    assert printed
    assert printed[1] in page
    paste(printed[1], tmp_path)
    again = RunFolder(tmp_path / shlex.split(printed[1])[-1])
    assert again.config.optimizer.learning_rate == 0.1
    assert again.result["model_sha256"] == best.result["model_sha256"]


def test_validation_rows_overrule_test_rows(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run that is better on test rows is not chosen."""
    points = read_sweep(recipe, {})[:2]
    runs = [make_run(tmp_path / point.folder, telemetry=False) for point in points]
    for run, validation, test in zip(runs, (0.4, 0.5), (0.6, 0.3), strict=True):
        run.write_json("result.json", run.result | {"validation": {"loss": validation}, "test": {"loss": test}})
    print_outcomes([Outcome(point, run) for point, run in zip(points, runs, strict=True)][::-1])
    out = capsys.readouterr().out
    assert "pace=sync, batch_size=50 has the lowest validation loss, 0.40000: 20% lower than " in out
    assert f"train like the best one: paceline train {runs[0].path}/config.toml " in out


def test_the_command_of_the_best_trace_runs(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traces.toml").write_text('job = "trace"\nsize = 200\nseed = 5\n[sweep]\nblocks = [1, 4]\n')
    done = command("sweep", "traces.toml", "--out", "out")
    printed = re.search("^run like the best one: (.*)$", done.out, re.MULTILINE)
    assert printed
    paste(printed[1], tmp_path)
    again = next(iter((tmp_path / "runs").iterdir()))
    assert RunFolder(again).result["trace"] == pytest.approx(RunFolder(tmp_path / "out" / "blocks-1").result["trace"])
