"""Factorization machines on a GPU (`kernels/factorization.py` has the formula), a row at a time in each program.

A program keeps the columns of the hottest keys and the sums of their gradients in registers, for all of its rows.
"""

from __future__ import annotations

from typing import Any

from paceline.errors import ConfigError
from paceline.torch.sparse.launch import Hot, Launch, room_for_columns
from paceline.torch.sparse.losses import loss_for_kernels, slope_and_loss
from paceline.torch.sparse.rows import GpuRows, RowShape, Runs, listed_nonzeros, num_chunks, rows_of_run
from paceline.torch.sparse.table import GpuTable, NumberedTable
from paceline.torch.sparse.triton_ import tl, triton
from paceline.torch.sparse.updates import add_updates, grown, step_of, value_of, with_decay

ROW_WISE = tl.constexpr("row-wise")
MOST_FACTORS = 128


class FactorizationLoops:
    """The kernels of a factorization machine."""

    second = True

    def __init__(self, model: Any) -> None:
        self._name, self._loss = loss_for_kernels(model.make_kernel().loss)
        self.columns = model.layout.table.dim
        factors = self.columns - 1
        if factors > MOST_FACTORS:
            message = f"`device` is `cuda`, but `dim` is {factors}; a GPU takes up to {MOST_FACTORS}"
            raise ConfigError(message, f"--dim {MOST_FACTORS}, or --device cpu")
        self.most_bits, self.most_numbers = room_for_columns(factors)

    def train(self, table: GpuTable, rows: GpuRows, shape: RowShape, runs: Runs, hot: Hot, launch: Launch) -> Any:
        (weight, factors), rules = table.groups, launch.rules
        return train_factors[(launch.num_programs,)](
            table.numbers, rows, runs, hot, *rules, self._loss, launch.losses, launch.in_flight,
            launch.programs_in_flight, self._name, shape.weighted, shape.ones, weight.kind, weight.has_l2, factors.kind,
            factors.has_l2, table.width, factors.first, factors.dim, triton.next_power_of_2(factors.dim), shape.numbers,
            triton.next_power_of_2(shape.numbers + 1), shape.words, shape.listed, shape.one_chunk,
            launch.runs_per_program,
        )  # fmt: skip

    def measure(self, table: GpuTable | NumberedTable, rows: GpuRows, shape: RowShape, runs: Runs, launch: Launch,
                out: Any, scores_only: bool) -> None:  # fmt: skip
        (weight, factors), rules = table.groups, launch.rules
        measure_factors[(launch.num_programs,)](
            table.numbers, rows, runs, table.layout.bias_key, table.layout.features, rules[0], self._loss,
            launch.losses, out, scores_only, self._name, shape.weighted, shape.ones, weight.kind, table.width,
            factors.first, factors.dim, triton.next_power_of_2(factors.dim), shape.listed, shape.one_chunk,
        )  # fmt: skip


@triton.jit
def add_factor_updates(KIND: tl.constexpr, HAS_L2: tl.constexpr, numbers, at, memory, value, total, squares, count,
                       rule, l2, bent, in_flight, mask, known, FACTORS: tl.constexpr):  # fmt: skip
    """Update the factors [keys, factors] of some keys that are `known`. Row-wise, a key has one sum of squares."""
    total, squares = with_decay(KIND, HAS_L2, value, total, squares, count[:, None], l2)
    if KIND == ROW_WISE:
        mean = tl.sum(tl.where(mask, squares, 0.0), 1) / FACTORS
        before = grown(KIND, numbers, memory, mean, known)
        step, share = step_of(KIND, before, mean, rule, l2, bent, in_flight)
        moved = -(step * share)[:, None] * total
        tl.atomic_add(numbers + at, moved, mask, sem="relaxed")
    else:
        add_updates(KIND, numbers, at, FACTORS, value, total, squares, rule, l2, bent[:, None], in_flight, mask)


@triton.jit
def train_factors(numbers, rows, runs, hot, rule, factor_rule, loss, losses, in_flight, listed_in_flight,
                  LOSS: tl.constexpr, WEIGHTED: tl.constexpr, ONES: tl.constexpr, KIND: tl.constexpr,
                  HAS_L2: tl.constexpr, FACTOR_KIND: tl.constexpr, FACTOR_L2: tl.constexpr, WIDTH: tl.constexpr,
                  FIRST: tl.constexpr, FACTORS: tl.constexpr, PADDED: tl.constexpr, NUMBERS: tl.constexpr,
                  COLUMNS: tl.constexpr, WORDS: tl.constexpr, LISTED: tl.constexpr, ONE_CHUNK: tl.constexpr,
                  RUNS: tl.constexpr):  # fmt: skip
    """An update by each row of some runs. Those of columns are added up first; the bias is the last column.

    Listed keys are updated row by row, so that a program has one row of theirs in flight, but all of columns.
    """
    c, k, f = tl.arange(0, COLUMNS), tl.arange(0, LISTED), tl.arange(0, PADDED)
    is_factor = f[None, :] < FACTORS
    has_column, has_factors = c <= NUMBERS, c < NUMBERS
    column_at = tl.load(hot.number_keys + c, has_column, other=0).to(tl.int64) * WIDTH
    l1, l2 = tl.where(has_factors, rule.l1, 0.0), tl.where(has_factors, rule.l2, 0.0)
    column_weight = value_of(KIND, numbers, column_at, 1, rule, l1, l2, has_column)
    column_mask = has_factors[:, None] & is_factor
    column_factors_at = column_at[:, None] + FIRST + f[None, :]
    column_factors = tl.load(numbers + column_factors_at, column_mask, other=0.0, cache_modifier=".cg")
    column_total = tl.zeros((COLUMNS,), tl.float32)
    column_squares = tl.zeros((COLUMNS,), tl.float32)
    column_count = tl.zeros((COLUMNS,), tl.float32)
    column_totals = tl.zeros((COLUMNS, PADDED), tl.float32)
    column_all_squares = tl.zeros((COLUMNS, PADDED), tl.float32)
    if WORDS > 0:
        b = tl.arange(0, 32 * WORDS)
        has_bit = b < hot.num_bits
        bit_at = tl.load(hot.bit_keys + b, has_bit, other=0).to(tl.int64) * WIDTH
        bit_weight = value_of(KIND, numbers, bit_at, 1, rule, rule.l1, rule.l2, has_bit)
        bit_mask = has_bit[:, None] & is_factor
        bit_factors_at = bit_at[:, None] + FIRST + f[None, :]
        bit_factors = tl.load(numbers + bit_factors_at, bit_mask, other=0.0, cache_modifier=".cg")
        bit_total = tl.zeros((32 * WORDS,), tl.float32)
        bit_squares = tl.zeros((32 * WORDS,), tl.float32)
        bit_count = tl.zeros((32 * WORDS,), tl.float32)
        bit_totals = tl.zeros((32 * WORDS, PADDED), tl.float32)
        bit_all_squares = tl.zeros((32 * WORDS, PADDED), tl.float32)
    all_losses = 0.0
    for number in range(RUNS):
        start, size, _ = rows_of_run(runs, tl.program_id(0) * RUNS + number)
        for at in range(start, start + size):
            x = tl.load(rows.numbers + at * NUMBERS + c, has_factors, other=0.0)
            x = tl.where(c == NUMBERS, 1.0, x)
            terms = x[:, None] * column_factors
            both = tl.sum(terms, 0)
            alone = tl.sum(terms * terms)
            score = tl.sum(x * column_weight)
            if WORDS > 0:
                words = tl.load(rows.bits + at * WORDS + b // 32)
                bits = ((words >> (b % 32)) & 1).to(tl.float32)
                terms = bits[:, None] * bit_factors
                both += tl.sum(terms, 0)
                alone += tl.sum(terms * terms)
                score += tl.sum(bits * bit_weight)
            first = tl.load(rows.starts + at)
            length = tl.load(rows.lengths + at)
            for chunk in range(num_chunks(length, LISTED, ONE_CHUNK)):
                key, value, listed = listed_nonzeros(rows, first, length, chunk * LISTED + k, ONES)
                weight = value_of(KIND, numbers, key * WIDTH, 1, rule, rule.l1, rule.l2, listed)
                mask = listed[:, None] & is_factor
                factors = tl.load(
                    numbers + key[:, None] * WIDTH + FIRST + f[None, :], mask, other=0.0, cache_modifier=".cg"
                )
                listed_terms = value[:, None] * factors
                both += tl.sum(listed_terms, 0)
                alone += tl.sum(listed_terms * listed_terms)
                score += tl.sum(tl.where(listed, weight * value, 0.0))
            score += 0.5 * (tl.sum(both * both) - alone)
            label = tl.load(rows.labels + at).to(tl.float32)
            slope, row_loss = slope_and_loss(LOSS, loss, score, label)
            if WEIGHTED:
                row_weight = tl.load(rows.weights + at)
                slope, row_loss = slope * row_weight, row_loss * row_weight
            all_losses += row_loss
            gradient = slope * x
            column_total += gradient
            column_squares += gradient * gradient
            column_count += (x != 0).to(tl.float32)
            gradients = gradient[:, None] * (both[None, :] - x[:, None] * column_factors)
            column_totals += gradients
            column_all_squares += gradients * gradients
            if WORDS > 0:
                gradient = slope * bits
                bit_total += gradient
                bit_squares += gradient * gradient
                bit_count += bits
                gradients = gradient[:, None] * (both[None, :] - bit_factors)
                bit_totals += gradients
                bit_all_squares += gradients * gradients
            for chunk in range(num_chunks(length, LISTED, ONE_CHUNK)):
                # If there is one chunk, the compiler sees that these were read already.
                key, value, listed = listed_nonzeros(rows, first, length, chunk * LISTED + k, ONES)
                weight = value_of(KIND, numbers, key * WIDTH, 1, rule, rule.l1, rule.l2, listed)
                mask = listed[:, None] & is_factor
                factors = tl.load(
                    numbers + key[:, None] * WIDTH + FIRST + f[None, :], mask, other=0.0, cache_modifier=".cg"
                )
                bent = tl.load(hot.bent + key, listed & (key < hot.num_bent), other=0.0)
                one = tl.zeros((LISTED,), tl.float32) + 1.0
                total, squares = with_decay(KIND, HAS_L2, weight, slope * value, slope * value * slope * value, 1.0,
                                            rule.l2)  # fmt: skip
                add_updates(
                    KIND, numbers, key * WIDTH, 1, weight, total, squares, rule, rule.l2, bent, listed_in_flight, listed
                )
                total = (slope * value)[:, None] * (both[None, :] - value[:, None] * factors)
                add_factor_updates(FACTOR_KIND, FACTOR_L2, numbers, key[:, None] * WIDTH + FIRST + f[None, :],
                                   key * WIDTH + FIRST + FACTORS, factors, total, total * total, one, factor_rule,
                                   factor_rule.l2, bent, listed_in_flight, mask, listed, FACTORS)  # fmt: skip
    bent = tl.load(hot.number_bent + c, has_column, other=0.0)
    total, squares = with_decay(KIND, HAS_L2, column_weight, column_total, column_squares, column_count, l2)
    add_updates(KIND, numbers, column_at, 1, column_weight, total, squares, rule, l2, bent, in_flight, has_column)
    add_factor_updates(FACTOR_KIND, FACTOR_L2, numbers, column_factors_at, column_at + FIRST + FACTORS, column_factors,
                       column_totals, column_all_squares, column_count, factor_rule, factor_rule.l2, bent, in_flight,
                       column_mask, has_factors, FACTORS)  # fmt: skip
    if WORDS > 0:
        bent = tl.load(hot.bit_bent + b, has_bit, other=0.0)
        total, squares = with_decay(KIND, HAS_L2, bit_weight, bit_total, bit_squares, bit_count, rule.l2)
        add_updates(KIND, numbers, bit_at, 1, bit_weight, total, squares, rule, rule.l2, bent, in_flight, has_bit)
        add_factor_updates(FACTOR_KIND, FACTOR_L2, numbers, bit_factors_at, bit_at + FIRST + FACTORS, bit_factors,
                           bit_totals, bit_all_squares, bit_count, factor_rule, factor_rule.l2, bent, in_flight,
                           bit_mask, has_bit, FACTORS)  # fmt: skip
    tl.store(losses + tl.program_id(0), all_losses)


@triton.jit
def measure_factors(numbers, rows, runs, bias, features, rule, loss, losses, out, SCORES: tl.constexpr,
                    LOSS: tl.constexpr, WEIGHTED: tl.constexpr, ONES: tl.constexpr, KIND: tl.constexpr,
                    WIDTH: tl.constexpr, FIRST: tl.constexpr, FACTORS: tl.constexpr, PADDED: tl.constexpr,
                    LISTED: tl.constexpr, ONE_CHUNK: tl.constexpr):  # fmt: skip
    """The scores of rows without columns into `out`, or else, per row, its slope and its slope times the sums of
    factors. Keys from `features` on are unknown, and count nothing.
    """
    k, f = tl.arange(0, LISTED), tl.arange(0, PADDED)
    start, size, place = rows_of_run(runs, tl.program_id(0))
    one = tl.zeros((1,), tl.int64)
    bias_weight = tl.sum(value_of(KIND, numbers, (one + bias) * WIDTH, 1, rule, 0.0, 0.0, one == 0))
    all_losses = 0.0
    for number in range(0, size):
        at = start + number
        first = tl.load(rows.starts + at)
        length = tl.load(rows.lengths + at)
        score = bias_weight
        both = tl.zeros((PADDED,), tl.float32)
        alone = 0.0
        for chunk in range(num_chunks(length, LISTED, ONE_CHUNK)):
            key, value, listed = listed_nonzeros(rows, first, length, chunk * LISTED + k, ONES)
            listed = listed & (key < features)
            value = tl.where(listed, value, 0.0)
            weight = value_of(KIND, numbers, key * WIDTH, 1, rule, rule.l1, rule.l2, listed)
            mask = listed[:, None] & (f[None, :] < FACTORS)
            terms = value[:, None] * tl.load(
                numbers + key[:, None] * WIDTH + FIRST + f[None, :], mask, other=0.0, cache_modifier=".cg"
            )
            both += tl.sum(terms, 0)
            alone += tl.sum(terms * terms)
            score += tl.sum(tl.where(listed, weight * value, 0.0))
        score += 0.5 * (tl.sum(both * both) - alone)
        if SCORES:
            tl.store(out + place + number, score)
        else:
            label = tl.load(rows.labels + at).to(tl.float32)
            slope, row_loss = slope_and_loss(LOSS, loss, score, label)
            if WEIGHTED:
                row_weight = tl.load(rows.weights + at)
                slope, row_loss = slope * row_weight, row_loss * row_weight
            all_losses += row_loss
            to = out + (place + number) * (FACTORS + 1)
            tl.store(to, slope)
            tl.store(to + 1 + f, slope * both, f < FACTORS)
    if not SCORES:
        tl.store(losses + tl.program_id(0), all_losses)
