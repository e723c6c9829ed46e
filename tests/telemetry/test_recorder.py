"""What is written is read back, whatever a kill left behind; and an hour of a large cluster takes megabytes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from paceline.telemetry.meter import COMPUTE, WorkerMeter, period_at
from paceline.telemetry.recorder import Journal, Telemetry, room_at
from paceline.telemetry.records import (
    FILES,
    AnyRecord,
    ConnectionProbe,
    GpuChunk,
    LeftOut,
    NodeProbe,
    Record,
    Reply,
    ShardChunk,
    StepSample,
    WorkerChunk,
)
from tests.telemetry.clocks import FakeClock, fake_clock

THIRD = 1 / 3  # as many digits as there are


def a_record_of_each_kind(now: float, rank: int = 0) -> list[AnyRecord]:
    return [
        WorkerChunk(
            time=now, rank=rank, node="node-17", seconds=THIRD, processor=THIRD, steps=12_345, rows=1_234_500,
            input=THIRD, pull=THIRD, compute=THIRD, push=THIRD, wait=THIRD, replies=98_760, queue=THIRD, held=THIRD,
            service=THIRD, bytes_sent=1_234_567_890, bytes_received=1_234_567_890,
        ),
        ShardChunk(
            time=now, rank=rank, node="node-17", seconds=THIRD, processor=THIRD, requests=123_456, queue=THIRD,
            service=THIRD,
        ),
        StepSample(
            time=now, rank=rank, step=123_456, seconds=THIRD, rows=1_000, input=THIRD, pull=THIRD, compute=THIRD,
            push=THIRD, wait=THIRD, input_processor=THIRD, compute_processor=THIRD, push_processor=THIRD,
            replies=[Reply(THIRD, THIRD, THIRD, 60_000, 60_000) for _ in range(8)],
        ),
        NodeProbe(
            time=now, node=f"node-{rank}", machine="0b0b7c8e-5a2e-4b6e-9d55-2a5b5a1c7e77", seconds=THIRD,
            cores=[THIRD] * 16, memory_bytes=12_345_678_901, memory_total_bytes=12_345_678_901,
            network_sent_bytes_per_second=1e9 * THIRD, network_received_bytes_per_second=1e9 * THIRD,
            disk_read_bytes_per_second=1e9 * THIRD, disk_written_bytes_per_second=None,
            pressure=dict.fromkeys(("cpu_some", "io_some", "io_full", "memory_some", "memory_full"), THIRD),
        ),
        ConnectionProbe(
            time=now, role="worker", rank=rank, peer="shard 7", seconds=THIRD, delivered_bytes=1_234_567_890,
            busy=THIRD, receiver_limited=THIRD, buffer_limited=THIRD, round_trip_seconds=0.000345,
            least_round_trip_seconds=0.000123, delivery_bytes_per_second=123_456_789.0, retransmitted=0,
        ),
        LeftOut(time=now, node="später", name="pressure", reason='no "/proc/pressure"\\n'),
        GpuChunk(
            time=now, rank=rank, node="node-17", seconds=THIRD, rows=1_234_500, launches=12_345, kernels=THIRD,
            input=THIRD, bus=THIRD, copies=THIRD, copied_bytes=1_234_567_890,
        ),
    ]  # fmt: skip


def all_records(run: Path) -> list[Record]:
    return [record for kind in FILES for record in Telemetry(run).read(kind)]


class TestJournal:
    def test_what_is_written_is_read_back(self, tmp_path: Path) -> None:
        with fake_clock() as clock:
            journal = Journal(tmp_path)
            clock.pass_by(2_500_000_000)
            journal.add(a_record_of_each_kind(clock.now * 1e-9))
            journal.add([])
            clock.pass_by(1_000_000_000)
            journal.add(a_record_of_each_kind(clock.now * 1e-9, rank=1))
        for kind in FILES:
            first, second = Telemetry(tmp_path).read(kind)
            assert (first.time, second.time) == pytest.approx((2.5, 3.5))
            assert [type(first), type(second)] == [kind, kind]
        expected = a_record_of_each_kind(0.0) + a_record_of_each_kind(0.0, rank=1)
        found = [msgspec.structs.replace(record, time=0.0) for record in all_records(tmp_path)]
        assert sorted(map(repr, found)) == sorted(map(repr, expected))

    def test_each_kind_has_a_file_of_lines(self, tmp_path: Path) -> None:
        Journal(tmp_path).add(a_record_of_each_kind(0.0) + a_record_of_each_kind(0.0))
        assert sorted(path.name for path in (tmp_path / "telemetry").iterdir()) == [
            "connections.jsonl", "gpus.jsonl", "left-out.jsonl", "nodes.jsonl", "shards.jsonl", "steps.jsonl",
            "workers.jsonl",
        ]  # fmt: skip
        for path in (tmp_path / "telemetry").iterdir():
            content = path.read_bytes()
            assert content.endswith(b"\n")
            assert len([msgspec.json.decode(line) for line in content.splitlines()]) == 2

    def test_a_run_without_telemetry(self, tmp_path: Path) -> None:
        assert all_records(tmp_path) == []
        Journal(tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_it_is_due_at_once_and_then_ever_more_rarely(self, tmp_path: Path) -> None:
        due = []
        with fake_clock() as clock:
            journal = Journal(tmp_path)
            for tick in range(20 * 600):
                clock.sleep_until(tick / 20)
                if journal.due():
                    due.append(tick / 20)
        assert due[0] == 0
        assert 200 < len(due) < 400
        for before, after in pairwise(due):
            assert -1e-6 < after - before - period_at(before) < 0.11


class TestAfterAKill:
    @pytest.mark.parametrize("cut", [1, 2, 40, -40, -2, -1])
    def test_half_a_last_line_is_left_out(self, tmp_path: Path, cut: int) -> None:
        Journal(tmp_path).add(a_record_of_each_kind(0.0, rank=0) + a_record_of_each_kind(0.0, rank=1))
        for kind, name in FILES.items():
            path = tmp_path / "telemetry" / f"{name}.jsonl"
            first, second, _ = path.read_bytes().split(b"\n")
            path.write_bytes(first + b"\n" + second[:cut])
            assert len(Telemetry(tmp_path).read(kind)) == 1

    def test_bytes_that_are_no_text_are_left_out(self, tmp_path: Path) -> None:
        Journal(tmp_path).add(a_record_of_each_kind(0.0))
        path = tmp_path / "telemetry" / "left-out.jsonl"
        line = path.read_bytes()
        path.write_bytes(line.replace("ä".encode(), b"\xc3") + b"\0\0\0\n" + b"\xff\xfe\n" + line)
        assert [record.node for record in Telemetry(tmp_path).read(LeftOut)] == ["später"]

    def test_a_record_of_another_version_is_left_out(self, tmp_path: Path) -> None:
        Journal(tmp_path).add(a_record_of_each_kind(0.0))
        path = tmp_path / "telemetry" / "shards.jsonl"
        path.write_bytes(path.read_bytes().replace(b'"rank"', b'"rang"') + path.read_bytes())
        assert len(Telemetry(tmp_path).read(ShardChunk)) == 1

    def test_a_resumed_run_loses_no_line_to_the_one_that_was_cut(self, tmp_path: Path) -> None:
        Journal(tmp_path).add(a_record_of_each_kind(0.0))
        for path in (tmp_path / "telemetry").iterdir():
            path.write_bytes(path.read_bytes()[:-10])
        Journal(tmp_path).add(a_record_of_each_kind(0.0, rank=1))
        for kind in FILES:
            assert len(Telemetry(tmp_path).read(kind)) == 1

    @pytest.mark.parametrize("kinds", [(WorkerChunk,), (NodeProbe,), (WorkerChunk, NodeProbe)])
    def test_a_resumed_run_continues_in_time(self, tmp_path: Path, kinds: tuple[type[Record], ...]) -> None:
        """Whichever was written last; a run of less than a second has no probe."""
        with fake_clock() as clock:
            for _ in range(3):
                journal = Journal(tmp_path)
                for _ in range(2):
                    clock.pass_by(10_000_000_000)
                    records = a_record_of_each_kind(clock.now * 1e-9)
                    journal.add([record for record in records if type(record) in kinds])
                clock.pass_by(10**15)
        for kind in kinds:
            times = [record.time for record in Telemetry(tmp_path).read(kind)]
            assert times == pytest.approx([10, 20, 30, 40, 50, 60])


class TestSize:
    """64 workers and 8 shards on 9 machines of 16 cores, a step of 10 ms each: as large as small clusters get."""

    WORKERS, SHARDS, NODES, STEP_SECONDS = 64, 8, 9, 0.01

    def sampled_at(self, seconds: float) -> list[float]:
        """When a worker's steps are sampled."""
        times = []
        with fake_clock() as clock:
            meter = WorkerMeter(0)
            meter.restart()
            for step in range(1, int(seconds / self.STEP_SECONDS)):
                clock.now += int(self.STEP_SECONDS * 1e9)
                meter.mark(COMPUTE)
                meter.end_step(100)
                if meter.samples:
                    meter.samples.clear()
                    times.append(step * self.STEP_SECONDS)
        return times

    def record_an_hour(self, run: Path, clock: FakeClock) -> None:
        journal = Journal(run)
        worker, shard, sample, node, connection, *_ = a_record_of_each_kind(0.0)
        sampled, at = self.sampled_at(3_600), 0.0
        while at < 3_600:
            clock.sleep_until(at)
            since, at = at, at + period_at(at)
            num_samples = sum(since <= time < at for time in sampled)
            journal.add([worker] * self.WORKERS + [shard] * self.SHARDS + [node] * self.NODES)
            journal.add([connection] * (2 * self.WORKERS * self.SHARDS) + [sample] * (num_samples * self.WORKERS))

    def test_an_hour_takes_less_than_50_megabytes(self, tmp_path: Path) -> None:
        with fake_clock() as clock:
            self.record_an_hour(tmp_path, clock)
        sizes = {path.stem: path.stat().st_size / 1e6 for path in (tmp_path / "telemetry").iterdir()}
        assert sum(sizes.values()) < 50, sizes
        # The sums of chunks must stay exact: not one of them is left out.
        lines = {
            name: (tmp_path / "telemetry" / f"{name}.jsonl").read_bytes().count(b"\n") for name in ("workers", "shards")
        }
        num_periods = lines["shards"] / self.SHARDS
        assert num_periods > 300
        assert lines["workers"] == num_periods * self.WORKERS

    def test_a_small_cluster_loses_nothing(self, tmp_path: Path) -> None:
        with fake_clock() as clock:
            journal = Journal(tmp_path)
            for second in range(120):
                clock.sleep_until(second)
                _, _, sample, _, connection, *_ = a_record_of_each_kind(0.0)
                journal.add([connection] * 8 + [sample] * 100)
        assert len(Telemetry(tmp_path).read(ConnectionProbe)) == 120 * 8
        # A hundred a second are more than four workers take, and are too many after a while.
        assert len(Telemetry(tmp_path).read(StepSample)) > 6_000

    def test_what_is_left_out_is_everybodys_turn(self, tmp_path: Path) -> None:
        """A worker of which nothing is kept could not be replayed."""
        with fake_clock() as clock:
            journal = Journal(tmp_path)
            for second in range(30):
                clock.sleep_until(second)
                samples = [a_record_of_each_kind(clock.now * 1e-9, rank)[2] for rank in range(64) for _ in range(40)]
                journal.add(samples)
        kept = Telemetry(tmp_path).read(StepSample)
        size = (tmp_path / "telemetry" / "steps.jsonl").stat().st_size
        assert size < room_at(30) + 30 * 8_000
        ranks = [sum(sample.rank == rank for sample in kept) for rank in range(64)]
        assert min(ranks) > 0.5 * len(kept) / 64
        # There is something of every second.
        assert len({round(sample.time) for sample in kept}) == 30
