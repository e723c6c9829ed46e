"""The simulator against what can be worked out by hand: one worker, full cores, full links, the slowest of a clock."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.diagnosis.simulator import UNBOUNDED, Demand, PaceRules, Topology, simulate, spinning
from paceline.diagnosis.verdict import RESOURCES, World

STEPS = 120
SYNC, ASYNC_EMBEDDED, ASYNC = PaceRules(0, 1), PaceRules(UNBOUNDED, 1), PaceRules(UNBOUNDED, 2)
NO_LIMIT = math.inf

# From a microsecond to a tenth of a second, or nothing.
SECONDS = st.one_of(st.just(0.0), st.floats(1e-6, 0.1))
WORK = st.floats(1e-4, 0.1)
ROWS = st.integers(1, 5_000)

few = settings(derandomize=True, max_examples=15, deadline=None)


def embedded(num_workers: int, cores: float) -> Topology:
    """Workers of one process."""
    return Topology((0,) * num_workers, (), (0,), (cores,), (NO_LIMIT,), 0.0)


def cluster(num_workers: int, num_shards: int, bandwidth: float = NO_LIMIT, latency: float = 0.0) -> Topology:
    """Every role on a machine of its own; workers come first."""
    roles = num_workers + num_shards
    return Topology(
        workers=tuple(range(num_workers)), shards=tuple(range(num_workers, roles)), machines=tuple(range(roles)),
        cores=(1.0,) * roles, bandwidth=(bandwidth,) * roles, latency=latency,
    )  # fmt: skip


def demand(rows: int = 100, *, delay: float = 0.0, reading: float = 0.0, compute: float = 0.0, push: float = 0.0,
           service: tuple[float, ...] = (), sent: float = 0.0, received: float = 0.0) -> Demand:  # fmt: skip
    """A step; what a shard sends and receives is the same for all shards."""
    return Demand(delay, reading, compute, push, rows, service, (sent,) * len(service), (received,) * len(service))


def total(one: Demand) -> float:
    return one.delay + one.input + one.compute + one.push


class TestIdling:
    """Work is recorded after idling, and takes less without."""

    def test_who_never_waits_is_faster(self) -> None:
        one = demand(reading=0.001, compute=0.01, push=0.001, service=(0.001,))._replace(awake=0.5)
        assert simulate([[one]], cluster(1, 1), ASYNC, STEPS) == pytest.approx(100 / 0.006, rel=0.01)

    def test_who_waits_for_long_is_not(self) -> None:
        slow = demand(reading=0.001, compute=0.01, push=0.001, service=(0.002,))
        far = cluster(1, 1, latency=0.05)
        expected = simulate([[slow]], far, SYNC, STEPS)
        assert simulate([[slow._replace(awake=0.5, shard_awake=0.5)]], far, SYNC, STEPS) == pytest.approx(expected)
        late = slow._replace(delay=0.05)
        expected = simulate([[late]], cluster(1, 1), ASYNC, STEPS)
        assert simulate([[late._replace(awake=0.5)]], cluster(1, 1), ASYNC, STEPS) == pytest.approx(expected)

    def test_a_shard_that_always_has_work_is_faster(self) -> None:
        one = demand(compute=0.0001, service=(0.01,))._replace(shard_awake=0.5)
        assert simulate([[one]] * 4, cluster(4, 1), ASYNC, STEPS) == pytest.approx(100 / 0.005, rel=0.01)


class TestWaking:
    """A role that sleeps is woken up when a frame comes; one that spins is not asleep."""

    @pytest.mark.parametrize(("spin", "wakes"), [(0.1, 0), (0.001, 2)])
    def test_only_who_sleeps_takes_time_to_wake_up(self, spin: float, wakes: int) -> None:
        one = demand(compute=0.01, service=(0.01,))
        there = cluster(1, 1)._replace(spin=spin, wake=0.005)
        assert simulate([[one]], there, SYNC, STEPS) == pytest.approx(100 / (0.02 + wakes * 0.005), rel=0.01)

    def test_spinning_is_counted(self) -> None:
        """The worker waits while the shard serves, and the other way round."""
        one = demand(compute=0.01, service=(0.02,))
        assert spinning([[one]], cluster(1, 1)._replace(spin=0.04), SYNC, STEPS) == pytest.approx(0.03, rel=0.02)


def test_taking_turns_costs_only_roles_that_are_more_than_cores() -> None:
    one = demand(compute=0.01, service=(0.005, 0.005))._replace(turn=0.01)
    apart, free = cluster(1, 2), simulate([[one._replace(turn=0.0)]], cluster(1, 2), SYNC, STEPS)
    assert simulate([[one]], apart, SYNC, STEPS) == free
    together = Topology((0,), (0, 0), (0,), (2.0,), (NO_LIMIT,), 0.0, spin=0.0)
    assert simulate([[one]], together, SYNC, STEPS) == pytest.approx(100 / (0.01 + 0.01 + 0.005 + 0.005), rel=0.01)


class TestOneWorker:
    @few
    @given(SECONDS, SECONDS, WORK, SECONDS, ROWS, st.sampled_from([SYNC, PaceRules(3, 1), ASYNC_EMBEDDED]))
    def test_alone_its_parts_add_up(
        self, delay: float, reading: float, compute: float, push: float, rows: int, rules: PaceRules
    ) -> None:
        one = demand(rows, delay=delay, reading=reading, compute=compute, push=push)
        assert simulate([[one]], embedded(1, 1), rules, STEPS) == pytest.approx(rows / total(one), rel=1e-6)

    @few
    @given(SECONDS, SECONDS, WORK, SECONDS, SECONDS, SECONDS, st.floats(1e3, 1e6))
    def test_one_frame_in_flight_is_hidden_by_reading_alone(
        self, delay: float, reading: float, compute: float, push: float, service: float, latency: float, size: float
    ) -> None:
        bandwidth = 1e8
        one = demand(
            delay=delay, reading=reading, compute=compute, push=push, service=(service,), sent=size, received=2 * size
        )
        trip = 2 * latency + 3 * size / bandwidth + service
        expected = one.rows / (compute + push + max(delay + reading, trip))
        found = simulate([[one]], cluster(1, 1, bandwidth, latency), SYNC, STEPS)
        assert found == pytest.approx(expected, rel=1e-6)

    @few
    @given(SECONDS, WORK, st.floats(0.0, 0.99))
    def test_two_frames_in_flight_hide_a_round_trip(self, reading: float, compute: float, part: float) -> None:
        """As long as it takes no longer than a step does without it."""
        one = demand(reading=reading, compute=compute, service=(0.0,))
        topology = cluster(1, 1, latency=part * total(one) / 2)
        assert simulate([[one]], topology, ASYNC, STEPS) == pytest.approx(one.rows / total(one), rel=1e-6)
        shown = compute + max(reading, part * total(one))
        assert simulate([[one]], topology, ASYNC_EMBEDDED, STEPS) == pytest.approx(one.rows / shown, rel=1e-6)

    def test_replies_of_all_shards_are_waited_for(self) -> None:
        one = demand(compute=0.001, service=(0.001, 0.05, 0.002))
        assert simulate([[one]], cluster(1, 3), SYNC, STEPS) == pytest.approx(100 / 0.051, rel=1e-6)


class TestCores:
    @few
    @given(st.integers(1, 12), st.floats(0.5, 16), SECONDS, WORK, ROWS)
    def test_workers_scale_up_to_the_cores(
        self, workers: int, cores: float, reading: float, compute: float, rows: int
    ) -> None:
        one = demand(rows, reading=reading, compute=compute)
        found = simulate([[one]] * workers, embedded(workers, cores), ASYNC_EMBEDDED, STEPS)
        assert found == pytest.approx(min(workers, cores) * rows / total(one), rel=1e-6)

    @few
    @given(st.lists(st.integers(20, 40), min_size=2, max_size=8), st.integers(1, 6))
    def test_work_is_conserved(self, works: list[int], cores: int) -> None:
        """Rows that stand for milliseconds of work: however it is shared, a core does one second of work per second."""
        demands = [[demand(work, compute=work / 1000)] for work in works]
        found = simulate(demands, embedded(len(works), cores), ASYNC_EMBEDDED, STEPS)
        assert found == pytest.approx(1000 * min(len(works), cores), rel=0.02)

    def test_a_delay_takes_no_core(self) -> None:
        one = demand(delay=0.01)
        assert simulate([[one]] * 8, embedded(8, 1), ASYNC_EMBEDDED, STEPS) == pytest.approx(8 * 100 / 0.01, rel=1e-6)

    def test_roles_of_one_machine_share_its_cores(self) -> None:
        """A worker and a shard that never work at once, on one core and on a machine each."""
        one = demand(compute=0.03, service=(0.05,))
        apart = simulate([[one]], cluster(1, 1), SYNC, STEPS)
        together = cluster(1, 1)._replace(machines=(0, 0), cores=(1.0,))
        assert apart == pytest.approx(100 / 0.08, rel=1e-6)
        # The one that waits spins for a while, which takes the core from the other.
        assert 0.9 * apart < simulate([[one]], together, SYNC, STEPS) < apart

    def test_very_uneven_workers_add_up(self) -> None:
        """One that is done long before the others have warmed up."""
        demands = [[demand(compute=0.001)], *([[demand(compute=0.02)]] * 9)]
        expected = 100 / 0.001 + 9 * 100 / 0.02
        assert simulate(demands, embedded(10, 10), ASYNC_EMBEDDED, STEPS) == pytest.approx(expected, rel=0.02)


class TestPace:
    @few
    @given(st.lists(st.tuples(SECONDS, WORK), min_size=1, max_size=6))
    def test_sync_is_as_fast_as_the_slowest(self, parts: list[tuple[float, float]]) -> None:
        demands = [[demand(reading=reading, compute=compute)] for reading, compute in parts]
        found = simulate(demands, embedded(len(parts), len(parts)), SYNC, STEPS)
        assert found == pytest.approx(len(parts) * 100 / max(map(sum, parts)), rel=0.01)

    @few
    @given(st.integers(1, 32), st.integers(10, 60))
    def test_few_steps_of_many_workers_are_counted_right(self, workers: int, steps: int) -> None:
        one = demand(compute=0.01)
        for rules in (SYNC, ASYNC_EMBEDDED):
            found = simulate([[one]] * workers, embedded(workers, workers), rules, steps)
            assert found == pytest.approx(workers * 100 / 0.01, rel=1e-6)

    @few
    @given(
        st.lists(st.tuples(WORK, st.floats(0.0, 0.2)), min_size=2, max_size=5), st.integers(1, 8), st.integers(0, 99)
    )
    def test_pace_n_lies_between_sync_and_async(self, works: list[tuple[float, float]], clocks: int, seed: int) -> None:
        """Of workers that are as different as they like, and whose own steps vary by up to a fifth."""
        demands = [[demand(compute=work * (1 + by)), demand(compute=work * (1 - by))] for work, by in works]
        topology = embedded(len(works), len(works))
        sync, between, free = (
            simulate(demands, topology, rules, 300, seed) for rules in (SYNC, PaceRules(clocks, 1), ASYNC_EMBEDDED)
        )
        # Each draws other steps, some of which are many times longer than others.
        assert sync <= 1.3 * between
        assert between <= 1.3 * free

    @pytest.mark.parametrize("num_shards", [0, 1])
    def test_in_sync_every_clock_has_its_slowest(self, num_shards: int) -> None:
        """Steps of 1 or 3 ms, as a coin falls: of four workers one takes 3 ms in 15 of 16 clocks."""
        steps = [demand(compute=work, service=(1e-7,) * num_shards) for work in (0.001, 0.003)]
        topology = cluster(4, 1) if num_shards else embedded(4, 4)
        sync, ahead = (simulate([steps] * 4, topology, rules, 600) for rules in (SYNC, PaceRules(1, 1)))
        assert sync == pytest.approx(4 * 100 / (0.003 - 0.002 / 16), rel=0.02)
        assert ahead > 1.05 * sync

    def test_running_ahead_evens_out_what_varies(self) -> None:
        """Each worker is slow now and then, none is on the whole: in sync every clock has a slow one."""
        works = [demand(compute=0.001)] * 9 + [demand(compute=0.011)]
        sync, ahead, free = (
            simulate([works] * 8, embedded(8, 8), rules, 300) for rules in (SYNC, PaceRules(8, 1), ASYNC_EMBEDDED)
        )
        assert ahead > 1.3 * sync
        assert free == pytest.approx(8 * 100 / 0.002, rel=0.1)

    @pytest.mark.parametrize("rules", [SYNC, PaceRules(4, 1)])
    def test_a_cluster_in_step_is_held_back_by_its_slowest(self, rules: PaceRules) -> None:
        demands = [[demand(compute=work, service=(1e-5,))] for work in (0.001, 0.002, 0.01)]
        found = simulate(demands, cluster(3, 1), rules, STEPS)
        assert found == pytest.approx(3 * 100 / 0.01, rel=0.03)


class TestShards:
    @few
    @given(st.integers(1, 6), st.integers(1, 3), st.floats(1e-4, 0.05), SECONDS, ROWS)
    def test_a_shard_serves_no_more_than_it_can(
        self, workers: int, shards: int, service: float, compute: float, rows: int
    ) -> None:
        one = demand(rows, compute=compute, service=(service,) * shards)
        found = simulate([[one]] * workers, cluster(workers, shards), ASYNC, STEPS)
        assert found <= 1.01 * rows / service
        if workers > 1 and compute < service / 2:
            assert found == pytest.approx(rows / service, rel=0.01)

    @few
    @given(st.integers(2, 6), st.floats(1e4, 1e7), st.floats(1e6, 1e10))
    def test_a_link_carries_no_more_than_it_can(self, workers: int, size: float, bandwidth: float) -> None:
        """All replies leave by the shard's link."""
        one = demand(compute=size / bandwidth / 10, service=(0.0,), sent=size / 10, received=size)
        found = simulate([[one]] * workers, cluster(workers, 1, bandwidth), ASYNC, STEPS)
        assert found == pytest.approx(100 * bandwidth / size, rel=0.02)

    def test_links_carry_both_ways_at_once(self) -> None:
        one = demand(service=(0.0,), sent=1e6, received=1e6)
        assert simulate([[one]] * 3, cluster(3, 1, 1e8), ASYNC, STEPS) == pytest.approx(100 * 1e8 / 1e6, rel=0.02)

    @pytest.mark.parametrize("ways", ["there", "back"])
    def test_a_fast_link_serves_several_slow_ones(self, ways: str) -> None:
        sent, received = (1e6, 0.0) if ways == "there" else (0.0, 1e6)
        one = demand(service=(0.0,), sent=sent, received=received)
        topology = cluster(4, 1)._replace(bandwidth=(1e8, 1e8, 1e8, 1e8, 3e8))
        assert simulate([[one]] * 4, topology, ASYNC, STEPS) == pytest.approx(100 * 3e8 / 1e6, rel=0.02)
        topology = topology._replace(bandwidth=(1e8, 1e8, 1e8, 1e8, 8e8))
        assert simulate([[one]] * 4, topology, ASYNC, STEPS) == pytest.approx(100 * 4e8 / 1e6, rel=0.02)

    def test_a_frame_that_waits_to_leave_holds_up_nobody_elsewhere(self) -> None:
        """One worker's link is full; the other sends next to nothing, and is as fast as it would be alone."""
        big, small = (demand(compute=0.01, service=(0.0, 0.0), sent=sent) for sent in (10_000.0, 1.0))
        found = simulate([[big], [small]], cluster(2, 2, 1e6), ASYNC, STEPS)
        assert found == pytest.approx(100 / 0.02 + 100 / 0.01, rel=0.01)

    def test_shards_share_what_one_would_carry(self) -> None:
        whole = demand(service=(0.004,), sent=4e5, received=4e5)
        half = demand(service=(0.002, 0.002), sent=2e5, received=2e5)
        one = simulate([[whole]] * 4, cluster(4, 1, 1e8), ASYNC, STEPS)
        two = simulate([[half]] * 4, cluster(4, 2, 1e8), ASYNC, STEPS)
        assert two == pytest.approx(2 * one, rel=0.03)

    def test_on_one_node_nothing_travels(self) -> None:
        one = demand(compute=0.001, service=(0.0,), sent=1e9, received=1e9)
        topology = Topology((0,), (0,), (0,), (2.0,), (1e6,), 1.0)
        assert simulate([[one]], topology, SYNC, STEPS) == pytest.approx(100 / 0.001, rel=1e-6)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """A cluster of equal workers. Unequal ones may be slower if there are more: their frames come in another order."""
    workers, shards = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    one = demand(
        delay=draw(SECONDS), reading=draw(SECONDS), compute=draw(WORK), push=draw(SECONDS),
        service=tuple(draw(SECONDS) for _ in range(shards)), sent=draw(st.floats(0, 1e6)),
        received=draw(st.floats(0, 1e6)),
    )  # fmt: skip
    topology = cluster(workers, shards, draw(st.floats(1e6, 1e9)), draw(st.floats(0, 0.01)))
    return World([[one]] * workers, topology, draw(st.sampled_from([SYNC, PaceRules(2, 1), ASYNC])))


class TestMoreIsNeverLess:
    @few
    @given(worlds(), st.sampled_from(sorted(RESOURCES)), st.sampled_from([2.0, math.inf]))
    def test_of_any_resource(self, world: World, resource: str, times: float) -> None:
        changed = RESOURCES[resource](world, times)
        before, after = (simulate(w.demands, w.topology, w.rules, STEPS) for w in (world, changed))
        assert after >= 0.95 * before

    @few
    @given(worlds())
    def test_of_cores(self, world: World) -> None:
        topology = world.topology
        crowded = topology._replace(machines=(0,) * len(topology.machines), cores=(1.0,))
        roomy = crowded._replace(cores=(2.0,))
        before, after = (simulate(world.demands, l, world.rules, STEPS) for l in (crowded, roomy))  # noqa: E741
        assert after >= 0.95 * before


class TestChance:
    def steps(self) -> list[list[Demand]]:
        chance = random.Random(1)
        return [
            [demand(compute=chance.uniform(0.001, 0.01), service=(0.001,)) for _ in range(50)] for _ in range(3)
        ]  # fmt: skip

    @pytest.mark.parametrize("rules", [SYNC, PaceRules(2, 1), ASYNC])
    def test_a_seed_decides_all(self, rules: PaceRules) -> None:
        found = [simulate(self.steps(), cluster(3, 1), rules, STEPS, seed) for seed in (7, 7, 8)]
        assert found[0] == found[1] != found[2]

    def test_seeds_agree_on_the_whole(self) -> None:
        found = [simulate(self.steps(), cluster(3, 1), ASYNC, 300, seed) for seed in range(10)]
        assert max(found) < 1.1 * min(found)


def test_long_steps_end() -> None:
    """Hours of simulated time, at which a clock of doubles is coarser than the smallest piece of work."""
    steps = [demand(compute=seconds) for seconds in (70.1, 93.7, 111.3)]
    found = simulate([steps] * 3, embedded(3, 1.0), ASYNC_EMBEDDED, 300)
    assert found == pytest.approx(100 / 91.7, rel=0.05)
