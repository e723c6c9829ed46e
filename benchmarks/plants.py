"""Roles with something planted in them: a bottleneck for benchmarks/verdicts.py, silence for benchmarks/recording.py.

    python benchmarks/plants.py ENTRY train …

is the command `paceline` whose roles begin at one of the functions below.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from paceline import engines
from paceline.cli import main
from paceline.data.reader import RowReader
from paceline.training.cluster import role
from paceline.training.cluster.slice import Slice
from paceline.training.cluster.worker import Prepared

TIMES_SLOWER = 12
STRAGGLER_TIMES_SLOWER = 3
BASE_TIMES = 8
SHARD_SECONDS_A_PUSH = 0.01
INPUT_SECONDS_A_BATCH = 0.012


def _repeat(times: Any) -> None:
    """Let workers compute every gradient so many times; `times` is asked for the factor with each."""
    gradient = Prepared.gradient

    def slow(batch: Prepared) -> float:
        losses = 0.0
        for _ in range(times()):
            losses = gradient(batch)
        return losses

    Prepared.gradient = slow  # type: ignore[assignment, method-assign]


def slow_workers(content: bytes, node: str, host: str) -> None:
    """Extra work a row, on all workers."""
    _repeat(lambda: TIMES_SLOWER)
    role.run_role(content, node, host)


def even_workers(content: bytes, node: str, host: str) -> None:
    """All workers alike, and slow enough that they are what counts."""
    _repeat(lambda: BASE_TIMES)
    role.run_role(content, node, host)


def one_slow_worker(content: bytes, node: str, host: str) -> None:
    """Worker 0 needs three times as long for everything that it computes."""
    import msgspec

    from paceline.training.cluster.messages import RoleSpec

    spec = msgspec.msgpack.decode(content, type=RoleSpec)
    _repeat(lambda: BASE_TIMES * (STRAGGLER_TIMES_SLOWER if spec.rank == 0 else 1))
    role.run_role(content, node, host)


def slow_shard(content: bytes, node: str, host: str) -> None:
    """Extra work a push."""
    apply = Slice.apply

    def slow(part: Slice, *arguments: Any) -> None:
        until = time.perf_counter() + SHARD_SECONDS_A_PUSH
        apply(part, *arguments)
        while time.perf_counter() < until:
            pass

    Slice.apply = slow  # type: ignore[assignment, method-assign]
    role.run_role(content, node, host)


def slow_input(content: bytes, node: str, host: str) -> None:
    """A reader that is throttled."""
    between = RowReader.between

    def slow(reader: RowReader, *arguments: Any) -> Any:
        time.sleep(INPUT_SECONDS_A_BATCH)
        return between(reader, *arguments)

    RowReader.between = slow  # type: ignore[assignment, method-assign]
    role.run_role(content, node, host)


def nothing(content: bytes, node: str, host: str) -> None:
    """No plant."""
    role.run_role(content, node, host)


def record_nothing() -> None:
    """In this process, no time is taken, no counter read, and nothing written down."""
    from paceline.telemetry.meter import ShardReport, WorkerMeter, WorkerReport
    from paceline.telemetry.probes import ConnectionProber, NodeProber
    from paceline.telemetry.recorder import Journal

    def nothing_at_all(*_arguments: Any) -> None:
        return None

    def no_records(*_arguments: Any) -> list[Any]:
        return []

    for name in ("mark", "got_reply", "waited_within", "end_step", "_begin_step"):
        setattr(WorkerMeter, name, nothing_at_all)
    for reporter in (WorkerReport, ShardReport, NodeProber, ConnectionProber):
        setattr(reporter, "take", no_records)  # noqa: B010 (they differ in what they take)
    Journal.add = nothing_at_all  # type: ignore[assignment, method-assign]


def unrecorded(content: bytes, node: str, host: str) -> None:
    """Nothing is recorded."""
    record_nothing()
    role.run_role(content, node, host)


if __name__ == "__main__":
    if sys.argv[1] == "unrecorded":
        record_nothing()
    engines.StartingEngine.__init__.__defaults__ = (f"plants:{sys.argv.pop(1)}",)
    main()
