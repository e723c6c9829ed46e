"""How is a plan shown? A table with the best of each pace marked."""

from __future__ import annotations

from typing import Any

import click

from paceline.reports.measures import NOTHING
from paceline.reports.terminal import print_table

BITS = 8
COLUMNS = ("pace", "workers", "shards", "links", "rows/s", "of now", "rows/s per machine", "limited by", "")


def print_plan(plan: dict[str, Any]) -> None:
    """One line per prediction, the best of each pace marked, and the error of the replay."""
    now = plan["rows_per_second"]
    rows = [
        (
            str(one["pace"]),
            f"{one['workers']}",
            f"{one['shards']}" if plan["has_shards"] else NOTHING,
            f"{one['bandwidth'] * BITS / 1e9:g} Gbit/s" if one["bandwidth"] else "as recorded",
            f"{one['rows_per_second']:,.0f}",
            f"{one['rows_per_second'] / now:.2f}×",
            f"{one['rows_per_second_a_machine']:,.0f}",
            one["limit"],
            "best" if one["best"] else "",
        )
        for one in plan["predictions"]
    ]
    print_table(COLUMNS, rows)
    click.echo(f"from a run of {now:,.0f} rows/s; its own simulation is off by {plan['replay_error']:.0%}")
    if plan["note"]:
        click.echo(plan["note"])
