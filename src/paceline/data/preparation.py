"""How was data prepared? What a dataset's manifest and a model's file record of it, as `source`.

Rows can only be scored, or trained on further, by a model if their keys mean what they meant in its training data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import msgspec

from paceline.data.prepare_settings import FORMATS, PrepareConfig, check_settings
from paceline.errors import ConfigError, DataError, printable

Source = Mapping[str, Any]
Kinds = Mapping[str, Any]

MOST_NAMED = 8
MATRIX, BATCH, TABLE, CLICKS = "matrix", "batch", "table", "clicks"
# What keys are, by format. Formats in which keys are the same can be mixed.
KEYS = {
    "criteo": "Criteo's columns",
    **dict.fromkeys(("parquet", "arrow", "csv", TABLE), "the columns of a table"),
    **dict.fromkeys(("libsvm", "libffm", "tfrecord", MATRIX, BATCH), "plain indices"),
    CLICKS: "generated clicks",
}
# Kinds of columns whose texts are hashed.
HASHED = ("text", "category")
# Settings that say which rows there are, or what their labels, weights and values are, but not what keys mean. What
# `drop`, `categorical`, `numeric` and `timestamp` decide is in `columns`.
OTHER_SETTINGS = frozenset({
    "format", "sources", "test", "test_fraction", "validation", "validation_fraction", "seed", "rows", "test_rows",
    "skew", "interactions", "label", "labels", "class_names", "weight", "weights", "weighted", "fields", "scale",
    "names", "drop", "categorical", "numeric", "timestamp",
})  # fmt: skip
# Recorded wherever they apply. Other settings are recorded unless they have their default.
ALWAYS_RECORDED = frozenset({"hash_bits", "integers", "index_base", "columns"})
# Settings that a recorded preparation says nothing about, since they name files or parts of them.
OF_FILES = frozenset({
    "sources", "out", "format", "test", "test_fraction", "validation", "validation_fraction", "weights", "seed",
})  # fmt: skip


class RecordedTypes(msgspec.Struct):
    """The types of what a `source` may have, as far as this depends on them."""

    format: str | None = None
    columns: dict[str, Any] | None = None
    class_names: list[str] = []
    hash_bits: Annotated[int, msgspec.Meta(ge=1, le=32)] | None = None


class Preparation(NamedTuple):
    """How rows were prepared: the recorded `source`, how many features they have, and the names of their fields."""

    source: Source
    features: int
    fields: tuple[str, ...] = ()


def check_source(source: Source) -> None:
    """Raise `ValueError` unless a `source` that was read from a file can be one."""
    msgspec.convert(source, RecordedTypes)


def keys_of(format_: str) -> str:
    """What keys are in rows of a format, in words."""
    return KEYS.get(format_, format_)


def refuse_other_preparation(trained: Preparation, given: Preparation, name: str) -> None:
    """`DataError` unless the keys of the data called `name` mean what they meant in a model's training data.

    A model that needs no fields can use data with fields.
    """
    _refuse_other_format(trained, given, name)
    for setting in [*trained.source, *given.source]:
        if setting not in OTHER_SETTINGS:
            _refuse_other_setting(setting, trained.source.get(setting), given.source.get(setting), name)
    if trained.fields and given.fields != trained.fields:
        raise DataError(
            f"the model has {_listed(trained.fields)}; `{name}` has {_listed(given.fields)}",
            "prepare it in the same way",
        )


def _refuse_other_format(trained: Preparation, given: Preparation, name: str) -> None:
    ours, theirs = trained.source.get("format"), given.source.get("format")
    if ours is None or theirs is None:
        return
    if keys_of(ours) != keys_of(theirs):
        raise DataError(
            f"the model was trained on {keys_of(ours)} ({ours}); `{name}` has {keys_of(theirs)} ({theirs})",
            "keys would mean something else: give data of the same kind, or train a model on this data",
        )
    # Nothing is recorded of these, but columns are numbered one after the other.
    if ours == theirs and ours in (MATRIX, CLICKS) and trained.features != given.features:
        raise DataError(
            f"the model was trained on {trained.features:,} features; `{name}` has {given.features:,}",
            "keys would mean something else: give data with the same features",
        )


def _refuse_other_setting(setting: str, ours: Any, theirs: Any, name: str) -> None:
    if (ours or None) == (theirs or None) and (
        setting != "columns" or not column_differences(ours or {}, theirs or {})
    ):
        return
    if setting in ALWAYS_RECORDED and None in (ours, theirs):
        return
    if setting == "columns":
        differences = printable(", ".join(column_differences(ours, theirs)[:MOST_NAMED]))
        message = f"`{name}` has other columns than the data that the model was trained on: {differences}"
        raise DataError(message, "give a table with the same columns, of the same kinds")
    flag = f"--{setting.replace('_', '-')}"
    raise DataError(
        f"the model was trained on data prepared with {setting} {_in_words(ours)}; `{name}` has {_in_words(theirs)}",
        f"prepare it in the same way, with {flag} {ours}" if isinstance(ours, (int, str)) else
        f"prepare it in the same way: see `{flag}`",
    )  # fmt: skip


def column_differences(first: Kinds, others: Kinds) -> list[str]:
    """How the columns of another table, with their kinds, differ from those of the first; empty if keys are the same.

    Numeric columns are numbered in their order; where columns that are hashed stand does not matter.

    >>> column_differences({"age": "number", "town": "text"}, {"age": "text", "city": "text"})
    ['town is missing', 'city is new', 'age is text instead of number']
    """
    differences = [f"{name} is missing" for name in first if name not in others]
    differences += [f"{name} is new" for name in others if name not in first]
    differences += [
        f"{name} is {kind} instead of {first[name]}" for name, kind in others.items() if first.get(name, kind) != kind
    ]
    ours, theirs = ([name for name, kind in kinds.items() if kind not in HASHED] for kinds in (first, others))
    if not differences and ours != theirs:
        differences = [f"the order is {', '.join(theirs)} instead of {', '.join(ours)}"]
    return differences


def config_of(source: Source, sources: list[str], **settings: Any) -> PrepareConfig:
    """The settings with which to read raw rows as recorded in `source`; `settings` replace some of them."""
    fields = [name for name in PrepareConfig.__struct_fields__ if name not in OF_FILES]
    recorded = {name: source[name] for name in fields if name in source}
    if "index_base" in recorded:
        recorded["index_base"] = str(recorded["index_base"])
    format_ = source.get("format")
    tree = {"sources": sources, "out": "", "format": format_ if format_ in FORMATS else "auto", **recorded, **settings}
    try:
        _check_recorded(recorded)
        return msgspec.convert(tree, PrepareConfig)
    except (msgspec.ValidationError, ConfigError) as error:
        said = error.message if isinstance(error, ConfigError) else error
        raise DataError(f"what the model says about its data cannot be read: {said}", "train again") from None


def _check_recorded(recorded: Source) -> None:
    """Raise for recorded settings that no dataset was prepared with."""
    config = msgspec.convert({"sources": ["-"], "out": "", **recorded}, PrepareConfig)
    check_settings(config)
    in_bins = {name for name, kind in config.columns.items() if kind == "bins"}
    if in_bins != set(config.bins) or any(isinstance(edges, int) for edges in config.bins.values()):
        raise ConfigError("`bins` does not have the edges of just the columns in bins")


def _in_words(value: Any) -> str:
    """A recorded setting, as messages show it.

    >>> _in_words(None), _in_words(["a", "b"]), _in_words(18)
    ('none', 'a, b', '18')
    """
    if isinstance(value, (list, tuple)):
        return printable(", ".join(map(str, value)))
    return "none" if value is None else printable(str(value))


def _listed(fields: tuple[str, ...]) -> str:
    """How many fields, and the first ones.

    >>> _listed(("I1", "I2", "I3", "C1")), _listed(())
    ('4 fields, I1, I2, I3, …', '0 fields')
    """
    return ", ".join([f"{len(fields)} fields", *fields[:3], *["…"] * (len(fields) > 3)])
