"""How fast are a GPU's memory and its bus at best? Measured in a moment, by `paceline doctor` or when a run begins."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from paceline.errors import ConfigError
from paceline.telemetry.ceilings import GpuCeiling, load_ceilings
from paceline.torch.model import has_gpu, torch

MILLI = 1e-3


class Sizes(NamedTuple):
    """How much is copied, at a time and how often. The best time counts."""

    in_memory: int = 1 << 30  # much more than its cache
    over_the_bus: int = 32 << 20
    times: int = 5


# Of the GPU's free memory, a copy within it takes at most this share.
SHARE = 0.25
# Without a GPU, Triton's interpreter stands in for one, and its speed means nothing.
SMALL = Sizes(1 << 20, 1 << 20, 2)


def measure_first_gpu() -> GpuCeiling:
    """The ceiling of the first GPU; `ConfigError` if there is none."""
    if not has_gpu():
        raise ConfigError("PyTorch finds no GPU here", "see `nvidia-smi`")
    return measure_gpu(torch.device("cuda"))


def ceiling_of(device: Any) -> GpuCeiling:
    """What `paceline doctor` measured of a GPU; if it measured none like it, it is measured now."""
    known = load_ceilings()
    if known is not None and known.gpu is not None and known.gpu.name == name_of(device):
        return known.gpu
    return measure_gpu(device)


def name_of(device: Any) -> str:
    """What a device is called."""
    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else "Triton's interpreter"


def measure_gpu(device: Any) -> GpuCeiling:
    """Measure a device. On a GPU, this takes a fraction of a second."""
    sizes, is_gpu = SMALL, device.type == "cuda"
    if is_gpu:
        free = torch.cuda.mem_get_info(device)[0]
        sizes = Sizes()._replace(in_memory=min(Sizes().in_memory, int(SHARE * free)))
    source = torch.ones(max(1, sizes.in_memory // 2), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    within = _best_seconds(lambda: target.copy_(source), sizes.times, device)
    host = torch.ones(sizes.over_the_bus, dtype=torch.uint8)
    host = host.pin_memory() if is_gpu else host
    arrived = torch.empty_like(host, device=device)
    across = _best_seconds(lambda: arrived.copy_(host, non_blocking=True), sizes.times, device)
    return GpuCeiling(
        name=name_of(device),
        memory_bytes_per_second=2 * len(source) / within,
        bus_bytes_per_second=len(host) / across,
    )


def _best_seconds(work: Callable[[], object], times: int, device: Any) -> float:
    """The shortest time that some work takes, after one trial."""
    seconds = _cuda_seconds if device.type == "cuda" else _wall_seconds
    work()
    return max(1e-9, min(seconds(work) for _ in range(times)))


def _cuda_seconds(work: Callable[[], object]) -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    work()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) * MILLI


def _wall_seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
