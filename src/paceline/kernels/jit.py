"""How are loops compiled, and where is the machine code kept?

`compiled` is the one decorator of this room: no GIL, and the machine code cached on disk, so that only the first
run on a machine compiles. Numba checks a cached loop against its own file alone, so an edit to a function that it
calls from another file would go unseen; the cache folder is therefore named after the text of all files that hold
compiled code.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.caching import FunctionCache
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])

PACKAGE = Path(__file__).resolve().parent.parent
CLOCK_MONOTONIC, CLOCK_THREAD = time.CLOCK_MONOTONIC, time.CLOCK_THREAD_CPUTIME_ID
ROOMS_WITH_COMPILED_CODE = ("kernels", "parameters", "models")


def cache_folder() -> Path:
    """Where machine code is kept: `$PACELINE_CACHE` or the user's cache folder, one subfolder per version."""
    digest = hashlib.sha256()
    for room in ROOMS_WITH_COMPILED_CODE:
        for path in sorted((PACKAGE / room).rglob("*.py")):
            digest.update(path.read_bytes())
    home = os.environ.get("PACELINE_CACHE")
    base = Path(home) if home else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline"
    return base / f"kernels-{digest.hexdigest()[:16]}"


if "NUMBA_CACHE_DIR" not in os.environ:
    numba.config.CACHE_DIR = str(cache_folder())


# Loops here make no arrays, so references to arrays need no counting (`_nrt`). Numba counts them atomically at every
# call that is not inlined, and threads that share an array would pass that counter back and forth.
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}


class QuickCache(FunctionCache):  # type: ignore[misc]
    """Machine code from disk, without loading what only compiling needs: that takes numba a quarter of a second, and
    the compiler does it again by itself where a loop is not found here.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The machine code for a signature, or None."""
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)


# What a loop calls would be compiled with the liberties of the loop that called it first, and kept so for all others.
STRICT: dict[str, Any] = {"fastmath": False}
REASSOCIATED: dict[str, Any] = {"fastmath": {"reassoc", "contract", "nsz", "arcp"}}


def _cached(function: F, **options: Any) -> F:
    result: Any = numba.njit(**OPTIONS, **options)(function)
    result._cache = QuickCache(function)
    return cast("F", result)


def compiled(function: F) -> F:
    """Compile a loop over arrays: called without the GIL; sums are added in the order that is written."""
    return _cached(function, **STRICT)


def inlined(function: F) -> F:
    """Like `compiled`, and copied into each loop that calls it."""
    return _cached(function, forceinline=True, **STRICT)


def reassociated(function: F) -> F:
    """Like `compiled`, with floating-point sums free to be reordered for vector units (the same on every call)."""
    return _cached(function, **REASSOCIATED)


def address_of(
    context: Any, builder: Any, signature: Any, args: Any, array: int = 0, index: int = 1, stride: int = 1
) -> Any:
    """For intrinsics: where element `stride` times argument `index` of argument `array` lies."""
    view = context.make_array(signature.args[array])(context, builder, args[array])
    position = context.cast(builder, args[index], signature.args[index], types.intp)
    return builder.gep(view.data, [builder.mul(position, context.get_constant(types.intp, stride))])


def _prefetch(for_writing: int) -> Any:
    """An intrinsic that asks the processor for the cache line of `array[index]` ahead of its use."""

    @intrinsic
    def ask(_context: Any, array: Any, index: Any) -> Any:
        signature = types.void(array, index)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.bitcast(address_of(context, builder, signature, args), ir.IntType(8).as_pointer())
            i32 = ir.IntType(32)
            function = builder.module.declare_intrinsic(
                "llvm.prefetch", [pointer.type], ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32])
            )
            near_caches, data = i32(3), i32(1)
            builder.call(function, [pointer, i32(for_writing), near_caches, data])
            return context.get_dummy_value()

        return signature, codegen

    return ask


prefetch, prefetch_to_read = _prefetch(for_writing=1), _prefetch(for_writing=0)


def _read_clock(context: Any, builder: Any, clock: int) -> Any:
    """For intrinsics: one of the system's clocks, in nanoseconds."""
    i32, i64 = ir.IntType(32), ir.IntType(64)
    now = builder.alloca(ir.ArrayType(i64, 2))
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(i32, [i32, now.type]), "clock_gettime")
    builder.call(function, [i32(clock), now])
    seconds = builder.extract_value(builder.load(now), 0)
    rest = builder.extract_value(builder.load(now), 1)
    return builder.add(builder.mul(seconds, i64(1_000_000_000)), rest)


@intrinsic
def nanoseconds(_context: Any) -> Any:
    """The system's clock that never goes back, like `time.perf_counter_ns`."""
    return types.int64(), lambda context, builder, signature, args: _read_clock(context, builder, CLOCK_MONOTONIC)


@intrinsic
def processor_nanoseconds(_context: Any) -> Any:
    """The processor time of this thread, like `time.thread_time_ns`."""
    return types.int64(), lambda context, builder, signature, args: _read_clock(context, builder, CLOCK_THREAD)


@intrinsic
def give_way(_context: Any) -> Any:
    """Let another thread run on this core, if one is waiting for it."""
    signature = types.void()

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.IntType(32), []), "sched_yield")
        builder.call(function, [])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def doze(_context: Any, microseconds: Any) -> Any:
    """Sleep without the GIL."""
    signature = types.void(types.int32)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i32 = ir.IntType(32)
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(i32, [i32]), "usleep")
        builder.call(function, args)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def never_inlined(_context: Any) -> Any:
    """Keep the compiled function that calls this apart from its callers: it is optimised alone, the same for all."""
    signature = types.void()

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return signature, codegen
