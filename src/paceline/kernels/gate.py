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

from paceline.kernels.jit import address_of, compiled, doze, give_way, nanoseconds

LINE = 8
# Where on its line a thread notes for itself how long it waited, and how long it read rows.
WAITED, READ = 1, 2
# The staleness of a gate that is never shut.
UNBOUNDED = 1 << 60
GONE = np.int64(np.iinfo(np.int64).max)
BYTES = 8
# In nanoseconds: how long a wait may take before Python looks around, and for how long a thread stays awake meanwhile.
LONGEST_WAIT = 20_000_000
AWAKE = 1_000_000
# In microseconds.
NAP = 50


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
    """Wait until `clock - slowest <= staleness`, but not for long; whether it came to hold.

    Looks `spins` times, then lets other threads have the core in between, and after a while sleeps in between: all of
    it here, because a thread that sleeps in Python waits for the GIL when it wakes up, and makes all others wait for
    it. `waited[who, WAITED]` grows by the nanoseconds that it took where it did not hold at once.
    """
    # Clocks only grow, so they are waited for one after the other: each read of a line that its owner writes is slow.
    began, spun, since = 0, 0, 0
    for rank in range(clocks.shape[0]):
        while clock - read_clock(clocks, rank) > staleness:
            if spun == 0:
                began = nanoseconds()
            spun += 1
            if spun > spins:
                since = nanoseconds() - began
                if since > LONGEST_WAIT:
                    waited[who, WAITED] += since
                    return False
                if since < AWAKE:
                    give_way()
                else:
                    doze(NAP)
    if spun > 0:
        waited[who, WAITED] += nanoseconds() - began
    return True


@compiled
def tick(clocks: NDArray[np.int64], rank: int, clock: int) -> None:
    """`set_clock`, from Python."""
    set_clock(clocks, rank, clock)
