"""What does this machine offer, and how does it get memory back?"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

OWN_CGROUPS = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")


def num_cores() -> int:
    """Cores that this process may use: those it may run on, or fewer if its cgroup has a limit, which is rounded up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min([cores, *_cgroup_limits()])))


def _cgroup_limits() -> Iterator[float]:
    """The limits, in cores, of this process's cgroup and of all around it: version 2 and version 1 of Linux's."""
    with suppress(OSError, ValueError):
        for line in OWN_CGROUPS.read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                yield from _limits_above(CGROUPS, path, ("cpu.max",))
            elif "cpu" in controllers.split(","):
                yield from _limits_above(CGROUPS / controllers, path, ("cpu.cfs_quota_us", "cpu.cfs_period_us"))


def _limits_above(root: Path, path: str, names: tuple[str, ...]) -> Iterator[float]:
    """The limits of a cgroup and of those around it. In a container, only the outermost may be there."""
    group = root / path.strip("/")
    for folder in (group, *group.parents):
        with suppress(OSError, ValueError):
            # "max" or -1 for no limit, and the period in which that many microseconds may be used.
            quota, period = (float(word) for name in names for word in (folder / name).read_text().split())
            if quota > 0 and period > 0:
                yield quota / period
        if folder == root:
            return


def release_mapped(address: int, size: int) -> None:
    """Give back the pages of a file that is mapped for reading: they are read again when used. Only for such memory:
    other memory would lose what is in it.
    """
    first, stop = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE, (address + size) // mmap.PAGESIZE * mmap.PAGESIZE
    if stop > first:
        libc = ctypes.CDLL(None)
        libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(stop - first), ctypes.c_int(mmap.MADV_DONTNEED))


def release_freed() -> None:
    """Give back the memory that was freed, of which glibc keeps some for each thread."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(ctypes.c_size_t(0))
