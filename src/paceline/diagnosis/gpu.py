"""What limits a run over sparse rows on a GPU? One worker trains it, so a formula says what a simulation would.

    seconds = max(kernels + input, copies)

`kernels` is the time in which the GPU trains. `input` is the time in which it has nothing to do, because this machine
prepares or starts the next launch. Meanwhile the bus copies rows, if they are streamed. With `kernels`, `input` or
`copies` at 0, the formula gives what the run would gain if the memory that kernels read and write, this machine or the
bus were infinitely fast. Everything is recorded while a run trains (`torch/sparse/clock.py`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

from paceline.telemetry.facts import TIMES_LARGER, GpuFacts
from paceline.telemetry.records import GpuChunk

# From this share of its bandwidth on, the memory is what kernels wait for.
NEAR_FULL = 0.6
# A batch size that is not at least this many times larger is not worth trying.
LEAST_LARGER = 2
BUS_HINT = (
    "Rows that stay on the GPU are not copied: that takes a GPU with more memory, or data with fewer features "
    "(`paceline prepare --hash-bits`)."
)


class GpuTime(NamedTuple):
    """The seconds of a run, by what takes them."""

    kernels: float
    input: float
    copies: float

    @property
    def seconds(self) -> float:
        """How long the run takes."""
        return max(self.kernels + self.input, self.copies)

    def gain(self, after: GpuTime) -> float:
        """How many times faster it would be with other times."""
        return self.seconds / after.seconds if after.seconds > 0 else math.inf


# What each resource makes shorter.
RESOURCES_ON_GPU = {"gpu-memory": "kernels", "bus": "copies", "input": "input"}


def faster(time: GpuTime, resource: str, times: float) -> GpuTime:
    """The time with a resource that is `times` times as fast.

    >>> faster(GpuTime(kernels=4.0, input=1.0, copies=3.0), "gpu-memory", 2.0).seconds
    3.0
    """
    name = RESOURCES_ON_GPU[resource]
    return time._replace(**{name: getattr(time, name) / times})


def gains(time: GpuTime, times: float) -> dict[str, float]:
    """How many times faster the run would be with each resource `times` times as fast."""
    return {name: time.gain(faster(time, name, times)) for name in RESOURCES_ON_GPU}


class GpuUse(NamedTuple):
    """What a run did with its GPU: its records, and what it declares."""

    facts: GpuFacts
    chunks: list[GpuChunk]

    @property
    def time(self) -> GpuTime:
        return time_of(self.chunks)

    @property
    def seconds(self) -> float:
        return sum(chunk.seconds for chunk in self.chunks)

    @property
    def rows(self) -> int:
        return sum(chunk.rows for chunk in self.chunks)

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the GPU's time under the names of a worker's phases; `pull` is waiting for the bus."""
        found = {
            "input": self.time.input,
            "pull": sum(chunk.bus for chunk in self.chunks),
            "compute": self.time.kernels,
        }
        return {
            name: found.get(name, 0.0) / self.seconds for name in ("input", "pull", "compute", "push", "wait", "other")
        }

    @property
    def memory_bytes_per_second(self) -> float:
        """What the kernels read and write, as estimated."""
        kernels = self.time.kernels
        return self.facts.bytes_per_row * self.rows / kernels if kernels > 0 else 0.0

    @property
    def bus_bytes_per_second(self) -> float:
        """How fast rows were copied."""
        copied, seconds = sum(chunk.copied_bytes for chunk in self.chunks), self.time.copies
        return copied / seconds if seconds > 0 else 0.0

    @property
    def share_of_memory(self) -> float:
        """Of the bandwidth of the GPU's memory, what kernels use while they run; 0 if that is not known."""
        ceiling = self.facts.ceiling.memory_bytes_per_second
        return self.memory_bytes_per_second / ceiling if ceiling > 0 else 0.0


def time_of(chunks: Sequence[GpuChunk]) -> GpuTime:
    """The time of some records together."""
    return GpuTime(*(sum(getattr(chunk, name) for chunk in chunks) for name in GpuTime._fields))


def is_possible(use: GpuUse) -> bool:
    """Whether records can be true."""
    return use.rows > 0 and use.time.seconds > 0 and use.seconds > 0


def gain_interval(use: GpuUse, resource: str, resamples: int) -> tuple[float, float]:
    """The range of the gain in four of five resamplings of the records."""
    found = []
    for seed in range(1, resamples + 1):
        time = time_of(random.Random(seed).choices(use.chunks, k=len(use.chunks)))
        found.append(time.gain(faster(time, resource, math.inf)) if time.seconds > 0 else 1.0)
    found.sort()
    return found[resamples // 10], found[-1 - resamples // 10]


def with_fewer_bytes(use: GpuUse) -> dict[str, float]:
    """At most how many times faster the run would be with flags that let kernels move fewer bytes, if that is what they
    wait for.
    """
    if use.share_of_memory < NEAR_FULL or use.facts.bytes_per_row <= 0:
        return {}
    time, before = use.time, use.facts.bytes_per_row
    return {
        flags: time.gain(time._replace(kernels=time.kernels * after / before))
        for flags, after in use.facts.fewer_bytes.items()
        if 0 < after < before
    }


def with_larger_launches(use: GpuUse, batch_size: int) -> tuple[int, float] | None:
    """A larger batch size, and at most how many times faster the run would be with it; None if launches cannot grow.

    Fewer launches take less preparation, and larger ones leave less of the GPU idle.
    """
    times = min(TIMES_LARGER, use.facts.most_rows // max(1, batch_size))
    if times < LEAST_LARGER:
        return None
    time, share = use.time, min(1.0, use.share_of_memory)
    kernels = time.kernels * (1.0 if share >= NEAR_FULL else max(share, 1 / times))
    return times * batch_size, time.gain(time._replace(kernels=kernels, input=time.input / times))


def hint_of(use: GpuUse, bottleneck: str) -> str:
    """What else to say about a bottleneck."""
    if bottleneck == "gpu-memory" and use.share_of_memory > 0:
        return f"Its kernels use about {use.share_of_memory:.0%} of the bandwidth of the GPU's memory."
    return BUS_HINT if bottleneck == "bus" else ""


def lines_of(use: GpuUse) -> list[str]:
    """The evidence in words."""
    shares, ceiling, facts = use.shares, use.facts.ceiling, use.facts
    launches = sum(chunk.launches for chunk in use.chunks)
    lines = [
        f"the GPU's time: kernels {shares['compute']:.0%}, waiting for this machine {shares['input']:.0%}, "
        f"waiting for the bus {shares['pull']:.0%}",
        f"kernels move about {facts.bytes_per_row:,.0f} bytes per row, or "
        f"{use.memory_bytes_per_second / 1e9:,.0f} GB/s: {use.share_of_memory:.0%} of the "
        f"{ceiling.memory_bytes_per_second / 1e9:,.0f} GB/s of {ceiling.name}",
        f"{use.rows / max(1, launches):,.0f} rows per launch",
    ]
    if facts.streamed:
        lines.append(
            f"rows are streamed: copies took {use.time.copies / use.seconds:.0%} of the time, at "
            f"{use.bus_bytes_per_second / 1e9:,.1f} GB/s of the bus's {ceiling.bus_bytes_per_second / 1e9:,.1f} GB/s"
        )
    else:
        lines.append("all rows stay on the GPU")
    return lines
