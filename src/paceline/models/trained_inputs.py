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

    def parsed(self, rows: Batch) -> Any:
        """Rows as the model takes them, from those of files or of memory, with distinct keys."""

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

    def check(self, parameters: Parameters, dataset: Any, source: dict[str, Any]) -> None:
        assert parameters.table is not None
        trained = Preparation(source, parameters.table.layout.features, self.fields)
        given = Preparation(dataset.manifest.source, dataset.manifest.features, dataset.manifest.fields)
        refuse_other_preparation(trained, given, str(dataset.folder))

    def parsed(self, rows: Batch) -> Batch:
        rows = rows._replace(fields=_known_fields(rows, len(self.fields)) if self.fields else None)
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
            found = rows_of_matrix(batch.features)
            if not isinstance(batch.features, Batch):
                refuse_other_width(trained, found.num_columns)
            for start, stop in pairwise(found.cuts() if found.num_rows else (0, 0)):
                piece = found.between(start, stop)
                _check_values(piece.values)
                yield Made(score(self.parsed(piece.distinct())))

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
        flat = np.ascontiguousarray(pixels.reshape(len(pixels), height * width * channels))
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


def refuse_other_width(trained: TrainedOn, columns: int) -> None:
    """Raise for a matrix whose columns cannot be those of the matrix or table that a model was trained on."""
    format_ = trained.source.get("format")
    if format_ != MATRIX and keys_of(str(format_)) != keys_of(TABLE):
        return
    if columns != trained.features:
        raise UsageError(
            f"the matrix has {columns:,} columns; the model was trained on {trained.features:,} features",
            "give the same columns" if format_ == MATRIX else "give a frame or a file with the same columns",
        )


def _check_values(values: NDArray[np.float32]) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        raise UsageError(f"cannot predict: `{values[~finite][0]}` is not a finite value", "replace it")


def _known_fields(rows: Batch, count: int) -> NDArray[np.uint16]:
    """The fields of nonzeros; raises if these have none, or some that a model of `count` fields does not know."""
    fields = rows.fields
    if fields is None:
        if rows.num_nonzeros:
            raise UsageError("cannot predict: the model needs the field of each nonzero", "give a Batch with `fields`")
        return np.zeros(0, np.uint16)
    if fields.max(initial=0) >= count:
        raise UsageError(f"cannot predict: fields up to {fields.max()}; the model has {count}", "they count from 0")
    return fields
