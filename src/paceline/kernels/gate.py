"""May this worker begin its next clock? The gate of every pace, as a compiled check over shared clocks.

`clocks` is int64 [workers, LINE]: the clock of rank r is `clocks[r, 0]`, alone on its cache line. A worker that
has left the gate is at `GONE`. Clocks only grow while workers run, so a check that reads them without a lock errs
on the side of waiting. They are read and written atomically: a thread that sees a clock also sees what was written
before it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from paceline.kernels.jit import address_of, compiled, nanoseconds

LINE = 8
# Where on its line a thread notes how long it waited, for itself.
WAITED = 1
GONE = np.int64(np.iinfo(np.int64).max)
BYTES = 8


@intrinsic
def read_clock(_context: Any, clocks: Any, rank: Any) -> Any:
    """`clocks[rank, 0]`, read from memory each time."""
    signature = types.int64(clocks, rank)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(address_of(context, builder, signature, args, stride=LINE), "acquire", BYTES)

    return signature, codegen


@intrinsic
def set_clock(_context: Any, clocks: Any, rank: Any, clock: Any) -> Any:
    """`clocks[rank, 0] = clock`, after everything that was written before."""
    signature = types.void(clocks, rank, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[2], address_of(context, builder, signature, args, stride=LINE), "release", BYTES)
        return context.get_dummy_value()

    return signature, codegen


@compiled
def slowest(clocks: NDArray[np.int64]) -> int:
    """The smallest clock of the workers in the gate, or GONE."""
    least = read_clock(clocks, 0)
    for rank in range(1, clocks.shape[0]):
        least = min(least, read_clock(clocks, rank))
    return least


@compiled
def passes(clocks: NDArray[np.int64], clock: int, staleness: int, spins: int, waited: NDArray[np.int64],
           who: int) -> bool:  # fmt: skip
    """Look up to `spins` times whether `clock - slowest <= staleness`; whether it came to hold.

    `waited[who, WAITED]` grows by the nanoseconds that it took, if it did not hold immediately.
    """
    if clock - slowest(clocks) <= staleness:
        return True
    began = nanoseconds()
    passed = False
    for _ in range(spins):
        if clock - slowest(clocks) <= staleness:
            passed = True
            break
    waited[who, WAITED] += nanoseconds() - began
    return passed


@compiled
def tick(clocks: NDArray[np.int64], rank: int, clock: int) -> None:
    """`set_clock`, from Python."""
    set_clock(clocks, rank, clock)
