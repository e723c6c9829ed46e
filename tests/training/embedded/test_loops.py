"""A thread trains on every row that it draws, once, waits where the gate is shut, and accounts for all of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data.rows import NO_LIMIT, ClockRows, Clocks, Piece, QueueRows
from paceline.errors import DivergedError
from paceline.kernels.gate import GONE, LINE, WAITED
from paceline.settings import OptimizerConfig, RunConfig
from paceline.telemetry.meter import PHASES
from paceline.training.embedded.loops import Drawn, StepLoop, draw_clocks, draw_pieces
from paceline.training.pace import BrokenGateError, Gate
from tests.telemetry.clocks import FakeClock, fake_clock

START = {"position": 0, "clock": 0, "last": NO_LIMIT, "last_clock": NO_LIMIT}


def config_of(batch_size: int = 1, **optimizer: Any) -> RunConfig:
    return RunConfig(data="x", batch_size=batch_size, optimizer=OptimizerConfig(name="sgd", **optimizer))


class TestDrawing:
    @given(
        rows=st.integers(1, 3_000), batch=st.integers(1, 70), until=st.integers(1, 5_000), most=st.integers(1, 9),
        decay_rows=st.sampled_from([0, 1, 50, 5_000]), power=st.sampled_from([0.5, 1.0]),
    )  # fmt: skip
    @settings(max_examples=80, deadline=None)
    def test_pieces_have_each_row_once_in_whole_batches(
        self, rows: int, batch: int, until: int, most: int, decay_rows: int, power: float
    ) -> None:
        config = config_of(batch, learning_rate=1.0, decay_rows=decay_rows, decay_power=power)
        feed = QueueRows(rows, 2, batch, **START)
        feed.open(until)
        drawn = list(draw_pieces(feed, 1, most, config))
        rate_after = config.optimizer.rate_after
        position = 0
        for work, num_rows, num_clocks, trained in drawn:
            assert work.start == trained == position
            assert num_rows == work.stop - work.start > 0
            assert num_clocks == -(-num_rows // batch)
            # Batches end at the end of an epoch, and nowhere else before their time.
            assert num_rows % batch == 0 or work.stop % rows == 0
            assert num_clocks == 1 or rate_after(work.stop) > 0.99 * rate_after(work.start)
            position = work.stop
        assert until <= position < until + batch
        assert feed.take(1, 1) is None

    @given(
        rows=st.integers(1, 300), workers=st.integers(1, 5), batch=st.integers(1, 20), until=st.integers(1, 700),
        most=st.integers(1, 9), data=st.data(),
    )  # fmt: skip
    @settings(max_examples=80, deadline=None)
    def test_clocks_of_all_threads_have_each_row_once(
        self, rows: int, workers: int, batch: int, until: int, most: int, data: st.DataObject
    ) -> None:
        feed = ClockRows(rows, workers, batch, **START)
        feed.open(until)
        threads = data.draw(st.integers(1, workers))
        positions: list[int] = []
        num_clocks = []
        for thread in range(threads):
            ranks = list(range(workers * thread // threads, workers * (thread + 1) // threads))
            drawn = list(draw_clocks(feed, ranks, most))
            for work, num_rows, clocks, trained in drawn:
                found = [i for clock in range(clocks) for rank in ranks for i in range(*work.slice(clock, rank))]
                assert num_rows == len(found)
                assert 1 <= clocks == work.num_clocks <= most
                assert trained == work.start
                positions += found
            num_clocks.append(sum(one.num_clocks for one in drawn))
        assert sorted(positions) == list(range(feed.position))
        assert feed.position >= until
        assert num_clocks == [feed.clock] * threads


class FakeSteps:
    """Steps that take time on a fake clock. A piece of work is given as the losses of its calls."""

    most = 1

    def __init__(self, clock: FakeClock, waits: Any) -> None:
        self.clock = clock
        self.waits = waits
        self.read_so_far: list[list[float]] = []
        self.waits_within = 0

    def warm_up(self) -> None:
        raise AssertionError("a loop does not warm up")

    def read(self, work: list[float]) -> None:
        self.clock.pass_by(100)
        self.read_so_far.append(list(work))
        self.left = list(work)

    def advance(self) -> tuple[bool, float]:
        self.clock.pass_by(10 + self.waits_within)
        self.waits[WAITED] += self.waits_within
        losses = self.left.pop(0)
        return not self.left, losses


class FakeGate(Gate):
    """A gate whose checks take time on a fake clock."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(4, 0, 1)
        self.clock = clock
        self.num_checks = 0
        self.breaks_after = NO_LIMIT
        self.enter(3)

    def check(self) -> None:
        self.clock.pass_by(1_000)
        self.num_checks += 1
        if self.num_checks > self.breaks_after:
            raise BrokenGateError


class Running:
    """A loop over pieces of work of 10 rows each."""

    def __init__(self, clock: FakeClock, works: list[list[float]], ranks: list[int]) -> None:
        self.waits = np.zeros(LINE, np.int64)
        self.steps = FakeSteps(clock, self.waits)
        self.gate = FakeGate(clock)
        self.works = works
        settings = OptimizerConfig(name="sgd", learning_rate=0.5, decay_rows=10, decay_power=1.0)
        feed = QueueRows(100, 4, 1, **START)
        self.loop = StepLoop(
            ranks, feed, self.draw, self.steps, self.gate, self.waits, settings, partial(self.gate.leave, ranks)
        )

    def draw(self) -> Iterator[Drawn[list[float]]]:
        for number, work in enumerate(self.works):
            yield Drawn(work, 10, 2, 10 * number)

    def phases(self) -> dict[str, int]:
        return dict(zip(PHASES, self.loop.meter.phases, strict=True))


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    with fake_clock() as clock:
        yield clock


class TestLoop:
    def test_it_trains_on_each_piece_until_that_is_done(self, clock: FakeClock) -> None:
        works = [[1.0], [0.5, 0.25, 0.125], [2.0, 4.0]]
        running = Running(clock, works, [1])
        running.loop.run()
        assert running.steps.read_so_far == works
        assert (running.loop.losses, running.loop.rows) == (7.875, 30)
        assert (running.loop.meter.rows, running.loop.meter.steps) == (30, 6)
        # One check for each call that came back because the gate was shut, none after the last.
        assert running.gate.num_checks == 3
        assert running.phases() == {"input": 300, "pull": 0, "compute": 60, "push": 0, "wait": 3_000}

    def test_waiting_inside_of_a_call_is_waiting(self, clock: FakeClock) -> None:
        running = Running(clock, [[1.0, 1.0], [1.0]], [0])
        running.steps.waits_within = 7
        running.loop.run()
        assert running.phases() == {"input": 200, "pull": 0, "compute": 30, "push": 0, "wait": 1_000 + 3 * 7}

    @pytest.mark.parametrize("works", [[], [[1.0]]])
    def test_at_the_end_nobody_waits_for_its_workers(self, clock: FakeClock, works: list[list[float]]) -> None:
        running = Running(clock, works, [1, 3])
        running.loop.run()
        assert running.gate.clocks[:, 0].tolist() == [3, GONE, 3, GONE]

    def test_a_gate_that_breaks_ends_it(self, clock: FakeClock) -> None:
        running = Running(clock, [[1.0] * 50, [1.0]], [0])
        running.gate.breaks_after = 4
        with pytest.raises(BrokenGateError):
            running.loop.run()
        assert len(running.steps.left) == 45
        assert running.loop.rows == 0

    @pytest.mark.parametrize("loss", [float("nan"), float("inf")])
    def test_losses_that_are_no_numbers_end_it_and_say_where(self, clock: FakeClock, loss: float) -> None:
        running = Running(clock, [[1.0], [1.0, loss], [1.0]], [2, 3])
        with pytest.raises(DivergedError, match=r"worker 2, .* the rows from 10 on, learning rate 0\.25") as caught:
            running.loop.run()
        assert "--learning-rate 0.025" in caught.value.hint
        assert len(running.steps.read_so_far) == 2


def test_two_threads_share_a_queue_and_train_on_every_row_once() -> None:
    rows, workers = 400, 2
    feed, gate = QueueRows(rows, workers, 1, **START), Gate(workers, 0, workers)
    feed.open(rows)
    gate.enter(0)
    seen = np.zeros(rows, int)

    class Counting:
        most = 3

        def warm_up(self) -> None:
            pass

        def read(self, work: Piece) -> None:
            self.positions = np.arange(*work)

        def advance(self) -> tuple[bool, float]:
            seen[self.positions] += 1
            return True, float(len(self.positions))

    loops = []
    for rank in range(workers):
        draw, steps = partial(draw_pieces, feed, rank, 3, config_of()), Counting()
        leave = partial(gate.leave, [rank])
        loops.append(StepLoop([rank], feed, draw, steps, gate, gate.leads[rank], OptimizerConfig(), leave))
    threads = [threading.Thread(target=loop.run) for loop in loops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen.tolist() == [1] * rows
    assert sum(loop.rows for loop in loops) == sum(loop.losses for loop in loops) == rows
    assert (gate.clocks[:, 0] == GONE).all()


def test_a_loop_draws_clocks_as_well_as_pieces(clock: FakeClock) -> None:
    feed = ClockRows(10, 2, 3, **START)
    feed.open(10)
    taken: list[Clocks] = []

    class Keeping(FakeSteps):
        def read(self, work: Any) -> None:
            taken.append(work)
            self.left = [float(work.stop - work.start)]

    running = Running(clock, [], [0, 1])
    loop = StepLoop(
        [0, 1], feed, lambda: draw_clocks(feed, [0, 1], 1), Keeping(clock, running.waits), running.gate, running.waits,
        OptimizerConfig(), lambda: None,
    )  # fmt: skip
    loop.run()
    assert [(work.start, work.stop) for work in taken] == [(0, 6), (6, 10)]
    assert (loop.rows, loop.losses, loop.meter.steps) == (10, 10.0, 2)
