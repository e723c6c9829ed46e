"""What do the processes of a matrix job say to each other?

Small typed structures in MessagePack. Blocks travel as raw bytes in VALUES frames; nothing is ever unpickled. How a
worker reports to the coordinator is common to all processes: see `processes/messages.py`.
"""

from __future__ import annotations

import msgspec

from paceline.matrices.cluster.placement import Rectangle
from paceline.matrices.product_file import Heading
from paceline.matrices.trace import RandomPairs
from paceline.processes.messages import Message, ProcessSpec


class Do(Message):
    """To a worker: do a task next. `sharing` is how many workers share its node's cores."""

    task: int
    sharing: int


class Peers(Message):
    """To a worker: where the others serve their blocks, by rank; empty for one that is away."""

    addresses: list[str]


class Done(Message):
    """From a worker: a task is done. `sums` are for a trace, `counts` for a product; `seconds` are by phase."""

    task: int
    seconds: dict[str, float]
    sums: list[float] = msgspec.field(default_factory=list)
    counts: dict[str, int] = msgspec.field(default_factory=dict)


class Fetch(Message):
    """To a worker's server: send rows `start` to `stop` of a block of a factor that lives there."""

    side: int
    outer: int
    inner: int
    start: int
    stop: int


class TraceTask(msgspec.Struct, frozen=True, tag=True):
    """The trace of a product of random matrices. Task t is the pairs from number `cuts[t]` to before `cuts[t + 1]`."""

    pairs: RandomPairs
    cuts: list[int]


class ProductTask(msgspec.Struct, frozen=True, tag=True):
    """A product of files that every node sees: the rectangle of each worker, and the tile of blocks of each task."""

    left: str
    right: str
    out: str
    heading: Heading
    rectangles: list[Rectangle]
    tiles: list[Rectangle]


class WorkerSpec(ProcessSpec, frozen=True, kw_only=True):
    """What the process of a worker is started with."""

    work: TraceTask | ProductTask


ToWorker = Do | Peers
