"""What did a matrix job look like? Its part of the page, and its lines in words."""

from __future__ import annotations

from typing import Any

from paceline.reports.charts import box_legend, quantity, stacked_bar
from paceline.reports.layout import missing, section
from paceline.reports.markup import Markup, element
from paceline.reports.nodes import nodes
from paceline.reports.phases import PHASES
from paceline.run_folder import RunFolder
from paceline.telemetry.recorder import Telemetry
from paceline.telemetry.records import LeftOut, NodeProbe


def movement(result: dict[str, Any]) -> list[str]:
    """How many bytes moved between processes, compared with the least, in words; empty for one process."""
    if "bytes_lower_bound" not in result:
        return []
    moved, least, naive = (result[name] for name in ("bytes_moved", "bytes_lower_bound", "bytes_naive"))
    ratio = f" ({moved / least:.2f}×)" if least else ""
    return [
        f"{result['algorithm']}: {_size(moved)} moved; at least {_size(least)} must move{ratio}; "
        f"a placement that ignores neighbours would move {_size(naive)}"
    ]


def _size(count: float) -> str:
    return quantity(count, "B")


def job_sections(run: RunFolder) -> list[Markup]:
    """What the page of a matrix job shows, besides what all pages show."""
    telemetry = Telemetry(run.path)
    return [
        section("Where the time went", *_phases(run.saved_diagnosis)),
        section("Bytes between processes", *_bytes(run.result)),
        section("Nodes", *nodes(telemetry.read(NodeProbe), telemetry.read(LeftOut))),
    ]


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
