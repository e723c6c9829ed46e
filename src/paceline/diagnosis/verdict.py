"""What limited a run? Its replay, with one resource after another made faster.

The bottleneck is the resource whose removal would gain most. If no resource would gain 10 %, the run is `balanced`. If
the replay itself is far from what was measured, the verdict is `inconclusive`.
Runs over sparse rows on a GPU are not replayed: `gpu.py` has a formula for them.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from typing import NamedTuple

from paceline.diagnosis.evidence import Evidence
from paceline.diagnosis.gpu import GpuUse, faster, gain_interval
from paceline.diagnosis.gpu import gains as gains_on_gpu
from paceline.diagnosis.simulator import Demand, PaceRules, Topology, simulate

LARGEST_REPLAY_ERROR = 0.15
# Per worker, but at most `STEPS_TOGETHER` in total, so that large clusters take no longer than small ones.
STEPS = 300
STEPS_TOGETHER = 1200
FEWEST_STEPS = 25
RESAMPLES = 12
# Gains below this are not worth naming, nor is a change that gains less.
WORTH_TRYING = 1.1
# The gain from which slow workers are worth naming: some are always a little slower.
STRAGGLING = 1.2
BALANCED, INCONCLUSIVE = "balanced", "inconclusive"


class World(NamedTuple):
    """What the simulator is asked about: a run, or the same run with something changed."""

    demands: list[list[Demand]]
    topology: Topology
    rules: PaceRules


Change = Callable[[World, float], World]


def rate(world: World, seed: int = 0, most_steps: int = STEPS) -> float:
    """Rows per second."""
    steps = min(most_steps, max(FEWEST_STEPS, STEPS_TOGETHER // len(world.demands)))
    return simulate(world.demands, world.topology, world.rules, steps, seed)


def each_step(world: World, change: Callable[[Demand], Demand]) -> World:
    """The same world with every step changed."""
    return world._replace(demands=[[change(demand) for demand in own] for own in world.demands])


def faster_input(world: World, times: float) -> World:
    """Rows come `times` times faster."""
    return each_step(world, lambda d: d._replace(delay=d.delay / times, input=d.input / times))


def faster_workers(world: World, times: float) -> World:
    """Workers compute and pack `times` times faster."""
    return each_step(world, lambda d: d._replace(compute=d.compute / times, push=d.push / times))


def faster_network(world: World, times: float) -> World:
    """Links carry `times` times more, with that much less delay."""
    topology = world.topology
    bandwidth = tuple(each * times for each in topology.bandwidth)
    return world._replace(topology=topology._replace(bandwidth=bandwidth, latency=topology.latency / times))


def faster_shards(world: World, times: float) -> World:
    """Shards serve `times` times faster."""
    return each_step(world, lambda d: d._replace(service=tuple(each / times for each in d.service)))


def no_stragglers(world: World, _times: float) -> World:
    """Every worker that is slower than the median is as fast as the median."""
    means = [statistics.fmean(d.delay + d.input + d.compute + d.push for d in own) for own in world.demands]
    median = statistics.median_low(means)
    demands = []
    for own, mean in zip(world.demands, means, strict=True):
        alone, times = world._replace(demands=[own]), max(1.0, mean / median)
        demands += faster_workers(faster_input(alone, times), times).demands
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
    why_inconclusive: str
    gains: dict[str, float]
    doubled: dict[str, float]
    interval: tuple[float, float]
    next_bottleneck: str
    replay_error: float


def judge(evidence: Evidence) -> Verdict:
    """Replay the run as it was, then with each resource infinitely and twice as fast. On a GPU, a formula says what a
    replay would.
    """
    if evidence.gpu is not None:
        return _judge_on_gpu(evidence, evidence.gpu)
    world = World(evidence.demands, evidence.topology, evidence.rules)
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
    why = why_inconclusive(evidence, error)
    name = found if gains[found] >= WORTH_TRYING else BALANCED
    return Verdict(
        bottleneck=INCONCLUSIVE if why else name,
        why_inconclusive=why,
        gains=gains,
        doubled=doubled,
        interval=_interval(world, RESOURCES[found], gains[found]),
        next_bottleneck=most(rest) if rest else found,
        replay_error=error,
    )


def _judge_on_gpu(evidence: Evidence, use: GpuUse) -> Verdict:
    """The verdict on a run over sparse rows on a GPU."""
    time = use.time
    error = abs(use.rows / time.seconds / evidence.rows_per_second - 1)
    found_gains = gains_on_gpu(time, math.inf)
    found = most(found_gains)
    others = {name: gain for name, gain in gains_on_gpu(faster(time, found, math.inf), 2.0).items() if name != found}
    low, high = gain_interval(use, found, RESAMPLES)
    why = why_inconclusive(evidence, error)
    name = found if found_gains[found] >= WORTH_TRYING else BALANCED
    return Verdict(
        bottleneck=INCONCLUSIVE if why else name,
        why_inconclusive=why,
        gains=found_gains,
        doubled=gains_on_gpu(time, 2.0),
        interval=(min(low, found_gains[found]), max(high, found_gains[found])),
        next_bottleneck=most(others),
        replay_error=error,
    )


def why_inconclusive(evidence: Evidence, replay_error: float) -> str:
    """Why a run cannot be judged; empty if it can."""
    phases, steady = evidence.phases, evidence.steady
    if not evidence.is_simulated and evidence.gpu is None:
        return (
            f"allreduce is not simulated; workers spent {phases['push']:.0%} of their time on it and waiting for each "
            f"other, and {phases['compute']:.0%} computing"
        )
    if steady.needed_seconds:
        return f"the run was too short to tell; train for at least {steady.needed_seconds:.0f} seconds"
    # What the simulator does not know looks like the workers' own work.
    if replay_error > LARGEST_REPLAY_ERROR:
        return f"the replay is off by {replay_error:.1%}, more than {LARGEST_REPLAY_ERROR:.0%}"
    return ""


def most(gains: dict[str, float]) -> str:
    """The resource that gains most.

    Stragglers come first: infinitely fast workers would always gain more, but only the slow ones need to be faster.
    """
    if gains.get("straggler", 0.0) >= STRAGGLING:
        return "straggler"
    return max(gains, key=lambda name: gains[name])


def _interval(world: World, change: Change, gain: float) -> tuple[float, float]:
    """The range of the gain in four of five resamplings of the recorded steps, widened to include the gain itself."""
    gains = []
    for seed in range(1, RESAMPLES + 1):
        # As many steps, drawn with replacement.
        drawn = [random.Random(seed).choices(own, k=len(own)) for own in world.demands]
        resampled = world._replace(demands=drawn)
        gains.append(rate(change(resampled, math.inf), seed) / rate(resampled, seed))
    gains.sort()
    return min(gain, gains[RESAMPLES // 10]), max(gain, gains[-1 - RESAMPLES // 10])
