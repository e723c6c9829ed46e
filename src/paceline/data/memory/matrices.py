"""How do matrices in memory become rows? Column j is key j; zeros are left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from paceline.data.memory.given import Given, column_of, refuse_mixture
from paceline.data.sources.cells import read_names, read_numbers
from paceline.data.sources.columnar import LABEL_HINT
from paceline.data.sources.files import Chunk, Source
from paceline.data.sources.parsed import WEIGHT_WORDS, BadRow, Parsed
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.name_collector import NameCollector
from paceline.errors import UsageError
from paceline.kernels.keys import key_dtype

CHUNK_NONZEROS = 1 << 20
REBUILD = "rebuild the matrix: its `check_format()` says what is wrong with it"


class SparseRows(NamedTuple):
    """Rows of a sparse matrix: those of row i are from `offsets[i]` up to `offsets[i + 1]`."""

    offsets: NDArray[np.int64]
    columns: NDArray[Any]
    values: NDArray[Any]
    num_columns: int
    fields: NDArray[np.uint16] | None = None

    @property
    def num_rows(self) -> int:
        return len(self.offsets) - 1

    def cuts(self) -> list[int]:
        """Row numbers to cut at, so that no piece has many nonzeros."""
        marks = np.arange(CHUNK_NONZEROS, len(self.columns), CHUNK_NONZEROS)
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
        offsets = self.offsets[start : stop + 1] - first
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
    if isinstance(data, np.ndarray):
        if data.dtype.kind not in "biuf":
            raise UsageError(f"the matrix holds {data.dtype}", "give numbers; a frame may have columns of text")
        return DenseRows(data)
    if isinstance(data, Batch):
        most = int(data.keys.max(initial=0)) + 1
        return _sparse(data.offsets, data.keys, data.values, (data.num_rows, most), data.fields)
    csr = data.tocsr()
    return _sparse(csr.indptr, csr.indices, csr.data, csr.shape, None)


def _sparse(
    indptr: Any, indices: Any, data: Any, shape: tuple[int, int], fields: NDArray[np.uint16] | None
) -> SparseRows:
    offsets, columns, values = np.asarray(indptr), np.asarray(indices), np.asarray(data)
    if len(shape) != 2:
        raise UsageError(f"the matrix has the shape {shape}", "give rows and columns: [rows, columns]")
    if offsets.dtype.kind not in "iu" or columns.dtype.kind not in "iu" or values.dtype.kind not in "biuf":
        said = f"offsets of {offsets.dtype}, column numbers of {columns.dtype} and values of {values.dtype}"
        raise UsageError(f"the matrix has {said}", "offsets and column numbers are integers, and values numbers")
    stop = int(offsets[-1]) if len(offsets) else 0  # SciPy allows room after the last nonzero
    if len(offsets) != shape[0] + 1 or not 0 <= stop <= min(len(columns), len(values)):
        raise UsageError(f"`indptr` does not fit {shape[0]} rows and {len(columns)} nonzeros", REBUILD)
    offsets = np.ascontiguousarray(offsets, np.int64)
    if offsets[0] != 0 or (np.diff(offsets) < 0).any():
        raise UsageError(f"offsets do not rise from 0 to the number of nonzeros, {stop}", REBUILD)
    return SparseRows(offsets, columns[:stop], values[:stop], int(shape[1]), fields)


class MatrixPart(NamedTuple):
    """Some rows of a matrix with their labels and weights, as columns."""

    rows: SparseRows | DenseRows
    start: int
    stop: int
    labels: pa.Array
    weights: pa.Array | None


class Matrices:
    """A `Format` of matrices with the number of columns of the first."""

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
        self.features = rows.num_columns
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
        rows = rows_of_matrix(given.features)
        if rows.num_columns > self.features or (rows.num_columns < self.features and not _is_batch(given)):
            raise UsageError(
                f"a matrix has {rows.num_columns:,} columns, the first has {self.features:,}", "all have as many"
            )
        if given.labels is None:
            raise UsageError("the rows have no labels", "give (X, y), or label=")
        if (given.weights is not None) != self.weighted:
            raise UsageError("some batches have weights, and some have none", "give all rows a weight")
        labels = column_of(given.labels, rows.num_rows, "labels")
        weights = None if given.weights is None else column_of(given.weights, rows.num_rows, "weights")
        return MatrixPart(rows, 0, rows.num_rows, labels, weights)

    def parse(self, chunk: Chunk[MatrixPart], most_bad: int) -> Parsed:
        piece = chunk.content
        batch = piece.rows.between(piece.start, piece.stop)
        labels = (read_names if self._named else read_numbers)(piece.labels)
        problems = dict.fromkeys(np.flatnonzero(~labels.present).tolist(), "no label") | labels.problems
        bad = {row: BadRow(0, self.label_column, problem, LABEL_HINT) for row, problem in problems.items()}
        weights = None if piece.weights is None else _weights(piece.weights, bad)
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


def _weights(column: pa.Array, bad: dict[int, BadRow]) -> NDArray[np.float32]:
    cells = read_numbers(column)
    problems = dict.fromkeys(np.flatnonzero(~cells.present).tolist(), "no weight")
    problems |= {row: f"the weight is `{cells.numbers[row]:g}`" for row in np.flatnonzero(cells.numbers < 0).tolist()}
    for row, problem in (problems | cells.problems).items():
        bad.setdefault(row, BadRow(0, "the weights", problem, f"a weight is {WEIGHT_WORDS}"))
    return cells.numbers.astype(np.float32)


def _refuse_values(batch: Batch, bad: dict[int, BadRow]) -> None:
    """Enter rows with values that are not finite into `bad`."""
    for place in np.flatnonzero(~np.isfinite(batch.values)).tolist():
        row = int(np.searchsorted(batch.offsets, place, side="right")) - 1
        problem = f"`{batch.values[place]}` is not a finite number"
        bad.setdefault(row, BadRow(0, f"column {batch.keys[place]}", problem, "replace it, or leave the row out"))
