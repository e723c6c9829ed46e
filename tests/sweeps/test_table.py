"""The tables and the page of a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.errors import RunError
from paceline.run_folder import RunFolder
from paceline.settings import RunConfig
from paceline.sweeps.points import read_sweep
from paceline.sweeps.table import Outcome, node_table
from tests.conftest import Command
from tests.reports.folders import DIAGNOSIS
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
