"""Softmax regression over images: scores, losses and gradients, one row after the other.

Weights are [pixels, classes] and then [classes] of biases, in one flat array. Pixels are bytes that count as 0 to 1.
Most pixels of a drawing are 0, and neither the scores nor the gradient depend on their weights: only the others are
visited, after they were listed without a branch. Sixteen classes are computed at a time, in a vector register: for
that, weights and sums are copied to and from rows that are padded (`padded_classes`), once per batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from paceline.kernels.jit import address_of, compiled, inlined

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

LANES = 16
FLOAT_BYTES = 4
FULL = np.float32(255)
ZERO = np.float32(0)


def padded_classes(classes: int) -> int:
    """How long a row of padded weights is.

    >>> padded_classes(10), padded_classes(1000)
    (16, 1008)
    """
    return -(-classes // LANES) * LANES


@intrinsic
def add_scaled(_context: Any, target: Any, t: Any, source: Any, s: Any, x: Any) -> Any:
    """target[t : t + 16] += x * source[s : s + 16], of flat arrays."""
    signature = types.void(target, t, source, s, x)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes = ir.VectorType(ir.FloatType(), LANES)

        def place(array: int, index: int) -> Any:
            address = address_of(context, builder, signature, args, array, index)
            return builder.bitcast(address, lanes.as_pointer())

        into = place(0, 1)
        undefined, zero = ir.Constant(lanes, ir.Undefined), ir.Constant(ir.IntType(32), 0)
        one = builder.insert_element(undefined, args[4], zero)
        spread = builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(ir.IntType(32), LANES), None))
        fused = ("contract",)
        product = builder.fmul(spread, builder.load(place(2, 3), align=FLOAT_BYTES), flags=fused)
        builder.store(builder.fadd(builder.load(into, align=FLOAT_BYTES), product, flags=fused), into, FLOAT_BYTES)
        return context.get_dummy_value()

    return signature, codegen


@compiled
def pad(values: Floats, classes: int, padded: Floats) -> None:
    """Weights and biases [pixels + 1, classes], flat, into rows of the padded length, flat."""
    length = -(-classes // LANES) * LANES
    for i in range(padded.size // length):
        for k in range(classes):
            padded[i * length + k] = values[i * classes + k]


@compiled
def unpad(padded: Floats, classes: int, values: Floats) -> None:
    """The other way round."""
    length = -(-classes // LANES) * LANES
    for i in range(padded.size // length):
        for k in range(classes):
            values[i * classes + k] = padded[i * length + k]


@inlined
def list_drawn(row: Bytes, drawn: NDArray[np.int64]) -> int:
    """The pixels of a row that are not 0 into `drawn`, which has room for one more than all; how many."""
    count = 0
    for pixel in range(row.size):
        drawn[count] = pixel
        count += row[pixel] != 0
    return count


@inlined
def score_row(padded: Floats, row: Bytes, drawn: NDArray[np.int64], count: int, scores: Floats, others: Floats) -> None:
    """The scores of all classes of one row. Two sums at a time, so that one need not wait for the other."""
    length = scores.size
    scores[:] = ZERO
    others[:] = ZERO
    for first in range(0, length, LANES):
        i = 0
        while i + 1 < count:
            one, two = drawn[i], drawn[i + 1]
            add_scaled(scores, first, padded, one * length + first, np.float32(row[one]))
            add_scaled(others, first, padded, two * length + first, np.float32(row[two]))
            i += 2
        if i < count:
            add_scaled(scores, first, padded, drawn[i] * length + first, np.float32(row[drawn[i]]))
    biases = row.size * length
    for k in range(length):
        scores[k] = (scores[k] + others[k]) / FULL + padded[biases + k]


@inlined
def to_slopes(scores: Floats, classes: int, label: int) -> float:
    """Turn scores into slopes of the loss, p − y, in place; the loss. Beyond the classes slopes are 0."""
    highest = scores[0]
    for k in range(1, classes):
        highest = max(highest, scores[k])
    of_label = np.float64(scores[label]) - np.float64(highest)
    total = ZERO
    for k in range(classes):
        scores[k] = np.exp(scores[k] - highest)
        total += scores[k]
    for k in range(classes):
        scores[k] /= total
    for k in range(classes, scores.size):
        scores[k] = ZERO
    scores[label] -= np.float32(1)
    return np.log(np.float64(total)) - of_label


@inlined
def add_row(sums: Floats, row: Bytes, drawn: NDArray[np.int64], count: int, slopes: Floats) -> None:
    """Add one row's gradient to the sums."""
    length = slopes.size
    biases = row.size * length
    for k in range(length):
        sums[biases + k] += slopes[k]
        slopes[k] /= FULL
    for first in range(0, length, LANES):
        for i in range(count):
            pixel = drawn[i]
            add_scaled(sums, pixel * length + first, slopes, first, np.float32(row[pixel]))


@compiled
def gradient(padded: Floats, pixels: Bytes, labels: NDArray[np.uint16], classes: int, drawn: NDArray[np.int64],
             scores: Floats, others: Floats, sums: Floats) -> float:  # fmt: skip
    """The sums of the rows' gradients into `sums`, and the sum of their losses.

    `padded` weights and `sums` are [pixels + 1, padded classes], flat; `drawn` [pixels + 1], `scores` and `others`
    [padded classes] are scratch.
    """
    sums[:] = ZERO
    losses = 0.0
    for r in range(pixels.shape[0]):
        row = pixels[r]
        count = list_drawn(row, drawn)
        score_row(padded, row, drawn, count, scores, others)
        losses += to_slopes(scores, classes, labels[r])
        add_row(sums, row, drawn, count, scores)
    return losses


@compiled
def score_rows(padded: Floats, pixels: Bytes, drawn: NDArray[np.int64], others: Floats, out: Floats) -> None:
    """The scores of all rows into `out` [rows, padded classes]."""
    for r in range(pixels.shape[0]):
        row = pixels[r]
        count = list_drawn(row, drawn)
        score_row(padded, row, drawn, count, out[r], others)
