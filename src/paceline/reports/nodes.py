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

# What flows through a node: a title and its field.
FLOWS = {
    "Network, sent": "network_sent_bytes_per_second",
    "Network, received": "network_received_bytes_per_second",
    "Loopback, between processes of a node": "loopback_bytes_per_second",
    "Disk, read": "disk_read_bytes_per_second",
    "Disk, written": "disk_written_bytes_per_second",
}
# Less than this is what any machine does when it has nothing to do.
USED = 1e6
# Fewer probes than this are numbers, not curves.
FEWEST_PROBES = 3


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
    if max(map(len, drawn.values())) < FEWEST_PROBES:
        return [note("The run was too short for curves. On average:"), *(_averages(drawn))]
    parts = [line_legend([_node_name(node, probes[-1]) for node, probes in drawn.items()])]
    if len(by_node) > MOST_LINES:
        parts.append(note(f"The first {MOST_LINES} of {len(by_node):,} nodes."))
    most = {title: _most(probes, name) for title, name in FLOWS.items()}
    figures = [
        _node_chart("Processor, all cores", drawn, "%", "processor"),
        _node_chart("Memory in use", drawn, "B", "memory_bytes"),
        *(_node_chart(title, drawn, "B/s", FLOWS[title]) for title, peak in most.items() if peak >= USED),
    ]
    idle = [_idle(title, peak) for title, peak in most.items() if 0 <= peak < USED]
    return [*parts, charts(figures), *([note(f"Not or hardly used: {'; '.join(idle)}.")] if idle else [])]


def _most(probes: Sequence[NodeProbe], name: str) -> float:
    """The largest value of any node; -1 if it was not measured."""
    return max((value for probe in probes if (value := getattr(probe, name)) is not None), default=-1.0)


def _idle(title: str, peak: float) -> str:
    told = title.partition(", between")[0].lower().replace(", ", " ")
    return f"{told} (at most {quantity(peak, 'B/s')})" if peak else told


def _averages(by_node: dict[str, list[NodeProbe]]) -> list[Markup]:
    """One line of words per node."""
    lines = []
    for node, probes in by_node.items():
        busy = [share for probe in probes if (share := _processor(probe)) is not None]
        told = [f"{node or 'this node'}: {counted(len(probes[-1].cores), 'core')}"]
        told += [f"{sum(busy) / len(busy):.0%} busy"] if busy else []
        told += [f"{quantity(max(probe.memory_bytes for probe in probes), 'B')} of memory in use"]
        told += [
            f"{title.partition(', between')[0].lower()} {quantity(peak, 'B/s')}"
            for title, name in FLOWS.items() if (peak := _most(probes, name)) >= USED
        ]  # fmt: skip
        lines.append(element("li", ", ".join(told)))
    return [element("ul", *lines)]


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
