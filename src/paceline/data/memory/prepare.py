"""How do rows in memory become a dataset? They are cut into pieces, and written as those of files are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.fs

from paceline.data.blocks.dataset import Split
from paceline.data.limits import LABEL_KINDS, LabelKind
from paceline.data.memory.frames import Frames, Table, open_first, open_table
from paceline.data.memory.given import Given, batches_of, column_of, is_matrix, refuse_mixture
from paceline.data.memory.matrices import Matrices, rows_of_matrix
from paceline.data.preparation import BATCH, MATRIX, TABLE
from paceline.data.prepare import write_dataset
from paceline.data.prepare_rows import RawRows
from paceline.data.prepare_settings import COLUMNS, PrepareConfig, Prepared, PrepareProgress, check_settings
from paceline.data.sources.cells import are_names, holds_text, read_numbers
from paceline.data.sources.files import Source
from paceline.data.sources.parsed import Format
from paceline.data.sources.table_columns import Roles, require_role_types, require_roles
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import LIMITS_BESIDE_ROWS, SparseDataset
from paceline.errors import ConfigError, DataError, UsageError, as_value, one_of
from paceline.files import refuse_existing
from paceline.machine import release_freed


class Memory(NamedTuple):
    """Rows in memory: those to train on, and, if given, those to choose the best model by and to test it on.

    `label` and `weight` are a column's name or one value per row. Without `labels`, the labels tell of which kind they
    are; `fits` are the kinds that the model can learn from.
    """

    train: Any
    validation: Any = None
    test: Any = None
    label: Any = None
    weight: Any = None
    labels: LabelKind | None = None
    fits: tuple[LabelKind, ...] = LABEL_KINDS


class Opened(NamedTuple):
    """Rows of one format, and the kind of their labels."""

    format: Format
    name: str
    labels: LabelKind


def prepare_memory(
    memory: Memory, config: PrepareConfig, progress: Callable[[PrepareProgress], None] = lambda _: None
) -> Prepared[SparseDataset]:
    """Make the dataset `config.out`, or raise and leave nothing there. Of `config`, `sources` mean nothing here."""
    check_settings(config)
    if memory.labels is not None and not (isinstance(memory.labels, str) and memory.labels in LABEL_KINDS):
        said = as_value(memory.labels) if isinstance(memory.labels, str) else f"a {type(memory.labels).__name__}"
        found = f"`labels` is {said}; it must be {one_of(LABEL_KINDS)}"
        raise ConfigError(found, "leave it out to let the labels tell; the labels themselves are `label`")
    refuse_existing(Path(config.out))
    splits: dict[Split, Any] = {"train": memory.train, "validation": memory.validation, "test": memory.test}
    given = {split: data for split, data in splits.items() if data is not None}
    names: dict[Split, str] = {"train": "the data", "validation": "the validation data", "test": "the test data"}
    label = memory.label if isinstance(memory.label, str) else None
    weight = memory.weight if isinstance(memory.weight, str) else None
    batches = {
        names[split]: batches_of(data, *((memory.label, memory.weight) if split == "train" else (label, weight)))
        for split, data in given.items()
    }
    first = next(batches[names["train"]])
    batches[names["train"]] = chain([first], batches[names["train"]])
    open_rows = _open_matrices if is_matrix(first.features) else _open_tables
    opened = open_rows(memory, config, first, batches)
    sources = {split: [Source(names[split], pa.fs.LocalFileSystem(), "", None)] for split in given}
    config = msgspec.structs.replace(config, labels=opened.labels)
    prepared = write_dataset(config, opened.name, RawRows(config, opened.format, sources, LIMITS_BESIDE_ROWS), progress)
    release_freed()
    return prepared


def _open_matrices(memory: Memory, config: PrepareConfig, first: Given, batches: dict[str, Iterator[Given]]) -> Opened:
    for name in COLUMNS:
        if getattr(config, name):
            raise UsageError(f"`{name}` is given, but the columns of a matrix have no names", "give a frame")
    rows = rows_of_matrix(first.features)
    if not rows.num_rows or not rows.num_columns:
        raise DataError(f"the matrix has {rows.num_rows} rows and {rows.num_columns} columns", "give at least one")
    if first.labels is None:
        raise UsageError("the rows have no labels", "give (X, y), or label=")
    labels = None if isinstance(first.labels, str) else column_of(first.labels, rows.num_rows, "labels")
    kind, named = label_kind(memory, labels)
    name = BATCH if isinstance(first.features, Batch) else MATRIX
    return Opened(Matrices(first, batches, named_labels=named), name, kind)


def _open_tables(memory: Memory, config: PrepareConfig, first: Given, batches: dict[str, Iterator[Given]]) -> Opened:
    table, roles = open_first(first)
    source = Source("the table", pa.fs.LocalFileSystem(), "", None)
    require_roles(table.schema.names, roles, source)
    require_role_types(table.schema, roles, source)
    head, table = table.peek()
    kind, named = label_kind(memory, None if head is None else head.column(roles.label))
    tables = {name: _tables(given, roles) for name, given in batches.items()}
    # The first batch was opened already.
    train = next(iter(batches))
    next(batches[train])
    tables[train] = chain([table], tables[train])
    return Opened(Frames(table, roles, tables, config, named_labels=named, head=head), TABLE, kind)


def _tables(given: Iterator[Given], roles: Roles) -> Iterator[Table]:
    for batch in given:
        refuse_mixture(batch, matrices=False)
        yield open_table(batch, roles)


def label_kind(memory: Memory, labels: pa.Array | None) -> tuple[LabelKind, bool]:
    """Of which kind the labels are, and whether they are names of classes; the first ones tell."""
    if labels is None:
        return memory.labels or "two-classes", False
    labels = labels.unique()
    if holds_text(labels.type) and are_names(labels) and memory.labels != "numbers":
        return memory.labels or ("two-classes" if len(labels) <= 2 else "classes"), True
    if memory.labels is not None:
        return memory.labels, False
    found = {float(number) for number in read_numbers(labels).numbers}
    if found <= {0.0, 1.0} or found <= {-1.0, 1.0}:
        # Two classes are numbers, too: 0/1 for a regression.
        return ("two-classes" if "two-classes" in memory.fits else memory.fits[-1]), False
    if any(number != int(number) or number < 0 for number in found):
        return "numbers", False
    possible = [kind for kind in memory.fits if kind != "two-classes"]
    if len(possible) == 1:
        return possible[0], False
    raise UsageError(
        f"the labels are whole numbers from {min(found):g} to {max(found):g}: classes, or numbers to predict?",
        'say which: labels="classes" or labels="numbers"',
    )
