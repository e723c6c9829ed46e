"""Which of several runs is best, and by how much? By the loss on held-out rows, or for other jobs by speed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from paceline.models.registry import METRICS
from paceline.reports.measures import MEASURES, Measure

Results = Sequence[Mapping[str, Any]]

BY_NAME = {measure.name: measure for measure in MEASURES}
# Losses of different kinds cannot be compared: then the metric that people compare first.
METRIC_NAMES = [name for name in reversed(METRICS) if METRICS[name].better and name != "loss"]
SPEEDS = ("rows_per_second", "elements_per_second", "flop_per_second")
# Runs whose speeds differ by less are equally fast.
FASTER = 1.1


class Ranking(NamedTuple):
    """The measure by which runs are ordered, None if none of them has one; their places, best first."""

    measure: Measure | None
    order: list[int]

    @property
    def rows(self) -> str:
        """On which rows the best was chosen: `validation`, `test`, or nothing."""
        return self.measure.path[0] if self.measure and len(self.measure.path) > 1 else ""


def rank(results: Results) -> Ranking:
    """Finished runs, best first, then the others."""
    done = [place for place, one in enumerate(results) if one.get("status") == "done"]
    others = [place for place in range(len(results)) if place not in done]
    measure = _measure_for([results[place] for place in done])
    if measure is None:
        return Ranking(None, [*done, *others])
    sign = -1 if measure.better == "high" else 1
    return Ranking(measure, [*sorted(done, key=lambda place: sign * measure.value(results[place])), *others])


def verdict_on(names: Sequence[str], results: Results, ranking: Ranking) -> str:
    """Which run is best and by how much, in one sentence or two; empty if fewer than two can be compared."""
    measure = ranking.measure
    done = [place for place in ranking.order if results[place].get("status") == "done"]
    if measure is None or len(done) < 2:
        return ""
    first, second, last = done[0], done[1], done[-1]
    best, label = measure.value(results[first]), measure.label
    extreme = "highest" if measure.better == "high" else "lowest"
    if measure.text(results[first]) == measure.text(results[last]):
        told = f"All have the same {label}, {measure.text(results[first])}."
    else:
        apart = [f"{difference(measure, best, measure.value(results[second]))} than `{names[second]}`"]
        if len(done) > 2:
            apart.append(f"{difference(measure, best, measure.value(results[last]))} than the last")
        told = f"`{names[first]}` has the {extreme} {label}, {measure.text(results[first])}: {' and '.join(apart)}."
    if len({str(results[place].get("data_fingerprint")) for place in done}) > 1:
        told += " But the runs are on different data, so these numbers may not be comparable."
    return f"{told} {_on_speed(names, results, done, measure)}".rstrip()


def difference(measure: Measure, value: float, other: float) -> str:
    """How far a value is from another one, in words.

    >>> difference(BY_NAME["test_loss"], 0.45, 0.5), difference(BY_NAME["rows_per_second"], 300.0, 100.0)
    ('10.0% lower', '3.0× higher')
    >>> difference(BY_NAME["elements_per_second"], 101.0, 100.0)
    '1.0% higher'
    """
    word = "lower" if value < other else "higher"
    if min(value, other) > 0:
        if measure.name in SPEEDS and max(value, other) >= FASTER * min(value, other):
            return f"{max(value, other) / min(value, other):.1f}× {word}"
        if other < 1e100:
            percent = 100 * abs(value - other) / other
            return f"{percent:.{0 if percent >= 10.5 else 1 if percent >= 0.1 else 2}f}% {word}"
    return f"{abs(value - other):.3g} {word}"


def _on_speed(names: Sequence[str], results: Results, done: Sequence[int], measure: Measure) -> str:
    """Whether the best run is the fastest, too, and if not, which one is."""
    speeds = {place: float(results[place].get("rows_per_second") or 0.0) for place in done}
    if measure.name in SPEEDS or min(speeds.values()) <= 0:
        return ""
    first, slowest = done[0], min(speeds.values())
    fastest = max(done, key=speeds.__getitem__)
    if speeds[fastest] < FASTER * slowest:
        return "All are equally fast."
    if fastest == first or speeds[fastest] < FASTER * speeds[first]:
        ahead = f"{speeds[first] / slowest:.1f}× as many rows per second as"
        return f"It is also faster: {ahead} {f'`{names[done[1]]}`' if len(done) == 2 else 'the slowest'}."
    told = f"`{names[fastest]}` trains {speeds[fastest] / speeds[first]:.1f}× as fast"
    worse = difference(measure, measure.value(results[fastest]), measure.value(results[first]))
    return f"{told}, and its {measure.label} is {worse}."


def _measure_for(results: Results) -> Measure | None:
    """What all results have, by which to order them: the loss if it is the same one, on validation rows if possible."""
    if not results:
        return None
    same_loss = len({one.get("loss") for one in results}) == 1
    names = ["loss"] if same_loss else METRIC_NAMES
    wanted = [f"{rows}_{name}" for rows in ("validation", "test") for name in names] + list(SPEEDS)
    for measure in (BY_NAME[name] for name in wanted):
        values = [measure.value(one) for one in results]
        if all(isinstance(value, int | float) and math.isfinite(value) for value in values):
            return measure
    return None
