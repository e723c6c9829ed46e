"""What were the nodes doing? Their processors, memory, network and disks over time."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.errors import counted
from paceline.reports.charts import MOST_LINES, Line, line_chart, line_legend
from paceline.reports.layout import charts, missing, note, section
from paceline.reports.markup import Markup, element
from paceline.reports.units import quantity
from paceline.run_folder import RunFolder
from paceline.telemetry.recorder import Telemetry
from paceline.telemetry.records import LeftOut, NodeProbe

# On one machine, nothing may go through the network.
NETWORK = {
    "Network, sent": "network_sent_bytes_per_second",
    "Network, received": "network_received_bytes_per_second",
}


def nodes_section(run: RunFolder) -> Markup:
    """Processor, memory, network and disk over time, one colour per node, and what was not measured."""
    telemetry = Telemetry(run.path)
    return section("Nodes", *_charts(telemetry.read(NodeProbe)), *_left_out(telemetry.read(LeftOut)))


def _charts(probes: Sequence[NodeProbe]) -> list[Markup]:
    if not probes:
        return [missing("Not known: no node was probed.")]
    by_node: dict[str, list[NodeProbe]] = {}
    for probe in probes:
        by_node.setdefault(probe.node, []).append(probe)
    drawn = {node: by_node[node] for node in sorted(by_node)[:MOST_LINES]}
    parts = [line_legend([_node_name(node, probes[-1]) for node, probes in drawn.items()])]
    if len(by_node) > MOST_LINES:
        parts.append(note(f"The first {MOST_LINES} of {len(by_node):,} nodes."))
    figures = [
        _node_chart("Processor, all cores", drawn, "%", "processor"),
        _node_chart("Memory in use", drawn, "B", "memory_bytes"),
        *(_node_chart(title, drawn, "B/s", name) for title, name in NETWORK.items() if _any_of(probes, name)),
        _node_chart("Disk, read", drawn, "B/s", "disk_read_bytes_per_second"),
        _node_chart("Disk, written", drawn, "B/s", "disk_written_bytes_per_second"),
    ]
    return [*parts, charts(figures)]


def _any_of(probes: Sequence[NodeProbe], name: str) -> bool:
    return any(getattr(probe, name) for probe in probes)


def _node_chart(title: str, by_node: dict[str, list[NodeProbe]], unit: str, name: str) -> Markup:
    lines = []
    for style, (node, probes) in enumerate(by_node.items()):
        ordered = sorted(probes, key=lambda probe: probe.time)
        values = [_processor(probe) if name == "processor" else getattr(probe, name) for probe in ordered]
        if any(value is not None for value in values):
            # A probe covers the seconds before it: the line begins where the first one's do.
            began = max(0.0, ordered[0].time - ordered[0].seconds)
            lines.append(Line(node, style, [began, *(probe.time for probe in ordered)], [values[0], *values]))
    if not lines:
        return element("figure", element("figcaption", title), missing("Not measured on any node."))
    return line_chart(title, lines, "s", unit, y_low=0.0)


def _processor(probe: NodeProbe) -> float | None:
    return sum(probe.cores) / len(probe.cores) if probe.cores else None


def _node_name(node: str, probe: NodeProbe) -> str:
    return f"{node} ({counted(len(probe.cores), 'core')}, {quantity(probe.memory_total_bytes, 'B')})"


def _left_out(records: Sequence[LeftOut]) -> list[Markup]:
    told = dict.fromkeys(f"{record.name} on {record.node}: {record.reason}" for record in records)
    if not told:
        return []
    return [note("Not measured:"), element("ul", *(element("li", line) for line in told), class_="faint")]
