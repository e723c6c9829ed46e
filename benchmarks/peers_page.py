"""What do the page and the chart of `make peers` say about what was measured?

A record is what benchmarks/peers.py keeps of a case: `case`, `against` (the paceline case that a peer is held against;
paceline's own have none), `rows_per_second`, `paceline_rows_per_second` (of that case, measured right after the peer),
`startup_seconds`, `curve` of [rows, seconds, test log loss], `peak_memory_bytes`, `bytes_per_row`; or `left_out`, which
says why.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Record = dict[str, Any]


def seconds_to(curve: Sequence[Sequence[float]], target: float) -> float | None:
    """Seconds of training up to the first point at or below a loss; None where there is none.

    >>> seconds_to([[100, 1.5, 0.6], [200, 3.0, 0.5]], 0.55), seconds_to([[100, 1.5, 0.6]], 0.5)
    (3.0, None)
    """
    return next((seconds for _, seconds, loss in curve if loss <= target), None)


class Measure(NamedTuple):
    """A column of the table: `value` of a record (None if it has none), which `better` chooses between two, as text."""

    title: str
    value: Callable[[Record], float | None]
    better: Callable[[float, float], float]
    text: Callable[[float], str]


def measures(target: float) -> list[Measure]:
    def best_loss(record: Record) -> float | None:
        return min((loss for _, _, loss in record["curve"]), default=None) if "curve" in record else None

    def time_to_target(record: Record) -> float | None:
        return seconds_to(record.get("curve", []), target)

    return [
        Measure(f"s to log loss {target:g}", time_to_target, min, lambda value: f"{value:,.2f}"),
        Measure("least log loss", best_loss, min, lambda value: f"{value:.4f}"),
        Measure("peak memory, MB", lambda r: r.get("peak_memory_bytes"), min, lambda value: f"{value / 1e6:,.0f}"),
        Measure("first step, s", lambda r: r.get("startup_seconds"), min, lambda value: f"{value:,.1f}"),
        Measure("bytes a row", lambda r: r.get("bytes_per_row"), min, lambda value: f"{value:,.0f}"),
    ]


def ratio(record: Record) -> float | None:
    """How many times the peer's rows per second paceline makes; below 1 the peer wins."""
    if not record.get("rows_per_second") or not record.get("paceline_rows_per_second"):
        return None
    return float(record["paceline_rows_per_second"] / record["rows_per_second"])


def wins(record: Record, against: Record | None, measure: Measure) -> bool:
    """Whether a peer is strictly better than the paceline case it is held against; reaching a target beats not to."""
    value = measure.value(record)
    if against is None or value is None or "curve" not in against:
        return False
    other = measure.value(against)
    if other is None:
        return measure.title.startswith("s to")
    return value != other and measure.better(value, other) == value


def table(records: Sequence[Record], target: float) -> str:
    """A line a case; what a peer does better than the paceline case it is held against is bold."""
    columns, by_case = measures(target), {record["case"]: record for record in records}
    out = f"| | rows/s | paceline makes | {' | '.join(column.title for column in columns)} |\n"
    out += "|---|---|---|" + "---|" * len(columns) + "\n"
    for record in records:
        if "left_out" in record:
            out += f"| {record['case']} | {record['left_out']} |{' |' * (1 + len(columns))}\n"
            continue
        against, times = by_case.get(record.get("against", "")), ratio(record)
        rate = f"{record['rows_per_second']:,.0f}"
        cells = [f"**{rate}**" if times is not None and times < 1 else rate, ratio_text(times)]
        for column in columns:
            value = column.value(record)
            text = column.text(value) if value is not None else "never" if column.title.startswith("s to") else "–"
            cells.append(f"**{text}**" if wins(record, against, column) else text)
        out += f"| {record['case']} | {' | '.join(cells)} |\n"
    return out


def ratio_text(times: float | None) -> str:
    """
    >>> ratio_text(3.333), ratio_text(0.5), ratio_text(None)
    ('3.3 ×', '0.50 ×, the peer wins', '')
    """
    if times is None:
        return ""
    return f"{times:.2f} ×, the peer wins" if times < 1 else f"{times:,.1f} ×" if times < 100 else f"{times:,.0f} ×"


def victories(records: Sequence[Record], target: float) -> list[str]:
    """Where peers win, in words: a line a peer that does."""
    by_case, lines = {record["case"]: record for record in records}, []
    for record in records:
        against, times = by_case.get(record.get("against", "")), ratio(record)
        won = ["rows/s"] if times is not None and times < 1 else []
        won += [column.title for column in measures(target) if wins(record, against, column)]
        if won and against is not None:
            lines.append(f"{record['case']} beats {against['case']} in: {'; '.join(won)}.")
    return lines


# -- the chart

LABEL_WIDTH, BAR_WIDTH, VALUE_WIDTH, ROW_HEIGHT, TOP = 330, 430, 90, 24, 46
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f; }
  .value { font-variant-numeric: tabular-nums; }
  .tick { font-size: 11px; fill: #6e7781; }
  .grid { stroke: #8c959f; stroke-opacity: 0.35; }
  .ours { fill: #0969da; } .peer { fill: #8c959f; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .tick { fill: #9198a1; } .ours { fill: #4493f8; } .peer { fill: #768390; }
  }
"""


def chart(records: Sequence[Record], title: str) -> str:
    """Bars of rows per second on a log scale, as an SVG that is legible on light and dark pages."""
    shown = [record for record in records if record.get("rows_per_second")]
    exponents = [math.log10(record["rows_per_second"]) for record in shown] or [0.0, 1.0]
    low, high = math.floor(min(exponents) - 0.2), math.ceil(max(exponents))
    height, width = TOP + ROW_HEIGHT * len(shown) + 28, LABEL_WIDTH + BAR_WIDTH + VALUE_WIDTH
    scale = BAR_WIDTH / max(1, high - low)
    bottom = TOP + ROW_HEIGHT * len(shown)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{html.escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<text x="10" y="22" font-weight="600">{html.escape(title)}</text>',
    ]
    for exponent in range(low, high + 1):
        x = LABEL_WIDTH + (exponent - low) * scale
        out.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{bottom}"/>')
        out.append(
            f'<text class="tick" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{short(10**exponent)}</text>'
        )
    for number, record in enumerate(shown):
        out += bar(record, TOP + number * ROW_HEIGHT, (math.log10(record["rows_per_second"]) - low) * scale)
    return "\n".join([*out, "</svg>"]) + "\n"


def bar(record: Record, y: float, length: float) -> list[str]:
    """The label, the bar and the figure of a record."""
    kind = "peer" if record.get("against") else "ours"
    middle, rate = y + ROW_HEIGHT / 2 + 1, short(record["rows_per_second"])
    return [
        f'<text x="{LABEL_WIDTH - 10}" y="{middle}" text-anchor="end">{html.escape(record["case"])}</text>',
        f'<rect class="{kind}" x="{LABEL_WIDTH}" y="{y}" width="{length:.1f}" height="{ROW_HEIGHT - 8}" rx="2"/>',
        f'<text class="value" x="{LABEL_WIDTH + length + 6:.1f}" y="{middle}">{rate}</text>',
    ]


def short(count: float) -> str:
    """
    >>> short(6_312_000), short(205_400), short(13_200), short(10)
    ('6.3 M', '205 k', '13 k', '10')
    """
    if count >= 1e6:
        return f"{count / 1e6:.1f} M".replace(".0 M", " M")
    return f"{count / 1e3:.0f} k" if count >= 1e3 else f"{count:.0f}"
