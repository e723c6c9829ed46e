"""What did a matrix job look like? Its page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.files import replace_file
from paceline.reports.charts import box_legend, quantity, stacked_bar
from paceline.reports.layout import document, facts, missing, note, section
from paceline.reports.markup import Markup, element
from paceline.reports.page import environment, nodes, run_name, verdict
from paceline.reports.phases import PHASES
from paceline.run_folder import Run
from paceline.telemetry.recorder import Telemetry
from paceline.telemetry.records import LeftOut, NodeProbe


def movement(result: dict[str, Any]) -> list[str]:
    """How the bytes that crossed between processes compare, in words; nothing where there was one process."""
    if "bytes_lower_bound" not in result:
        return []
    moved, least, naive = (result[name] for name in ("bytes_moved", "bytes_lower_bound", "bytes_naive"))
    ratio = f", {moved / least:.2f} × that" if least else ""
    return [
        f"{result['algorithm']}: at least {_size(least)} must move{ratio} did; "
        f"placed without regard to its neighbours it would be {_size(naive)}"
    ]


def _size(count: float) -> str:
    return quantity(count, "B")


def write_job_report(run: Run, diagnosis: dict[str, Any], out: Path) -> None:
    """The page of a matrix job, running or ended."""
    telemetry, result, name = Telemetry(run.path), run.result, run_name(run)
    page = document(
        f"{name} – paceline",
        element("h1", name),
        _summary(result),
        verdict(diagnosis, result, recorded=bool(result)),
        _glance(result),
        section("Where the time went", *_phases(diagnosis)),
        section("Bytes between processes", *_bytes(result)),
        section("Nodes", *nodes(telemetry.read(NodeProbe), telemetry.read(LeftOut))),
        section("Settings", element("pre", (run.path / "config.toml").read_text("utf-8", "replace"))),
        section("Result and environment", *environment(result)),
    )
    replace_file(out, page)


def _summary(result: dict[str, Any]) -> Markup:
    if not result:
        return note("No result yet: the job goes on, or was killed.")
    ended = {"done": "Done", "interrupted": "Interrupted", "failed": "Failed"}.get(result["status"], result["status"])
    return note(f"{ended}: {result['job']}, engine {result['engine']}. {result.get('error', '')}")


def _glance(result: dict[str, Any]) -> Markup:
    shown: dict[str, Callable[[Any], str]] = {
        "trace": repr,
        "seconds": lambda value: f"{value:,.2f}",
        "blocks_made": lambda value: f"{value:,}",
        "elements_per_second": lambda value: f"{value:,.0f}",
        "flop_per_second": lambda value: f"{value / 1e9:,.1f} GFLOP/s",
        "tiles": lambda value: f"{value:,}",
        "bytes_moved": lambda value: f"{value:,}",
    }
    pairs = [(name.replace("_", " "), as_text(result[name])) for name, as_text in shown.items() if name in result]
    return facts(pairs) if pairs else Markup("")


def _phases(diagnosis: dict[str, Any]) -> list[Markup]:
    if not diagnosis:
        return [missing("Not known: the job has not ended.")]
    bar = stacked_bar("all processes", diagnosis["phases"], 1.0, "")
    return [box_legend(PHASES), element("div", bar, class_="bars")]


def _bytes(result: dict[str, Any]) -> list[Markup]:
    lines = movement(result)
    if not lines:
        return [missing("None: everything was in one process.")]
    return [element("p", line) for line in lines]
