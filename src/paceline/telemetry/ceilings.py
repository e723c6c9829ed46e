"""How fast can this machine be at best? What `paceline doctor` measured once, and remembers for later runs."""

from __future__ import annotations

import platform
from pathlib import Path

import msgspec

from paceline.errors import BAD_TEXT
from paceline.files import replace_file, translated_disk_errors

FILE = "machine.json"
CPU_INFO = Path("/proc/cpuinfo")


class LinkCeiling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One connection from this machine to a node of a cluster: its bandwidth, and the round trip of a small message."""

    node: str
    bytes_per_second: float
    round_trip_seconds: float


class TrainingSpeed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows per second of a short embedded run on generated clicks."""

    pace: str
    workers: int
    batch_size: int
    rows_per_second: float


class GpuCeiling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The bytes per second that a GPU's memory reads and writes, together, and those that come to it from pinned memory
    of this machine, over its bus.
    """

    name: str
    memory_bytes_per_second: float
    bus_bytes_per_second: float


class Ceilings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a machine can do at best, by one thread and by all cores at once.

    `copy` counts each copied byte once. `gathers` are reads of 4 bytes at random places of a table of `table_bytes`.
    `matrix_flop` are the additions and multiplications of NumPy's float32 matrix product, on as many threads as its
    BLAS uses. `disk_read` is sequential reading from a file in `folder` that is not cached in memory. `loopback` is one
    connection on 127.0.0.1; `links` are connections to the nodes of a cluster. `training` shows what workers on this
    machine cost each other. `gpu` is the first one that PyTorch finds. What could not be measured is None, and
    `left_out` says why.
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
    training: list[TrainingSpeed] = []
    gpu: GpuCeiling | None = None


def ceilings_path() -> Path:
    """`machine.json` in `$PACELINE_CACHE` or the user's cache folder, next to the machine code."""
    # Reading a run's recorded ceilings needs no compiler.
    from paceline.kernels.jit import cache_folder

    return cache_folder().parent / FILE


def save_ceilings(ceilings: Ceilings) -> Path:
    """Remember this machine's ceilings in place of older ones; returns the file."""
    path = ceilings_path()
    with translated_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, msgspec.json.format(msgspec.json.encode(ceilings), indent=2) + b"\n")
    return path


def load_ceilings() -> Ceilings | None:
    """What `doctor` remembered; None if there is nothing, or the file is damaged or from another processor."""
    try:
        ceilings = msgspec.json.decode(ceilings_path().read_bytes(), type=Ceilings)
    except (OSError, *BAD_TEXT):
        return None
    return ceilings if ceilings.processor == processor_name() else None


def processor_name() -> str:
    """The processor's model name if the system knows it, otherwise its architecture."""
    try:
        lines = CPU_INFO.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, names), "") or platform.processor() or platform.machine()
