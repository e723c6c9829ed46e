"""What does a run record about itself?

One JSON object per line, one file per kind, in the run's `telemetry/` folder. Times are seconds since training began,
on the coordinator's clock; durations are seconds. Chunks and probes come about once per second at first, and less often
the longer a run lasts, so that an hour takes megabytes.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

# Numbers as records have them. A damaged file may have others; lines with such numbers are left out when it is read.
Real = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]
Duration = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
Whole = Annotated[int, msgspec.Meta(gt=-(1 << 60), lt=1 << 60)]
Steps = Annotated[int, msgspec.Meta(ge=1, lt=1 << 60)]


class Record(msgspec.Struct, kw_only=True, omit_defaults=True, tag=True):
    """One line; `time` is the end of what it describes. `node` is filled in where records are collected."""

    time: Real
    node: str = ""


class Phases(Record, kw_only=True):
    """Where a worker's time went. The phases add up to `seconds`, except for unmeasured time.

    `input` is reading rows or waiting for them, `compute` is numbering keys and computing gradients, `push` is sending
    to shards, `pull` is waiting for their replies, and `wait` is waiting at the gate.
    """

    rank: Whole
    seconds: Duration
    rows: Whole
    input: Real = 0.0
    pull: Real = 0.0
    compute: Real = 0.0
    push: Real = 0.0
    wait: Real = 0.0


class WorkerChunk(Phases, kw_only=True):
    """A worker over some steps.

    `processor` is this worker's processor time, of which it spent `spun` on spinning for replies instead of sleeping.
    `queue`, `held` and `service` are sums of what shards report with their replies. `compute_alone` and
    `compute_in_company` are the processor time of computing a step without waiting, and the same while other cores are
    busy. `one_row` is that of reading and computing a step of a single row. They are measured before training begins,
    because processors that have idled are slower for a while.
    """

    processor: Real
    steps: Steps
    replies: Whole = 0
    queue: Real = 0.0
    held: Real = 0.0
    service: Real = 0.0
    bytes_sent: Whole = 0
    bytes_received: Whole = 0
    spun: Real = msgspec.field(default=0.0, name="looked")
    compute_alone: Real = 0.0
    compute_in_company: Real = 0.0
    one_row: Real = 0.0


class ShardChunk(Record, kw_only=True):
    """What a shard did: requests answered, the seconds that they spent in the queue and in service, and processor time,
    of which it spent `spun` on spinning for requests instead of sleeping.
    """

    rank: Whole
    seconds: Duration
    processor: Real
    requests: Whole
    queue: Real
    service: Real
    spun: Real = msgspec.field(default=0.0, name="looked")


class GpuChunk(Record, kw_only=True):
    """A GPU over some launches on `rows` sparse rows.

    Its time is that of its `kernels`, what it waited for rows that were being copied (`bus`), and what it waited for
    the host, which prepares and launches (`input`): these add up to `seconds`. Meanwhile `copied_bytes` were copied to
    it, which took `copies` seconds, mostly while kernels ran.
    """

    rank: Whole
    seconds: Duration
    rows: Whole
    launches: Whole
    kernels: Duration
    input: Duration = 0.0
    bus: Duration = 0.0
    copies: Duration = 0.0
    copied_bytes: Whole = 0


class Reply(msgspec.Struct, array_like=True):
    """One shard's part of a sampled step: seconds in its queue, held at the gate and served; bytes there and back."""

    queue: Real
    held: Real
    service: Real
    bytes_sent: Whole
    bytes_received: Whole


class StepSample(Phases, kw_only=True):
    """One step of a worker, from `time - seconds` to `time`, or several that one loop ran.

    Workers that take turns on a thread have common samples, under the first one's rank. `input_processor`,
    `compute_processor` and `push_processor` are the processor time within those phases.
    """

    step: Whole
    steps: Steps = 1
    input_processor: Real = 0.0
    compute_processor: Real = 0.0
    push_processor: Real = 0.0
    replies: list[Reply] = []


class NodeProbe(Record, kw_only=True):
    """A node over the last `seconds`: processor share of each core (0 to 1), memory in use, bytes per second, and
    pressure-stall shares by name (`cpu_some`, `io_full`, …): shares of the time in which something had to wait.
    """

    machine: str = ""
    seconds: Duration
    cores: list[Real]
    memory_bytes: Whole
    memory_total_bytes: Whole
    network_sent_bytes_per_second: Real | None = None
    network_received_bytes_per_second: Real | None = None
    loopback_bytes_per_second: Real | None = None
    disk_read_bytes_per_second: Real | None = None
    disk_written_bytes_per_second: Real | None = None
    pressure: dict[str, Real] = {}


class ConnectionProbe(Record, kw_only=True):
    """A role's connection over the last `seconds`, as the system's TCP sees it; shares are of the time.

    `delivered_bytes` have reached the other side. `busy` is the share with data in flight, of which data waited for the
    receiver's window (`receiver_limited`) or for the send buffer (`buffer_limited`); the rest is due to the network.
    """

    role: str
    rank: Whole
    peer: str
    seconds: Duration
    delivered_bytes: Whole = 0
    busy: Real
    receiver_limited: Real
    buffer_limited: Real
    round_trip_seconds: Real
    least_round_trip_seconds: Real
    delivery_bytes_per_second: Real
    retransmitted: Whole


class LeftOut(Record, kw_only=True):
    """Something that a node does not offer, by name, and that is not measured there."""

    name: str
    reason: str


AnyRecord = WorkerChunk | ShardChunk | GpuChunk | StepSample | NodeProbe | ConnectionProbe | LeftOut

# The names of the files, without suffix.
FILES: dict[type[Record], str] = {
    WorkerChunk: "workers",
    ShardChunk: "shards",
    GpuChunk: "gpus",
    StepSample: "steps",
    NodeProbe: "nodes",
    ConnectionProbe: "connections",
    LeftOut: "left-out",
}
