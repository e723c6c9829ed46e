"""What does a trained model take as input? Rows in the keys that it was trained on, or images of one shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, pairwise
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.data.images.blocks import Images
from paceline.data.memory.given import batches_of, is_matrix, is_table, refuse_mixture
from paceline.data.memory.matrices import rows_of_matrix
from paceline.data.preparation import MATRIX, TABLE, Preparation, keys_of, refuse_other_preparation
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.scaling import Scaler, Scaling
from paceline.data.unlabelled_rows import UnlabelledRows, open_files, open_tables
from paceline.errors import DataError, UsageError
from paceline.models.images import ImageSettings
from paceline.models.model import Parameters, TableView
from paceline.parameters.store import check_memory

CSR = "rebuild the matrix: its `check_format()` says what is wrong with it"


T = TypeVar("T")


class TrainedOn(NamedTuple):
    """What a model was trained on: how its data was prepared, and how many features it had."""

    source: dict[str, Any]
    features: int


class Made(NamedTuple, Generic[T]):
    """What was made of some rows, and the ids of these, if a column was named for them."""

    made: T
    ids: Any = None


class Input(Protocol):
    """What a trained model takes: how rows are given to it, and which datasets fit."""

    @property
    def scaling(self) -> Scaling:
        """Which values were scaled in the data that the model was trained on."""

    def rows_of(self, given: Any) -> Any:
        """Rows as the model takes them, from what a user gives."""

    def parsed(self, rows: Batch) -> Any:
        """Rows as the model takes them, from those of files."""

    def files_of(self, trained: TrainedOn, sources: list[str], settings: Mapping[str, Any]) -> UnlabelledRows:
        """Files of raw rows, as `settings` say; `DataError` if a model that was trained so is not for them."""

    def parts_of(
        self, trained: TrainedOn, given: Any, score: Callable[[Any], T], id_column: str = ""
    ) -> Iterator[Made[T]]:
        """What `score` makes of rows in memory, part by part."""

    def check(self, parameters: Parameters, dataset: Any, source: dict[str, Any]) -> None:
        """`DataError` if a model with these parameters and of this source is not for a dataset."""

    def parameters_for(self, parameters: Parameters, dataset: Any, source: dict[str, Any]) -> Parameters:
        """The parameters in the order of a dataset's keys; `DataError` if a model of this source is not for it.

        The dataset's rows are read from then on as the model takes them.
        """


class SparseInput(NamedTuple):
    """Sparse rows, in the keys that the model was trained on, with its fields, if it has any, and the scaling of their
    values.
    """

    scaling: Scaling
    fields: tuple[str, ...] = ()

    def rows_of(self, given: Any) -> Batch:
        rows = _checked(given) if isinstance(given, Batch) else _batch_of_csr(given)
        if self.fields:
            rows = rows._replace(fields=_checked_fields(getattr(given, "fields", None), len(self.fields), rows))
        return (Scaler(self.scaling).apply(rows.copy().distinct()) if self.scaling.keys else rows).read_only()

    def check(self, parameters: Parameters, dataset: Any, source: dict[str, Any]) -> None:
        assert parameters.table is not None
        trained = Preparation(source, parameters.table.layout.features, self.fields)
        given = Preparation(dataset.manifest.source, dataset.manifest.features, dataset.manifest.fields)
        refuse_other_preparation(trained, given, str(dataset.folder))

    def parsed(self, rows: Batch) -> Batch:
        """Rows that were parsed, as the model takes them."""
        if self.fields:
            rows = rows._replace(fields=_checked_fields(rows.fields, len(self.fields), rows))
        return Scaler(self.scaling).apply(rows).read_only()

    def files_of(self, trained: TrainedOn, sources: list[str], settings: Mapping[str, Any]) -> UnlabelledRows:
        return open_files(Preparation(*trained, self.fields), sources, settings)

    def parts_of(
        self, trained: TrainedOn, given: Any, score: Callable[[Any], T], id_column: str = ""
    ) -> Iterator[Made[T]]:
        batches = batches_of(given)
        first = next(batches)
        if is_table(first.features) and not is_matrix(first.features):
            rows = open_tables(Preparation(*trained, self.fields), chain([first], batches), id_column)
            for scored in rows.scored(lambda batch: score(self.parsed(batch))):
                yield Made(scored.made, scored.ids)
            return
        if id_column:
            raise UsageError(f"`id` is `{id_column}`, but the columns of a matrix have no names", "give a frame")
        for batch in chain([first], batches):
            refuse_mixture(batch, matrices=True)
            refuse_other_width(trained, batch.features)
            for rows_given in _pieces(batch.features):
                yield Made(score(self.rows_of(rows_given)))

    def parameters_for(self, parameters: Parameters, dataset: Any, source: dict[str, Any]) -> Parameters:
        self.check(parameters, dataset, source)
        view = parameters.table
        assert view is not None
        layout = view.layout
        rows = view.rows.reshape(layout.num_keys, layout.dim)
        features = max(layout.features, dataset.features)
        wider = msgspec.structs.replace(layout, features=features)
        hint = "check the dataset's number of features, or prepare it with fewer (--hash-bits)"
        check_memory(4 * wider.num_keys * layout.dim, f"{features:,} features", hint)
        values = np.zeros((wider.num_keys, layout.dim), np.float32)
        values[: layout.features], values[features:] = rows[: layout.features], rows[layout.features :]
        dataset.key_order.to_blocks(values)
        dataset.rescale(self.scaling)
        return Parameters(TableView.of_values(values.reshape(-1), wider), parameters.dense)


class ImageInput(NamedTuple):
    """Images of one shape."""

    settings: ImageSettings
    scaling: Scaling = Scaling()

    def rows_of(self, given: Any) -> Images:
        if isinstance(given, Images):
            return given
        pixels = np.asarray(given)
        height, width, channels = self.settings.shape
        wanted = [(height, width, channels)] + ([(height, width)] if channels == 1 else [])
        if pixels.dtype != np.uint8 or pixels.shape[1:] not in wanted:
            raise UsageError(
                f"cannot predict for {pixels.dtype} of shape {pixels.shape}",
                f"give bytes (uint8) of shape [images, {height}, {width}, {channels}]",
            )
        flat = np.ascontiguousarray(pixels.reshape(len(pixels), -1))
        return Images(flat, np.zeros(len(flat), np.uint16))

    def parsed(self, rows: Batch) -> Any:
        raise UsageError("the model is for images", "give images")

    def files_of(self, trained: TrainedOn, sources: list[str], settings: Mapping[str, Any]) -> UnlabelledRows:
        raise UsageError(
            "the model is for images, and raw image files cannot be scored",
            "make a dataset of the images with `paceline prepare`, and give it with --data",
        )

    def parts_of(
        self, trained: TrainedOn, given: Any, score: Callable[[Any], T], id_column: str = ""
    ) -> Iterator[Made[T]]:
        yield Made(score(self.rows_of(given)))

    def check(self, parameters: Parameters, dataset: Any, source: dict[str, Any]) -> None:
        for name in ("shape", "classes"):
            ours, theirs = getattr(self.settings, name), getattr(dataset, name)
            if tuple(np.atleast_1d(ours)) != tuple(np.atleast_1d(theirs)):
                raise DataError(
                    f"the model is for {name} {ours}; `{dataset.folder}` has {theirs}", "prepare it in the same way"
                )

    def parameters_for(self, parameters: Parameters, dataset: Any, source: dict[str, Any]) -> Parameters:
        self.check(parameters, dataset, source)
        return parameters


def _pieces(given: Any) -> Iterator[Any]:
    """A matrix, in pieces of bounded size if it is dense."""
    if not isinstance(given, np.ndarray):
        yield given
        return
    dense = rows_of_matrix(given)
    for start, stop in pairwise(dense.cuts()):
        yield dense.between(start, stop)


def refuse_other_width(trained: TrainedOn, given: Any) -> None:
    """Raise for a matrix whose columns cannot be those of the matrix or table that a model was trained on."""
    format_ = trained.source.get("format")
    if isinstance(given, Batch) or (format_ != MATRIX and keys_of(str(format_)) != keys_of(TABLE)):
        return
    if given.shape[1] != trained.features:
        raise UsageError(
            f"the matrix has {given.shape[1]:,} columns; the model was trained on {trained.features:,} features",
            "give the same columns" if format_ == MATRIX else "give a frame or a file with the same columns",
        )


def _batch_of_csr(rows: Any) -> Batch:
    if not hasattr(rows, "tocsr"):
        raise UsageError(f"cannot predict for a {type(rows).__name__}", "give a paceline Batch or a SciPy CSR matrix")
    rows = rows.tocsr()
    keys = np.asarray(rows.indices)
    stop = int(rows.indptr[-1]) if len(rows.indptr) else 0  # SciPy allows room after the last nonzero
    if len(rows.indptr) != rows.shape[0] + 1 or not 0 <= stop <= min(len(keys), len(rows.data)):
        raise UsageError(f"cannot predict: `indptr` does not fit {rows.shape[0]} rows and {len(keys)} nonzeros", CSR)
    keys, values = keys[:stop], rows.data[:stop]
    if keys.size and not 0 <= keys.min() <= keys.max() < rows.shape[1]:
        raise UsageError(
            f"cannot predict: column numbers from {keys.min()} to {keys.max()} in a matrix of {rows.shape[1]} columns",
            CSR,
        )
    keys = keys.astype(np.uint32 if not keys.size or keys.max() < 1 << 32 else np.uint64)
    return _checked(Batch(np.zeros(rows.shape[0], np.uint8), rows.indptr, keys, values))


def _checked(rows: Batch) -> Batch:
    """The same rows as compiled loops take them; raises if offsets, keys or values are wrong."""
    labels, offsets, keys, values = (np.asarray(part) for part in rows[:4])
    if offsets.dtype.kind not in "iu" or keys.dtype not in (np.uint32, np.uint64) or values.dtype.kind not in "biuf":
        raise UsageError(
            f"cannot predict for offsets of {offsets.dtype}, keys of {keys.dtype} and values of {values.dtype}",
            "offsets are int64, keys uint32 or uint64, and values float32",
        )
    with np.errstate(over="ignore"):
        offsets, values = np.ascontiguousarray(offsets, np.int64), np.ascontiguousarray(values, np.float32)
    if offsets.shape != (len(labels) + 1,) or keys.shape != values.shape or keys.ndim != 1:
        raise UsageError(
            f"cannot predict for {len(labels)} rows: {offsets.shape} offsets, {keys.shape} keys, {values.shape} values",
            "there is one offset more than rows, and a value for each key",
        )
    if offsets[0] != 0 or offsets[-1] != len(keys) or (np.diff(offsets) < 0).any():
        raise UsageError(f"cannot predict: offsets do not rise from 0 to the number of nonzeros, {len(keys)}", CSR)
    if not np.isfinite(values).all():
        raise UsageError(f"cannot predict: `{values[~np.isfinite(values)][0]}` is not a finite value", "replace it")
    return Batch(labels, offsets, np.ascontiguousarray(keys), values)


def _checked_fields(fields: Any, count: int, rows: Batch) -> NDArray[np.uint16]:
    """The field of each nonzero; raises if there are none, or if some are unknown."""
    if fields is None:
        raise UsageError("cannot predict: the model needs the field of each nonzero", "give a Batch with `fields`")
    found = np.asarray(fields)
    if found.dtype.kind not in "iu" or found.shape != rows.keys.shape:
        raise UsageError(
            f"cannot predict for {found.shape} fields of {found.dtype} and {rows.keys.shape} keys",
            "there is a field, an integer, for each key",
        )
    if found.size and not 0 <= found.min() <= found.max() < count:
        raise UsageError(
            f"cannot predict: fields from {found.min()} to {found.max()}; the model has {count}", "they count from 0"
        )
    return np.ascontiguousarray(found, np.uint16)
