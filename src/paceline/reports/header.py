"""What does the head of a page say about a run? What was trained, on which data, when and on which machine."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from paceline.errors import counted
from paceline.reports.commands import data_name
from paceline.reports.units import quantity
from paceline.run_folder import TRAIN, RunFolder


def title_of(run: RunFolder) -> str:
    """The name of a run's page: run, model, data, date and machine."""
    about = [what_of(run), when_and_where(run, short=True)]
    return ", ".join(part for part in (run.path.resolve().name, *about) if part) + " – paceline"


def what_of(run: RunFolder) -> str:
    """The model and the data in a few words: `linear on clicks`."""
    settings, data = run.settings, data_of(run)
    model = str(settings.get("model", "")) if run.job == TRAIN else run.job
    return f"{model} on {data}" if model and data else model or data


def data_of(run: RunFolder) -> str:
    """The name of what a run worked on; empty if its settings do not say."""
    settings = run.settings
    if run.job == TRAIN:
        return data_name(str(settings.get("data", "")))
    if "size" in settings:
        return f"a random matrix of {settings['size']:,} × {settings['size']:,}"
    factors = [data_name(str(settings[side])) for side in ("left", "right") if side in settings]
    return " times ".join(factors)


def when_and_where(run: RunFolder, *, short: bool = False) -> str:
    """The date and the machine, as far as the run recorded them."""
    result = run.result
    return " · ".join(
        part for part in (_when(result.get("started"), short), _where(result.get("machine"), short)) if part
    )


def _when(started: Any, short: bool) -> str:
    """A date as written in `result.json`, for people.

    >>> _when("2026-11-18T21:44:05+01:00", False), _when("2026-11-18T21:44:05+01:00", True), _when(None, True)
    ('18 November 2026, 21:44', '2026-11-18', '')
    """
    try:
        moment = datetime.fromisoformat(str(started))
    except ValueError:
        return ""
    return f"{moment:%Y-%m-%d}" if short else f"{moment.day} {moment:%B %Y, %H:%M}"


def _where(machine: Any, short: bool) -> str:
    if not isinstance(machine, dict):
        return ""
    name, cores, memory = machine.get("name", ""), machine.get("cores", 0), machine.get("memory_bytes", 0)
    if short:
        return str(name)
    parts = [str(name), str(machine.get("processor", ""))]
    parts += [counted(cores, "core")] if isinstance(cores, int) and cores else []
    parts += [quantity(memory, "B")] if isinstance(memory, int) and memory else []
    return ", ".join(part for part in parts if part)
