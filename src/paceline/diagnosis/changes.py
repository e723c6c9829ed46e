"""What would a run be with something changed? Worlds for the simulator.

A frame has a fixed cost on both sides, whatever its size (`Demand.push_fixed`, `Demand.service_fixed`). More shards
mean more frames per step, and larger batches fewer per row. If `paceline doctor` was never run, this cost is not known:
then there are two worlds, and the truth is between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from paceline.diagnosis.evidence import Evidence
from paceline.diagnosis.simulator import Demand, PaceRules, Topology
from paceline.diagnosis.verdict import World, each_step, rate
from paceline.settings import RunConfig
from paceline.telemetry.facts import TIMES_LARGER, Facts
from paceline.training.pace import Pace

BYTES_OF_FLOAT32, BYTES_OF_KEY = 4, 4
# How much longer a worker computes a step, and sends a frame, if it deals its keys out to several shards.
DEALING = 0.3
# How many times longer a shard works on a key in sync.
FOLDING = 1.5


class Range(NamedTuple):
    """Between which values something lies; both are the same if it is known."""

    low: float
    high: float

    @property
    def likely(self) -> float:
        """The middle, for ratios."""
        return math.sqrt(self.low * self.high)

    @property
    def is_known(self) -> bool:
        return self.high <= KNOWN * self.low


# A range that is not wider than this is a number.
KNOWN = 1.05


def world_of(evidence: Evidence) -> World:
    """The run as it was."""
    return World(evidence.demands, evidence.topology, evidence.rules)


def gain_of(world: World, change: Callable[[World], World], base: float) -> Range:
    """How many times faster the world would be with a change."""
    gains = [rate(change(possible)) / base for possible in possible_worlds(world)]
    return Range(min(gains), max(gains))


def possible_worlds(world: World) -> list[World]:
    """The world with the fixed cost of frames. If that is not known, two worlds: no cost is fixed, or all of it."""
    if not world.topology.shards or all(demand.push_fixed is not None for own in world.demands for demand in own):
        return [world]

    def with_fixed(demand: Demand, share: float) -> Demand:
        frames = len(demand.service)
        return demand._replace(
            push_fixed=share * demand.push / frames, service_fixed=share * sum(demand.service) / frames
        )

    return [each_step(world, lambda demand, share=share: with_fixed(demand, share)) for share in (0.0, 1.0)]  # type: ignore[misc]


def resized(world: World, workers: int, shards: int, company: float = 1.0) -> World:
    """The same steps with other numbers of workers and shards on the one machine that there is.

    `company` is how many times longer work takes while all of its cores are busy.
    """
    pool = [over_shards(demand, shards) for own in world.demands for demand in own]
    topology, node = world.topology, world.topology.workers[0]
    cores = topology.cores_of(node)
    before, after = (
        1 + (company - 1) * min(1.0, max(0.0, min(roles, cores) - 1) / max(1.0, cores - 1))
        for roles in (len(topology.workers) + len(topology.shards), workers + shards)
    )
    slower = after / before
    shard_nodes = (topology.shards[0],) * shards
    changed = World([pool] * workers, topology._replace(workers=(node,) * workers, shards=shard_nodes), world.rules)
    return each_step(changed, lambda demand: _slower(demand, slower))


def _slower(demand: Demand, times: float) -> Demand:
    own = {name: getattr(demand, name) * times for name in ("input", "compute", "push")}
    return demand._replace(**own, service=tuple(each * times for each in demand.service))


def at_pace(world: World, pace: str | int, keyed: bool) -> World:
    """The same run at another pace. In sync, shards add keys up before they update them."""
    other = Pace.of(pace)
    times = FOLDING ** ((other.staleness == 0) - (world.rules.staleness == 0)) if keyed else 1.0

    def change(demand: Demand) -> Demand:
        fixed = demand.service_fixed or 0.0
        return demand._replace(
            service=tuple(min(each, fixed) + max(0.0, each - fixed) * times for each in demand.service)
        )

    return each_step(world, change)._replace(rules=PaceRules(other.staleness, other.in_flight(keyed)))


def more_keys_in_larger_batches(config: RunConfig, facts: Facts) -> float:
    """How many times more distinct keys a batch has if it has `TIMES_LARGER` times the rows. Batches share many of
    their keys; without keys, every batch needs all parameters.

    0 if that was not recorded, or the data has too few rows for such batches.
    """
    if not facts.traits.keyed:
        return 1.0 if TIMES_LARGER * config.batch_size * config.workers <= facts.rows else 0.0
    large = facts.keys_per_batch.get(TIMES_LARGER * config.batch_size, 0.0)
    return large / facts.keys_per_batch[config.batch_size] if large else 0.0


def with_larger_batches(world: World, more_keys: float, whole_model: bool, slower: float = 1.0) -> World:
    """Steps of `TIMES_LARGER` times the rows: work per row stays the same, work per key happens less often, and so does
    pulling the whole model, if that is pulled.

    What a frame or a step takes regardless of its size stays as it is. Work on rows and keys takes `slower` times as
    long, because caches hold less of a larger batch.
    """

    def sized(parts: tuple[float, ...], fixed: float = 0.0, times: float = 1.0) -> tuple[float, ...]:
        return tuple(fixed + max(0.0, part - fixed) * more_keys * times for part in parts)

    def together(few: list[Demand]) -> Demand:
        delay, work, compute = (sum(getattr(demand, name) for demand in few) for name in ("delay", "input", "compute"))
        kept = max(0.0, 1 - sum(demand.step_fixed for demand in few[1:]) / max(1e-12, work + compute))
        first = few[0]
        return first._replace(
            delay=delay,
            input=work * kept,
            compute=compute * kept * slower,
            rows=sum(demand.rows for demand in few),
            push=sized((first.push,), (first.push_fixed or 0.0) * len(first.service))[0],
            service=first.service if whole_model else sized(first.service, first.service_fixed or 0.0, slower),
            bytes_out=sized(first.bytes_out),
            bytes_in=first.bytes_in if whole_model else sized(first.bytes_in),
        )

    def joined(own: list[Demand]) -> list[Demand]:
        groups = [own[start : start + TIMES_LARGER] for start in range(0, len(own) - TIMES_LARGER + 1, TIMES_LARGER)]
        return [together(few) for few in groups or [own[:1] * TIMES_LARGER]]

    return world._replace(demands=[joined(own) for own in world.demands])


def half_values(world: World) -> World:
    """Values of two bytes instead of four on the wire; keys stay."""
    pushed = (BYTES_OF_KEY + BYTES_OF_FLOAT32 / 2) / (BYTES_OF_KEY + BYTES_OF_FLOAT32)

    def change(demand: Demand) -> Demand:
        out, into = (size * pushed for size in demand.bytes_out), (size / 2 for size in demand.bytes_in)
        return demand._replace(bytes_out=tuple(out), bytes_in=tuple(into))

    return each_step(world, change)


def keys_alone(world: World) -> World:
    """Pull the batch's keys instead of the whole model: as many values come back as keys go out."""
    share = BYTES_OF_FLOAT32 / (BYTES_OF_KEY + BYTES_OF_FLOAT32)

    def change(demand: Demand) -> Demand:
        sizes = tuple(size * share for size in demand.bytes_out)
        shrunk = [new / old if old else 1.0 for new, old in zip(sizes, demand.bytes_in, strict=True)]
        service = tuple(seconds * each for seconds, each in zip(demand.service, shrunk, strict=True))
        return demand._replace(bytes_in=sizes, service=service)

    return each_step(world, change)


def with_workers(world: World) -> World:
    """Twice as many workers: a copy of each on a node and machine of its own, like the original's."""
    topology, nodes = world.topology, len(world.topology.machines)
    workers = (*topology.workers, *range(nodes, nodes + len(topology.workers)))
    return world._replace(
        demands=[*world.demands, *world.demands],
        topology=_with_machines(topology, topology.workers)._replace(workers=workers),
    )


def with_shards(world: World, count: int) -> World:
    """The parameters over `count` shards, each new one on a node and machine of its own like the first one's."""
    topology, nodes = world.topology, len(world.topology.machines)
    new = max(0, count - len(topology.shards))
    shards = (*topology.shards[:count], *range(nodes, nodes + new))
    changed = each_step(world, lambda demand: over_shards(demand, count))
    return changed._replace(topology=_with_machines(topology, topology.shards[:1] * new)._replace(shards=shards))


def over_shards(demand: Demand, count: int) -> Demand:
    """The same batch with its keys spread evenly over `count` shards. The fixed cost of a frame stays."""
    frames, per_frame = len(demand.service), demand.service_fixed or 0.0
    sized = max(0.0, sum(demand.service) - frames * per_frame)
    # Of one shard, a worker takes keys and values as they are.
    dealing = (1 + DEALING) ** ((count > 1) - (frames > 1))
    push_fixed = (demand.push_fixed or 0.0) * dealing
    return demand._replace(
        compute=demand.compute * dealing,
        push=max(0.0, demand.push - frames * (demand.push_fixed or 0.0)) + count * push_fixed,
        service=(per_frame + sized / count,) * count,
        bytes_out=(sum(demand.bytes_out) / count,) * count,
        bytes_in=(sum(demand.bytes_in) / count,) * count,
        push_fixed=None if demand.push_fixed is None else push_fixed,
    )


def _with_machines(topology: Topology, like: Sequence[int]) -> Topology:
    """One more node, on a machine of its own, for each of these nodes, and like it."""
    machines = len(topology.cores)
    return topology._replace(
        machines=(*topology.machines, *range(machines, machines + len(like))),
        cores=(*topology.cores, *(topology.cores_of(node) for node in like)),
        bandwidth=(*topology.bandwidth, *(topology.bandwidth[node] for node in like)),
    )
