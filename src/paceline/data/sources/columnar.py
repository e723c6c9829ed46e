"""How do the columns of a table become rows, whether it comes from Parquet, Arrow or CSV?

One column is the label, and one may be the rows' weight. Every other column is a feature, as `table_columns.py` says.
Numbers are the keys 0, 1, … in the order of the columns, with the cell as value; zeros are left out, as they change
nothing. Everything else is categories: texts, which are hashed with the feature's name as salt (`kernels/hashing.py`)
to the keys after these, value 1. Nulls and blank cells are absent. A cross is the combination of the categories of
some features, and absent if one of them is. All files have the columns of the first. Each feature and each cross is a
field, if fields are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from paceline.data.prepare_settings import COLUMNS, PrepareConfig
from paceline.data.sources.cells import Cells, dictionary_of, read_numbers, text_of
from paceline.data.sources.features import CROSS, Feature, feature_names, read_features
from paceline.data.sources.parsed import Parsed, input_key_dtype
from paceline.data.sources.row_columns import BadRows, note_bad, read_labels, read_weights
from paceline.data.sources.table_columns import HOLDS, TableColumns, describe_columns, near_names
from paceline.data.sources.times import as_numbers
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.name_collector import FoundTexts, NameCollector
from paceline.errors import ConfigError, DataError, printable
from paceline.kernels.columns import cross_cells, hash_cells
from paceline.kernels.hashing import salt_of
from paceline.kernels.optional import MOST_FIELDS

NUMBER_HINT = "numeric columns hold finite numbers, and nulls or blanks where one is missing"
TIME_HINT = "timestamps are written as 2026-11-18 21:30:00, and blank where one is missing"
ALL_BITS = np.uint64((1 << 64) - 1)

Hashes = tuple[NDArray[np.uint64], NDArray[np.bool_]]  # of the cells of a feature, and which are not blank


class Entries(NamedTuple):
    """Nonzeros that belong to a feature with any number of values per row."""

    rows: NDArray[np.int64]
    keys: NDArray[Any]
    place: int


class Columnar:
    """Tables of one set of columns, turned into rows; `Csv` and `Tables` know the files."""

    def __init__(self, columns: TableColumns, config: PrepareConfig, *, named_labels: bool = False) -> None:
        label, weight, _ = columns.roles
        self.columns = columns
        self.label_column = f"column {label}"
        self._named_labels = named_labels
        self.weighted = bool(weight)
        self.feature_names = names_of_features(columns)
        self._crosses = crosses_of(columns, config)
        self._crossed = {name for names in self._crosses for name in names}
        every = (*self.feature_names, *map(CROSS.join, self._crosses))
        self.fields = every if config.fields else ()
        if len(self.fields) > MOST_FIELDS:
            raise DataError(f"{len(self.fields):,} features; there can be {MOST_FIELDS:,} fields", "leave --fields out")
        self.notes: tuple[str, ...] = (
            describe_columns(columns.kinds, columns.edges, every[len(self.feature_names) :]),
        )
        self.settings: dict[str, Any] = {"label": label, "hash_bits": config.hash_bits, "columns": columns.kinds}
        self.settings |= {"weight": weight} if weight else {}
        self.settings |= {name: getattr(config, name) for name in COLUMNS if getattr(config, name)}
        self.settings |= {"bins": dict(columns.edges)} if columns.edges else {}
        self._mask = np.uint64((1 << config.hash_bits) - 1)
        self.numeric = tuple(name for name, kind in columns.kinds.items() if kind == "number")
        self.num_numeric = len(self.numeric)
        has_text = self.num_numeric < len(columns.kinds)
        collects = config.names and has_text and len(every) <= MOST_FIELDS
        if config.names and has_text and not collects:
            self.notes += (f"names of features are not kept: they are for at most {MOST_FIELDS:,} columns",)
        self.names = NameCollector(every, config.hash_bits, self.num_numeric) if collects else None
        self.features = self.num_numeric + (1 << config.hash_bits if has_text else 0)

    def rows(self, table: pa.RecordBatch, row_numbers: NDArray[np.int64], most_bad: int) -> Parsed:
        """Turn a table into rows; row i of it is number `row_numbers[i]` of the chunk."""
        shape = (table.num_rows, len(self.feature_names) + len(self._crosses))
        keys: NDArray[Any] = np.zeros(shape, input_key_dtype(self.features))
        values, present = np.ones(shape, np.float32), np.zeros(shape, bool)
        bad: BadRows = {}
        label = self._labels(table, bad)
        weight = self.columns.roles.weight
        weights = read_weights(table.column(weight), f"column {printable(weight)}", bad) if weight else None
        texts: list[FoundTexts] = []
        bags: list[Entries] = []
        hashes: dict[str, Hashes] = {}
        crossed: dict[str, pa.Array] = {}
        next_key = place = 0
        for name, kind in self.columns.kinds.items():
            column = table.column(name)
            if kind == "number":
                cells = read_numbers(as_numbers(column))
                keys[:, place], values[:, place] = next_key, cells.numbers
                present[:, place] = cells.present & (cells.numbers != 0)
                next_key, place = next_key + 1, place + 1
                _note_bad(bad, name, cells.problems, NUMBER_HINT)
                continue
            features, problems = read_features(name, kind, column, self.columns.edges)
            _note_bad(bad, name, problems, NUMBER_HINT if kind == "bins" else TIME_HINT)
            for feature in features:
                if feature.rows is not None:
                    bags.append(self._bag(feature, place, texts))
                elif feature.name in self._crossed:
                    hashed, present[:, place] = hashes[feature.name] = self._hash(
                        feature, ALL_BITS, 0, np.uint64, place, texts
                    )
                    keys[:, place] = (hashed & self._mask) + np.uint64(self.num_numeric)
                    crossed[feature.name] = feature.cells
                else:
                    keys[:, place], present[:, place] = self._hash(
                        feature, self._mask, self.num_numeric, keys.dtype, place, texts
                    )
                place += 1
        for j, names in enumerate(self._crosses, place):
            keys[:, j], present[:, j] = self._cross([hashes[name] for name in names], keys.dtype)
            if self.names is not None:
                spell = partial(_joined, [crossed[name] for name in names])
                texts += self.names.note_rows(j, keys[:, j], present[:, j], spell)
        good = np.ones(table.num_rows, bool)
        good[list(bad)] = False
        present &= good[:, None]
        offsets = np.concatenate([[0], np.cumsum(present.sum(1)[good])]).astype(np.int64)
        batch = Batch(
            label.numbers[good].astype(np.float32),
            offsets,
            keys[present],
            values[present],
            None if weights is None else weights[good],
            np.nonzero(present)[1].astype(np.uint16) if self.fields else None,
        )
        batch = _with_bags(batch, good, bags).distinct()
        bad_rows = [bad[row]._replace(row=int(row_numbers[row])) for row in sorted(bad)]
        ids = table.column(self.columns.roles.id).filter(pa.array(good)) if self.columns.roles.id else None
        return Parsed(batch, row_numbers[good], table.num_rows, bad_rows[:most_bad], label.names, texts, ids)

    def _labels(self, table: pa.RecordBatch, bad: BadRows) -> Cells:
        if label := self.columns.roles.label:
            return read_labels(table.column(label), self.label_column, bad, named=self._named_labels)
        return Cells(np.zeros(table.num_rows), np.ones(table.num_rows, bool), {})

    def _hash(
        self, feature: Feature, mask: Any, first_key: int, dtype: Any, place: int, texts: list[FoundTexts]
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The hashes of cells, cut off by `mask` and counted from `first_key`, and which cells are not blank.

        `texts` gets those of keys that may be new.
        """
        if pa.types.is_dictionary(feature.cells.type):
            places, valid, dictionary = dictionary_of(feature.cells)
            hashed, filled = self._hash(feature._replace(cells=dictionary), mask, first_key, dtype, place, texts)
            return hashed[places], filled[places] & valid
        text, offsets, filled = text_of(feature.cells)
        keys: NDArray[Any] = np.empty(len(feature.cells), dtype)
        hash_cells(text, offsets, salt_of(feature.name), mask, np.uint64(first_key), keys)
        if self.names is not None:
            texts += self.names.note_cells(place, keys, first_key, text, offsets)
        return keys, filled

    def _bag(self, feature: Feature, place: int, texts: list[FoundTexts]) -> Entries:
        """The nonzeros of lists."""
        assert feature.rows is not None
        dtype = input_key_dtype(self.features)
        keys, filled = self._hash(feature, self._mask, self.num_numeric, dtype, place, texts)
        return Entries(feature.rows[filled], keys[filled], place)

    def _cross(self, parts: Sequence[Hashes], dtype: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The keys of a cross of features, and in which rows it is present."""
        keys: NDArray[Any] = np.empty(len(parts[0][0]), dtype)
        cross_cells(np.stack([hashed for hashed, _ in parts]), self._mask, np.uint64(self.num_numeric), keys)
        return keys, np.logical_and.reduce([filled for _, filled in parts])


def _joined(columns: Sequence[pa.Array], rows: NDArray[np.int64]) -> list[bytes]:
    """The texts of a cross of columns in some rows."""
    chosen = [column.take(pa.array(rows)).cast(pa.large_binary()).to_pylist() for column in columns]
    return [CROSS.encode().join(cells) for cells in zip(*chosen, strict=True)]


def _note_bad(bad: BadRows, name: str, problems: dict[int, str], hint: str) -> None:
    if problems:
        note_bad(bad, f"column {printable(name)}", problems, hint)


def _with_bags(batch: Batch, good: NDArray[np.bool_], bags: Sequence[Entries]) -> Batch:
    """The batch of the good rows with the nonzeros of lists, which come last in each row."""
    if not bags:
        return batch
    number = np.cumsum(good) - 1
    kept = [good[bag.rows] for bag in bags]
    rows = [np.repeat(np.arange(batch.num_rows), np.diff(batch.offsets))]
    rows += [number[bag.rows[keep]] for bag, keep in zip(bags, kept, strict=True)]
    keys = [batch.keys, *(bag.keys[keep] for bag, keep in zip(bags, kept, strict=True))]
    values = [batch.values, *(np.ones(len(found), np.float32) for found in keys[1:])]
    order = np.argsort(np.concatenate(rows), kind="stable")
    fields = None
    if batch.fields is not None:
        more = [np.full(len(found), bag.place, np.uint16) for bag, found in zip(bags, keys[1:], strict=True)]
        fields = np.concatenate([batch.fields, *more])[order]
    counts = np.bincount(np.concatenate(rows), minlength=batch.num_rows)
    return batch._replace(
        offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        keys=np.concatenate(keys)[order],
        values=np.concatenate(values)[order],
        fields=fields,
    )


def names_of_features(columns: TableColumns) -> list[str]:
    """The names of the features that columns become, in their order, without crosses."""
    found: dict[str, str] = {}
    for name, kind in columns.kinds.items():
        for feature in feature_names(name, kind):
            other = found.setdefault(feature, name)
            if other != name:
                message = f"the columns `{printable(other)}` and `{printable(name)}` both become `{printable(feature)}`"
                raise DataError(message, "rename one of them, or leave one out with --drop")
    return [*found]


def crosses_of(columns: TableColumns, config: PrepareConfig) -> list[tuple[str, ...]]:
    """The features of each cross; raises for those that are not categories."""
    found: dict[str, str] = {}
    for name, kind in columns.kinds.items():
        found |= dict.fromkeys(feature_names(name, kind), kind)
    for name in (name for names in config.cross for name in names):
        if name in columns.kinds and name not in found:
            known = " or ".join(feature_names(name, columns.kinds[name]))
            raise ConfigError(f"`cross` has `{name}`, which holds {HOLDS[columns.kinds[name]]}", f"cross {known}")
        if name not in found:
            raise ConfigError(f"`cross` has `{name}`, which is not a column", near_names(name, [*found]))
        if found[name] == "number":
            hint = f"--categorical {name} makes each number a category, and --bins {name}=10 makes ranges"
            raise ConfigError(f"`cross` has `{name}`, which holds numbers", hint)
        if found[name] == "list":
            raise ConfigError(
                f"`cross` has `{name}`, which holds lists", "crosses are of columns with one value per row"
            )
    return [tuple(names) for names in config.cross]
