"""Which values does a shell offer for an option or an argument, when the user presses Tab?

Each function takes what the user has typed so far. A value that it does not offer may be right all the same.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import click
from click.shell_completion import CompletionItem

MOST_ENTRIES = 10_000
Completion: TypeAlias = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def any_of(values: Iterable[str]) -> Completion:
    """These values."""
    known = tuple(values)
    return lambda _context, _parameter, typed: [CompletionItem(one) for one in known if one.startswith(typed)]


def files(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    return [CompletionItem(typed, type="file")]


def folders(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    return [CompletionItem(typed, type="dir")]


def folders_with(name: str) -> Completion:
    """Folders with a file of this name, in the folder that was typed so far or one below; if there are none, all."""

    def complete(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
        found = [CompletionItem(one) for one in _holders(typed, name)]
        return found or folders(context, parameter, typed)

    return complete


def _holders(typed: str, name: str) -> Iterator[str]:
    above, slash, begun = typed.rpartition("/")
    for one in _folders_in(above + slash):
        if one.name.startswith(begun) and (begun or not one.name.startswith(".")):
            place = above + slash + one.name
            if (one / name).is_file():
                yield place
            else:
                yield from (f"{place}/{below.name}" for below in _folders_in(one) if (below / name).is_file())


def _folders_in(folder: str | Path) -> list[Path]:
    try:
        with os.scandir(Path(folder).expanduser()) as entries:
            return sorted(Path(one.path) for one in itertools.islice(entries, MOST_ENTRIES) if one.is_dir())
    except OSError:
        return []


datasets = folders_with("manifest.json")
runs = folders_with("config.toml")
# By what help says that an option takes.
BY_METAVAR: dict[str | None, Completion] = {"DIR": folders, "FILE": files, "SOURCE": files}
