"""What do optimizers do to parameters on a GPU? The formulas of `parameters/optimizers`, for many threads at once.

At pace async, threads add what they change with atomic operations. Sums of squares are read in the same operation in
which they grow, so that keys which many threads update at the same time do not all take a first, large step. What other
processors change is read from the cache that all of them share (".cg"): their own caches do not notice it.

Rows that are computed at the same time start from the same weights, and all go the same way. As in the merges of
workers on a CPU (`kernels/private.py`), they should cover the whole way to the optimum together at most. With c = step
size × `bent`, the curvature of the loss by the key's weight, one of them covers about c / (1 + c) of the way, so with R
rows in flight a step is multiplied by (1 + c) / (R c), if that is less than 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from paceline.torch.sparse.triton_ import tl, triton


class RuleNumbers(NamedTuple):
    """An optimizer's rule: its rate, L1 and L2, and ε of AdaGrad or β of FTRL."""

    rate: float
    l1: float
    l2: float
    extra: float


def rule_numbers(rule: Any) -> RuleNumbers:
    """The numbers of a rule, whichever optimizer it is of."""
    extra = getattr(rule, "epsilon", getattr(rule, "beta", 0.0))
    return RuleNumbers(float(rule.rate), float(getattr(rule, "l1", 0.0)), float(rule.l2), float(extra))


@triton.jit
def not_zero(divisor):
    """Divisors of FTRL without β are 0 until the first gradient. What they divide or move by is 0, too."""
    return tl.where(divisor > 0, divisor, 1.0)


@triton.jit
def value_of(KIND: tl.constexpr, numbers, at, stride, rule, l1, l2, mask):
    """The parameters whose states begin at `at`; their memory is `stride` further on."""
    first = tl.load(numbers + at, mask, other=0.0, cache_modifier=".cg")
    if KIND == "ftrl":
        seen = tl.load(numbers + at + stride, mask, other=0.0, cache_modifier=".cg")
        return -shrunk(first, l1) / not_zero((rule.extra + tl.sqrt(seen)) / rule.rate + l2)
    else:
        return first


@triton.jit
def shrunk(value, by):
    """Values shrunk towards zero: the proximal step of L1."""
    less = tl.maximum(tl.abs(value) - by, 0.0)
    return tl.where(value < 0, -less, less)


@triton.jit
def grown(KIND: tl.constexpr, numbers, at, squares, mask):
    """The sums of squares at `at`, before they grow by `squares`."""
    if KIND == "sgd":
        return tl.zeros_like(squares)
    else:
        # Where nothing is read, anything may be returned.
        return tl.where(mask, tl.atomic_add(numbers + at, squares, mask, sem="relaxed"), 0.0)


@triton.jit
def step_of(KIND: tl.constexpr, before, squares, rule, l2, bent, in_flight):
    """How far parameters move per unit of gradient, and which share of that they may."""
    if KIND == "sgd":
        step = tl.zeros_like(squares) + rule.rate
    elif KIND == "ftrl":
        step = 1 / not_zero((rule.extra + tl.sqrt(before)) / rule.rate + l2)
    else:
        step = rule.rate / (tl.sqrt(before + squares) + rule.extra)
    covered = step * bent
    return step, 1 / tl.maximum(in_flight * covered / (1 + covered), 1.0)


@triton.jit
def moves(KIND: tl.constexpr, value, total, before, squares, step, share, rule):
    """By how much the first numbers of states move, given the sums of gradients and of their squares."""
    if KIND == "ftrl":
        return share * total - (tl.sqrt(before + squares) - tl.sqrt(before)) / rule.rate * value
    else:
        return -step * share * total


@triton.jit
def add_updates(KIND: tl.constexpr, numbers, at, stride, value, total, squares, rule, l2, bent, in_flight, mask):
    """Update parameters by the sums of gradients and of their squares; other threads may do the same.

    L1 is not for optimizers that apply it step by step: threads that start from the same weights would shrink them
    together far beyond 0.
    """
    before = grown(KIND, numbers, at + stride, squares, mask)
    step, share = step_of(KIND, before, squares, rule, l2, bent, in_flight)
    moved = moves(KIND, value, total, before, squares, step, share, rule)
    tl.atomic_add(numbers + at, moved, mask, sem="relaxed")


@triton.jit
def with_decay(KIND: tl.constexpr, HAS_L2: tl.constexpr, value, total, squares, count, l2):
    """Sums of `count` gradients and of their squares with the gradient of L2 in each; FTRL has it in its weights."""
    if HAS_L2 and KIND != "ftrl":
        pull = l2 * value
        # Rounding may make what should be nearly 0 negative.
        return total + count * pull, tl.maximum(squares + 2 * pull * total + count * pull * pull, 0.0)
    else:
        return total, squares
