"""How fast can this machine be at best? Measured once by `doctor`, and remembered for whoever explains a run.

Each ceiling but the disk's is the best of a few short windows: what else the machine is doing only ever makes one look
lower. Every measurement takes about a second.
"""

from __future__ import annotations

import os
import platform
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
import numpy as np

from paceline.files import replace_file, translated_disk_errors
from paceline.kernels.ceilings import read_at_random
from paceline.kernels.jit import cache_folder
from paceline.machine import num_cores

FILE = "machine.json"
CPU_INFO = Path("/proc/cpuinfo")

WINDOWS = 3
KEYS_A_CALL = 1 << 22  # so many that they are all over a table which no cache holds
KEYS_IN_CACHE = 1 << 12
LEAST_BYTES_A_COPY = 16 << 20  # caches grow with the number of cores
DISK_BLOCK_BYTES = 8 << 20
SOCKET_BLOCK_BYTES = 1 << 20
PING_BYTES = 64
PINGS_A_CALL = 50
SMALLEST_MATRIX = 256


class LinkCeiling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From this machine to a node of a cluster: what one connection carries, and a small message's way and back."""

    node: str
    bytes_per_second: float
    round_trip_seconds: float


class Ceilings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a machine can do at best, by one thread and by all cores at once.

    `copy` counts each byte once that is read and written, `gathers` reads of 4 bytes at random places of a table of
    `table_bytes`, `matrix_flop` the additions and multiplications of a float32 matrix product by NumPy on as many
    threads as its BLAS likes. `disk_read` is one after the other from a file in `folder`, whose copy in memory was
    dropped first. `loopback` is one connection on 127.0.0.1, `links` those to the nodes of a
    cluster that was asked about. None is what could not be measured: `left_out` says why.
    """

    measured: str
    processor: str
    cores: int
    copy_bytes_per_second: float
    copy_bytes_per_second_all_cores: float
    table_bytes: int
    gathers_per_second: float
    gathers_per_second_all_cores: float
    matrix_flop_per_second: float
    folder: str
    disk_read_bytes_per_second: float | None
    loopback_bytes_per_second: float
    loopback_round_trip_seconds: float
    left_out: dict[str, str]
    links: list[LinkCeiling] = []


class Effort(NamedTuple):
    """How much is measured: seconds a measurement, and what it works on. `table_keys` is Criteo's click model."""

    seconds: float = 0.9
    copy_bytes: int = 256 << 20
    table_keys: int = 33_762_578
    largest_matrix: int = 4096
    disk_bytes: int = 256 << 20


FULL_EFFORT = Effort()
Say = Callable[[str], None]
Work = Callable[[], int]


def measure_ceilings(folder: Path, say: Say, effort: Effort = FULL_EFFORT) -> Ceilings:
    """Measure this machine, and the disk under `folder`; `say` is told what is being measured. Takes some ten seconds.

    Needs some 600 MB of memory, more with many cores, and room in `folder` for a file that is removed again.
    """
    cores = num_cores()
    copies = {threads: measure_copy(threads, effort, say) for threads in sorted({1, cores})}
    gathers = {threads: measure_gathers(threads, effort, say) for threads in sorted({1, cores})}
    matrix = measure_matrix(effort, say)
    left_out: dict[str, str] = {}
    try:
        disk = measure_disk(folder, effort, say)
    except OSError as error:
        disk, left_out["disk_read_bytes_per_second"] = None, f"`{folder}`: {error.strerror or error}"
    except NotImplementedError as error:
        disk, left_out["disk_read_bytes_per_second"] = None, f"`{folder}`: {error}"
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


# -- what is remembered


def ceilings_path() -> Path:
    """Beside the machine code: `machine.json` in `$PACELINE_CACHE` or the user's cache folder."""
    return cache_folder().parent / FILE


def save_ceilings(ceilings: Ceilings) -> Path:
    """Remember this machine's ceilings, in place of older ones; returns where."""
    path = ceilings_path()
    with translated_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, msgspec.json.format(msgspec.json.encode(ceilings), indent=2) + b"\n")
    return path


def load_ceilings() -> Ceilings | None:
    """What was remembered; None if nothing was, or the file is damaged or from another processor."""
    try:
        ceilings = msgspec.json.decode(ceilings_path().read_bytes(), type=Ceilings)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return ceilings if ceilings.processor == processor_name() else None


def processor_name() -> str:
    """The processor as its maker calls it, where the system says so; otherwise its architecture."""
    try:
        lines = CPU_INFO.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, names), "") or platform.processor() or platform.machine()


# -- memory and arithmetic


def measure_copy(threads: int, effort: Effort, say: Say) -> float:
    """Bytes a second that so many threads copy between arrays that no cache holds."""
    say(f"memory copy, {named(threads)}")
    size = min(effort.copy_bytes, max(effort.copy_bytes // threads, LEAST_BYTES_A_COPY))

    def copier(_: int) -> Work:
        source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)

        def copy() -> int:
            np.copyto(target, source)
            return size

        return copy

    return best_rate(copier, threads, effort.seconds)


def measure_gathers(threads: int, effort: Effort, say: Say) -> float:
    """Numbers a second that so many threads read at random places of one table."""
    say(f"random reads, {named(threads)}")
    table = np.ones(effort.table_keys, np.float32)

    def gatherer(thread: int) -> Work:
        keys = np.random.default_rng(thread).integers(0, table.size, KEYS_A_CALL, np.uint32)
        out = np.empty(KEYS_IN_CACHE, np.float32)

        def gather() -> int:
            read_at_random(table, keys, out)
            return keys.size

        return gather

    return best_rate(gatherer, threads, effort.seconds)


def measure_matrix(effort: Effort, say: Say) -> float:
    """Additions and multiplications a second of a matrix product, at the size that suits the machine best."""
    say("matrix product")
    deadline = time.perf_counter() + effort.seconds
    best, size = 0.0, min(SMALLEST_MATRIX, effort.largest_matrix)
    while True:
        seconds = min(product_seconds(size))
        best = max(best, 2 * size**3 / seconds)
        left = (deadline - time.perf_counter()) / (WINDOWS + 1)
        # Twice the size takes eight times as long.
        if 2 * size <= effort.largest_matrix and 8 * seconds < left:
            size *= 2
        elif seconds >= left:
            return best


def product_seconds(size: int) -> list[float]:
    """How long a few products of square matrices take, after a first one."""
    matrix, out = np.ones((size, size), np.float32), np.empty((size, size), np.float32)
    times = [time.perf_counter()]
    for _ in range(WINDOWS + 1):
        np.matmul(matrix, matrix, out=out)
        times.append(time.perf_counter())
    return [after - before for before, after in pairwise(times[1:])]


# -- disk


def measure_disk(folder: Path, effort: Effort, say: Say) -> float:
    """Bytes a second that are read from a new file in a folder, one after the other.

    NotImplementedError where the system keeps the file in memory whatever one asks: that is not the disk's speed.
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
    """Write what no disk can compress, for as long as a measurement may take; returns how many bytes that was."""
    block = os.urandom(DISK_BLOCK_BYTES)
    began = time.perf_counter()
    size = 0
    while size < effort.disk_bytes and (size == 0 or time.perf_counter() - began < effort.seconds):
        size += file.write(block[: effort.disk_bytes - size])
        os.fsync(file.fileno())
    return size


def drop_from_memory(file: BinaryIO, size: int) -> None:
    """Have the system forget its copy of a file, and see that it did."""
    if not hasattr(os, "posix_fadvise") or not hasattr(os, "RWF_NOWAIT"):
        raise NotImplementedError(f"{platform.system()} cannot be asked to read from the disk and not from memory")
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    for at in (0, size // 2):
        try:
            os.preadv(file.fileno(), [bytearray(1)], at, os.RWF_NOWAIT)
        except BlockingIOError:
            continue
        except OSError as error:
            raise NotImplementedError(
                f"its file system does not say what it keeps in memory ({error.strerror})"
            ) from None
        raise NotImplementedError("its file system keeps files in memory")


# -- network


def measure_loopback(effort: Effort, say: Say) -> float:
    """Bytes a second over one connection on this machine."""
    say("loopback bandwidth")
    block = bytes(SOCKET_BLOCK_BYTES)

    def swallow(far: socket.socket) -> None:
        room = bytearray(SOCKET_BLOCK_BYTES)
        while far.recv_into(room):
            pass

    with served_by(swallow) as near:

        def send() -> int:
            near.sendall(block)
            return len(block)

        return best_rate(lambda _: send, 1, effort.seconds)


def measure_round_trip(effort: Effort, say: Say) -> float:
    """Seconds that a small message takes there and back on this machine, with a thread to be woken at both ends."""
    say("loopback round trip")

    def echo(far: socket.socket) -> None:
        while message := far.recv(PING_BYTES, socket.MSG_WAITALL):
            far.sendall(message)

    with served_by(echo) as near:

        def ping() -> int:
            for _ in range(PINGS_A_CALL):
                near.sendall(bytes(PING_BYTES))
                near.recv(PING_BYTES, socket.MSG_WAITALL)
            return PINGS_A_CALL

        return 1 / best_rate(lambda _: ping, 1, effort.seconds)


@contextmanager
def served_by(serve: Callable[[socket.socket], None]) -> Iterator[socket.socket]:
    """The near end of a connection, whose far end a thread serves until this one is closed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    thread = threading.Thread(target=serve, args=(far,), name="paceline-doctor-far")
    with far:
        try:
            with near:
                for end in (near, far):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                thread.start()
                yield near
        finally:
            thread.join()


# -- how a rate is taken


def best_rate(worker: Callable[[int], Work], threads: int, seconds: float) -> float:
    """Units a second of so many threads together.

    Each thread has `worker` make its work, whose calls return how many units they have done, and tries it once. Then
    there are a few windows, which all threads begin together and in which each calls until the time is over.
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
            done += work()
            now = time.perf_counter()
        return done / (now - began)

    with ThreadPoolExecutor(threads, thread_name_prefix="paceline-doctor") as pool:
        rates = list(pool.map(run, range(threads)))
    return max(sum(of_thread[window] for of_thread in rates) for window in range(WINDOWS))


def named(threads: int) -> str:
    return "one thread" if threads == 1 else f"{threads} threads"
