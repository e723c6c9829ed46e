"""Linear models with a score per class on a GPU (`kernels/multinomial.py` has the formula), a row at a time.

A program keeps the columns of the hottest keys and the sums of their gradients in registers, for all of its rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.errors import ConfigError
from paceline.torch.model import torch
from paceline.torch.sparse.launch import Hot, Launch, room_for_columns
from paceline.torch.sparse.rows import GpuRows, RowShape, Runs, listed_nonzeros, num_chunks, rows_of_run
from paceline.torch.sparse.table import GpuTable, NumberedTable
from paceline.torch.sparse.triton_ import find_device, tl, triton
from paceline.torch.sparse.updates import add_updates, value_of, with_decay

MOST_CLASSES = 128


class MultinomialLoops:
    """The kernels of a linear model with a score per class."""

    second = False

    def __init__(self, model: Any) -> None:
        self.columns = classes = model.layout.table.dim
        if classes > MOST_CLASSES:
            message = f"`device` is `cuda`, but the data has {classes} classes; a GPU takes up to {MOST_CLASSES}"
            raise ConfigError(message, "--device cpu")
        self.most_bits, self.most_numbers = room_for_columns(classes)
        weights = model.make_kernel().class_weights
        self._weights = torch.from_numpy(np.ones(classes, np.float32) if weights is None else weights).to(find_device())

    def train(self, table: GpuTable, rows: GpuRows, shape: RowShape, runs: Runs, hot: Hot, launch: Launch) -> Any:
        (group,), (rule,) = table.groups, launch.rules
        return train_classes[(launch.num_programs,)](
            table.numbers, rows, runs, hot, rule, self._weights, launch.losses, launch.in_flight,
            launch.programs_in_flight, shape.weighted, shape.ones, group.kind, group.has_l2, table.width, self.columns,
            triton.next_power_of_2(self.columns), shape.numbers, triton.next_power_of_2(shape.numbers + 1),
            shape.words, shape.listed, shape.one_chunk, launch.runs_per_program,
        )  # fmt: skip

    def measure(self, table: GpuTable | NumberedTable, rows: GpuRows, shape: RowShape, runs: Runs, launch: Launch,
                out: Any, scores_only: bool) -> None:  # fmt: skip
        (group,), (rule,) = table.groups, launch.rules
        measure_classes[(launch.num_programs,)](
            table.numbers, rows, runs, table.layout.bias_key, table.layout.features, rule, self._weights,
            launch.losses, out, scores_only, shape.weighted, shape.ones, group.kind, table.width, self.columns,
            triton.next_power_of_2(self.columns), shape.listed, shape.one_chunk,
        )  # fmt: skip


@triton.jit
def slopes_of_classes(scores, label, counts, c, CLASSES: tl.constexpr):
    """The slopes of a row's loss by its scores, and the loss, times how much the row counts."""
    scores = tl.where(c < CLASSES, scores, -float("inf"))
    scores = scores - tl.max(scores, 0)
    shares = tl.exp(scores)
    total = tl.sum(shares, 0)
    own = c == label
    loss = tl.log(total) - tl.sum(tl.where(own, scores, 0.0), 0)
    return counts * (shares / total - own.to(tl.float32)), counts * loss


@triton.jit
def train_classes(numbers, rows, runs, hot, rule, class_weights, losses, in_flight, listed_in_flight,
                  WEIGHTED: tl.constexpr, ONES: tl.constexpr, KIND: tl.constexpr, HAS_L2: tl.constexpr,
                  WIDTH: tl.constexpr, CLASSES: tl.constexpr, PADDED: tl.constexpr, NUMBERS: tl.constexpr,
                  COLUMNS: tl.constexpr, WORDS: tl.constexpr, LISTED: tl.constexpr, ONE_CHUNK: tl.constexpr,
                  RUNS: tl.constexpr):  # fmt: skip
    """An update by each row of some runs. Those of columns are added up first; the bias is the last column.

    Listed keys are updated row by row, so that a program has one row of theirs in flight, but all of columns.
    """
    h, k, c = tl.arange(0, COLUMNS), tl.arange(0, LISTED), tl.arange(0, PADDED)
    is_class = c[None, :] < CLASSES
    has_column = h <= NUMBERS
    column_mask = has_column[:, None] & is_class
    column_at = tl.load(hot.number_keys + h, has_column, other=0).to(tl.int64)[:, None] * WIDTH + c[None, :]
    l1 = tl.where(h < NUMBERS, rule.l1, 0.0)[:, None]
    l2 = tl.where(h < NUMBERS, rule.l2, 0.0)[:, None]
    column_weight = value_of(KIND, numbers, column_at, CLASSES, rule, l1, l2, column_mask)
    column_total = tl.zeros((COLUMNS, PADDED), tl.float32)
    column_squares = tl.zeros((COLUMNS, PADDED), tl.float32)
    column_count = tl.zeros((COLUMNS,), tl.float32)
    if WORDS > 0:
        b = tl.arange(0, 32 * WORDS)
        has_bit = b < hot.num_bits
        bit_mask = has_bit[:, None] & is_class
        bit_at = tl.load(hot.bit_keys + b, has_bit, other=0).to(tl.int64)[:, None] * WIDTH + c[None, :]
        bit_weight = value_of(KIND, numbers, bit_at, CLASSES, rule, rule.l1, rule.l2, bit_mask)
        bit_total = tl.zeros((32 * WORDS, PADDED), tl.float32)
        bit_squares = tl.zeros((32 * WORDS, PADDED), tl.float32)
        bit_count = tl.zeros((32 * WORDS,), tl.float32)
    all_losses = 0.0
    for number in range(RUNS):
        start, size, _ = rows_of_run(runs, tl.program_id(0) * RUNS + number)
        for at in range(start, start + size):
            x = tl.load(rows.numbers + at * NUMBERS + h, h < NUMBERS, other=0.0)
            x = tl.where(h == NUMBERS, 1.0, x)
            scores = tl.sum(x[:, None] * column_weight, 0)
            if WORDS > 0:
                words = tl.load(rows.bits + at * WORDS + b // 32)
                bits = ((words >> (b % 32)) & 1).to(tl.float32)
                scores += tl.sum(bits[:, None] * bit_weight, 0)
            first = tl.load(rows.starts + at)
            length = tl.load(rows.lengths + at)
            for chunk in range(num_chunks(length, LISTED, ONE_CHUNK)):
                key, value, listed = listed_nonzeros(rows, first, length, chunk * LISTED + k, ONES)
                mask = listed[:, None] & is_class
                weight = value_of(KIND, numbers, key[:, None] * WIDTH + c[None, :], CLASSES, rule, rule.l1, rule.l2,
                                  mask)  # fmt: skip
                scores += tl.sum(tl.where(mask, value[:, None] * weight, 0.0), 0)
            label = tl.load(rows.labels + at).to(tl.int32)
            counts = tl.load(class_weights + label)
            if WEIGHTED:
                counts *= tl.load(rows.weights + at)
            slopes, row_loss = slopes_of_classes(scores, label, counts, c, CLASSES)
            all_losses += row_loss
            gradients = x[:, None] * slopes[None, :]
            column_total += gradients
            column_squares += gradients * gradients
            column_count += (x != 0).to(tl.float32)
            if WORDS > 0:
                gradients = bits[:, None] * slopes[None, :]
                bit_total += gradients
                bit_squares += gradients * gradients
                bit_count += bits
            for chunk in range(num_chunks(length, LISTED, ONE_CHUNK)):
                # If there is one chunk, the compiler sees that these were read already.
                key, value, listed = listed_nonzeros(rows, first, length, chunk * LISTED + k, ONES)
                mask = listed[:, None] & is_class
                weight = value_of(KIND, numbers, key[:, None] * WIDTH + c[None, :], CLASSES, rule, rule.l1,
                                  rule.l2, mask)  # fmt: skip
                total = value[:, None] * slopes[None, :]
                total, squares = with_decay(KIND, HAS_L2, weight, total, total * total, 1.0, rule.l2)
                bent = tl.load(hot.bent + key, listed & (key < hot.num_bent), other=0.0)[:, None]
                add_updates(KIND, numbers, key[:, None] * WIDTH + c[None, :], CLASSES, weight, total, squares, rule,
                            rule.l2, bent, listed_in_flight, mask)  # fmt: skip
    count = column_count[:, None]
    bent = tl.load(hot.number_bent + h, has_column, other=0.0)[:, None]
    total, squares = with_decay(KIND, HAS_L2, column_weight, column_total, column_squares, count, l2)
    add_updates(
        KIND, numbers, column_at, CLASSES, column_weight, total, squares, rule, l2, bent, in_flight, column_mask
    )
    if WORDS > 0:
        count = bit_count[:, None]
        bent = tl.load(hot.bit_bent + b, has_bit, other=0.0)[:, None]
        total, squares = with_decay(KIND, HAS_L2, bit_weight, bit_total, bit_squares, count, rule.l2)
        add_updates(
            KIND, numbers, bit_at, CLASSES, bit_weight, total, squares, rule, rule.l2, bent, in_flight, bit_mask
        )
    tl.store(losses + tl.program_id(0), all_losses)


@triton.jit
def measure_classes(numbers, rows, runs, bias, features, rule, class_weights, losses, out, SCORES: tl.constexpr,
                    WEIGHTED: tl.constexpr, ONES: tl.constexpr, KIND: tl.constexpr, WIDTH: tl.constexpr,
                    CLASSES: tl.constexpr, PADDED: tl.constexpr, LISTED: tl.constexpr,
                    ONE_CHUNK: tl.constexpr):  # fmt: skip
    """The scores of rows without columns [rows, classes] into `out`, or else the slopes of their losses by them. Keys
    from `features` on are unknown, and count nothing.
    """
    k, c = tl.arange(0, LISTED), tl.arange(0, PADDED)
    start, size, place = rows_of_run(runs, tl.program_id(0))
    bias_at = (tl.zeros((PADDED,), tl.int64) + bias) * WIDTH + c
    bias_scores = value_of(KIND, numbers, bias_at, CLASSES, rule, 0.0, 0.0, c < CLASSES)
    all_losses = 0.0
    for number in range(0, size):
        at = start + number
        first = tl.load(rows.starts + at)
        length = tl.load(rows.lengths + at)
        scores = bias_scores
        for chunk in range(num_chunks(length, LISTED, ONE_CHUNK)):
            key, value, listed = listed_nonzeros(rows, first, length, chunk * LISTED + k, ONES)
            listed = listed & (key < features)
            value = tl.where(listed, value, 0.0)
            mask = listed[:, None] & (c[None, :] < CLASSES)
            weight = value_of(KIND, numbers, key[:, None] * WIDTH + c[None, :], CLASSES, rule, rule.l1, rule.l2, mask)
            scores += tl.sum(tl.where(mask, value[:, None] * weight, 0.0), 0)
        to = out + (place + number) * CLASSES + c
        if SCORES:
            tl.store(to, scores, c < CLASSES)
        else:
            label = tl.load(rows.labels + at).to(tl.int32)
            counts = tl.load(class_weights + label)
            if WEIGHTED:
                counts *= tl.load(rows.weights + at)
            slopes, row_loss = slopes_of_classes(scores, label, counts, c, CLASSES)
            all_losses += row_loss
            tl.store(to, slopes, c < CLASSES)
    if not SCORES:
        tl.store(losses + tl.program_id(0), all_losses)
