"""How do numbers become pictures? SVG and HTML that scale, print, and take their colours from the style sheet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from paceline.reports.markup import Markup, element
from paceline.reports.units import prefix_of, quantity

WIDTH, HEIGHT = 460, 240
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 14, 42
NUM_COLOURS, NUM_DASHES = 7, 4
# The number of lines that can be told apart.
MOST_LINES = NUM_COLOURS * NUM_DASHES
# More points would fall on the same pixels.
MOST_POINTS = 300
# Points that show their value under the pointer take some hundred bytes each.
MOST_HOVERS = 400
MOST_DOTS = 40
# Values that differ by less are drawn as a flat line.
FLAT = 1e-300
# An axis is logarithmic if its largest value is this many times its median: one value would dwarf all others.
DWARFING = 20.0
# A part of a bar needs at least this share to have room for its number.
LEAST_LABELLED_SHARE = 0.09


class Line(NamedTuple):
    """A series of a chart. `style` chooses colour and dashes; None in `ys` is a gap."""

    name: str
    style: int
    xs: Sequence[float]
    ys: Sequence[float | None]


class Scale(NamedTuple):
    """One axis: its ends, its ticks with their labels, the unit of the labels, the unit of the values, and whether it is
    logarithmic.
    """

    low: float
    high: float
    ticks: list[float]
    labels: list[str]
    unit: str
    base_unit: str
    log: bool = False

    def share(self, value: float) -> float:
        """How far along the axis a value is, 0 to 1."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


class Reference(NamedTuple):
    """A value that lines can be compared with, drawn as a level line with its name."""

    name: str
    y: float


def has_curve(lines: Sequence[Line]) -> bool:
    """Whether there is a line to draw: two points at different places. A chart of less would show nothing."""
    return any(
        len({x for x, y in zip(line.xs, line.ys, strict=True) if y is not None}) > 1 for line in lines
    )  # fmt: skip


def line_chart(
    title: str, lines: Sequence[Line], x_unit: str | Sequence[str], y_unit: str, *, y_low: float | None = None,
    log_x: bool = False, reference: Reference | None = None,
) -> Markup:  # fmt: skip
    """A figure with one polyline per series, at least one of which has two points (`has_curve`).

    Units are keys of `PREFIXES`, or the words to write at the axis; a list of words names the places 0, 1, 2, …
    The vertical axis begins at `y_low`, or near the smallest value, or is logarithmic if one value would dwarf all
    others; its unit is in the caption. A `reference` is drawn unless it is too far from the lines.
    """
    thinned = [_thin(line) for line in lines]
    points = [(x, y) for line in thinned for x, y in zip(line.xs, line.ys, strict=True) if y is not None]
    ys = [y for _, y in points]
    if reference and not 2 * min(ys) - max(ys) <= reference.y <= 3 * max(ys) - 2 * min(ys):
        reference = None
    if not isinstance(x_unit, str):
        x_axis, word = named_scale(x_unit), title
    else:
        xs = [x for x, _ in points]
        x_axis, word = scale(xs if log_x else [0.0, *xs], x_unit, 6, at_ticks=False, log=log_x), x_unit
    log_y = y_low is None and is_dwarfed(ys)
    all_ys = ys + ([y_low] if y_low is not None else []) + ([reference.y] if reference else [])
    y_axis = scale(all_ys, y_unit, 5, at_ticks=True, log=log_y)
    drawn = _grid(x_axis, y_axis) + (_draw_reference(reference, x_axis, y_axis) if reference else [])
    for line in thinned:
        drawn += _draw_line(line, x_axis, y_axis, hover=len(points) <= MOST_HOVERS)
    picture = element(
        "svg", *drawn, class_="chart", viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=f"{title}, by {word}"
    )
    caption = ", ".join([title, *([y_axis.unit] if y_axis.unit else []), *(["log scale"] if log_y else [])])
    return element("figure", element("figcaption", caption), picture)


def is_dwarfed(values: Sequence[float]) -> bool:
    """Whether one value would leave no room for the others on a linear axis.

    >>> is_dwarfed([1.0, 1.1, 1.2, 90.0]), is_dwarfed([1.0, 2.0, 3.0]), is_dwarfed([0.0, 1.0, 90.0])
    (True, False, False)
    """
    return len(values) > 2 and min(values) > 0 and max(values) > DWARFING * sorted(values)[len(values) // 2]


def scale(values: Sequence[float], unit: str, num_ticks: int, *, at_ticks: bool, log: bool = False) -> Scale:
    """An axis for `values`, with round ticks; with `at_ticks`, it begins and ends at a tick. `log` needs values over 0.

    >>> scale([0.0, 2_400_000.0], "rows", 5, at_ticks=True).labels
    ['0.0', '0.5', '1.0', '1.5', '2.0', '2.5']
    """
    low, high = min(values, default=0.0), max(values, default=1.0)
    if log and high > low > 0:
        return _log_scale(low, high, unit, at_ticks)
    if high - low <= FLAT:
        margin = abs(low) * 0.1 or 0.5
        low, high = (low - margin, high + margin) if low else (0.0, 1.0)
    step = _round_step((high - low) / num_ticks)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    if at_ticks:
        low, high = first * step, last * step
    else:
        last = math.floor(high / step + 1e-9)
    ticks = [number * step for number in range(first, last + 1) if number * step >= low - 1e-9 * step]
    factor, name = prefix_of(max(abs(low), abs(high)), unit)
    digits = max(0, -math.floor(math.log10(step / factor) + 1e-9))
    return Scale(low, high, ticks, [f"{tick / factor:,.{digits}f}" for tick in ticks], name, unit)


def named_scale(names: Sequence[str]) -> Scale:
    """An axis with a name at each of the places 0, 1, 2, …"""
    return Scale(-0.35, len(names) - 0.65, [float(place) for place in range(len(names))], list(names), "", "")


def _log_scale(low: float, high: float, unit: str, at_ticks: bool) -> Scale:
    """Ticks at powers of ten, and at 2 and 5 times those if there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= 3 else (1,)
    step = max(1, (last - first) // 6)
    ticks = [factor * 10.0**power for power in range(first, last + 1, step) for factor in factors]
    if at_ticks:
        low, high = max(t for t in ticks if t <= low), min((t for t in ticks if t >= high), default=high)
    ticks = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
    factor, name = prefix_of(high, unit)
    return Scale(low, high, ticks, [f"{tick / factor:g}" for tick in ticks], name, unit, log=True)


def line_legend(names: Sequence[str], styles: Sequence[int] | None = None) -> Markup:
    """Which line is which: the names, in the order of their styles unless those are given."""
    entries = []
    for style, name in zip(styles or range(len(names)), names, strict=False):
        mark = element("line", x1=0, y1=5, x2=24, y2=5, class_=line_class(style))
        entries.append(element("li", element("svg", mark, viewBox="0 0 24 10", aria_hidden="true"), name))
    return element("ul", *entries, class_="legend")


def bars(rows: Sequence[Markup], names: Sequence[str]) -> list[Markup]:
    """Stacked bars, below a legend of their parts, whose names are their classes."""
    entries = (element("li", element("span", class_=f"box {name}"), name) for name in names)
    return [element("ul", *entries, class_="legend"), element("div", *rows, class_="bars")]


def stacked_bar(
    label: str, parts: Mapping[str, float], whole: float, number: str, unit: str = "", length: float | None = None
) -> Markup:
    """One stacked bar: `parts` by class name, drawn as shares of `whole`; `number` is written at its end.

    With a `unit`, the tooltip of a part shows its size besides its share. With a `length`, the bar has that share of
    the width, whatever its parts add up to.
    """
    pieces = []
    total = sum(parts.values())
    for name, size in parts.items():
        share = (
            (size / total * length if total > 0 else 0.0) if length is not None else size / whole if whole > 0 else 0.0
        )
        if share <= 0:
            continue
        told = f"{name}: {size / total if unit else share:.1%}" + (f", {quantity(size, unit)}" if unit else "")
        text = f"{share:.0%}" if share >= LEAST_LABELLED_SHARE and not unit else ""
        pieces.append(element("span", text, class_=name, style=f"width:{100 * share:.2f}%", title=told))
    columns: dict[str, list[object]] = {"label": [label], "bar": [*pieces], "number": [number]}
    return element("div", *(element("div", *found, class_=name) for name, found in columns.items()), class_="row")


def line_class(style: int) -> str:
    """The classes of a line: a colour, and dashes once all colours are taken."""
    dash = style // NUM_COLOURS % NUM_DASHES
    return f"line s{style % NUM_COLOURS}" + (f" dash{dash}" if dash else "")


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def _thin(line: Line) -> Line:
    """At most about `MOST_POINTS` points: the smallest and the largest of each bucket, so that peaks stay."""
    size, num_buckets = len(line.xs), MOST_POINTS // 2
    if size <= MOST_POINTS:
        return line
    highs = [-math.inf if y is None else y for y in line.ys]
    lows = [math.inf if y is None else y for y in line.ys]
    kept: set[int] = {0, size - 1}
    for bucket in range(num_buckets):
        places = range(bucket * size // num_buckets, (bucket + 1) * size // num_buckets)
        kept |= {min(places, key=lows.__getitem__), max(places, key=highs.__getitem__)}
    order = sorted(kept)
    return line._replace(xs=[line.xs[i] for i in order], ys=[line.ys[i] for i in order])


def _place(x: float, y: float, x_axis: Scale, y_axis: Scale) -> tuple[float, float]:
    return (
        round(LEFT + x_axis.share(x) * (WIDTH - LEFT - RIGHT), 1),
        round(HEIGHT - BOTTOM - y_axis.share(y) * (HEIGHT - TOP - BOTTOM), 1),
    )


def _grid(x_axis: Scale, y_axis: Scale) -> list[Markup]:
    """Lines and names of both axes."""
    bottom = HEIGHT - BOTTOM
    parts: list[Markup] = []
    for tick, label in zip(y_axis.ticks, y_axis.labels, strict=True):
        _, y = _place(x_axis.low, tick, x_axis, y_axis)
        parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        parts.append(element("text", label, x=LEFT - 6, y=y + 4, text_anchor="end"))
    for tick, label in zip(x_axis.ticks, x_axis.labels, strict=True):
        x, _ = _place(tick, y_axis.low, x_axis, y_axis)
        parts.append(element("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="grid"))
        parts.append(element("text", label, x=x, y=bottom + 17, text_anchor="middle"))
    return [*parts, element("text", x_axis.unit, x=WIDTH - RIGHT, y=HEIGHT - 6, text_anchor="end")]


def _draw_reference(reference: Reference, x_axis: Scale, y_axis: Scale) -> list[Markup]:
    _, y = _place(x_axis.high, reference.y, x_axis, y_axis)
    return [
        element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="reference"),
        element("text", reference.name, x=WIDTH - RIGHT, y=y - 5, text_anchor="end", class_="reference-name"),
    ]


def _draw_line(line: Line, x_axis: Scale, y_axis: Scale, hover: bool) -> list[Markup]:
    """The line's stretches between gaps, dots if there are few points, and tooltips."""
    stretches: list[Markup] = []
    dots: list[Markup] = []
    few = len(line.xs) <= MOST_DOTS
    points = zip(line.xs, line.ys, strict=True)
    for is_gap, group in groupby(points, key=lambda point: point[1] is None):
        stretch = [] if is_gap else [(x, y, *_place(x, y, x_axis, y_axis)) for x, y in group if y is not None]
        if len(stretch) > 1:
            path = " ".join(f"{x},{y}" for *_, x, y in stretch)
            stretches.append(element("polyline", points=path, class_=line_class(line.style)))
        for x_value, y_value, x, y in stretch:
            if few or len(stretch) == 1:
                radius = 3 if few else 2.5
                dots.append(element("circle", cx=x, cy=y, r=radius, class_=f"dot s{line.style % NUM_COLOURS}"))
            if hover:
                told = f"{line.name}: {quantity(y_value, y_axis.base_unit)} at {quantity(x_value, x_axis.base_unit)}"
                dots.append(element("circle", element("title", told), cx=x, cy=y, r=7, class_="hover"))
    return stretches + dots
