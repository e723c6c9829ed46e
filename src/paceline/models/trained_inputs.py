"""What does a trained model take as input? Rows in the keys that it was trained on, or images of one shape."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.data.images.blocks import Images
from paceline.data.preparation import Preparation, refuse_other_preparation
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.scaling import Scaler, Scaling
from paceline.errors import DataError, UsageError
from paceline.models.images import ImageSettings
from paceline.models.model import Parameters, TableView
from paceline.parameters.store import check_memory

CSR = "rebuild the matrix: its `check_format()` says what is wrong with it"


class Input(Protocol):
    """What a trained model takes: how rows are given to it, and which datasets fit."""

    @property
    def scaling(self) -> Scaling:
        """Which values were scaled in the data that the model was trained on."""

    def rows_of(self, given: Any) -> Any:
        """Rows as the model takes them, from what a user gives."""

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


