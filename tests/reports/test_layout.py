"""What pages share."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.reports.compare import compare, write_comparison
from paceline.reports.layout import document, prose, table
from paceline.reports.markup import element
from paceline.reports.page import write_report
from tests.conftest import Command
from tests.reports.browser import Browser
from tests.reports.folders import DIAGNOSIS, make_half_run, make_run
from tests.skips import needs_chromium

# The number of points of each chart: corners of its lines, or single dots.
POINTS = """[...document.querySelectorAll('svg.chart')].map(svg =>
    Math.max(0, ...[...svg.querySelectorAll('polyline')].map(line => line.points.numberOfItems)))"""


def test_backquotes_become_code_and_nothing_else_does() -> None:
    assert element("p", *prose("try `--pace async` & <b>")) == "<p>try <code>--pace async</code> &amp; &lt;b&gt;</p>"
    assert element("p", *prose("an odd ` one")) == "<p>an odd ` one</p>"


def test_a_page_forbids_scripts_and_takes_any_name() -> None:
    page = document("a\udcff<b", element("p", "text"))
    assert b"default-src 'none'" in page
    assert b"<title>a?&lt;b</title>" in page


def test_cells_are_escaped() -> None:
    assert "<td>&lt;i&gt;</td>" in table(("a",), [("<i>",)])


# Pages without a chart: a run that was killed before it recorded anything, and jobs that end before a node is probed.
NO_CHARTS = {"half.html", "trace/report.html", "product/report.html"}


def hand_made(folder: Path) -> None:
    """Runs in sync, on a cluster and half a run, and a page that compares them."""
    sync, cluster = make_run(folder / "sync", pace="sync", workers=1, nodes=("a",)), make_run(folder / "cluster")
    cluster.write_json("diagnosis.json", DIAGNOSIS | {"gains": {"network": 1.9}, "gains_if_doubled": {"network": 1.4}})
    half = make_half_run(folder / "half")
    for run in (sync, cluster, half):
        write_report(run, folder / f"{run.path.name}.html")
    write_comparison(compare([sync, cluster, half]), folder / "comparison.html")


def matrices(folder: Path, command: Command) -> None:
    """A trace, a product, and a sweep of traces."""
    np.save(folder / "a.npy", np.ones((40, 40)))
    (folder / "traces.toml").write_text('job = "trace"\nsize = 60\nseed = 1\n[sweep]\nblocks = [1, 2, 3]\n')
    for job in (
        ("trace", "--size", 60, "--blocks", 3, "--seed", 1, "--run", folder / "trace"),
        ("matmul", folder / "a.npy", folder / "a.npy", "--out", folder / "c.npy", "--run", folder / "product"),
        ("report", folder / "trace"), ("report", folder / "product"),
        ("sweep", folder / "traces.toml", "--out", folder / "traces"),
    ):  # fmt: skip
        assert command(*job).code == 0


def trained(folder: Path, drawings: Path) -> None:
    """Images, several classes, numbers, an early stop on validation rows, and a factorization machine."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 6)).astype(np.float32)
    labels: dict[str, Any] = {
        "classes": np.array(["a", "b", "c"])[x[:, :3].argmax(1)],
        "numbers": x[:, 0] * 3 + x[:, 1],
    }
    two = (x[:, 0] + rng.normal(size=400) > 0).astype(int)
    often: dict[str, Any] = {"epochs": 4, "test_fraction": 0.2, "progress": False}
    runs = [paceline.train(data=(x, y), run=folder / name, test_every=320, **often) for name, y in labels.items()]
    runs += [
        paceline.train(data=(x, two), run=folder / "fm", model="fm", test_every=320, **often),
        paceline.train(data=(x, two), run=folder / "stopped", validation=(x, two), early_stopping=1, **often),
        paceline.train(
            data=drawings, run=folder / "images", model="softmax", epochs=2, test_every=1_000, progress=False
        ),
    ]
    for run in runs:
        run.report()


@pytest.fixture
def pages(tmp_path: Path, command: Command, drawings: Path) -> dict[str, Path]:
    """A page of each kind, by its name."""
    folder = tmp_path
    hand_made(folder)
    assert command("demo", "--rows", 3000, "--folder", folder / "demo").code == 0
    assert command("report", folder / "demo" / "run-async").code == 0
    (folder / "grid.toml").write_text(
        f'data = "{folder}/demo/clicks-3000"\nworkers = 1\nepochs = 1\npace = "sync"\n'
        "[sweep]\nbatch_size = [20, 50, 100]\n"
    )
    assert command("sweep", folder / "grid.toml", "--out", folder / "grid").code == 0
    matrices(folder, command)
    trained(folder, drawings)
    written = {str(page.relative_to(folder)): page for page in folder.rglob("*.html")}
    assert len(written) == 15
    assert written.keys() >= NO_CHARTS
    return written


@needs_chromium
def test_every_page_is_whole_on_a_desk_and_on_a_phone(pages: dict[str, Path], browser: Browser) -> None:
    for (name, page), width in itertools.product(pages.items(), (1200, 390)):
        browser.open(page, width=width)
        assert browser.messages == [], name
        assert browser.requests == [page.resolve().as_uri()], name
        points = browser.evaluate(POINTS)
        assert all(number >= 2 for number in points), name
        assert bool(points) == (name not in NO_CHARTS), name
        assert browser.evaluate("document.documentElement.scrollWidth") == width, name
