"""Options that several commands have, and a short way to declare one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
PATH = click.Path(path_type=Path)


def option(flag: str, takes: str | None, text: str, kind: Any = str, **settings: Any) -> Callable[[F], F]:
    """An option with a value. Help shows what it `takes`, the `text`, and the default if there is one."""
    return click.option(flag, metavar=takes, help=text, type=kind, show_default="default" in settings, **settings)


def number(flag: str, text: str, **settings: Any) -> Callable[[F], F]:
    """An option that takes an integer."""
    return option(flag, "N", text, int, **settings)


def address(text: str = "Ray cluster to join: auto or HOST:PORT.  [default: start Ray here]") -> Callable[[F], F]:
    return option("--address", "ADDRESS", text)


def setting(text: str) -> Callable[[F], F]:
    return click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help=text)


def as_json(text: str) -> Callable[[F], F]:
    return click.option("--json", "as_json", is_flag=True, help=text)


new_run = option("--run", "DIR", "Run folder to create.  [default: a new folder in runs/]")


def given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given or have a default."""
    return {name: value for name, value in options.items() if value is not None}


def one_of(names: Sequence[str]) -> str:
    """Names as a sentence lists them.

    >>> one_of(("sgd", "ftrl", "adam"))
    'sgd, ftrl or adam'
    """
    return f"{', '.join(names[:-1])} or {names[-1]}"
