"""How is a machine's speed at best measured?

Each ceiling except the disk's is the best of a few short windows: other programs can only make a machine look slower.
Every measurement takes about a second.
"""

from __future__ import annotations

import os
import platform
import socket
import tempfile
import threading
import time
import timeit
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from paceline.kernels.ceilings import read_at_random
from paceline.machine import num_cores
from paceline.telemetry.ceilings import Ceilings, processor_name

WINDOWS = 3
KEYS_PER_CALL = 1 << 22  # enough to spread over a table that no cache holds
KEYS_IN_CACHE = 1 << 12
LEAST_BYTES_PER_COPY = 16 << 20  # caches grow with the number of cores
DISK_BLOCK_BYTES = 8 << 20
SOCKET_BLOCK_BYTES = 1 << 20
PING_BYTES = 64
PINGS_PER_CALL = 50
SMALLEST_MATRIX = 256


class Effort(NamedTuple):
    """How much is measured: seconds per measurement, and sizes. `table_keys` is the size of Criteo's click model."""

    seconds: float = 0.9
    copy_bytes: int = 256 << 20
    table_keys: int = 33_762_578
    largest_matrix: int = 4096
    disk_bytes: int = 256 << 20


FULL_EFFORT = Effort()
Say = Callable[[str], None]
Work = Callable[[], object]


def measure_ceilings(folder: Path, say: Say, effort: Effort = FULL_EFFORT) -> Ceilings:
    """Measure this machine and the disk under `folder` in about ten seconds; `say` is told what is being measured.

    Needs about 600 MB of memory, more with many cores, and room in `folder` for a temporary file.
    """
    cores = num_cores()
    copies = {threads: measure_copy(threads, effort, say) for threads in sorted({1, cores})}
    gathers = {threads: measure_gathers(threads, effort, say) for threads in sorted({1, cores})}
    matrix = measure_matrix(effort, say)
    left_out: dict[str, str] = {}
    try:
        disk = measure_disk(folder, effort, say)
    except (OSError, NotImplementedError) as error:
        disk = None
        left_out["disk_read_bytes_per_second"] = f"`{folder}`: {getattr(error, 'strerror', None) or error}"
    return Ceilings(
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
        processor=processor_name(),
        cores=cores,
        copy_bytes_per_second=copies[1],
        copy_bytes_per_second_all_cores=copies[cores],
        table_bytes=effort.table_keys * np.dtype(np.float32).itemsize,
        gathers_per_second=gathers[1],
        gathers_per_second_all_cores=gathers[cores],
        matrix_flop_per_second=matrix,
        folder=str(folder.resolve()),
        disk_read_bytes_per_second=disk,
        loopback_bytes_per_second=measure_loopback(effort, say),
        loopback_round_trip_seconds=measure_round_trip(effort, say),
        left_out=left_out,
    )


# -- memory and arithmetic


def measure_copy(threads: int, effort: Effort, say: Say) -> float:
    """Bytes per second that threads copy between arrays that no cache holds."""
    say(f"memory copy, {named(threads)}")
    size = min(effort.copy_bytes, max(effort.copy_bytes // threads, LEAST_BYTES_PER_COPY))

    def copier(_: int) -> Work:
        return partial(np.copyto, np.ones(size, np.uint8), np.ones(size, np.uint8))

    return best_rate(copier, size, threads, effort.seconds)


def measure_gathers(threads: int, effort: Effort, say: Say) -> float:
    """Numbers per second that threads read at random places of one table."""
    say(f"random reads, {named(threads)}")
    table = np.ones(effort.table_keys, np.float32)

    def gatherer(thread: int) -> Work:
        keys = np.random.default_rng(thread).integers(0, table.size, KEYS_PER_CALL, np.uint32)
        return partial(read_at_random, table, keys, np.empty(KEYS_IN_CACHE, np.float32))

    return best_rate(gatherer, KEYS_PER_CALL, threads, effort.seconds)


def measure_matrix(effort: Effort, say: Say) -> float:
    """Additions and multiplications per second of a matrix product, at the size that suits the machine best."""
    say("matrix product")
    deadline = time.perf_counter() + effort.seconds
    best, size = 0.0, min(SMALLEST_MATRIX, effort.largest_matrix)
    while True:
        matrix, out = np.ones((size, size), np.float32), np.empty((size, size), np.float32)
        # The first one is a trial.
        times = timeit.repeat(partial(np.matmul, matrix, matrix, out), number=1, repeat=WINDOWS + 1)
        seconds = min(times[1:])
        best = max(best, 2 * size**3 / seconds)
        left = (deadline - time.perf_counter()) / (WINDOWS + 1)
        # Twice the size takes eight times as long.
        if 2 * size <= effort.largest_matrix and 8 * seconds < left:
            size *= 2
        elif seconds >= left:
            return best


# -- disk


def measure_disk(folder: Path, effort: Effort, say: Say) -> float:
    """Bytes per second of sequential reading from a new file in a folder.

    Raises NotImplementedError if the system keeps the file in memory: reading that does not measure the disk.
    """
    say("disk read")
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        size = write_to_disk(file, effort)
        drop_from_memory(file, size)
        block = bytearray(DISK_BLOCK_BYTES)
        began = now = time.perf_counter()
        done = 0
        file.seek(0)
        while now - began < effort.seconds and (count := file.readinto(block)):
            done += count
            now = time.perf_counter()
    return done / (now - began)


def write_to_disk(file: BinaryIO, effort: Effort) -> int:
    """Write incompressible bytes for as long as a measurement may take; returns how many."""
    block = os.urandom(DISK_BLOCK_BYTES)
    began = time.perf_counter()
    size = 0
    while size < effort.disk_bytes and (size == 0 or time.perf_counter() - began < effort.seconds):
        size += file.write(block[: effort.disk_bytes - size])
        os.fsync(file.fileno())
    return size


def drop_from_memory(file: BinaryIO, size: int) -> None:
    """Have the system drop its copy of a file from memory, and check that it did."""
    if not hasattr(os, "posix_fadvise") or not hasattr(os, "RWF_NOWAIT"):
        raise NotImplementedError(f"{platform.system()} cannot be told to read from the disk instead of from memory")
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    for at in (0, size // 2):
        try:
            os.preadv(file.fileno(), [bytearray(1)], at, os.RWF_NOWAIT)
        except BlockingIOError:
            continue
        except OSError as error:
            why = f"its file system does not say what it keeps in memory ({error.strerror})"
            raise NotImplementedError(why) from None
        raise NotImplementedError("its file system keeps files in memory")


# -- network


def measure_loopback(effort: Effort, say: Say) -> float:
    """Bytes per second over one connection on this machine."""
    say("loopback bandwidth")
    block = bytes(SOCKET_BLOCK_BYTES)

    def swallow(far: socket.socket) -> None:
        room = bytearray(SOCKET_BLOCK_BYTES)
        while far.recv_into(room):
            pass

    with served_by(swallow) as near:
        return best_rate(lambda _: partial(near.sendall, block), len(block), 1, effort.seconds)


def measure_round_trip(effort: Effort, say: Say) -> float:
    """Seconds for the round trip of a small message on this machine, waking a thread at both ends."""
    say("loopback round trip")

    def echo(far: socket.socket) -> None:
        while message := far.recv(PING_BYTES, socket.MSG_WAITALL):
            far.sendall(message)

    with served_by(echo) as near:

        def ping() -> None:
            for _ in range(PINGS_PER_CALL):
                near.sendall(bytes(PING_BYTES))
                near.recv(PING_BYTES, socket.MSG_WAITALL)

        return 1 / best_rate(lambda _: ping, PINGS_PER_CALL, 1, effort.seconds)


@contextmanager
def served_by(serve: Callable[[socket.socket], None]) -> Iterator[socket.socket]:
    """The near end of a connection. A thread serves the far end until the near end is closed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with far, ThreadPoolExecutor(1, "paceline-doctor-far") as pool, near:
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pool.submit(serve, far)
        yield near


# -- how a rate is taken


def best_rate(worker: Callable[[int], Work], units: int, threads: int, seconds: float) -> float:
    """Units per second of all threads together.

    `worker` makes each thread's work, a function that does `units` per call. After one trial call come a few windows,
    which all threads begin together and in which each calls its work until the time is over.
    """
    ready = threading.Barrier(threads)

    def run(thread: int) -> list[float]:
        try:
            work = worker(thread)
            work()
            return [rate_in_window(work) for _ in range(WINDOWS)]
        except BaseException:
            ready.abort()
            raise

    def rate_in_window(work: Work) -> float:
        ready.wait()
        began = now = time.perf_counter()
        done = 0
        while now - began < seconds / WINDOWS:
            work()
            done += units
            now = time.perf_counter()
        return done / (now - began)

    with ThreadPoolExecutor(threads, thread_name_prefix="paceline-doctor") as pool:
        rates = list(pool.map(run, range(threads)))
    return max(sum(of_thread[window] for of_thread in rates) for window in range(WINDOWS))


def named(threads: int) -> str:
    return "one thread" if threads == 1 else f"{threads} threads"
