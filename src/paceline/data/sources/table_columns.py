"""What becomes of each column of a table?

The label and the weight are told by name. Every other column has a kind, which follows from its type unless the user
says otherwise: a number, a text, a list of categories, or a time. Kinds, and the edges of bins, are in the manifest, so
that more rows can be read in the same way.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa

from paceline.data.limits import ColumnKind
from paceline.data.preparation import column_differences
from paceline.data.prepare_settings import PrepareConfig
from paceline.data.sources.bins import edges_of
from paceline.data.sources.cells import holds_text
from paceline.data.sources.files import Source
from paceline.errors import ConfigError, DataError, one_of, printable

NAMES_SHOWN = 8
# What columns of each kind are called in a sentence.
WORDS: dict[ColumnKind, str] = {
    "number": "numeric columns",
    "text": "text columns",
    "category": "categories that are numbers",
    "bins": "columns in bins",
    "timestamp": "timestamps (hour and day of the week)",
    "date": "dates (day of the week)",
    "time": "times (hour)",
    "list": "lists (each element is a category)",
}
# What their cells are.
HOLDS: dict[ColumnKind, str] = {
    "number": "numbers",
    "text": "text",
    "category": "numbers",
    "bins": "numbers",
    "timestamp": "timestamps",
    "date": "dates",
    "time": "times",
    "list": "lists",
}
# Which kinds each setting can turn into which.
CHANGES: dict[str, dict[ColumnKind, ColumnKind]] = {
    "categorical": {
        "number": "category",
        **dict.fromkeys(("text", "timestamp", "date", "time"), "text"),
    },
    "numeric": dict.fromkeys(("number", "text", "timestamp", "date", "time"), "number"),
    "timestamp": dict.fromkeys(("text", "timestamp"), "timestamp"),
    "bins": {"number": "bins"},
}
CHANGE_HINTS = {
    "categorical": "the elements of lists are categories already",
    "numeric": "numbers are read from text and times",
    "timestamp": "timestamps are read from text, such as 2026-11-18 21:30:00",
    "bins": "bins are made of numbers; --numeric reads text as numbers",
}


class Roles(NamedTuple):
    """Which column is the label, which the weight of rows, and which tells rows apart; empty if they have none."""

    label: str
    weight: str = ""
    id: str = ""

    @staticmethod
    def of(config: PrepareConfig) -> Roles:
        return Roles(config.label, config.weight, config.id) if config.labelled else Roles("", "", config.id)

    @property
    def names(self) -> list[str]:
        return [name for name in self if name]


class TableColumns(NamedTuple):
    """The columns of a table except its label and weight, and what each becomes; `edges` are those of bins."""

    roles: Roles
    kinds: dict[str, ColumnKind]
    edges: Mapping[str, list[float]] = MappingProxyType({})

    def with_edges(self, bins: Mapping[str, int | list[float]], first: pa.Table | pa.RecordBatch) -> TableColumns:
        """With the edges of all bins, which are given or found in the first rows."""
        edges = {}
        for name, said in bins.items():
            edges[name] = edges_of(name, said, first.column(name)) if isinstance(said, int) else [*map(float, said)]
        return self._replace(edges=edges)


def columns_of(schema: pa.Schema, roles: Roles, config: PrepareConfig, source: Source) -> TableColumns:
    """The columns of the first file, of which the types are known."""
    require_roles(schema.names, roles, source)
    require_role_types(schema, roles, source)
    natural = {field.name: natural_kind(field.type) for field in schema}
    if not config.columns:
        for field in schema:
            if natural[field.name] is None and field.name not in [*roles.names, *config.drop]:
                raise DataError(
                    f"`{source.name}`, column {printable(field.name)}: the type is {printable(str(field.type))}",
                    "columns are numbers, text, times or lists of these; cast it, or leave it out with --drop",
                )
    return chosen_columns(natural, roles, config, source)


def chosen_columns(
    natural: Mapping[str, ColumnKind | None], roles: Roles, config: PrepareConfig, source: Source
) -> TableColumns:
    """The columns of the first file, by name and in order, each with the kind that follows from its type or cells.

    The kinds that a manifest recorded, if they are given, take the place of those found.
    """
    if config.columns:
        return TableColumns(roles, dict(config.columns))
    _check_names(natural, roles, config)
    kinds = kinds_as_said(natural, roles, config, source)
    if not kinds:
        raise DataError(f"`{source.name}` has no column left besides the label", "drop fewer columns")
    return TableColumns(roles, kinds)


def kinds_as_said(
    natural: Mapping[str, ColumnKind | None], roles: Roles, config: PrepareConfig, source: Source
) -> dict[str, ColumnKind]:
    """The kinds of columns with the user's settings applied, without the columns to drop."""
    without = left_out(roles, config)
    kinds = {name: kind for name, kind in natural.items() if name not in without and kind is not None}
    for setting, changes in CHANGES.items():
        for name in getattr(config, setting):
            if name in kinds and kinds[name] not in changes:
                found = f"`{setting}` has `{printable(name)}`, which holds {HOLDS[kinds[name]]} in `{source.name}`"
                raise ConfigError(found, CHANGE_HINTS[setting])
            if name in kinds:
                kinds[name] = changes[kinds[name]]
    return kinds


def left_out(roles: Roles, config: PrepareConfig) -> set[str]:
    """The columns that are not features. One that tells rows apart may be a feature of the recorded ones, too."""
    return {*roles.names, *config.drop} - ({roles.id} & {*config.columns})


def natural_kind(found: pa.DataType) -> ColumnKind | None:
    """What a column of this type becomes unless the user says otherwise; None if it cannot be used."""
    types = pa.types
    if types.is_dictionary(found):
        kind = natural_kind(found.value_type)
        return kind if kind in ("number", "text") else None
    if types.is_integer(found) or types.is_floating(found) or types.is_boolean(found) or types.is_decimal(found):
        return "number"
    if holds_text(found):
        return "text"
    if types.is_timestamp(found):
        return "timestamp"
    if types.is_date(found):
        return "date"
    if types.is_time(found):
        return "time"
    if types.is_list(found) or types.is_large_list(found):
        is_usable = not types.is_dictionary(found.value_type) and natural_kind(found.value_type) in ("number", "text")
        return "list" if is_usable else None
    return None


def _check_names(natural: Iterable[str], roles: Roles, config: PrepareConfig) -> None:
    """Raise for a setting that names a column that does not exist, or that is the label or the weight."""
    names = [*natural]
    for setting in ("drop", *CHANGES):
        for name in getattr(config, setting):
            for role, taken in roles._asdict().items():
                if name == taken:
                    raise ConfigError(f"`{setting}` has `{name}`, which is the {role}", f"leave it out of --{setting}")
            if name not in names:
                raise ConfigError(f"`{setting}` has `{name}`, which is not a column", near_names(name, names))


def near_names(name: str, names: Sequence[str]) -> str:
    """A hint with the name that was meant, or with those there are.

    >>> near_names("twon", ["age", "town"]), near_names("x", ["age", "town"])
    ('did you mean `town`?', 'there are age or town')
    """
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean `{near[0]}`?" if near else f"there are {one_of(names[:NAMES_SHOWN])}"


def describe_columns(
    kinds: Mapping[str, ColumnKind], edges: Mapping[str, Sequence[float]] = MappingProxyType({}),
    crosses: Sequence[str] = (),
) -> str:  # fmt: skip
    """What the columns become, in one short sentence.

    >>> describe_columns({"x": "number", "city": "text", "y": "number", "age": "bins"}, {"age": [18, 65]}, ["city×age"])
    'numeric columns: x, y; text columns: city; columns in bins: age (3); crosses: city×age'
    """
    parts = [(words, [name for name, found in kinds.items() if found == kind]) for kind, words in WORDS.items()]
    shown = []
    for words, names in [*parts, ("crosses", [*crosses])]:
        counts = [f"{name} ({len(edges[name]) + 1})" if name in edges else name for name in names[:NAMES_SHOWN]]
        more = f", … ({len(names)} in all)" if len(names) > NAMES_SHOWN else ""
        if names:
            shown.append(f"{words}: {printable(', '.join(counts))}{more}")
    return "; ".join(shown)


def require_roles(names: list[str], roles: Roles, source: Source) -> None:
    """Raise unless the columns are a label, a weight if one is wanted, and something to learn from, each once."""
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise DataError(f"`{source.name}` has the column `{printable(twice)}` twice", "rename one of them")
    for role, name in roles._asdict().items():
        if name and name not in names:
            listed = printable(", ".join(names[:20]))
            raise DataError(
                f"`{source.name}` has no {role} column `{name}`; it has {listed}", f"`--{role} NAME` says which it is"
            )
    if len(names) == len({roles.label, roles.weight} - {""}):
        besides = " and the weight" if roles.weight else ""
        raise DataError(f"`{source.name}` has no column besides the label{besides}", "check the separator, and --label")


def require_role_types(schema: pa.Schema, roles: Roles, source: Source) -> None:
    """Raise unless the label and the weight are of types that can be read as such."""
    for role, name in (("label", roles.label), ("weight", roles.weight)):
        if name and not is_number_or_text(found := schema.field(name).type):
            raise DataError(
                f"`{source.name}`, column {printable(name)}: the {role} is of the type {printable(str(found))}",
                f"labels are numbers or names of classes, and weights are numbers: cast it, or choose another --{role}",
            )


def is_number_or_text(found: pa.DataType) -> bool:
    """Whether columns of this type can be labels or weights."""
    return pa.types.is_null(found) or natural_kind(found) in ("number", "text")


def require_schema(first: TableColumns, schema: pa.Schema, config: PrepareConfig, source: Source) -> None:
    """Raise unless a table has the columns of the first; a column without any cell may be of any kind.

    Text can be read as categories that are numbers: CSV has no other cells.
    """
    require_roles(schema.names, first.roles, source)
    require_role_types(schema, first.roles, source)
    natural = {field.name: natural_kind(field.type) for field in schema}
    kinds = kinds_as_said(natural, first.roles, config, source)
    for field in schema:
        expected = first.kinds.get(field.name)
        if expected and (pa.types.is_null(field.type) or (expected, natural[field.name]) == ("category", "text")):
            kinds[field.name] = expected
    require_columns(first, kinds, config, source)


def blank_columns(first: TableColumns, head: pa.RecordBatch) -> list[str]:
    """Columns of numbers without any cell in the first rows, where the first table has something else.

    pandas, and files that it writes, have no other type for a column whose cells are all missing.
    """
    others = {name for name, kind in first.kinds.items() if kind not in ("number", "category", "bins")}
    floats = [field.name for field in head.schema if _may_be_blank(field.type) and field.name in others]
    return [name for name in floats if head.column(name).null_count == head.num_rows]


def _may_be_blank(kind: pa.DataType) -> bool:
    """Whether a column of this type may be one that nobody gave a type, or pandas' categories of none."""
    values = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_floating(values) or (pa.types.is_null(values) and values is not kind))


def without_types(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """The schema with columns that hold no cell."""
    return pa.schema([field.with_type(pa.null()) if field.name in names else field for field in schema])


def without_cells(rows: pa.RecordBatch, names: Sequence[str], source: Source) -> pa.RecordBatch:
    """The same rows; raises if one of the columns that were blank in the first ones has a cell."""
    for name in names:
        if rows.column(name).null_count < rows.num_rows:
            found = f"`{source.name}`: column {printable(name)} has numbers, and no cell in the first rows"
            raise DataError(found, "all files need the same columns")
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, pa.field(name, pa.null()), pa.nulls(rows.num_rows))
    return rows


def require_columns(
    first: TableColumns, kinds: Mapping[str, ColumnKind], config: PrepareConfig, source: Source
) -> None:
    """Raise unless a file has the columns of the first file, in any order. With recorded columns, it may have more."""
    shared = [name for name in first.kinds if name in kinds]
    new = [] if config.columns else [name for name in kinds if name not in first.kinds]
    differences = column_differences(first.kinds, {name: kinds[name] for name in [*shared, *new]})
    if differences:
        others = "the data that the model was trained on" if config.columns else "the first file"
        raise DataError(
            f"`{source.name}` has other columns than {others}: {printable(', '.join(differences[:10]))}",
            "all files need the same columns",
        )
