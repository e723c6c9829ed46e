"""How do values of any size become values of about 1, which models learn from with the usual learning rates?

`prepare` looks at a sample of the training rows. A key whose values are far from 1 is stored as (value − centre) /
scale: see `choose_scaling`. The manifest lists these keys, and so does the file of a model that was trained on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.data.sparse.batch import Batch, concatenate
from paceline.data.sparse.key_order import NO_COUNTS, KeyOrder
from paceline.kernels.optional import MOST_FIELDS

SAMPLE_ROWS = 16_384
LEAST, MOST = 1 / 8, 8  # values of this size stay as they are
FAR = 16  # how many deviations from 0 the mean of values of any size may be
DENSE = 0.9  # the share of rows from which on a key has a centre
CONSTANT = 1e-6
CENTRE_STEPS = 4  # centres are multiples of this part of a scale
MOST_CELLS = 1 << 24
Floats = NDArray[np.float32]

LARGEST = float(np.finfo(np.float32).max)


class Scaling(msgspec.Struct, frozen=True):
    """Which keys are stored as (value − centre) / scale. Scales are powers of two, so that dividing by one is exact.

    A key with a centre is stored for every row, because a row without it has the value 0 there. `fields` are the
    fields of the keys, if rows have fields.
    """

    keys: tuple[int, ...] = ()
    scales: tuple[float, ...] = ()
    centres: tuple[float, ...] = ()
    fields: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        sizes = {len(self.keys), len(self.scales), len(self.centres), len(self.fields) or len(self.keys)}
        if len(sizes) > 1 or len(set(self.keys)) < len(self.keys) or min(self.keys, default=0) < 0:
            raise ValueError("the scaling does not list distinct keys, each with a scale and a centre")
        if not all(0 < scale < 1e60 and np.frexp(scale)[0] == 0.5 for scale in self.scales):
            raise ValueError("the scales are not powers of two")
        if not all(abs(centre) <= LARGEST for centre in self.centres):
            raise ValueError("the centres are not finite numbers")
        if self.fields and not 0 <= min(self.fields) <= max(self.fields) < MOST_FIELDS:
            raise ValueError(f"the fields of scaled keys are not below {MOST_FIELDS:,}")

    def weights_of_source(self, weights: Floats, bias: Floats) -> tuple[Floats, Floats]:
        """The weights and biases of a linear model of scaled values, for the values of the source.

        >>> weights, bias = Scaling((1,), (2.0,), (10.0,)).weights_of_source(np.float32([3, 4]), np.float32([1]))
        >>> weights.tolist(), bias.tolist()
        ([3.0, 2.0], [-19.0])
        """
        if not self.keys:
            return weights, bias
        found, keys = weights.astype(np.float64), np.array(self.keys, np.int64)
        found[keys] = (found[keys].T / self.scales).T
        return found.astype(np.float32), (bias - self.centres @ found[keys]).astype(np.float32)


class Scaler:
    """Applies a scaling to rows, and undoes it. With an `order`, rows have the keys of its blocks."""

    def __init__(self, scaling: Scaling, order: KeyOrder | None = None) -> None:
        keys = np.array(scaling.keys, np.uint64)
        if order is not None:
            order.renumber(keys, NO_COUNTS)
        ranks = np.argsort(keys)
        self._keys = keys[ranks]
        self._scales, self._centres = (np.array(part, np.float64)[ranks] for part in (scaling.scales, scaling.centres))
        self._fields = np.array(scaling.fields or np.zeros(len(keys)), np.uint16)[ranks]
        self._centred = np.flatnonzero(self._centres)
        self._columns = np.full(len(keys), -1)
        self._columns[self._centred] = np.arange(len(self._centred))

    def apply(self, rows: Batch) -> Batch:
        """Rows of the source, with distinct keys per row, as they are stored."""
        if not len(self._keys):
            return rows
        return concatenate([self._apply(part) for part in self._parts(rows)])

    def undo(self, rows: Batch) -> Batch:
        """Rows as they are stored, as the source has them, without the zeros of keys that have a centre."""
        if not len(self._keys):
            return rows
        numbers, found = self._find(rows.keys)
        values = rows.values.astype(np.float64)
        values[found] = values[found] * self._scales[numbers] + self._centres[numbers]
        kept = np.ones(len(values), bool)
        kept[found] = (values[found] != 0) | (self._centres[numbers] == 0)
        offsets = np.concatenate([[0], np.cumsum(kept)])[rows.offsets]
        fields = None if rows.fields is None else rows.fields[kept]
        return rows._replace(offsets=offsets, keys=rows.keys[kept], values=_rounded(values[kept]), fields=fields)

    def _parts(self, rows: Batch) -> Iterator[Batch]:
        """Rows in pieces for which there is memory to note which keys each row has."""
        size = max(1, MOST_CELLS // max(1, len(self._centred)))
        for start in range(0, max(1, rows.num_rows), size):
            yield rows.slice(start, min(start + size, rows.num_rows))

    def _apply(self, rows: Batch) -> Batch:
        numbers, found = self._find(rows.keys)
        values = rows.values.astype(np.float64)
        values[found] = (values[found] - self._centres[numbers]) / self._scales[numbers]
        columns, row_of = self._columns[numbers], np.repeat(np.arange(rows.num_rows), np.diff(rows.offsets))[found]
        present = np.zeros((rows.num_rows, len(self._centred)), bool)
        present[row_of[columns >= 0], columns[columns >= 0]] = True
        row, column = np.nonzero(~present)
        missing, at = self._centred[column], rows.offsets[row + 1]
        keys = rows.keys.astype(np.promote_types(rows.keys.dtype, np.min_scalar_type(self._keys[-1])), copy=False)
        more = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows.num_rows))])
        return rows._replace(
            offsets=rows.offsets + more,
            keys=np.insert(keys, at, self._keys[missing].astype(keys.dtype)),
            values=_rounded(np.insert(values, at, -self._centres[missing] / self._scales[missing])),
            fields=None if rows.fields is None else np.insert(rows.fields, at, self._fields[missing]),
        )

    def _find(self, keys: NDArray[np.uint32 | np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which of the scaled keys stand in rows: their numbers here, and where they stand."""
        return _positions(self._keys, keys)


def _positions(of: NDArray[np.uint64], keys: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which `keys` are among the sorted, distinct ones `of` which there is at least one: where in these, and where in
    `keys`.
    """
    numbers = np.searchsorted(of, keys.astype(np.uint64))
    numbers[numbers == len(of)] = 0
    found = np.flatnonzero(of[numbers] == keys)
    return numbers[found], found


def _rounded(values: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.clip(values, -LARGEST, LARGEST).astype(np.float32)


def choose_scaling(order: KeyOrder, batches: Sequence[Batch]) -> Scaling:
    """The scaling of the hot keys, from a sample of the training rows.

    Keys whose root mean square, over the rows that have them, lies outside of 1/8 to 8 are divided by the power of two
    next to it. If such a key is in nearly all rows, or if its mean is many deviations away from 0, the mean is
    subtracted first, and the scale is the power of two next to the deviation.
    """
    batches = batches[:: max(1, sum(batch.num_rows for batch in batches) // SAMPLE_ROWS)]
    rows = sum(batch.num_rows for batch in batches)
    size = len(order.hot)
    found = np.zeros((size, 3))
    for batch in batches:
        order.add_up(batch.keys, batch.values, found)
    counts, sums, squares = found.T
    root = np.sqrt(squares / np.maximum(1, counts))
    means = sums / max(1, rows)
    deviations = np.sqrt(np.maximum(0, squares / max(1, rows) - means**2))
    outside = (root > 0) & ((root < LEAST) | (root > MOST))
    varies = deviations > CONSTANT * root
    centred = (counts >= DENSE * rows) & varies & (outside | (np.abs(means) > FAR * deviations))
    chosen = np.flatnonzero(outside | centred)
    scales = np.exp2(np.round(np.log2(np.where(centred, deviations, root)[chosen])))
    # Few digits: the difference to most values is then exact in float32.
    centres = np.where(centred, means, 0.0)[chosen]
    centres = np.round(centres / scales * CENTRE_STEPS) * scales / CENTRE_STEPS
    keys = order.hot[chosen]
    return Scaling(tuple(keys.tolist()), tuple(scales.tolist()), tuple(centres.tolist()), _last_fields(keys, batches))


def _last_fields(keys: NDArray[np.uint64], batches: Sequence[Batch]) -> tuple[int, ...]:
    """The field in which each key was last found, if rows have fields."""
    if not batches or batches[0].fields is None or not len(keys):
        return ()
    ranks, fields = np.argsort(keys), np.zeros(len(keys), np.int64)
    for batch in batches:
        assert batch.fields is not None
        numbers, found = _positions(keys[ranks], batch.keys)
        fields[ranks[numbers]] = batch.fields[found]
    return tuple(fields.tolist())
