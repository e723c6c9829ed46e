"""The keywords of functions are the flags of commands, and a type checker knows them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click
import numpy as np
import pytest

import paceline
from paceline.cli.data import prepare
from paceline.cli.train import train
from paceline.cli.use import predict
from paceline.options import PrepareOptions, RawOptions, RunOptions, keys_of

ROOT = Path(__file__).parents[1]
X, Y = np.eye(6), [0, 1, 0, 1, 0, 1]

# Commands, the keywords of their functions, and the flags that functions name otherwise.
COMMANDS: list[tuple[click.Command, type[Any], set[str]]] = [
    (train, RunOptions, {"recipe", "data", "start_from", "settings"}),
    (prepare, PrepareOptions, {"sources", "out"}),
    (predict, RawOptions, {"run", "sources", "data", "out", "split", "model", "device"}),
]


@pytest.mark.parametrize(("command", "options", "others"), COMMANDS, ids=["train", "prepare", "predict"])
def test_keywords_are_the_flags_of_the_command(command: click.Command, options: type[Any], others: set[str]) -> None:
    flags = {str(parameter.name) for parameter in command.params}
    assert others < flags
    assert {*keys_of(options)} == flags - others


@pytest.mark.parametrize(("command", "options", "others"), COMMANDS, ids=["train", "prepare", "predict"])
def test_keywords_have_the_types_of_the_flags(command: click.Command, options: type[Any], others: set[str]) -> None:
    flags = {str(parameter.name): parameter for parameter in command.params}
    for name, kind in get_type_hints(options).items():
        flag = flags[name]
        if get_origin(kind) is Literal and isinstance(flag.type, click.Choice):
            assert {*get_args(kind)} == {*flag.type.choices}, name
        for number, shown in ((int, "integer"), (float, "float"), (bool, "boolean")):
            assert (kind is number) == (flag.type.name == shown), name


MISUSED = {
    "paceline.train(data='d', batchsize=5)": '"batchsize" for "train"; did you mean "batch_size"?',
    "paceline.train(data='d', epochs='many')": 'incompatible type "str"; expected "int"',
    "paceline.prepare('f', 'd', hashbits=20)": '"hashbits" for "prepare"; did you mean "hash_bits"?',
    "paceline.prepare('f', 'd', scale='big')": "expected \"Literal['auto', 'none']\"",
    "paceline.sweep('r', categoric=['a'])": '"categoric" for "sweep"',
}
USED = [
    "paceline.train(data='d', batch_size=5, pace=4, learning_rate=0.1, categorical=['a'], label='y').result",
    "paceline.prepare('f', 'd', hash_bits=20, test=['g'], bins={'age': 10}, progress=False).rows",
]


def test_a_type_checker_knows_the_keywords(tmp_path: Path) -> None:
    """That of this repository, so that its cache makes this quick."""
    program = tmp_path / "program.py"
    program.write_text("\n".join(["import paceline", *MISUSED, *USED]))
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", str(program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    found = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [int(line.split(":")[1]) for line in found] == [*range(2, 2 + len(MISUSED))], done.stdout + done.stderr
    for line, message in zip(found, MISUSED.values(), strict=True):
        assert message in line


@pytest.mark.parametrize(
    ("call", "given", "hint"),
    [
        ("train", {"data": (X, Y), "batchsize": 5}, "batch_size"),
        ("train", {"data": (X, Y), "categoricals": ["a"]}, "categorical"),
        ("train", {"data": (X, Y), "startfrom": "runs/a"}, "start_from"),
        ("prepare", {"data": (X, Y), "out": "new", "hashbits": 20}, "hash_bits"),
        ("prepare", {"data": "a file", "out": "new", "test_part": 0.1}, "test_fraction"),
        ("resume", {"path": "runs/a", "labell": Y}, "label"),
        ("sweep", {"recipe": {}, "numerics": ["a"]}, "numeric"),
        ("predict", {"path": "runs/a", "data": "a", "out": "b", "skip_rows": 1}, "skip_bad_rows"),
    ],
)
def test_an_unknown_keyword_is_one_line_with_a_suggestion(call: str, given: dict[str, Any], hint: str) -> None:
    unknown = [*given][-1]
    with pytest.raises(paceline.PacelineError) as caught:
        getattr(paceline, call)(**given)
    assert caught.value.message == f"unknown setting `{unknown}` in the call of `{call}`"
    assert caught.value.hint == f"did you mean `{hint}`?"
