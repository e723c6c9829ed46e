"""Where the time of a GPU goes: with a made-up GPU whose every moment is known, and with this machine's clock."""

from __future__ import annotations

import time
from typing import Any

import pytest

from paceline.telemetry.records import GpuChunk
from paceline.torch.model import torch
from paceline.torch.sparse.clock import EventClock, WallClock, make_clock


class Gpu:
    """A GPU and this machine, whose time only passes when a test says so. `now` is this machine's time."""

    def __init__(self) -> None:
        self.now = 0.0
        # Until when the current stream is busy.
        self.busy = {"train": 0.0, "copy": 0.0}
        self.stream = "train"

    def host(self, seconds: float) -> None:
        self.now += seconds

    def work(self, seconds: float) -> None:
        """Hand over something that takes this long."""
        self.busy[self.stream] = max(self.busy[self.stream], self.now) + seconds

    def wait(self, stream: str = "train") -> None:
        """Wait here until a stream is done."""
        self.now = max(self.now, self.busy[stream])


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.at = float("inf")

    def record(self) -> None:
        self.at = max(self.gpu.now, self.gpu.busy[self.gpu.stream])

    def query(self) -> bool:
        return self.at <= self.gpu.now

    def synchronize(self) -> None:
        self.gpu.now = max(self.gpu.now, self.at)

    def elapsed_time(self, other: Event) -> float:
        assert self.query(), "nothing waits for an event"
        assert other.query(), "nothing waits for an event"
        return (other.at - self.at) * 1e3


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    found = Gpu()
    monkeypatch.setattr("paceline.torch.sparse.clock.time.perf_counter", lambda: found.now)
    return found


def piece(gpu: Gpu, clock: EventClock, parts: list[tuple[float, float]]) -> None:
    """Prepare and hand over launches on ten rows each, given by the seconds that this machine and the GPU take."""
    clock.begin()
    for here, there in parts:
        gpu.host(here)
        gpu.work(there)
        clock.launched(10)
    clock.end()


def only(found: list[GpuChunk]) -> GpuChunk:
    (chunk,) = found
    assert chunk.seconds == pytest.approx(chunk.kernels + chunk.input + chunk.bus)
    return chunk


class TestEvents:
    def test_a_busy_gpu_waits_only_for_the_first_launch(self, gpu: Gpu) -> None:
        clock = EventClock(lambda: Event(gpu))
        piece(gpu, clock, [(1.0, 5.0), (1.0, 5.0), (1.0, 5.0)])
        clock.pause()
        assert clock.take() == []  # It has not happened yet, and nothing waits for it.
        gpu.wait()
        chunk = only(clock.take())
        assert (chunk.kernels, chunk.input, chunk.seconds) == pytest.approx((15.0, 1.0, 16.0))
        assert (chunk.rows, chunk.launches) == (30, 3)
        assert clock.take() == []

    def test_a_slow_host_lets_it_wait_between_launches(self, gpu: Gpu) -> None:
        clock = EventClock(lambda: Event(gpu))
        piece(gpu, clock, [(3.0, 1.0), (3.0, 1.0)])
        clock.pause()
        gpu.wait()
        chunk = only(clock.take())
        assert (chunk.kernels, chunk.input) == pytest.approx((2.0, 5.0))

    def test_a_host_that_runs_ahead_lets_it_wait_for_nothing(self, gpu: Gpu) -> None:
        clock = EventClock(lambda: Event(gpu))
        for _ in range(5):
            piece(gpu, clock, [(0.0, 4.0), (1.0, 4.0)])
        gpu.wait()
        chunk = only(clock.take())
        assert (chunk.kernels, chunk.input, chunk.launches) == pytest.approx((40.0, 0.0, 10))

    def test_time_between_pieces_counts_as_waiting(self, gpu: Gpu) -> None:
        clock = EventClock(lambda: Event(gpu))
        piece(gpu, clock, [(0.0, 4.0)])
        gpu.wait()
        gpu.host(2.0)
        piece(gpu, clock, [(0.0, 4.0)])
        gpu.wait()
        both = only(clock.take())
        assert (both.kernels, both.input, both.rows) == pytest.approx((8.0, 2.0, 20))
        clock.pause()
        # An evaluation does not.
        gpu.host(100.0)
        piece(gpu, clock, [(1.0, 4.0)])
        gpu.wait()
        last = only(clock.take())
        assert (last.kernels, last.input) == pytest.approx((4.0, 1.0))

    @pytest.mark.parametrize("host", [0.0, 2.0, 9.0, 11.0])
    def test_waiting_for_a_copy_is_waiting_for_the_bus(self, gpu: Gpu, host: float) -> None:
        """Until the copy is there; what comes later is this machine's."""
        clock = EventClock(lambda: Event(gpu))
        piece(gpu, clock, [(0.0, 4.0)])
        gpu.stream = "copy"
        with clock.copying(1_000) as copy:
            gpu.work(9.0)
        gpu.stream = "train"
        clock.awaits(copy)
        gpu.busy["train"] = gpu.busy["copy"]
        piece(gpu, clock, [(host, 4.0), (0.0, 3.0)])
        gpu.wait()
        chunk = only(clock.take())
        assert (chunk.kernels, chunk.bus, chunk.input) == pytest.approx((11.0, 5.0, max(0.0, host - 9.0)))
        assert (chunk.copies, chunk.copied_bytes) == pytest.approx((9.0, 1_000))

    def test_a_copy_behind_kernels_is_not_waited_for(self, gpu: Gpu) -> None:
        clock = EventClock(lambda: Event(gpu))
        gpu.stream = "copy"
        with clock.copying(1_000) as copy:
            gpu.work(1.0)
        gpu.stream = "train"
        piece(gpu, clock, [(0.0, 4.0)])
        clock.awaits(copy)
        gpu.wait()
        gpu.host(1.0)
        piece(gpu, clock, [(0.0, 4.0)])
        gpu.wait()
        chunk = only(clock.take())
        assert (chunk.kernels, chunk.bus, chunk.input, chunk.copies) == pytest.approx((8.0, 0.0, 1.0, 1.0))

    def test_nothing_is_lost_in_a_long_run_and_events_do_not_pile_up(self, gpu: Gpu) -> None:
        """Also if nobody asks for a long time."""
        clock = EventClock(lambda: Event(gpu))
        for _ in range(100):
            piece(gpu, clock, [(0.1, 1.0), (0.1, 1.0)])
            assert len(clock._parts) <= 4
            gpu.wait()
        chunk = only(clock.take())
        assert (chunk.rows, chunk.kernels, chunk.input) == pytest.approx((2000, 200.0, 10.0))


class TestWallClock:
    def test_everything_happens_at_once(self) -> None:
        clock: Any = make_clock(torch.device("cpu"))
        assert isinstance(clock, WallClock)
        for _ in range(2):
            with clock.copying(500) as copy:
                time.sleep(0.002)
            clock.awaits(copy)
            time.sleep(0.003)
            clock.begin()
            time.sleep(0.005)
            clock.launched(7)
            clock.end()
        clock.pause()
        chunk = only(clock.take())
        assert (chunk.rows, chunk.launches, chunk.copied_bytes) == (14, 2, 1_000)
        assert chunk.kernels >= 0.01
        # Only the second piece follows another one.
        assert 0.002 <= chunk.bus <= chunk.copies / 1.5
        assert chunk.input >= 0.003
        assert clock.take() == []
