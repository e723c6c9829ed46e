"""How do matrices in memory become rows? Column j is key j; zeros are left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from paceline.data.memory.given import Given, column_of, refuse_masked, refuse_mixture
from paceline.data.sources.files import Chunk, Source
from paceline.data.sources.parsed import MOST_UNDECLARED, BadRow, Parsed
from paceline.data.sources.row_columns import BadRows, read_labels, read_weights
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.name_collector import NameCollector
from paceline.errors import UsageError
from paceline.kernels.keys import key_dtype
from paceline.kernels.optional import MOST_FIELDS

# Small: some chunks per core are in memory at a time.
CHUNK_NONZEROS = 1 << 18
CHECKED_ROWS = 1 << 20
MOST_KEYS = (1 << 62) - 1
REBUILD = "rebuild the matrix: its `check_format()` says what is wrong with it"


class SparseRows(NamedTuple):
    """Rows of a sparse matrix: those of row i are from `offsets[i]` up to `offsets[i + 1]`."""

    offsets: NDArray[Any]
    columns: NDArray[Any]
    values: NDArray[Any]
    num_columns: int
    fields: NDArray[np.uint16] | None = None

    @property
    def num_rows(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_cells(self) -> int:
        """At most how many nonzeros there are."""
        return len(self.columns)

    def cuts(self) -> list[int]:
        """Row numbers to cut at, so that no piece has many nonzeros."""
        marks = np.arange(CHUNK_NONZEROS, len(self.columns), CHUNK_NONZEROS).astype(self.offsets.dtype)
        inner = np.searchsorted(self.offsets, marks, side="left")
        return sorted({0, *inner.tolist(), self.num_rows})

    def between(self, start: int, stop: int) -> Batch:
        """Rows `start` to `stop` in memory of their own, without labels; raises for columns that there are not."""
        first, last = int(self.offsets[start]), int(self.offsets[stop])
        columns = self.columns[first:last]
        if columns.size and not 0 <= columns.min() <= columns.max() < self.num_columns:
            found = f"column numbers from {columns.min()} to {columns.max()} in a matrix of {self.num_columns} columns"
            raise UsageError(found, REBUILD)
        with np.errstate(over="ignore"):
            values = self.values[first:last].astype(np.float32)
        fields = None if self.fields is None else self.fields[first:last].copy()
        keys: NDArray[Any] = columns.astype(key_dtype(self.num_columns))
        offsets = self.offsets[start : stop + 1].astype(np.int64) - first
        return Batch(np.zeros(stop - start, np.float32), offsets, keys, values, None, fields)


class DenseRows(NamedTuple):
    """Rows of a NumPy array."""

    array: NDArray[Any]

    @property
    def num_rows(self) -> int:
        return len(self.array)

    @property
    def num_columns(self) -> int:
        return int(self.array.shape[1])

    @property
    def num_cells(self) -> int:
        """At most how many nonzeros there are."""
        return self.array.size

    def cuts(self) -> list[int]:
        step = max(1, CHUNK_NONZEROS // max(1, self.num_columns))
        return [*range(0, self.num_rows, step), self.num_rows]

    def between(self, start: int, stop: int) -> Batch:
        with np.errstate(over="ignore"):
            cells = self.array[start:stop].astype(np.float32)
        present = cells != 0  # NaN too
        numbers: NDArray[Any] = np.arange(self.num_columns, dtype=key_dtype(self.num_columns))
        keys = np.broadcast_to(numbers, cells.shape)
        offsets = np.concatenate([[0], np.cumsum(present.sum(1))]).astype(np.int64)
        return Batch(np.zeros(stop - start, np.float32), offsets, keys[present], cells[present])


def rows_of_matrix(data: Any) -> SparseRows | DenseRows:
    """The rows of a matrix of any kind; raises if its parts do not fit each other."""
    if isinstance(data, Batch):
        return _rows_of_batch(data)
    if len(data.shape) != 2:
        raise UsageError(f"the matrix has the shape {data.shape}", "give rows and columns: [rows, columns]")
    if isinstance(data, np.ndarray):
        if data.dtype.kind not in "biuf":
            raise UsageError(f"the matrix holds {data.dtype}", "give numbers; a frame may have columns of text")
        # Without what a subclass makes of it: those of `np.matrix` have two dimensions, whatever is taken of them.
        return DenseRows(np.asarray(refuse_masked(data, "the rows")))
    csr = data.tocsr()
    return _sparse(csr.indptr, csr.indices, csr.data, csr.shape)


def _rows_of_batch(batch: Batch) -> SparseRows:
    """The rows of a batch that a user made; it has as many columns as its largest key says."""
    keys, values = np.asarray(batch.keys), np.asarray(batch.values)
    if keys.shape != values.shape:
        raise UsageError(f"the batch has {keys.shape} keys and {values.shape} values", "give a value for each key")
    columns = int(keys.max(initial=0)) + 1 if keys.dtype.kind in "iu" else 0
    hint = "rebuild the batch: `offsets` rise from 0 to the number of keys"
    rows = _sparse(batch.offsets, keys, values, (len(batch.labels), columns), "`offsets`", hint)
    if len(rows.columns) != len(keys):
        raise UsageError(f"offsets do not rise from 0 to the number of nonzeros, {len(keys)}", hint)
    if keys.size and keys.min() < 0:
        raise UsageError(f"the batch has the key {keys.min()}", "keys count from 0")
    return rows if batch.fields is None else rows._replace(fields=_checked_fields(batch.fields, keys))


def _checked_fields(given: Any, keys: NDArray[Any]) -> NDArray[np.uint16]:
    fields = np.asarray(given)
    if fields.dtype.kind not in "iu" or fields.shape != keys.shape:
        found = f"the batch has {fields.shape} fields of {fields.dtype} and {keys.shape} keys"
        raise UsageError(found, "give a field, an integer, for each key")
    if fields.size and not 0 <= fields.min() <= fields.max() < MOST_FIELDS:
        found = f"the batch has fields from {fields.min()} to {fields.max()}"
        raise UsageError(found, f"they count from 0, and there can be {MOST_FIELDS:,}")
    return np.ascontiguousarray(fields, np.uint16)


def _sparse(
    indptr: Any, indices: Any, data: Any, shape: tuple[int, int], name: str = "`indptr`", hint: str = REBUILD
) -> SparseRows:
    """The rows of a compressed matrix; `name` is what its user calls the offsets."""
    offsets, columns, values = np.asarray(indptr), np.asarray(indices), np.asarray(data)
    if not offsets.ndim == columns.ndim == values.ndim == 1:
        found = f"offsets of shape {offsets.shape}, column numbers of {columns.shape} and values of {values.shape}"
        raise UsageError(f"the matrix has {found}", "all three have one dimension")
    if offsets.dtype.kind not in "iu" or columns.dtype.kind not in "iu" or values.dtype.kind not in "biuf":
        said = f"offsets of {offsets.dtype}, column numbers of {columns.dtype} and values of {values.dtype}"
        raise UsageError(f"the matrix has {said}", "offsets and column numbers are integers, and values numbers")
    stop = int(offsets[-1]) if len(offsets) else 0  # SciPy allows room after the last nonzero
    if len(offsets) != shape[0] + 1 or not 0 <= stop <= min(len(columns), len(values)):
        raise UsageError(f"{name} does not fit {shape[0]} rows and {len(columns)} nonzeros", hint)
    if offsets[0] != 0 or not _rise(offsets):
        raise UsageError(f"offsets do not rise from 0 to the number of nonzeros, {stop}", hint)
    return SparseRows(offsets, columns[:stop], values[:stop], int(shape[1]))


def _rise(offsets: NDArray[Any]) -> bool:
    """Whether no offset is below the one before."""
    parts = (offsets[start : start + CHECKED_ROWS + 1] for start in range(0, len(offsets), CHECKED_ROWS))
    return all((part[1:] >= part[:-1]).all() for part in parts)


class MatrixPart(NamedTuple):
    """Some rows of a matrix with their labels and weights, as columns."""

    rows: SparseRows | DenseRows
    start: int
    stop: int
    labels: pa.Array
    weights: pa.Array | None


class Matrices:
    """A `Format` of matrices with the number of columns of the first.

    Batches have keys instead, which may be larger in later ones: then the largest decides. They are uint32 unless those
    of the first batch do not fit.
    """

    notes: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    names: NameCollector | None = None
    label_column = "the labels"

    def __init__(self, first: Given, batches: dict[str, Iterator[Given]], *, named_labels: bool) -> None:
        if isinstance(first.labels, str) or isinstance(first.weights, str):
            raise UsageError("the columns of a matrix have no names", "give labels and weights as arrays, or a frame")
        rows = rows_of_matrix(first.features)
        self._batches = batches
        self._named = named_labels
        self.weighted = first.weights is not None
        self.features: int | None = None if _is_batch(first) else rows.num_columns
        self._room = MOST_UNDECLARED if rows.num_columns <= MOST_UNDECLARED else MOST_KEYS
        fields = getattr(rows, "fields", None)
        self.fields: tuple[str, ...] | None = () if fields is None else None
        self.settings: dict[str, Any] = {}

    def chunks(self, source: Source) -> Iterator[Chunk[MatrixPart]]:
        start = bytes_read = 0
        for given in self._batches[source.name]:
            piece = self._piece(given)
            for first, last in zip(cuts := piece.rows.cuts(), cuts[1:], strict=False):
                part = piece._replace(
                    start=first,
                    stop=last,
                    labels=piece.labels.slice(first, last - first),
                    weights=None if piece.weights is None else piece.weights.slice(first, last - first),
                )
                yield Chunk(source, part, start, bytes_read)
                start += last - first

    def _piece(self, given: Given) -> MatrixPart:
        refuse_mixture(given, matrices=True)
        rows = self._in_keys_of_first(rows_of_matrix(given.features), is_batch=_is_batch(given))
        if given.labels is None:
            raise UsageError("the rows have no labels", "give (X, y), or label=")
        if (given.weights is not None) != self.weighted:
            raise UsageError("some batches have weights, and some have none", "give all rows a weight")
        labels = column_of(given.labels, rows.num_rows, "labels")
        weights = None if given.weights is None else column_of(given.weights, rows.num_rows, "weights")
        return MatrixPart(rows, 0, rows.num_rows, labels, weights)

    def _in_keys_of_first(self, rows: SparseRows | DenseRows, *, is_batch: bool) -> SparseRows | DenseRows:
        found, first = rows.num_columns, self.features
        if first is None and not is_batch:
            raise UsageError("the first batch has keys, and another one columns", "give all in one form")
        if first is not None and (found > first or (found < first and not is_batch)):
            raise UsageError(f"a matrix has {found:,} columns, the first has {first:,}", "all have as many")
        if found > self._room:
            hint = "give the batch with the largest keys first" if self._room < MOST_KEYS else "hash keys to fewer bits"
            raise UsageError(f"a batch has the key {found - 1}; keys must be below {self._room}", hint)
        return rows._replace(num_columns=first or self._room) if isinstance(rows, SparseRows) else rows

    def parse(self, chunk: Chunk[MatrixPart], most_bad: int) -> Parsed:
        piece = chunk.content
        batch = piece.rows.between(piece.start, piece.stop)
        bad: BadRows = {}
        labels = read_labels(piece.labels, self.label_column, bad, named=self._named)
        weights = None if piece.weights is None else read_weights(piece.weights, "the weights", bad)
        if not np.isfinite(batch.values).all():
            _refuse_values(batch, bad)
        batch = batch._replace(labels=labels.numbers.astype(np.float32), weights=weights)
        numbers = np.arange(1, batch.num_rows + 1)
        if bad:
            good = np.ones(batch.num_rows, bool)
            good[list(bad)] = False
            batch, rows = batch.select(good), numbers[good]
        else:
            rows = numbers
        bad_rows = [bad[row]._replace(row=row + 1) for row in sorted(bad)]
        return Parsed(batch.distinct(), rows, len(numbers), bad_rows[:most_bad], labels.names)


def _is_batch(given: Given) -> bool:
    return isinstance(given.features, Batch)


def _refuse_values(batch: Batch, bad: BadRows) -> None:
    """Enter rows with values that are not finite into `bad`."""
    for place in np.flatnonzero(~np.isfinite(batch.values)).tolist():
        row = int(np.searchsorted(batch.offsets, place, side="right")) - 1
        problem = f"`{batch.values[place]}` is not a finite number"
        bad.setdefault(row, BadRow(0, f"column {batch.keys[place]}", problem, "replace it, or leave the row out"))
