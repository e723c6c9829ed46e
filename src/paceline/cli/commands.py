"""How commands and options are declared, and how help shows them.

Commands are under headings, examples at the end, all within 80 columns on any terminal.
"""

from __future__ import annotations

import re
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from paceline.cli.completion import BY_METAVAR, Completion, any_of
from paceline.imports import import_from

CONTEXT = {"help_option_names": ["-h", "--help"], "terminal_width": 80}
NEVER_CUT_OFF = 1000
DEFAULT = re.compile(r"\[default: .*\]")
NO_BREAK = "\u00a0"
F = TypeVar("F", bound=Callable[..., Any])
PATH = click.Path(path_type=Path)


class Formatter(click.HelpFormatter):
    """Keeps each default on one line."""

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        whole = [(term, DEFAULT.sub(lambda found: found[0].replace(" ", NO_BREAK), text)) for term, text in rows]
        super().write_dl(whole, col_max, col_spacing)

    def getvalue(self) -> str:
        return super().getvalue().replace(NO_BREAK, " ")


class Context(click.Context):
    formatter_class = Formatter


class Command(click.Command):
    """A command whose epilog is a list of examples, one per line."""

    context_class = Context

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, (self.epilog or "").splitlines())


class CommandsByPlace(UserDict[str, Any]):
    """Commands by their names. They are kept as `module:command` and imported when they are asked for."""

    def __getitem__(self, name: str) -> click.Command:
        command: click.Command = import_from(self.data[name])
        return command


class CommandGroup(click.Group):
    """Commands under headings, with the first example of each; `sections` names them as `module:command`."""

    context_class = Context

    def __init__(self, name: str, *, sections: Mapping[str, Sequence[str]], **settings: Any) -> None:
        named = {heading: {one.partition(":")[2]: one for one in places} for heading, places in sections.items()}
        everything = {one: place for places in named.values() for one, place in places.items()}
        super().__init__(name, CommandsByPlace(everything), **settings)
        self.sections = {heading: CommandsByPlace(places) for heading, places in named.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.commands))
        for heading, commands in self.sections.items():
            with formatter.section(heading):
                rows = [(name.ljust(width), one.get_short_help_str(NEVER_CUT_OFF)) for name, one in commands.items()]
                formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        first = [one.epilog.splitlines()[0] for one in self.commands.values() if one.epilog]
        write_examples(formatter, first)


def command(*examples: str, cls: type[Command] = Command) -> Callable[[Callable[..., Any]], Command]:
    """`click.command` with examples."""
    return click.command(cls=cls, epilog="\n".join(examples))


def write_examples(formatter: click.HelpFormatter, examples: Iterable[str]) -> None:
    """Write one example per line, as it is: never wrapped."""
    with formatter.section("Examples"):
        for line in examples:
            formatter.write(f"  {line}\n")


def option(
    flag: str, takes: str | None, text: str, kind: Any = str, also: tuple[str, ...] = (),
    complete: Completion | None = None, **settings: Any,
) -> Callable[[F], F]:  # fmt: skip
    """An option with a value. Help shows what it `takes`, the `text`, and the default if there is one.

    `also` are other flags for the same thing. `complete` says which values a shell offers; those of `completion.py` for
    files and folders need not be named.
    """
    return click.option(
        flag, *also, metavar=takes, help=text, type=kind, show_default=settings.get("default", "") != "",
        shell_complete=complete or BY_METAVAR.get(takes), **settings,
    )  # fmt: skip


def number(flag: str, text: str, **settings: Any) -> Callable[[F], F]:
    """An option that takes an integer."""
    return option(flag, "N", text, int, **settings)


def flag(flag: str, name: str, text: str, value: bool) -> Callable[[F], F]:
    """An option without a value, which sets `name` to this one."""
    return click.option(flag, name, is_flag=True, flag_value=value, default=None, help=text)


def address(text: str = "Ray cluster to join: auto or HOST:PORT.  [default: start Ray here]") -> Callable[[F], F]:
    return option("--address", "ADDRESS", text, complete=any_of(["auto"]))


def setting(text: str) -> Callable[[F], F]:
    return click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help=text)


def as_json(text: str) -> Callable[[F], F]:
    return click.option("--json", "as_json", is_flag=True, help=text)


code = option("--model", "PACKAGE:FUNCTION", "The code of your own model. It is imported and run.", default="")
new_run = option("--run", "DIR", "Run folder to create.  [default: a new folder in runs/]")


def given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given or have a default."""
    return {name: value for name, value in options.items() if value is not None}
