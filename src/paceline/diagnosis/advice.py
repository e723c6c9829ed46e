"""What could be tried next? Changes that a user can make, each put to the simulator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from paceline.diagnosis.evidence import Evidence
from paceline.diagnosis.simulator import Demand, PaceRules, Topology
from paceline.diagnosis.verdict import WORTH_TRYING, World, each_step, rate
from paceline.settings import RunConfig
from paceline.telemetry.facts import TIMES_LARGER, Facts
from paceline.training.pace import Pace

BYTES_OF_FLOAT32, BYTES_OF_KEY = 4, 4


class Advice(NamedTuple):
    """Something to try, and how many times faster it would be."""

    what: str
    gain: float


def advise(evidence: Evidence) -> list[Advice]:
    """What would make a run at least 10% faster, best first."""
    world = World(evidence.demands, evidence.topology, evidence.rules)
    base = rate(world)
    found = [Advice(what, rate(changed) / base) for what, changed in _changes(evidence, world)]
    return sorted((one for one in found if one.gain >= WORTH_TRYING), key=lambda one: -one.gain)


def _changes(evidence: Evidence, world: World) -> Iterator[tuple[str, World]]:
    config, keyed = evidence.config, evidence.facts.traits.keyed
    if not evidence.is_simulated:
        return
    if config.pace != "async":
        yield "`--pace async`", at_pace(world, "async", keyed)
    if config.pace == "sync":
        yield "`--pace 4`", at_pace(world, 4, keyed)
    if more_keys := more_keys_in_larger_batches(config, evidence.facts):
        larger = with_larger_batches(world, more_keys, config.wire.pull == "all")
        yield f"`--batch-size {TIMES_LARGER * config.batch_size}`", larger
    if not world.topology.shards:
        # PyTorch spreads each step over the cores by itself. One thread alone does not show what threads cost each
        # other at a gate or a lock; only keyed models in async have neither.
        is_alike = keyed and (config.pace == "async" or config.workers > 1)
        if config.workers < world.topology.cores[0] and is_alike:
            topology = world.topology._replace(workers=(*world.topology.workers, 0))
            more = world._replace(demands=[*world.demands, world.demands[-1]], topology=topology)
            yield f"`--workers {config.workers + 1}`", more
        return
    if config.wire.values == "float32" and config.wire.pull == "keys" and keyed:
        yield "`--set wire.values=bfloat16`", half_values(world)
    if config.wire.pull == "all":
        yield "`--set wire.pull=keys`", keys_alone(world)
    yield (
        f"`--shards {2 * config.shards}`, each new one on its own machine",
        with_shards(world, 2 * len(world.topology.shards)),
    )
    yield f"`--workers {2 * config.workers}`, each new one on its own machine", with_workers(world)


def at_pace(world: World, pace: str | int, keyed: bool) -> World:
    """The same run at another pace."""
    other = Pace.of(pace)
    return world._replace(rules=PaceRules(other.staleness, other.in_flight(keyed)))


def more_keys_in_larger_batches(config: RunConfig, facts: Facts) -> float:
    """How many times more distinct keys a batch of `TIMES_LARGER` times the rows has. Batches share many of their keys;
    without keys, every batch needs all parameters.

    0 if that was not recorded, or the data has too few rows for such batches.
    """
    if not facts.traits.keyed:
        return 1.0 if TIMES_LARGER * config.batch_size * config.workers <= facts.rows else 0.0
    large = facts.keys_per_batch.get(TIMES_LARGER * config.batch_size, 0.0)
    return large / facts.keys_per_batch[config.batch_size] if large else 0.0


def with_larger_batches(world: World, more_keys: float, whole_model: bool) -> World:
    """Steps of `TIMES_LARGER` times the rows: work per row stays the same, work per key happens less often, and so does
    pulling the whole model, if that is pulled.

    What a step costs regardless of its size is not known separately, so the real gain is rather larger.
    """

    def sized(parts: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(part * more_keys for part in parts)

    def joined(own: list[Demand]) -> list[Demand]:
        groups = [own[start : start + TIMES_LARGER] for start in range(0, len(own) - TIMES_LARGER + 1, TIMES_LARGER)]
        return [
            few[0]._replace(
                **{
                    name: sum(getattr(demand, name) for demand in few) for name in ("delay", "input", "compute", "rows")
                },
                push=few[0].push * more_keys,
                service=few[0].service if whole_model else sized(few[0].service),
                bytes_out=sized(few[0].bytes_out),
                bytes_in=few[0].bytes_in if whole_model else sized(few[0].bytes_in),
            )
            for few in groups or [own[:1] * TIMES_LARGER]
        ]

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
    """The same batch with its keys spread evenly over `count` shards."""
    return demand._replace(
        service=(sum(demand.service) / count,) * count,
        bytes_out=(sum(demand.bytes_out) / count,) * count,
        bytes_in=(sum(demand.bytes_in) / count,) * count,
    )


def _with_machines(topology: Topology, like: Sequence[int]) -> Topology:
    """One more node, on a machine of its own, for each of these nodes, and like it."""
    machines = len(topology.cores)
    return topology._replace(
        machines=(*topology.machines, *range(machines, machines + len(like))),
        cores=(*topology.cores, *(topology.cores_of(node) for node in like)),
        bandwidth=(*topology.bandwidth, *(topology.bandwidth[node] for node in like)),
    )
