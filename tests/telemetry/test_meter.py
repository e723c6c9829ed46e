"""The stopwatch counts nothing twice and loses nothing, however often it is read, and keeps few of many samples."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.telemetry.meter import (
    COMPUTE,
    FIRST_SAMPLES,
    INPUT,
    PHASES,
    PULL,
    PUSH,
    WAIT,
    ShardReport,
    WorkerMeter,
    WorkerReport,
    period_at,
)
from paceline.telemetry.records import AnyRecord, ShardChunk, StepSample, WorkerChunk
from tests.telemetry.clocks import FakeClock, fake_clock

R = TypeVar("R")
MARKS = st.lists(st.tuples(st.integers(0, len(PHASES) - 1), st.integers(0, 10**9)), max_size=30)
STEPS = st.lists(st.tuples(MARKS, st.integers(0, 1_000), st.integers(1, 5)), max_size=8)


def of_kind(records: Sequence[AnyRecord], kind: type[R]) -> list[R]:
    return [record for record in records if isinstance(record, kind)]


def spend(clock: FakeClock, meter: WorkerMeter, phase: int, nanoseconds: int) -> None:
    """Spend time on a phase, half of it on the processor."""
    clock.pass_by(nanoseconds, nanoseconds // 2)
    meter.mark(phase)


class TestPhases:
    @given(STEPS, st.integers(0, 10**9))
    def test_they_add_up_from_the_start_to_the_last_mark(self, steps: list[Any], pause: int) -> None:
        with fake_clock() as clock:
            meter = WorkerMeter(0)
            clock.pass_by(pause)
            meter.restart()
            began = clock.now
            expected = [0] * len(PHASES)
            for marks, rows, several in steps:
                for phase, nanoseconds in marks:
                    spend(clock, meter, phase, nanoseconds)
                    expected[phase] += nanoseconds
                meter.end_step(rows, several)
            totals = meter.totals()
            assert [totals[name] for name in PHASES] == expected
            assert sum(expected) == clock.now - began
            assert totals["rows"] == sum(rows for _, rows, _ in steps)
            assert totals["steps"] == sum(several for *_, several in steps)

    def test_a_pause_is_nobodys_time(self) -> None:
        with fake_clock() as clock:
            meter = WorkerMeter(0)
            report = WorkerReport(meter)
            for _ in range(3):
                clock.pass_by(10**10, 10**9)
                meter.restart()
                spend(clock, meter, COMPUTE, 1_000_000)
                meter.end_step(10)
                meter.pause()
            (chunk,) = of_kind(report.take(), WorkerChunk)
            assert chunk.seconds == pytest.approx(0.003)
            assert chunk.processor == pytest.approx(0.0015)

    def test_waiting_within_a_phase_is_moved_not_added(self) -> None:
        with fake_clock() as clock:
            meter = WorkerMeter(0)
            meter.restart()
            spend(clock, meter, PULL, 700)
            meter.move(500, PULL, WAIT)
            totals = meter.totals()
            assert [totals[name] for name in PHASES] == [0, 200, 0, 0, 500]


class TestExchanges:
    @given(st.lists(st.tuples(st.lists(st.integers(0, 10**6), min_size=5, max_size=5), st.integers(0, 10**6))))
    def test_one_call_is_five_marks(self, steps: list[tuple[list[int], int]]) -> None:
        """In totals and in samples."""
        with fake_clock() as clock:
            whole, marked = WorkerMeter(0), WorkerMeter(0)
            for meter in (whole, marked):
                meter.restart()
            for parts, held in steps:
                moments = []
                for phase, part in zip((PULL, COMPUTE, PUSH, INPUT, COMPUTE), parts, strict=True):
                    clock.pass_by(part, part // 2)
                    moments.append(whole.now())
                    marked.mark(phase)
                received, computed, pushed, read, numbered = moments
                whole.end_exchange(7, received, computed, (), pushed, read, numbered, held, ())
                marked.move(min(held, parts[0]), PULL, WAIT)
                marked.end_step(7)
            assert whole.totals() == marked.totals()
            assert whole.samples == marked.samples

    def test_what_is_marked_on_the_way(self) -> None:
        """Between computing and the end of the push there may be waiting, and computing again."""
        with fake_clock() as clock:
            meter = WorkerMeter(0)
            meter.restart()
            moments = []
            for part in (1, 20, 300, 4_000, 50_000, 600_000, 7_000_000):
                clock.pass_by(part, 0)
                moments.append(meter.now())
            received, computed, waited, applied, pushed, read, numbered = moments
            marks = ((WAIT, waited), (COMPUTE, applied))
            meter.end_exchange(7, received, computed, marks, pushed, read, numbered, 0, ())
            expected = {"input": 600_000, "pull": 1, "compute": 7_004_020, "push": 50_000, "wait": 300}
            assert {name: meter.totals()[name] for name in PHASES} == expected


class TestSamples:
    def take_all(self, num_steps: int, steps_a_loop: int = 1) -> list[StepSample]:
        """The samples of `num_steps` steps of a microsecond each; a report takes them from time to time."""
        samples: list[StepSample] = []
        with fake_clock() as clock:
            meter = WorkerMeter(3)
            report = WorkerReport(meter)
            meter.restart()
            for loop in range(1, num_steps // steps_a_loop + 1):
                clock.now += 1_000 * steps_a_loop
                meter.mark(COMPUTE)
                meter.end_step(10 * steps_a_loop, steps_a_loop)
                if loop % 100 == 0:
                    samples += of_kind(report.take(), StepSample)
            samples += of_kind(report.take(), StepSample)
        return samples

    def test_of_a_million_steps_few_are_kept_from_all_over(self) -> None:
        samples = self.take_all(1_000_000)
        assert len(samples) < 3_000
        steps = [sample.step for sample in samples]
        assert steps[:FIRST_SAMPLES] == list(range(1, FIRST_SAMPLES + 1))
        assert steps == sorted(set(steps))
        # As many of the second half as of the second half of the first half, or nearly so.
        halves = [sum(low < step <= 2 * low for step in steps) for low in (500_000, 250_000, 125_000)]
        assert all(60 < half < 260 for half in halves)
        assert all(sample.seconds == pytest.approx(1e-6) for sample in samples)

    def test_loops_of_many_steps(self) -> None:
        samples = self.take_all(1_000_000, steps_a_loop=160)
        assert FIRST_SAMPLES < len(samples) < 3_000
        assert all((sample.steps, sample.rows) == (160, 1_600) for sample in samples)
        assert all(sample.seconds == pytest.approx(160e-6) for sample in samples)

    def test_a_reader_that_never_comes_costs_no_memory(self) -> None:
        with fake_clock() as clock:
            meter = WorkerMeter(0)
            meter.restart()
            for _ in range(5_000):
                spend(clock, meter, COMPUTE, 1_000)
                meter.end_step(1)
        assert len(meter.samples) <= 256

    def test_a_sample_says_which_part_was_the_processors(self) -> None:
        with fake_clock() as clock:
            meter = WorkerMeter(0)
            meter.restart()
            for phase, nanoseconds in ((PULL, 400), (COMPUTE, 2_000), (PUSH, 600), (INPUT, 1_000)):
                spend(clock, meter, phase, nanoseconds)
            meter.end_step(7)
            (sample,) = meter.samples
        assert (sample.step, sample.steps, sample.rows) == (1, 1, 7)
        assert sample.seconds == pytest.approx(4e-6)
        assert (sample.input, sample.compute, sample.push) == pytest.approx((1e-6, 2e-6, 6e-7))
        assert sample.input_processor == pytest.approx(0.5e-6)
        assert sample.compute_processor == pytest.approx(1e-6)
        assert sample.push_processor == pytest.approx(3e-7)

    def test_replies_of_a_sampled_step(self) -> None:
        with fake_clock() as clock:
            meter = WorkerMeter(0)
            meter.restart()
            for queue in (1_000, 2_000):
                spend(clock, meter, PULL, 5_000)
                meter.got_reply(queue, 300, 400)
            meter.end_step(1, 1, [(10, 20), (30, 40)])
            first, second = meter.samples[0].replies
        assert (first.queue, first.held, first.service) == pytest.approx((1e-6, 3e-7, 4e-7))
        assert second.queue == pytest.approx(2e-6)
        assert [(r.bytes_sent, r.bytes_received) for r in (first, second)] == [(10, 20), (30, 40)]


class TestReports:
    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.tuples(STEPS, st.booleans()), max_size=6), st.integers(1, 5))
    def test_chunks_add_up_to_the_totals(self, segments: list[Any], ranks: int) -> None:
        """Whenever they are taken, in however many segments, and however many workers share the thread."""
        with fake_clock() as clock:
            meter = WorkerMeter(0, sharing=range(ranks))
            report = WorkerReport(meter)
            taken: list[AnyRecord] = []
            for steps, take in segments:
                meter.restart()
                for marks, rows, several in steps:
                    for phase, nanoseconds in marks:
                        spend(clock, meter, phase, nanoseconds)
                    meter.got_reply(3, 2, 1)
                    meter.end_step(rows, several)
                meter.pause()
                if take:
                    taken += report.take()
            taken += report.take()
            totals = meter.totals()
            chunks = of_kind(taken, WorkerChunk)
            # By a thread's rows, in which every rank has its share: no row is lost in rounding.
            assert sum(chunk.rows for chunk in chunks) == totals["rows"]
            whole = sum(totals[name] for name in PHASES) * 1e-9
            for rank in range(ranks):
                own = [chunk for chunk in chunks if chunk.rank == rank]
                assert sum(chunk.steps for chunk in own) == totals["steps"]
                assert sum(chunk.replies for chunk in own) == totals["replies"]
                assert sum(chunk.seconds for chunk in own) == pytest.approx(whole)
                assert sum(chunk.processor for chunk in own) == pytest.approx(meter.processor() / ranks)
            for name in PHASES:
                spent = sum(getattr(chunk, name) for chunk in chunks)
                # While its thread works for the others, a worker waits.
                waiting = (ranks - 1) * whole if name == "wait" else 0.0
                assert spent == pytest.approx(totals[name] * 1e-9 + waiting, abs=1e-9)

    def test_without_a_step_there_is_no_chunk_and_nothing_is_lost(self) -> None:
        with fake_clock() as clock:
            meter = WorkerMeter(0)
            report = WorkerReport(meter)
            meter.restart()
            spend(clock, meter, INPUT, 5_000)
            assert report.take() == []
            meter.end_step(1)
            (chunk,) = of_kind(report.take(), WorkerChunk)
            assert chunk.input == chunk.seconds == pytest.approx(5e-6)

    def test_bytes_are_those_since_the_last_chunk(self) -> None:
        with fake_clock() as clock:
            meter = WorkerMeter(0)
            sent = 5_000
            meter.num_bytes = lambda: (sent, 2 * sent)
            report = WorkerReport(meter)
            meter.restart()
            chunks: list[WorkerChunk] = []
            for more in (100, 0, 20):
                sent += more
                spend(clock, meter, PUSH, 1_000)
                meter.end_step(1)
                chunks += of_kind(report.take(), WorkerChunk)
        assert [(chunk.bytes_sent, chunk.bytes_received) for chunk in chunks] == [(100, 200), (0, 0), (20, 40)]

    def test_several_ranks_on_one_thread(self) -> None:
        with fake_clock() as clock:
            meter = WorkerMeter(1, sharing=[1, 4, 7])
            report = WorkerReport(meter)
            meter.restart()
            spend(clock, meter, COMPUTE, 9_000)
            meter.end_step(100, 5)
            records = report.take()
        chunks, samples = of_kind(records, WorkerChunk), of_kind(records, StepSample)
        assert [chunk.rank for chunk in chunks] == [1, 4, 7]
        assert sum(chunk.rows for chunk in chunks) == 100
        assert {chunk.steps for chunk in chunks} == {5}
        assert len({chunk.time for chunk in chunks}) == 1
        for chunk in chunks:
            assert chunk.rows in (33, 34)
            assert chunk.seconds == pytest.approx(9e-6)
            assert (chunk.compute, chunk.wait) == pytest.approx((3e-6, 6e-6))
        # One sample, for all of them.
        ((rank, rows, steps),) = [(sample.rank, sample.rows, sample.steps) for sample in samples]
        assert (rank, rows, steps) == (1, 100, 5)

    def test_processor_time_goes_along_from_thread_to_thread(self) -> None:
        """A segment may run on any thread of a pool. What other workers did there before does not count."""
        with fake_clock() as clock:
            meter = WorkerMeter(0)
            report = WorkerReport(meter)

            def segment(busy_before: int) -> None:
                clock.pass_by(busy_before, busy_before)
                meter.restart()
                spend(clock, meter, COMPUTE, 4_000)
                meter.end_step(1)
                meter.pause()

            chunks: list[WorkerChunk] = []
            for busy_before in (10**6, 10**3, 10**9, 0):
                thread = threading.Thread(target=segment, args=(busy_before,))
                thread.start()
                thread.join()
                chunks += of_kind(report.take(), WorkerChunk)
        assert [chunk.processor for chunk in chunks] == pytest.approx([2e-6] * 4)

    @given(st.lists(st.tuples(*[st.integers(0, 10**9)] * 4), max_size=10))
    def test_of_a_shard(self, counted: list[tuple[int, ...]]) -> None:
        with fake_clock() as clock:
            report = ShardReport(2)
            totals: tuple[int, ...] = (0, 0, 0, 0)
            chunks: list[ShardChunk] = []
            began = clock.now
            for more in counted:
                totals = tuple(map(sum, zip(totals, more, strict=True)))
                clock.pass_by(10**9, 10**8)
                chunks += of_kind(report.take(totals[3], *totals[:3]), ShardChunk)
                if more[0]:
                    assert sum(chunk.requests for chunk in chunks) == totals[0]
                    for name, total in zip(("queue", "service", "spun"), totals[1:], strict=True):
                        assert sum(getattr(chunk, name) for chunk in chunks) == pytest.approx(total * 1e-9)
                    assert sum(chunk.seconds for chunk in chunks) == pytest.approx((clock.now - began) * 1e-9)
                    assert sum(chunk.processor for chunk in chunks) == pytest.approx((clock.now - began) * 1e-10)
            assert all(chunk.requests > 0 for chunk in chunks)


class TestPeriods:
    @given(st.floats(0, 1e7), st.floats(0, 1e7))
    def test_they_grow_with_the_run(self, one: float, other: float) -> None:
        earlier, later = sorted((one, other))
        assert 1 <= period_at(earlier) <= period_at(later)
        assert period_at(later) <= max(1.0, later / 100)

    @given(st.floats(0, 1e6), st.integers(1, 10_000))
    def test_many_roles_report_no_more_than_some(self, seconds: float, roles: int) -> None:
        assert roles / period_at(seconds, roles) <= 33 / period_at(seconds)

    def test_a_month_has_few(self) -> None:
        at, num = 0.0, 0
        while at < 30 * 86_400:
            at += period_at(at)
            num += 1
        assert num < 2_000
