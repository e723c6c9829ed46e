"""Help fits on a terminal, and shows commands, examples and defaults."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from paceline.cli import cli
from paceline.config import DEFAULT_MODEL, SETTING_OF_FLAG, tree_of
from paceline.run_folder import flat
from paceline.settings import RunConfig
from tests.conftest import Command

WIDTH = 80


def paths(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words that call a command, and those below it."""
    yield path
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            yield from paths(one, (*path, name))


@pytest.mark.parametrize("path", [*paths(cli)], ids=" ".join)
def test_nothing_is_cut_off_or_too_wide(
    command: Command, monkeypatch: pytest.MonkeyPatch, path: tuple[str, ...]
) -> None:
    done = command(*path, "--help")
    assert done.code == 0
    usage, *lines = done.out.splitlines()
    assert usage.startswith(" ".join(("Usage: paceline", *path)))
    assert len(lines) > 5
    for line in (usage, *lines):
        assert len(line) <= WIDTH, line
        assert "[default:" not in re.sub(r"\[default: [^\]]+\]", "", line), f"a default over two lines: {line}"
    for line in lines:
        assert "..." not in line, line
    assert any(line.startswith(" ".join(("  paceline", *path))) for line in lines), "an example"
    for columns in ("40", "300"):
        monkeypatch.setenv("COLUMNS", columns)
        assert command(*path, "--help").out == done.out


def test_every_command_is_in_one_group(command: Command) -> None:
    grouped = [(name, one.name) for commands in cli.sections.values() for name, one in commands.items()]
    assert grouped == [(name, name) for name in cli.commands]
    assert len(grouped) > 10
    text = command("--help").out
    for heading, commands in cli.sections.items():
        lines = text.partition(f"\n{heading}:\n")[2].partition("\n\n")[0].splitlines()
        assert [line.split()[0] for line in lines] == list(commands)
        assert all(line.endswith(".") for line in lines), "one whole sentence each"


def test_every_option_says_what_it_does() -> None:
    checked = 0
    for path in paths(cli):
        found: click.Command = cli
        for word in path:
            assert isinstance(found, click.Group)
            found = found.commands[word]
        for option in found.params:
            if isinstance(option, click.Option):
                assert re.match(r".+[.](  \[.+\])?$", option.help or ""), (path, option.name)
                checked += 1
    assert checked > 60


def test_the_defaults_of_train_are_those_of_a_run() -> None:
    shown = {
        option.name: found[1]
        for option in cli.commands["train"].params
        if isinstance(option, click.Option) and (found := re.search(r"\[default: (\S+?)[,\]]", option.help or ""))
    }
    assert len(shown) > 12
    settings = tree_of(RunConfig(model=DEFAULT_MODEL))
    for name, text in shown.items():
        assert name is not None
        value = flat(settings)[SETTING_OF_FLAG.get(name, name)]
        if text == "all":
            assert value == 0
        else:
            assert type(value)(text) == value, name


def test_no_command_shows_the_help(command: Command) -> None:
    assert command() == (2, command("--help").out, "")
