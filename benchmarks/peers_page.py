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


# -- the page

HOW_TO_READ = """\
- **rows/s**: of steady training; of the batch solvers (LIBLINEAR, Spark) rows × passes over them.
- **paceline makes**: so many times the peer's rows/s, by the paceline line that fits it, measured right after the peer:
  TensorFlow is held against paceline over Ray, everything else against paceline in one process (PyTorch and Spark
  against sync, Vowpal Wabbit against AdaGrad, which is its own rule's kin, the rest against async with 1 worker).
  In one process paceline's async takes one row at a time; in sync two workers make an update of 2,000 rows. On a
  shared machine figures move by a third from run to run, so neighbours are compared, not lines of the table.
- **s to log loss {target}**: seconds of training until the test rows' log loss is there, within {passes} passes; looked
  at ten times a pass. Starting, loading and evaluating are not in it. Of a batch solver: of the shortest fit that gets
  there.
- **peak memory**: resident (VmHWM), rows in memory or mapped included, summed over the processes of the command.
- **first step**: from the command's start to its first update; of a batch solver, to where the solver begins.
- **bytes a row**: over the network, both ways; a dash where there is none.
- **Bold**: better than the paceline line it is held against.
"""
HOW_TUNED = """\
Each case takes, of a few settings, the one with the least log loss on held-out rows after a pass over half as many rows
of another seed, and the fastest of those that are alike to four digits; no test row of the table is seen. Whatever is
not named stands as the peer has it.
"""
NOTES = """\
- TensorFlow: 2 workers and 1 server, one gather of a batch's distinct keys and a sparse update; two threads a kind and
  process. It trains for a time: 5 seconds a rate while tuning, a pass or more, and then 20 seconds,
  of which the first {passes} passes count. Its rows/s and its bytes are of 5 seconds more, without looks at the test
  rows.
- PyTorch: one process, its own threads; gradients of the batch's keys alone.
- Neither TensorFlow's model nor PyTorch's has a bias, since one key of each categorical column is in every row; all
  others have one. Without it plain SGD in large batches bears a larger learning rate.
- paceline over Ray was tuned over its paces, too: `async`, where a worker has two batches in flight, and `1`, where it
  has one and is at most a clock ahead.
- scikit-learn: CSR of float64 in memory, `partial_fit`; its default shuffles the rows before each pass.
- Vowpal Wabbit: its default rule (adaptive, normalized, invariant), 2²⁵ weights, a table slot for nearly every key.
  Reading is in its figures: it reads while it learns; text is for one pass. paceline reads text once, when data is
  prepared (see benchmarks/prepare.py), which is not in its figures.
- LIBLINEAR: one thread, to ever smaller tolerances; while tuning, to its default. Solver 0 is its trust region Newton
  method, 7 its dual coordinate descent.
- Spark: one Java process on all cores, rows cached, L-BFGS without regularization, 3 iterations: each moves vectors of
  all features.
- What takes seconds (scikit-learn, paceline in one process) is measured {rounds} times; the round with the median time
  counts, and the median rows/s of paceline. Everything else is measured once.
"""


class About(NamedTuple):
    """What every record was measured on and how: the machine in words, training rows, features, passes, rounds."""

    machine: str
    rows: int
    features: int
    passes: int
    rounds: int


def page(records: Sequence[Record], about: About, target: float, chart_name: str) -> str:
    """The results page: machine, chart, table, where peers win, and how everything was set."""
    dates = sorted({record["date"] for record in records if "date" in record})
    out = (
        f"# Peers, {' to '.join(dict.fromkeys([dates[0], dates[-1]]))}\n\n"
        f"{about.machine}. {about.rows:,} click rows of 39 nonzeros, {about.rows // 10:,} test rows, "
        f"{about.features:,} features; "
        f"`make peers`.\n\n![Rows per second of paceline and its peers]({chart_name})\n\n"
        f"{table(records, target)}\n{HOW_TO_READ.format(target=f'{target:g}', passes=about.passes)}\n"
    )
    won = victories(records, target)
    out += "## Where peers win\n\n" + ("".join(f"- {line}\n" for line in won) or "Nowhere in this run.\n")
    out += f"\n## Settings\n\n{HOW_TUNED}\n| | tuned over | chosen | version |\n|---|---|---|---|\n"
    for record in records:
        if "setting" in record:
            grid = "; ".join(f"{name} {', '.join(map(str, values))}" for name, values in record["grid"].items())
            chosen = ", ".join(f"{name} {record['setting'][name]}" for name in record["grid"])
            out += f"| {record['case']} | {grid or 'as it comes'} | {chosen} | {record.get('version', '')} |\n"
    return out + f"\n{NOTES.format(rounds=about.rounds, passes=about.passes)}"


# -- the README

BEGINNING, END = "<!-- from here: make peers -->", "<!-- to here -->"


def in_readme(text: str, records: Sequence[Record], about: About, target: float, name: str) -> str:
    """The text with this table and chart between the two marks; `name` is that of the run's files."""
    before, _, rest = text.partition(BEGINNING)
    _, _, after = rest.partition(END)
    shown = (
        f"{about.rows:,} click rows of 39 nonzeros, {about.features:,} features, on {about.machine}\n"
        f"([the page of this run](benchmarks/results/{name}.md)):\n\n{table(records, target)}\n"
        f"![Rows per second of paceline and its peers, log scale](benchmarks/results/{name}-peers.svg)\n"
    )
    return f"{before}{BEGINNING}\n{shown}{END}{after}"


# -- the chart

LABEL_WIDTH, BAR_WIDTH, VALUE_WIDTH, ROW_HEIGHT, TOP = 370, 430, 90, 24, 46
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
