"""How much faster would a run be if one resource were better? Bars, one per resource."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.reports.markup import Markup, element

# Longer bars would leave nothing to see of the others.
MOST = 10.0
LEAST_TOLD = 1.005
TITLES = {
    "input": "input", "worker-compute": "workers", "network": "network", "shard-compute": "shards",
    "straggler": "no stragglers", "gpu-memory": "the GPU’s memory", "bus": "the bus to the GPU",
}  # fmt: skip


def gain_bars(gains: Mapping[str, Any], doubled: Mapping[str, Any]) -> list[Markup]:
    """For each resource, the gain if it were twice as fast within the gain if it were infinitely fast."""
    told = {name: (_capped(doubled.get(name)), _capped(gain)) for name, gain in gains.items()}
    longest = max((high for _, high in told.values()), default=1.0)
    if longest < LEAST_TOLD:
        return []
    scale = max(longest, 1.25) - 1.0
    rows = []
    for name, (twice, infinitely) in sorted(told.items(), key=lambda one: -one[1][1]):
        inner = max(0.0, min(twice, infinitely) - 1.0)
        pieces = [
            element("span", class_=kind, style=f"width:{100 * size / scale:.2f}%", title=title)
            for kind, size, title in (
                ("gain", inner, f"twice as fast: {_times(doubled.get(name))}"),
                ("most", max(0.0, infinitely - 1.0 - inner), f"infinitely fast: {_times(gains[name])}"),
            )
            if size > 0
        ]
        number = f"{_times(doubled.get(name))} – {_times(gains[name])}" if infinitely >= LEAST_TOLD else "no gain"
        cells: dict[str, list[object]] = {
            "label": [TITLES.get(name, name)], "bar": [*pieces], "number": [number],
        }  # fmt: skip
        rows.append(
            element("div", *(element("div", *found, class_=kind) for kind, found in cells.items()), class_="row")
        )
    legend = element(
        "ul", element("li", element("span", class_="box gain"), "twice as fast"),
        element("li", element("span", class_="box most"), "infinitely fast"), class_="legend",
    )  # fmt: skip
    title = element("h3", "How much faster the run would be with one thing better")
    return [title, legend, element("div", *rows, class_="bars short")]


def _capped(gain: Any) -> float:
    """A gain as a length; None is a gain without bound."""
    return min(float(gain), MOST) if isinstance(gain, int | float) else MOST


def _times(gain: Any) -> str:
    if not isinstance(gain, int | float) or gain > 99:
        return "over 99×"
    return f"{max(gain, 1.0):.2f}×" if gain < MOST else f"{gain:.0f}×"
