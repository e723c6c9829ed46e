"""The page as people open it, in a real browser: whole, half and hostile runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paceline.reports.page import report_fragment, write_report
from paceline.run_folder import RunFolder
from paceline.telemetry.records import NodeProbe, Record, StepSample
from tests.conftest import Command
from tests.reports.browser import Browser
from tests.reports.folders import DIAGNOSIS, make_run, write_records
from tests.reports.test_markup import Reader
from tests.skips import needs_chromium

SIX_MEGABYTES = 6_000_000


def written(run: RunFolder, out: Path, diagnosis: dict[str, object] | None = None) -> str:
    if diagnosis != {}:
        run.write_json("diagnosis.json", DIAGNOSIS | (diagnosis or {}))
    write_report(run, out)
    return out.read_text("utf-8")


def test_the_verdict_comes_first(run: RunFolder, tmp_path: Path) -> None:
    text = Reader(written(run, tmp_path / "report.html")).text
    order = [DIAGNOSIS["sentence"], DIAGNOSIS["recommendation"], "43 % of a step", "Learning", "Nodes", "Configuration"]
    places = [text.index(str(part)) for part in order]
    assert places == sorted(places)


def test_all_charts_are_there(run: RunFolder, tmp_path: Path) -> None:
    page = written(run, tmp_path / "report.html")
    charts = [dict(found)["aria-label"] for name, found in Reader(page).elements if ("role", "img") in found]
    assert charts == [
        "Loss, by rows", "Loss, by s", "Error, by rows", "Error, by s", "AUC, by rows", "AUC, by s",
        "Processor, all cores, by s", "Memory in use, by s", "Network, sent, by s", "Network, received, by s",
        "Disk, read, by s", "Ahead of the slowest worker, by s",
    ]  # fmt: skip
    assert len(page) < SIX_MEGABYTES
    for told in ("worker 3 on node-1", "node-2 (8 cores, 32.0 GB)", "At most 7 steps", "no /proc/pressure",
                 "learning_rate = 0.05", "model_sha256", "12 of 120 samples"):  # fmt: skip
        assert told in page


def test_an_hour_of_many_workers_stays_small(tmp_path: Path) -> None:
    run = make_run(tmp_path / "large", workers=64, nodes=tuple(f"node-{i}" for i in range(40)))
    page = written(run, tmp_path / "report.html")
    assert len(page) < SIX_MEGABYTES
    assert "The 40 slowest of 64 workers" in page
    assert "The first 28 of 40 nodes" in page


def test_what_is_missing_is_said(half_run: RunFolder, tmp_path: Path) -> None:
    page = written(half_run, tmp_path / "report.html", {})
    for said in ("still running, or killed", "No verdict: too little was recorded, and the run has not ended",
                 "No evaluation yet", "the workers recorded no telemetry", "no node was probed", "No step was sampled",
                 "The largest lead is known when the run has ended", "no result.json yet",
                 "batch_size = 100"):  # fmt: skip
        assert said in page


def test_no_test_rows(tmp_path: Path) -> None:
    page = written(make_run(tmp_path / "run", test_rows=False), tmp_path / "report.html")
    assert "The dataset has no test rows" in page
    assert 'aria-label="Loss, by rows"' in page
    assert "AUC" not in page


def test_no_telemetry(tmp_path: Path) -> None:
    page = written(make_run(tmp_path / "run", telemetry=False), tmp_path / "report.html", {})
    assert 'aria-label="AUC, by s"' in page
    assert "the workers recorded no telemetry" in page


def test_one_evaluation_is_told_without_a_curve(half_run: RunFolder, tmp_path: Path) -> None:
    half_run.add_metrics({"rows": 10, "steps": 1, "epoch": 1.0, "seconds": 0.1, "train_loss": 0.5, "test_auc": 0.75})
    page = written(half_run, tmp_path / "report.html", {})
    assert "One evaluation" in page
    assert "0.75000" in page
    assert "<svg class=" not in page


def test_in_sync_nobody_is_ahead(tmp_path: Path) -> None:
    page = written(make_run(tmp_path / "run", pace="sync"), tmp_path / "report.html")
    assert "In sync, all workers make each update together" in page
    assert "Ahead of the slowest" not in page


def test_a_failed_run_says_why(run: RunFolder, tmp_path: Path) -> None:
    run.write_json("result.json", run.result | {"status": "failed", "error": "worker 2 on node-3: no memory left"})
    assert "Failed: logistic" in written(run, tmp_path / "report.html")
    assert "worker 2 on node-3: no memory left" in written(run, tmp_path / "report.html")


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (390, False), (1200, True)])
def test_a_browser_draws_it_and_fetches_nothing(
    run: RunFolder, tmp_path: Path, browser: Browser, width: int, dark: bool
) -> None:
    page = tmp_path / "report.html"
    written(run, page)
    browser.open(page, width=width, dark=dark)
    assert browser.messages == []
    assert browser.requests == [page.resolve().as_uri()]
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    shown = "[...document.querySelectorAll('svg.chart')].filter(s => s.checkVisibility())"
    heights = browser.evaluate(f"{shown}.map(s => s.getBoundingClientRect().height)")
    assert len(heights) == 9
    assert min(heights) > 150
    labels = f"{shown}.map(s => s.getAttribute('aria-label')).slice(0, 3)"
    assert browser.evaluate(labels) == ["Loss, by rows", "Error, by rows", "AUC, by rows"]
    browser.evaluate("document.querySelector('.to-seconds').click()")
    assert browser.evaluate(labels) == ["Loss, by s", "Error, by s", "AUC, by s"]
    lines = "[...document.querySelectorAll('polyline')].map(l => getComputedStyle(l).stroke)"
    assert len(set(browser.evaluate(lines))) >= 4
    paper = browser.evaluate("getComputedStyle(document.querySelector('main')).backgroundColor")
    assert paper == ("rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)")
    texts = f"{shown}.flatMap(s => [...s.querySelectorAll('text')]).map(t => t.getBoundingClientRect().height)"
    assert browser.evaluate(f"Math.min(...{texts})") > 10
    browser.print(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")


@needs_chromium
def test_labels_do_not_overlap(run: RunFolder, tmp_path: Path, browser: Browser) -> None:
    written(run, tmp_path / "report.html")
    browser.open(tmp_path / "report.html", width=390)
    overlapping = """[...document.querySelectorAll('svg.chart')].filter(s => s.checkVisibility()).flatMap(svg => {
        const boxes = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
        return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([b, q]) =>
            p.left < q.right && q.left < p.right && p.top + 2 < q.bottom && q.top + 2 < p.bottom).map(([b]) => [a, b]));
    })"""
    assert browser.evaluate(overlapping) == []


@needs_chromium
def test_hostile_names_are_harmless(hostile_run: RunFolder, tmp_path: Path, browser: Browser) -> None:
    page = tmp_path / "report.html"
    evil = "<script>alert(3)</script>"
    told = written(hostile_run, page, {"sentence": evil, "recommendation": evil, "evidence": [evil, {evil: evil}]})
    assert not {"script", "img"} & {name for name, _ in Reader(told).elements}
    browser.open(page)
    assert browser.messages == []
    assert len(browser.requests) == 1
    assert browser.evaluate("document.scripts.length + document.images.length") == 0
    assert browser.evaluate("document.querySelector('h1').textContent") == hostile_run.path.name
    assert evil in browser.evaluate("document.body.innerText")


def test_the_command_writes_it_into_the_run(run: RunFolder, command: Command, tmp_path: Path) -> None:
    assert not (run.path / "diagnosis.json").exists()
    outcome = command("report", run.path)
    assert (run.path / "diagnosis.json").exists()
    assert (outcome.code, outcome.out) == (0, f"report: {run.path}/report.html\n")
    outcome = command("report", run.path, "--out", tmp_path / "a.html", "--trace", tmp_path / "a.json")
    assert outcome.code == 0
    assert outcome.out.splitlines()[1].startswith(f"trace: {tmp_path}/a.json (120 steps")
    assert (tmp_path / "a.html").read_bytes() == (run.path / "report.html").read_bytes()
    assert 'class="sentence"' in (tmp_path / "a.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["report", "nowhere"], "`nowhere` does not exist"),
        (["report", "RUN", "--out", "none/a.html"], "cannot be written"),
    ],
)
def test_what_is_wrong_is_said(run: RunFolder, command: Command, arguments: list[str], error: str) -> None:
    outcome = command(*(str(run.path) if word == "RUN" else word for word in arguments))
    assert outcome.code == 2
    assert error in outcome.err.splitlines()[0]
    assert outcome.err.splitlines()[1].startswith("hint: ")


def test_what_to_try_is_a_command_and_gains_are_bars(run: RunFolder, tmp_path: Path) -> None:
    advice = [{"try": f"`{flags}`", "flags": flags, "gain": 1.5, "interval": [1.5, 1.5]}
              for flags in ("--workers 8", "--pace 4")]  # fmt: skip
    gains = {"gains": {"network": 1.9, "input": 1.0}, "gains_if_doubled": {"network": 1.4, "input": 1.0}}
    page = written(run, tmp_path / "report.html", {"advice": advice, **gains})
    told = f"paceline train {run.path}/config.toml --workers 8 --run {run.path}-next"
    assert told in Reader(page).text
    # Both can be pasted: their folders differ.
    assert f"--pace 4 --run {run.path}-next-2" in Reader(page).text
    assert "1.40× – 1.90×" in page
    assert "no gain" in page


def test_a_step_that_dwarfs_all_others_is_drawn_to_a_logarithmic_scale(run: RunFolder, tmp_path: Path) -> None:
    samples: list[Record] = [
        StepSample(time=1.0 + i, rank=0, step=i, seconds=0.5 if i == 0 else 0.001, rows=10, compute=0.0005)
        for i in range(8)
    ]
    write_records(run.path, samples)
    page = written(run, tmp_path / "report.html")
    assert "logarithmic scale" in page
    steps = page.partition("<h2>Single steps")[2]
    lengths = [sum(map(float, re.findall(r"width:([\d.]+)%", row))) for row in steps.split('class="row"')[1:9]]
    assert lengths[0] == pytest.approx(100, abs=0.1)
    assert min(lengths) == pytest.approx(5, abs=0.1)


def test_a_resource_that_was_not_used_has_no_chart(run: RunFolder, tmp_path: Path) -> None:
    probes: list[Record] = [
        NodeProbe(time=float(i), node="a", seconds=1.0, cores=[0.5], memory_bytes=10**9, memory_total_bytes=10**10,
                  network_sent_bytes_per_second=0.0, loopback_bytes_per_second=5e7, disk_read_bytes_per_second=900.0)
        for i in range(1, 6)
    ]  # fmt: skip
    write_records(run.path, probes)
    page = written(run, tmp_path / "report.html")
    assert "Loopback, between processes of a node, by s" in page
    assert "Network, sent, by s" not in page
    assert "Not or hardly used: network sent; disk read (at most 900 B/s)." in page


def test_the_head_says_data_date_and_machine(run: RunFolder, tmp_path: Path) -> None:
    machine = {"name": "anvil", "processor": "Fast 9000", "cores": 16, "memory_bytes": 64 * 10**9}
    run.write_json("result.json", run.result | {"started": "2026-11-18T21:44:05+01:00", "machine": machine})
    page = written(run, tmp_path / "report.html")
    assert "<title>my-run, logistic on clicks, 2026-11-18 · anvil – paceline</title>" in page
    assert "clicks · 18 November 2026, 21:44 · anvil, Fast 9000, 16 cores, 64.0 GB" in page


@needs_chromium
@pytest.mark.parametrize("width", [1200, 390])
def test_a_notebook_shows_the_whole_page_beside_others(
    run: RunFolder, tmp_path: Path, browser: Browser, width: int
) -> None:
    """Two fragments on a page of somebody else: each as high as its content, and neither changes the other."""
    written(run, tmp_path / "report.html")
    fragments = [report_fragment(run, key) for key in ("a", "b")]
    cells = "".join(f"<div class='cell'>{fragment}</div>" for fragment in fragments)
    outer = tmp_path / "notebook.html"
    outer.write_text(f"<!DOCTYPE html><meta charset=utf-8><h1 id=own>mine</h1>{cells}", "utf-8")
    browser.open(outer, width=width)
    assert browser.messages == []
    own = "getComputedStyle(document.getElementById('own')).fontSize"
    assert browser.evaluate(own) == "32px"
    cells = "[...document.querySelectorAll('.cell main')]"
    assert min(browser.evaluate(f"{cells}.map(m => m.getBoundingClientRect().height)")) > 1500
    assert browser.evaluate(f"{cells}.every(m => m.scrollHeight <= m.clientHeight + 1)")
    browser.evaluate("document.querySelector('.to-seconds').click()")
    shown = f"{cells}.map(m => [...m.querySelectorAll('svg.chart')].find(s => s.checkVisibility()).ariaLabel)"
    assert browser.evaluate(shown) == ["Loss, by s", "Loss, by rows"]
