"""How do processes of one machine hand each other large arrays? By memory that both see, instead of a wire.

No file backs the memory, and it disappears with the processes that use it. A process that is told where the
memory is checks its name, because another machine or container has other processes under the same numbers.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import secrets

import numpy as np
from numpy.typing import NDArray

from paceline.settings import RunConfig
from paceline.training.cluster.messages import RoleSpec

Floats = NDArray[np.float32]

PLACE = re.compile(r"/proc/\d+/fd/\d+ ([0-9a-f]{32})")


def shares(spec: RoleSpec, config: RunConfig) -> bool:
    """Whether workers and shards exchange dense values by shared memory: all are on this machine, and it can."""
    wanted = spec.loopback and config.wire.shared_memory and config.exchange == "shard"
    return wanted and hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")


_sizes: list[int] = []


def shared_bytes() -> int:
    """How much memory of this process others may see."""
    return sum(_sizes)


def share(num_values: int) -> tuple[Floats, str]:
    """Zeros that other processes of this user may read, and where they are; nowhere if the system does not let them."""
    name, size = secrets.token_hex(16), max(1, 4 * num_values)
    try:
        # Open for as long as this process lives: it is how others get at it.
        descriptor = os.memfd_create(f"paceline-{name}")
        os.ftruncate(descriptor, size)
        memory = mmap.mmap(descriptor, size)
    except OSError:
        return np.zeros(num_values, np.float32), ""
    _sizes.append(size)
    return np.frombuffer(memory, np.float32, num_values), f"/proc/{os.getpid()}/fd/{descriptor} {name}"


def open_shared(place: str, num_values: int) -> Floats | None:
    """What `share` has made there, to be read; None if it cannot be had."""
    found = PLACE.fullmatch(place)
    if found is None:
        return None
    path = place.partition(" ")[0]
    with contextlib.suppress(OSError, ValueError):
        if os.readlink(path) == f"/memfd:paceline-{found[1]} (deleted)":
            with open(path, "rb") as file:
                memory = mmap.mmap(file.fileno(), max(1, 4 * num_values), access=mmap.ACCESS_READ)
            return np.frombuffer(memory, np.float32, num_values)
    return None
