"""Linear models of one score on a GPU: z = w·x + b, under any loss (`models/linear.py`)."""

from __future__ import annotations

from typing import Any

from paceline.data.rows import RUN_ROWS
from paceline.torch.sparse.launch import Hot, Launch
from paceline.torch.sparse.losses import loss_for_kernels, slope_and_loss
from paceline.torch.sparse.rows import MOST_NUMBERS, GpuRows, RowShape, Runs, listed_nonzeros, num_chunks, rows_of_run
from paceline.torch.sparse.table import GpuTable, NumberedTable
from paceline.torch.sparse.triton_ import tl, triton
from paceline.torch.sparse.updates import add_updates, value_of, with_decay

ROWS = tl.constexpr(RUN_ROWS)


class LinearLoops:
    """The kernels of a linear model of one score."""

    most_bits, most_numbers = 128, MOST_NUMBERS
    columns = 1
    second = False

    def __init__(self, model: Any) -> None:
        self._name, self._loss = loss_for_kernels(model.make_kernel().loss)

    def train(self, table: GpuTable, rows: GpuRows, shape: RowShape, runs: Runs, hot: Hot, launch: Launch) -> Any:
        (group,), (rule,) = table.groups, launch.rules
        return train_linear[(launch.num_programs,)](
            table.numbers, rows, runs, hot, rule, self._loss, launch.losses, launch.in_flight,
            self._name, shape.weighted, shape.ones, group.kind, group.has_l2, table.width,
            shape.numbers, triton.next_power_of_2(shape.numbers + 1), shape.words, shape.listed, shape.one_chunk,
            launch.runs_per_program, num_warps=8,
        )  # fmt: skip

    def measure(self, table: GpuTable | NumberedTable, rows: GpuRows, shape: RowShape, runs: Runs, launch: Launch,
                out: Any, scores_only: bool) -> None:  # fmt: skip
        (group,), (rule,) = table.groups, launch.rules
        measure_linear[(launch.num_programs,)](
            table.numbers, rows, runs, table.layout.bias_key, table.layout.features, rule, self._loss, launch.losses,
            out, scores_only, self._name, shape.weighted, shape.ones, group.kind, table.width, shape.listed,
            shape.one_chunk,
        )  # fmt: skip


@triton.jit
def train_linear(numbers, rows, runs, hot, rule, loss, losses, in_flight, LOSS: tl.constexpr, WEIGHTED: tl.constexpr,
                 ONES: tl.constexpr, KIND: tl.constexpr, HAS_L2: tl.constexpr,
                 WIDTH: tl.constexpr, NUMBERS: tl.constexpr, PADDED: tl.constexpr, WORDS: tl.constexpr,
                 LISTED: tl.constexpr, ONE_CHUNK: tl.constexpr, RUNS: tl.constexpr):  # fmt: skip
    """An update by each row of some runs. Those of columns are added up first; the bias is the last column."""
    row, c, k = tl.arange(0, ROWS), tl.arange(0, PADDED), tl.arange(0, LISTED)
    has_column = c <= NUMBERS
    column_at = tl.load(hot.number_keys + c, has_column, other=0).to(tl.int64) * WIDTH
    l1, l2 = tl.where(c < NUMBERS, rule.l1, 0.0), tl.where(c < NUMBERS, rule.l2, 0.0)
    column_weight = value_of(KIND, numbers, column_at, 1, rule, l1, l2, has_column)
    column_total = tl.zeros((PADDED,), tl.float32)
    column_squares = tl.zeros((PADDED,), tl.float32)
    column_count = tl.zeros((PADDED,), tl.float32)
    if WORDS > 0:
        b = tl.arange(0, 32 * WORDS)
        has_bit = b < hot.num_bits
        bit_at = tl.load(hot.bit_keys + b, has_bit, other=0).to(tl.int64) * WIDTH
        bit_weight = value_of(KIND, numbers, bit_at, 1, rule, rule.l1, rule.l2, has_bit)
        bit_total = tl.zeros((32 * WORDS,), tl.float32)
        bit_squares = tl.zeros((32 * WORDS,), tl.float32)
        bit_count = tl.zeros((32 * WORDS,), tl.float32)
    all_losses = 0.0
    for number in range(RUNS):
        start, size, _ = rows_of_run(runs, tl.program_id(0) * RUNS + number)
        there, at = row < size, start + row
        label = tl.load(rows.labels + at, there, other=0).to(tl.float32)
        has_number = there[:, None] & (c[None, :] < NUMBERS)
        x = tl.load(rows.numbers + at[:, None] * NUMBERS + c[None, :], has_number, other=0.0)
        x = tl.where((c[None, :] == NUMBERS) & there[:, None], 1.0, x)
        score = tl.sum(x * column_weight[None, :], 1)
        if WORDS > 0:
            words = tl.load(rows.bits + at[:, None] * WORDS + b[None, :] // 32, there[:, None], other=0)
            bits = ((words >> (b[None, :] % 32)) & 1).to(tl.float32)
            score += tl.sum(bits * bit_weight[None, :], 1)
        first = tl.load(rows.starts + at, there, other=0)
        length = tl.load(rows.lengths + at, there, other=0)
        chunks = num_chunks(tl.max(length, 0), LISTED, ONE_CHUNK)
        for chunk in range(chunks):
            nonzero = chunk * LISTED + k[None, :]
            key, value, listed = listed_nonzeros(rows, first[:, None], length[:, None], nonzero, ONES)
            weight = value_of(KIND, numbers, key * WIDTH, 1, rule, rule.l1, rule.l2, listed)
            score += tl.sum(tl.where(listed, weight * value, 0.0), 1)
        slope, row_loss = slope_and_loss(LOSS, loss, score, label)
        if WEIGHTED:
            row_weight = tl.load(rows.weights + at, there, other=0.0)
            slope, row_loss = slope * row_weight, row_loss * row_weight
        slope = tl.where(there, slope, 0.0)
        all_losses += tl.sum(tl.where(there, row_loss, 0.0))
        gradient = slope[:, None] * x
        column_total += tl.sum(gradient, 0)
        column_squares += tl.sum(gradient * gradient, 0)
        column_count += tl.sum((x != 0).to(tl.float32), 0)
        if WORDS > 0:
            bit_total += tl.sum(slope[:, None] * bits, 0)
            bit_squares += tl.sum((slope * slope)[:, None] * bits, 0)
            bit_count += tl.sum(bits, 0)
        for chunk in range(chunks):
            # If there is one chunk, the compiler sees that these were read already.
            nonzero = chunk * LISTED + k[None, :]
            key, value, listed = listed_nonzeros(rows, first[:, None], length[:, None], nonzero, ONES)
            weight = value_of(KIND, numbers, key * WIDTH, 1, rule, rule.l1, rule.l2, listed)
            total = slope[:, None] * value
            total, squares = with_decay(KIND, HAS_L2, weight, total, total * total, 1.0, rule.l2)
            bent = tl.load(hot.bent + key, listed & (key < hot.num_bent), other=0.0)
            add_updates(KIND, numbers, key * WIDTH, 1, weight, total, squares, rule, rule.l2, bent, in_flight, listed)
    total, squares = with_decay(KIND, HAS_L2, column_weight, column_total, column_squares, column_count, l2)
    bent = tl.load(hot.number_bent + c, has_column, other=0.0)
    add_updates(KIND, numbers, column_at, 1, column_weight, total, squares, rule, l2, bent, in_flight, has_column)
    if WORDS > 0:
        total, squares = with_decay(KIND, HAS_L2, bit_weight, bit_total, bit_squares, bit_count, rule.l2)
        bent = tl.load(hot.bit_bent + b, has_bit, other=0.0)
        add_updates(KIND, numbers, bit_at, 1, bit_weight, total, squares, rule, rule.l2, bent, in_flight, has_bit)
    tl.store(losses + tl.program_id(0), all_losses)


@triton.jit
def measure_linear(numbers, rows, runs, bias, features, rule, loss, losses, out, SCORES: tl.constexpr,
                   LOSS: tl.constexpr, WEIGHTED: tl.constexpr, ONES: tl.constexpr, KIND: tl.constexpr,
                   WIDTH: tl.constexpr, LISTED: tl.constexpr, ONE_CHUNK: tl.constexpr):  # fmt: skip
    """The scores of rows without columns into `out`, or else the slopes of their losses. Keys from `features` on are
    unknown, and count nothing.
    """
    row, k = tl.arange(0, ROWS), tl.arange(0, LISTED)
    start, size, place_in_launch = rows_of_run(runs, tl.program_id(0))
    there, at = row < size, start + row
    bias_at = (tl.zeros((ROWS,), tl.int64) + bias) * WIDTH
    score = value_of(KIND, numbers, bias_at, 1, rule, 0.0, 0.0, there)
    first = tl.load(rows.starts + at, there, other=0)
    length = tl.load(rows.lengths + at, there, other=0)
    for chunk in range(num_chunks(tl.max(length, 0), LISTED, ONE_CHUNK)):
        nonzero = chunk * LISTED + k[None, :]
        key, value, listed = listed_nonzeros(rows, first[:, None], length[:, None], nonzero, ONES)
        listed = listed & (key < features)
        weight = value_of(KIND, numbers, key * WIDTH, 1, rule, rule.l1, rule.l2, listed)
        score += tl.sum(tl.where(listed, weight * value, 0.0), 1)
    if SCORES:
        tl.store(out + place_in_launch + row, score, there)
    else:
        label = tl.load(rows.labels + at, there, other=0).to(tl.float32)
        slope, row_loss = slope_and_loss(LOSS, loss, score, label)
        if WEIGHTED:
            row_weight = tl.load(rows.weights + at, there, other=0.0)
            slope, row_loss = slope * row_weight, row_loss * row_weight
        tl.store(out + place_in_launch + row, slope, there)
        tl.store(losses + tl.program_id(0), tl.sum(tl.where(there, row_loss, 0.0)))
