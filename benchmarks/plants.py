"""Roles with planted behaviour: a bottleneck for benchmarks/verdicts.py, pauses in recording for
benchmarks/recording.py.

    python benchmarks/plants.py ENTRY train …

is the command `paceline` with roles that start at one of the functions below.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from paceline.cli import main
from paceline.data.blocks.reader import Reader
from paceline.parameters.keyed import KeyedStore
from paceline.training.cluster import placement, role
from paceline.training.cluster.numbered_batch import NumberedBatch

TIMES_SLOWER = 12
STRAGGLER_TIMES_SLOWER = 3
BASE_TIMES = 8
SHARD_SECONDS_A_PUSH = 0.01
INPUT_SECONDS_A_BATCH = 0.012
# Not a divisor or multiple of the intervals of anything periodic.
TURN_SECONDS = 0.037


def _repeat(times: Any) -> None:
    """Let workers compute every gradient several times; `times` returns the factor for each."""
    gradient = NumberedBatch.gradient

    def slow(batch: NumberedBatch) -> float:
        losses = 0.0
        for _ in range(times()):
            losses = gradient(batch)
        return losses

    NumberedBatch.gradient = slow  # type: ignore[assignment, method-assign]


def slow_workers(content: bytes, node: str, host: str) -> None:
    """Extra work per row, on all workers."""
    _repeat(lambda: TIMES_SLOWER)
    role.run_role(content, node, host)


def even_workers(content: bytes, node: str, host: str) -> None:
    """All workers equal, and slow enough to be the limit."""
    _repeat(lambda: BASE_TIMES)
    role.run_role(content, node, host)


def one_slow_worker(content: bytes, node: str, host: str) -> None:
    """Worker 0 takes three times as long for everything that it computes."""
    import msgspec

    from paceline.training.cluster.messages import RoleSpec

    spec = msgspec.msgpack.decode(content, type=RoleSpec)
    _repeat(lambda: BASE_TIMES * (STRAGGLER_TIMES_SLOWER if spec.rank == 0 else 1))
    role.run_role(content, node, host)


def slow_shard(content: bytes, node: str, host: str) -> None:
    """Extra work per push."""
    apply = KeyedStore.apply

    def slow(store: KeyedStore, *arguments: Any) -> None:
        until = time.perf_counter() + SHARD_SECONDS_A_PUSH
        apply(store, *arguments)
        while time.perf_counter() < until:
            pass

    KeyedStore.apply = slow  # type: ignore[assignment, method-assign]
    role.run_role(content, node, host)


def slow_input(content: bytes, node: str, host: str) -> None:
    """A throttled reader."""
    between = Reader.between

    def slow(reader: Reader[Any], *arguments: Any) -> Any:
        time.sleep(INPUT_SECONDS_A_BATCH)
        return between(reader, *arguments)

    Reader.between = slow  # type: ignore[assignment, method-assign]
    role.run_role(content, node, host)


def nothing(content: bytes, node: str, host: str) -> None:
    """No plant."""
    role.run_role(content, node, host)


class Turns:
    """What one worker did with and without recording, turn by turn."""

    def __init__(self) -> None:
        self.on = True
        self.last = 0.0
        # Per turn: whether it was recorded, rows, and seconds.
        self.turns: list[list[float]] = []

    def add(self, rows: int) -> None:
        """One or more steps have ended: count them, and check whose turn it is."""
        now = time.perf_counter()
        on = int(time.monotonic() / TURN_SECONDS) % 2 == 0
        if self.last:
            self.turns[-1][1] += rows
            self.turns[-1][2] += now - self.last
        if not self.last or on != self.on:
            self.turns.append([on, 0, 0.0])
        self.on, self.last = on, now


def record_by_turns() -> None:
    """Let the workers of this process use their meters for `TURN_SECONDS`, do without for as long, and so on, at the
    same time in all processes. Writes what they did in each turn, and the processor time of what is recorded once per
    second, to the folder in PACELINE_TURNS.
    """
    from paceline.telemetry.meter import ShardReport, WorkerMeter, WorkerReport
    from paceline.telemetry.probes import ConnectionProber, NodeProber
    from paceline.telemetry.recorder import Journal

    found: dict[WorkerMeter, Turns] = {}
    probing = [0.0]
    end_step, restart = WorkerMeter.end_step, WorkerMeter.restart

    def of(meter: WorkerMeter) -> Turns:
        turns = found.get(meter)
        if turns is None:
            turns = found[meter] = Turns()
        return turns

    def ended(meter: WorkerMeter, rows: int, *rest: Any) -> None:
        turns = of(meter)
        was_on = turns.on
        if was_on:
            end_step(meter, rows, *rest)
        turns.add(rows)
        if turns.on != was_on:
            switch(meter, turns.on)

    def switch(meter: WorkerMeter, on: bool) -> None:
        # Replaces the meter's methods, which are still called while it is on.
        for name in ("mark", "mark_at", "now", "got_reply", "waited_within"):
            if not on:
                setattr(meter, name, lambda *_: 0)
            elif name != "now":
                delattr(meter, name)
        meter.sampling = False
        if on:
            meter.now = time.perf_counter_ns

    def restarted(meter: WorkerMeter) -> None:
        of(meter).last = 0.0
        restart(meter)

    def timed(real: Any) -> Any:
        def call(*arguments: Any) -> Any:
            before = time.thread_time()
            try:
                return real(*arguments)
            finally:
                probing[0] += time.thread_time() - before
                leave()

        return call

    def leave() -> None:
        turns = [turns.turns for turns in list(found.values())]
        path = Path(os.environ["PACELINE_TURNS"], f"{os.getpid()}.json")
        path.with_suffix(".new").write_text(json.dumps({"probing": probing[0], "turns": turns}))
        path.with_suffix(".new").replace(path)

    end_exchange = WorkerMeter.end_exchange

    def exchanged(meter: WorkerMeter, rows: int, *rest: Any) -> None:
        if of(meter).on:
            end_exchange(meter, rows, *rest)
        else:
            ended(meter, rows)

    WorkerMeter.end_step, WorkerMeter.restart = ended, restarted  # type: ignore[method-assign, assignment]
    WorkerMeter.end_exchange = exchanged  # type: ignore[method-assign, assignment]
    for reporter, name in ((WorkerReport, "take"), (ShardReport, "take"), (NodeProber, "take"),
                           (ConnectionProber, "take"), (Journal, "add")):  # fmt: skip
        setattr(reporter, name, timed(getattr(reporter, name)))


def by_turns(content: bytes, node: str, host: str) -> None:
    """Recorded in turns."""
    record_by_turns()
    role.run_role(content, node, host)


if __name__ == "__main__":
    if sys.argv[1] == "by_turns":
        record_by_turns()
    placement.ENTRY = f"plants:{sys.argv.pop(1)}"
    main()
