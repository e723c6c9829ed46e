"""What limited a run? Its replay with one resource after the other made faster.

The resource whose removal would gain most is the bottleneck. Where the replay itself is far from what was measured, the
verdict is `inconclusive`.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from paceline.diagnosis.evidence import Evidence
from paceline.diagnosis.simulator import Demand, Layout, Rules, simulate

LARGEST_REPLAY_ERROR = 0.15
# Of each worker; but all together no more than `STEPS_TOGETHER`, so that large clusters take no longer than small ones.
STEPS = 300
STEPS_TOGETHER = 1200
FEWEST_STEPS = 25
RESAMPLES = 12
# What slow workers cost before they are worth naming: some are always a little slower.
STRAGGLING = 1.2


class World(NamedTuple):
    """What the simulator is asked about: a run, or the same run with something changed."""

    demands: list[list[Demand]]
    layout: Layout
    rules: Rules


Change = Callable[[World, float], World]


def rate(world: World, seed: int = 0, most_steps: int = STEPS) -> float:
    """Rows a second."""
    steps = min(most_steps, max(FEWEST_STEPS, STEPS_TOGETHER // len(world.demands)))
    return simulate(world.demands, world.layout, world.rules, steps, seed)


def _each(world: World, change: Callable[[Demand], Demand]) -> World:
    return world._replace(demands=[[change(demand) for demand in own] for own in world.demands])


def faster_input(world: World, times: float) -> World:
    """Rows come so many times faster."""
    return _each(world, lambda d: d._replace(delay=d.delay / times, input=d.input / times))


def faster_workers(world: World, times: float) -> World:
    """Workers compute and pack so many times faster."""
    return _each(world, lambda d: d._replace(compute=d.compute / times, push=d.push / times))


def faster_network(world: World, times: float) -> World:
    """Links carry so many times more, with as much less delay."""
    layout = world.layout
    bandwidth = tuple(each * times for each in layout.bandwidth)
    return world._replace(layout=layout._replace(bandwidth=bandwidth, latency=layout.latency / times))


def faster_shards(world: World, times: float) -> World:
    """Shards serve so many times faster."""
    return _each(world, lambda d: d._replace(service=tuple(each / times for each in d.service)))


def no_stragglers(world: World, _times: float) -> World:
    """Every worker that is slower than the median is as fast as that."""
    means = [statistics.fmean(d.delay + d.input + d.compute + d.push for d in own) for own in world.demands]
    median = statistics.median_low(means)
    demands = []
    for own, mean in zip(world.demands, means, strict=True):
        times = max(1.0, mean / median)
        demands.append([d._replace(delay=d.delay / times, input=d.input / times, compute=d.compute / times,
                                   push=d.push / times) for d in own])  # fmt: skip
    return world._replace(demands=demands)


RESOURCES: dict[str, Change] = {
    "input": faster_input,
    "worker-compute": faster_workers,
    "network": faster_network,
    "shard-compute": faster_shards,
    "straggler": no_stragglers,
}


class Verdict(NamedTuple):
    """The bottleneck, the gains of removing each resource (and of doubling it), and the replay's own error."""

    bottleneck: str
    gains: dict[str, float]
    doubled: dict[str, float]
    interval: tuple[float, float]
    next_bottleneck: str
    replay_error: float


def judge(evidence: Evidence) -> Verdict:
    """Replay the run as it was, then with each resource infinitely and twice as fast."""
    world = World(evidence.demands, evidence.layout, evidence.rules)
    base = rate(world)
    error = abs(base / evidence.rows_per_second - 1)
    gains = {name: rate(change(world, math.inf)) / base for name, change in RESOURCES.items()}
    doubled = {name: rate(change(world, 2.0)) / base for name, change in RESOURCES.items()}
    found = most(gains)
    removed = RESOURCES[found](world, math.inf)
    after = rate(removed)
    rest = {
        name: rate(change(removed, math.inf)) / after
        for name, change in RESOURCES.items()
        if name != found and not math.isinf(after)
    }
    # What is not simulated looks like the workers' own work.
    told = error <= LARGEST_REPLAY_ERROR and evidence.is_simulated
    return Verdict(
        bottleneck=found if told else "inconclusive",
        gains=gains,
        doubled=doubled,
        interval=_interval(world, RESOURCES[found], gains[found]),
        next_bottleneck=most(rest) if rest else found,
        replay_error=error,
    )


def most(gains: dict[str, float]) -> str:
    """The resource that gains most. Workers that are slower than the others come first: infinitely fast workers would
    always gain more, but that these are slow has a reason of its own, and none of the others needs to be faster.
    """
    if gains.get("straggler", 0.0) >= STRAGGLING:
        return "straggler"
    return max(gains, key=lambda name: gains[name])


def _interval(world: World, change: Change, gain: float) -> tuple[float, float]:
    """Between which values the gain lies in four of five resamplings of the recorded steps; and as it was found."""
    gains = []
    for seed in range(1, RESAMPLES + 1):
        resampled = world._replace(demands=[_resample(own, seed) for own in world.demands])
        gains.append(rate(change(resampled, math.inf), seed) / rate(resampled, seed))
    gains.sort()
    return min(gain, gains[RESAMPLES // 10]), max(gain, gains[-1 - RESAMPLES // 10])


def _resample(demands: Sequence[Demand], seed: int) -> list[Demand]:
    """As many steps, drawn anew with replacement."""
    return random.Random(seed).choices(demands, k=len(demands))
