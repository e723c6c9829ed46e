"""Where does a worker's time go? A stopwatch that is cheap enough to run in every step.

Totals only grow. A report takes the difference from its last one, so that nothing is counted twice or lost. A sample of
single steps is kept: all of the first ones, then fewer and fewer, so that a long run takes little room.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from paceline.telemetry.records import AnyRecord, Reply, ShardChunk, StepSample, WorkerChunk

INPUT, PULL, COMPUTE, PUSH, WAIT = range(5)
PHASES = ("input", "pull", "compute", "push", "wait")
# The totals that are counted in nanoseconds; processor time is in seconds.
NANOSECONDS = {*PHASES, "queue", "held", "service", "spun"}
NANO = 1e-9
_now = time.perf_counter_ns

FIRST_SAMPLES = 64
SAMPLES_PER_STRIDE = 128
MOST_SAMPLES_AT_ONCE = 256

PERIOD_SECONDS = 1.0
CHUNKS_AT_FULL_RATE = 120
ROLES_AT_FULL_RATE = 32


def period_at(seconds: float, roles: int = 1) -> float:
    """How long a chunk is after `seconds` of training. Chunks grow with the run, and their number with its logarithm.
    More roles than `ROLES_AT_FULL_RATE` report no more in total than that many would.

    >>> period_at(10), period_at(3600), period_at(3600, roles=96)
    (1.0, 30.0, 90.0)
    """
    return max(PERIOD_SECONDS, seconds / CHUNKS_AT_FULL_RATE) * max(1.0, roles / ROLES_AT_FULL_RATE)


def _growth(before: dict[str, float], now: dict[str, float]) -> dict[str, Any]:
    """By how much totals have grown, with nanoseconds as seconds."""
    return {name: (total - before[name]) * (NANO if name in NANOSECONDS else 1) for name, total in now.items()}


class WorkerMeter:
    """One worker's stopwatch. One thread marks; any may read the totals."""

    def __init__(self, rank: int, sharing: Sequence[int] = ()) -> None:
        """`sharing` are the ranks of all workers that take turns on this thread, if there are several."""
        self.rank = rank
        self.sharing = tuple(sharing) or (rank,)
        self.steps = self.rows = self.replies = 0
        self.queue = self.held = self.service = 0
        # Bytes sent to shards and received so far; called when a chunk is made.
        self.num_bytes: Callable[[], tuple[int, int]] = lambda: (0, 0)
        # And nanoseconds of processor time spent on spinning for their replies.
        self.spun: Callable[[], int] = lambda: 0
        # Seconds that computing a step takes at best, while all cores are busy, and with a single row (reading it
        # included); 0 if not measured.
        self.compute_at_best = (0.0, 0.0, 0.0)
        self.phases = [0] * len(PHASES)
        self.samples: deque[StepSample] = deque(maxlen=MOST_SAMPLES_AT_ONCE)
        # Processor time before this segment, the segment's thread (0 for none), and that thread's time when it began.
        self._segment = (0.0, 0, 0.0)
        self._last = time.perf_counter_ns()
        self.sampling = False
        self._next_sample = 1
        self._num_samples = 0
        self._began: tuple[int, ...] = ()
        self._processor = [0] * len(PHASES)
        self._last_processor = 0
        # The processor's clock at each call of `now`, while a step is sampled.
        self._processor_at: deque[int] = deque()
        # The time, for `mark_at` only.
        self.now: Callable[[], int] = _now
        self._parts: list[tuple[int, int, int]] = []

    def restart(self) -> None:
        """Training continues now, on this thread: the time until here was a pause."""
        thread = threading.get_ident()
        if self._segment[1] == thread:
            self.pause()
        self._segment = (self._segment[0], thread, _processor_of(thread))
        self._last = time.perf_counter_ns()
        self._begin_step()

    def pause(self) -> None:
        """Training stops, and may continue on another thread."""
        self._segment = (self.processor(), 0, 0.0)

    def processor(self) -> float:
        """Processor time of this worker so far, in seconds; from any thread, while its own is alive."""
        before, thread, began = self._segment
        return before + (_processor_of(thread) - began if thread else 0.0)

    def mark(self, phase: int) -> None:
        """All time since the last mark was spent on this."""
        self.mark_at(phase, self.now())

    def mark_at(self, phase: int, now: int) -> None:
        """The same, up to a moment that `now` returned. Every such moment must be marked, in order."""
        self.phases[phase] += now - self._last
        self._last = now
        if self.sampling:
            processor = self._processor_at.popleft()
            self._processor[phase] += processor - self._last_processor
            self._last_processor = processor

    def _sampled_now(self) -> int:
        now = _now()
        self._processor_at.append(time.thread_time_ns())
        return now

    def got_reply(self, queue: int, held: int, service: int) -> None:
        """A shard has answered, with the nanoseconds that it reports."""
        self.replies += 1
        self.queue += queue
        self.held += held
        self.service += service
        if self.sampling:
            self._parts.append((queue, held, service))

    def move(self, nanoseconds: int, marked: int, phase: int) -> None:
        """This much of the time that was marked as one phase belongs to another."""
        self.phases[marked] -= nanoseconds
        self.phases[phase] += nanoseconds

    def end_step(self, rows: int, steps: int = 1, sizes: Sequence[tuple[int, int]] = ()) -> None:
        """A step is done, or several that one compiled loop ran. `sizes` are the bytes that a sampled step sent to each
        shard and received.
        """
        self.steps += steps
        self.rows += rows
        if self.sampling:
            self._keep_sample(rows, steps, sizes)
        if self.sampling or self.steps + 1 >= self._next_sample:
            self._begin_step()

    def end_exchange(self, rows: int, received: int, computed: int, marks: Sequence[tuple[int, int]], pushed: int,
                     read: int, numbered: int, waited: int, sizes: Sequence[tuple[int, int]]) -> None:  # fmt: skip
        """A step of a worker of a cluster is done: when which part of it was, and for how long the gate was closed.

        `marks` are the phases between computing and the end of the push, if there was more than pushing. All in one
        call, because the smallest steps take less than a tenth of a millisecond.
        """
        phases, pulled = self.phases, received - self._last
        if self.sampling or marks:
            self.mark_at(PULL, received)
            self.mark_at(COMPUTE, computed)
            for phase, now in (*marks, (PUSH, pushed), (INPUT, read), (COMPUTE, numbered)):
                self.mark_at(phase, now)
        else:
            phases[PULL] += pulled
            phases[COMPUTE] += computed - received + numbered - read
            phases[PUSH] += pushed - computed
            phases[INPUT] += read - pushed
            self._last = numbered
        if waited:
            self.move(min(waited, pulled), PULL, WAIT)
        self.end_step(rows, 1, sizes)

    def totals(self) -> dict[str, float]:
        """All that was counted so far, under the names that a chunk has for it."""
        sent, received = self.num_bytes()
        return {
            **dict(zip(PHASES, self.phases, strict=True)),
            **{name: getattr(self, name) for name in ("steps", "rows", "replies", "queue", "held", "service")},
            "bytes_sent": sent,
            "bytes_received": received,
            "spun": self.spun(),
            "processor": self.processor(),
        }

    def _begin_step(self) -> None:
        self.sampling = self.steps + 1 >= self._next_sample
        self.now = self._sampled_now if self.sampling else _now
        if self.sampling:
            self._processor_at.clear()
            self._began = tuple(self.phases)
            self._processor = [0] * len(PHASES)
            self._last_processor = time.thread_time_ns()
            self._parts = []

    def _keep_sample(self, rows: int, steps: int, sizes: Sequence[tuple[int, int]]) -> None:
        self._num_samples += 1
        doublings = max(0, self._num_samples - FIRST_SAMPLES) // SAMPLES_PER_STRIDE
        self._next_sample = self.steps + (1 << doublings)
        totals = zip(PHASES, self.phases, self._began, strict=True)
        spent: dict[str, Any] = {name: (now - then) * NANO for name, now, then in totals}
        self.samples.append(
            StepSample(
                time=self._last * NANO,
                rank=self.rank,
                step=self.steps,
                steps=steps,
                seconds=sum(spent.values()),
                rows=rows,
                **spent,
                input_processor=self._processor[INPUT] * NANO,
                compute_processor=self._processor[COMPUTE] * NANO,
                push_processor=self._processor[PUSH] * NANO,
                replies=[
                    Reply(queue * NANO, held * NANO, service * NANO, *size)
                    for (queue, held, service), size in zip(self._parts, sizes, strict=False)
                ],
            )
        )


class WorkerReport:
    """Turns what a worker's meter has counted since the last call into records."""

    def __init__(self, meter: WorkerMeter) -> None:
        self._meter = meter
        self._before = meter.totals()

    def take(self) -> list[AnyRecord]:
        """A chunk, if there was a step, and the sampled steps."""
        meter, before, now = self._meter, self._before, self._meter.totals()
        samples: list[AnyRecord] = [meter.samples.popleft() for _ in range(len(meter.samples))]
        if now["steps"] == before["steps"]:
            return samples
        self._before = now
        grown = _growth(before, now)
        seconds, num, rows = sum(grown[name] for name in PHASES), len(meter.sharing), grown["rows"]
        own = {name: grown[name] / num for name in PHASES}
        # While its thread works for others, a worker waits.
        own["wait"] += seconds - sum(own.values())
        grown |= own | {"time": time.perf_counter(), "seconds": seconds, "processor": grown["processor"] / num}
        grown["compute_alone"], grown["compute_in_company"], grown["one_row"] = meter.compute_at_best
        chunks = [
            WorkerChunk(rank=rank, **grown | {"rows": rows * (place + 1) // num - rows * place // num})
            for place, rank in enumerate(meter.sharing)
        ]
        return [*chunks, *samples]


class ShardReport:
    """Turns what a shard has counted since the last call into records. Create it on the shard's thread."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._thread = threading.get_ident()
        self._before = self._totals(0, 0, 0, 0)

    def take(self, spun: int, requests: int, queue: int, service: int) -> list[AnyRecord]:
        """A chunk, if there were requests. The arguments are totals of the whole run, with times in nanoseconds."""
        before, now = self._before, self._totals(spun, requests, queue, service)
        if requests == before["requests"]:
            return []
        self._before = now
        return [ShardChunk(time=now["seconds"], rank=self._rank, **_growth(before, now))]

    def _totals(self, spun: int, requests: int, queue: int, service: int) -> dict[str, float]:
        processor = _processor_of(self._thread)
        return {"seconds": time.perf_counter(), "processor": processor, "spun": spun, "requests": requests,
                "queue": queue, "service": service}  # fmt: skip


def _processor_of(thread: int) -> float:
    """Processor time of a live thread of this process, if the system knows it."""
    clock = getattr(time, "pthread_getcpuclockid", None)
    return time.clock_gettime(clock(thread)) if clock else 0.0
