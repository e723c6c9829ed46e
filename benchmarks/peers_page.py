"""The page and the chart of `make peers`.

A record is what benchmarks/peers.py keeps per case: `case`, `against` (the paceline case that a peer is compared with;
paceline's own cases have none), `rows_per_second`, `paceline_rows_per_second` (of that case, measured right after the
peer), `startup_seconds`, `curve` of [rows, seconds, test log loss], `peak_memory_bytes`, `bytes_per_row`; or
`left_out`, the reason why the peer could not be measured.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Record = dict[str, Any]
TO_TARGET = "seconds to log loss"


def seconds_to(curve: Sequence[Sequence[float]], target: float) -> float | None:
    """Seconds of training until the loss first reaches the target; None if it never does.

    >>> seconds_to([[100, 1.5, 0.6], [200, 3.0, 0.5]], 0.55), seconds_to([[100, 1.5, 0.6]], 0.5)
    (3.0, None)
    """
    return next((seconds for _, seconds, loss in curve if loss <= target), None)


class Measure(NamedTuple):
    """A column of the table: the `value` of a record (None if unknown), the `better` of two, and a value as `text`."""

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
        Measure(f"{TO_TARGET} {target:g}", time_to_target, min, lambda value: f"{value:,.2f}"),
        Measure("lowest log loss", best_loss, min, lambda value: f"{value:.4f}"),
        Measure("peak memory (MB)", lambda r: r.get("peak_memory_bytes"), min, lambda value: f"{value / 1e6:,.0f}"),
        Measure("seconds to first step", lambda r: r.get("startup_seconds"), min, lambda value: f"{value:,.1f}"),
        Measure("bytes per row", lambda r: r.get("bytes_per_row"), min, lambda value: f"{value:,.0f}"),
    ]


def ratio(record: Record) -> float | None:
    """How many times faster than the peer paceline is; below 1 the peer is faster."""
    if not record.get("rows_per_second") or not record.get("paceline_rows_per_second"):
        return None
    return float(record["paceline_rows_per_second"] / record["rows_per_second"])


def wins(record: Record, against: Record | None, measure: Measure) -> bool:
    """Whether a peer is strictly better than its paceline case; reaching a target beats missing it."""
    value = measure.value(record)
    if against is None or value is None or "curve" not in against:
        return False
    other = measure.value(against)
    if other is None:
        return measure.title.startswith(TO_TARGET)
    return value != other and measure.better(value, other) == value


def table(records: Sequence[Record], target: float) -> str:
    """One line per case. Bold: what a peer does better than the paceline case it is compared with."""
    columns, by_case = measures(target), {record["case"]: record for record in records}
    out = f"| | rows/s | paceline is | {' | '.join(column.title for column in columns)} |\n"
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
            text = column.text(value) if value is not None else "never" if column.title.startswith(TO_TARGET) else "–"
            cells.append(f"**{text}**" if wins(record, against, column) else text)
        out += f"| {record['case']} | {' | '.join(cells)} |\n"
    return out


def ratio_text(times: float | None) -> str:
    """
    >>> ratio_text(3.333), ratio_text(0.5), ratio_text(None)
    ('3.3× faster', '0.50×: the peer is faster', '')
    """
    if times is None:
        return ""
    if times < 1:
        return f"{times:.2f}×: the peer is faster"
    return f"{times:,.1f}× faster" if times < 100 else f"{times:,.0f}× faster"


def victories(records: Sequence[Record], target: float) -> list[str]:
    """Where peers win, in words: one line per peer."""
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
- **rows/s**: rows per second of steady training. For the batch solvers (LIBLINEAR, Spark): rows × passes per second.
- **paceline is**: paceline's rows/s divided by the peer's. Each peer is compared with the paceline case that fits it,
  measured right after the peer: TensorFlow with paceline over Ray, all others with paceline in one process (PyTorch
  and Spark with sync; Vowpal Wabbit with AdaGrad, which is close to its own update; the rest with async and 1
  worker). In one process, paceline's async updates after every row; in sync, two workers make one update from 2,000
  rows. On this shared machine figures vary by a third between runs, so the ratio is of two neighbouring measurements,
  not of two lines of the table.
- **seconds to log loss {target}**: seconds of training until the log loss on the test rows is that low, within
  {passes} passes. It is measured ten times per pass. Starting, loading and evaluating do not count. For a batch
  solver: the shortest fit that gets there.
- **lowest log loss**: the lowest of these measurements.
- **peak memory**: resident memory (VmHWM), including rows in memory or mapped, summed over the processes of the
  command.
- **seconds to first step**: from the start of the command to its first update; for a batch solver, until the solver
  begins.
- **bytes per row**: over the network, both ways; a dash if there is no network.
- **Bold**: better than the paceline case that the peer is compared with.
"""
HOW_TUNED = """\
Each case is tuned over a small grid, on half as many rows from another seed. It gets the setting with the lowest log
loss on held-out rows after one pass; if several agree to four digits, the fastest of them. No test row of the table
is used. All other settings are the peer's defaults.
"""
NOTES = """\
- TensorFlow: 2 workers and 1 server. Each step gathers the distinct keys of a batch once and makes a sparse update.
  Each process has two threads of each kind. It trains for a fixed time: 5 seconds per rate while tuning (at least one
  pass), then 20 seconds, of which the first {passes} passes count. Its rows/s and bytes come from 5 more seconds
  without evaluation.
- PyTorch: one process with its default threads; gradients only for the keys of the batch.
- The models of TensorFlow and PyTorch have no bias, because every row has one key of each categorical column. All
  other models have a bias. Without it, plain SGD in large batches tolerates a larger learning rate.
- paceline over Ray was tuned over its pace, too: `async`, with two batches in flight per worker, and `1`, with one
  batch in flight and a lead of at most one clock.
- scikit-learn: float64 CSR in memory, `partial_fit`. By default it shuffles the rows before each pass.
- Vowpal Wabbit: its default update (adaptive, normalized, invariant) with 2²⁵ weights, so that nearly every key has
  its own slot. Its figures include reading, because it reads while it learns; text is for one pass. paceline reads
  text once, when data is prepared (benchmarks/prepare.py), which its figures do not include.
- LIBLINEAR: one thread, with ever smaller tolerances; while tuning, its default. Solver 0 is its trust region Newton
  method, solver 7 its dual coordinate descent.
- Spark: one Java process on all cores, rows cached, L-BFGS without regularization, 3 iterations. Each iteration moves
  vectors of all features.
- Cases that take seconds (scikit-learn, paceline in one process) are measured {rounds} times. The round with the
  median time counts, and paceline's median rows/s. All other cases are measured once.
"""


class About(NamedTuple):
    """What all records share: the machine in words, training rows, features, passes, rounds."""

    machine: str
    rows: int
    features: int
    passes: int
    rounds: int


def page(records: Sequence[Record], about: About, target: float, chart_name: str) -> str:
    """The results page: machine, chart, table, where peers win, and all settings."""
    dates = sorted({record["date"] for record in records if "date" in record})
    out = (
        f"# Peers, {' to '.join(dict.fromkeys([dates[0], dates[-1]]))}\n\n"
        f"{about.machine}. {about.rows:,} click rows with 39 nonzeros each, {about.rows // 10:,} test rows, "
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
            out += (
                f"| {record['case']} | {grid or 'nothing: its defaults'} | {chosen} | {record.get('version', '')} |\n"
            )
    return out + f"\n{NOTES.format(rounds=about.rounds, passes=about.passes)}"


# -- the README

BEGINNING, END = "<!-- from here: make peers -->", "<!-- to here -->"


def in_readme(text: str, records: Sequence[Record], about: About, target: float, name: str) -> str:
    """The text with this table and chart between the two markers; `name` is the name of the results page."""
    before, _, rest = text.partition(BEGINNING)
    _, _, after = rest.partition(END)
    shown = (
        f"{about.rows:,} click rows with 39 nonzeros each and {about.features:,} features, on {about.machine}\n"
        f"([all figures and settings](benchmarks/results/{name}.md)):\n\n{table(records, target)}\n"
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
    """Bars of rows per second on a log scale: an SVG that is legible on light and dark pages."""
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
