"""How is a plan shown? A table with the best of each pace marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from paceline.diagnosis.evidence import Evidence
from paceline.diagnosis.plan import BITS, Prediction
from paceline.diagnosis.verdict import World, rate
from paceline.reports.terminal import print_table

COLUMNS = ("pace", "workers", "shards", "links", "rows/s", "of now", "rows/s a machine", "limited by", "")


def print_predictions(evidence: Evidence, found: Sequence[Prediction]) -> None:
    """A line a prediction; the best of each pace is marked, and how far the replay is off is said."""
    now, error = evidence.rows_per_second, replay_error(evidence)
    best = _best(found)
    rows = []
    for one in found:
        speed = one.choice.bandwidth
        rows.append(
            (
                str(one.choice.pace),
                f"{one.choice.workers}",
                f"{one.choice.shards}" if evidence.layout.shards else "–",
                f"{speed * BITS / 1e9:g} Gbit/s" if speed else "as recorded",
                f"{one.rows_per_second:,.0f}",
                f"{one.rows_per_second / now:.2f}×",
                f"{one.rows_per_second_a_machine:,.0f}",
                one.limit,
                "best" if one in best else "",
            )
        )
    print_table(COLUMNS, rows)
    click.echo(f"from a run of {now:,.0f} rows/s, which the same simulation is off by {error:.0%}")
    shares_cores = len(set(evidence.layout.machines)) == 1 and not any(one.choice.bandwidth for one in found)
    if evidence.config.workers == 1 and shares_cores and any(one.choice.workers > 1 for one in found):
        click.echo(
            "one worker does not show what several on a machine cost each other: they gain less, in sync most of all"
        )


def predictions_as_json(evidence: Evidence, found: Sequence[Prediction]) -> dict[str, Any]:
    """The same for programs."""
    best = _best(found)
    return {
        "rows_per_second": evidence.rows_per_second,
        "replay_error": replay_error(evidence),
        "predictions": [
            {
                **one.choice._asdict(),
                "rows_per_second": one.rows_per_second,
                "rows_per_second_a_machine": one.rows_per_second_a_machine,
                "machines": one.machines,
                "limit": one.limit,
                "best": one in best,
            }
            for one in found
        ],
    }


def replay_error(evidence: Evidence) -> float:
    """How far the simulation of the run as it was is from what was measured."""
    return abs(rate(World(evidence.demands, evidence.layout, evidence.rules)) / evidence.rows_per_second - 1)


def _best(found: Sequence[Prediction]) -> list[Prediction]:
    """The fastest of each pace."""
    paces = {one.choice.pace for one in found}
    return [max((o for o in found if o.choice.pace == pace), key=lambda o: o.rows_per_second) for pace in paces]
