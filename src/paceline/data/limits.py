"""Which values may a setting have?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from paceline.errors import ConfigError, one_of

NO_LIMIT = (1 << 62) - 1

LabelKind = Literal["two-classes", "classes", "numbers"]
LABEL_KINDS: tuple[LabelKind, ...] = get_args(LabelKind)
Integers = Literal["log", "bucket"]
INTEGERS: tuple[Integers, ...] = get_args(Integers)
Scale = Literal["auto", "none"]
SCALES: tuple[Scale, ...] = get_args(Scale)
IndexBase = Literal["auto", "0", "1"]
INDEX_BASES: tuple[IndexBase, ...] = get_args(IndexBase)
ColumnKind = Literal["number", "text", "category", "bins", "timestamp", "date", "time", "list"]
"""What a column of a table becomes. A `category` is a number whose value is only a name. Times become categories:
their hour, their day of the week, or both."""
SkewName = Literal["log-uniform", "criteo"]
SKEW_NAMES: tuple[SkewName, ...] = get_args(SkewName)


def check_limits(*settings: tuple[str, int | None, int, int, str]) -> None:
    """Raise for the first setting outside its limits: (name, value or None, least, most, hint).

    >>> check_limits(("rows", 5, 1, NO_LIMIT, "--rows 1"), ("size", None, 1, 4096, "--size 256"))
    """
    for name, value, least, most, hint in settings:
        if value is not None and not least <= value <= most:
            limit = f"at least {least}" if most == NO_LIMIT and value < least else f"{least} to {most}"
            raise ConfigError(f"`{name}` is {value}; it must be {limit}", hint)


def check_choices(*settings: tuple[str, str, Sequence[str], str]) -> None:
    """Raise for the first setting that is not one of its choices: (name, value, choices, hint).

    >>> check_choices(("integers", "log", INTEGERS, "log keeps them as numbers"))
    """
    for name, value, choices, hint in settings:
        if value not in choices:
            raise ConfigError(f"`{name}` is `{value}`; it must be {one_of(choices)}", hint)
