"""What could be tried next? Changes that a user can make, each put to the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from paceline.config import SPARSE_MODEL, RunConfig
from paceline.diagnosis.evidence import Evidence, distinct_keys, num_rows
from paceline.diagnosis.simulator import Demand, Rules
from paceline.diagnosis.verdict import World, rate
from paceline.training.pace import Pace

WORTH_TRYING = 1.1
BYTES_OF_FLOAT32, BYTES_OF_KEY = 4, 4
TIMES_LARGER = 4


class Advice(NamedTuple):
    """Something to try, and how many times faster it would be."""

    what: str
    gain: float


def advise(evidence: Evidence) -> list[Advice]:
    """What would make a run at least a tenth faster, best first."""
    world = World(evidence.demands, evidence.layout, evidence.rules)
    base = rate(world)
    found = [Advice(what, rate(changed) / base) for what, changed in _changes(evidence, world)]
    return sorted((one for one in found if one.gain >= WORTH_TRYING), key=lambda one: -one.gain)


def _changes(evidence: Evidence, world: World) -> Iterator[tuple[str, World]]:
    config = evidence.config
    if not evidence.is_simulated:
        return
    if config.pace != "async":
        yield "`--pace async`", at_pace(world, "async", config)
    if config.pace == "sync":
        yield "`--pace 4`", at_pace(world, 4, config)
    if more_keys := more_keys_in_larger_batches(config):
        yield (
            f"`--batch-size {TIMES_LARGER * config.batch_size}`",
            with_larger_batches(world, more_keys, config.wire.pull == "all"),
        )
    if not world.layout.shards:
        # PyTorch shares each step out by itself. What threads cost each other, at a gate or a lock, does not show in
        # what one of them did alone; only sparse async has neither.
        is_alike = config.model == SPARSE_MODEL and (config.pace == "async" or config.workers > 1)
        if config.workers < world.layout.cores[0] and is_alike:
            yield (
                f"`--workers {config.workers + 1}`",
                world._replace(
                    demands=[*world.demands, world.demands[-1]],
                    layout=world.layout._replace(workers=(*world.layout.workers, 0)),
                ),
            )
        return
    if config.wire.values == "float32" and config.wire.pull == "keys" and not config.dense:
        yield "`--set wire.values=bfloat16`", half_values(world)
    if config.wire.pull == "all":
        yield "`--set wire.pull=keys`", keys_alone(world)
    yield f"`--shards {2 * config.shards}` on as many more machines", with_shards(world, 2 * len(world.layout.shards))
    yield f"`--workers {2 * config.workers}` on as many more machines", with_workers(world)


def at_pace(world: World, pace: str | int, config: RunConfig) -> World:
    """The same run at another pace."""
    other = Pace.of(pace)
    return world._replace(rules=Rules(other.staleness, other.in_flight(config.dense)))


def more_keys_in_larger_batches(config: RunConfig) -> float:
    """How many times more distinct keys a batch of `TIMES_LARGER` times the rows has: batches share many of their keys,
    and of a dense model all.

    0 where it cannot be seen from here, or the data has no room for such batches.
    """
    if config.dense:
        return 1.0 if TIMES_LARGER * config.batch_size * config.workers <= num_rows(config) else 0.0
    large = distinct_keys(config, TIMES_LARGER * config.batch_size, config.workers)
    return large / distinct_keys(config, config.batch_size) if large else 0.0


def with_larger_batches(world: World, more_keys: float, whole_model: bool) -> World:
    """Steps of `TIMES_LARGER` times the rows: what is done a row is done as often, what is done a key less often, and
    the whole model, where that is pulled, that much less often.

    What a step costs once whatever its size is not known apart, so the gain is rather more than this.
    """

    def sized(parts: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(part * more_keys for part in parts)

    def joined(own: list[Demand]) -> list[Demand]:
        groups = [own[start : start + TIMES_LARGER] for start in range(0, len(own) - TIMES_LARGER + 1, TIMES_LARGER)]
        return [
            few[0]._replace(
                delay=sum(demand.delay for demand in few),
                input=sum(demand.input for demand in few),
                compute=sum(demand.compute for demand in few),
                push=few[0].push * more_keys,
                rows=sum(demand.rows for demand in few),
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
        return demand._replace(
            bytes_out=tuple(size * pushed for size in demand.bytes_out),
            bytes_in=tuple(size / 2 for size in demand.bytes_in),
        )

    return world._replace(demands=[[change(demand) for demand in own] for own in world.demands])


def keys_alone(world: World) -> World:
    """Pull the batch's keys instead of the whole model: as many bytes back as there are keys in what goes out."""
    share = BYTES_OF_FLOAT32 / (BYTES_OF_KEY + BYTES_OF_FLOAT32)

    def change(demand: Demand) -> Demand:
        sizes = tuple(size * share for size in demand.bytes_out)
        shrunk = [new / old if old else 1.0 for new, old in zip(sizes, demand.bytes_in, strict=True)]
        service = tuple(seconds * each for seconds, each in zip(demand.service, shrunk, strict=True))
        return demand._replace(bytes_in=sizes, service=service)

    return world._replace(demands=[[change(demand) for demand in own] for own in world.demands])


def with_workers(world: World) -> World:
    """Twice as many workers: each new one is like one that there is, on a node and machine of its own like that's."""
    layout, new = world.layout, len(world.layout.workers)
    nodes, machines = len(layout.machines), len(layout.cores)
    return world._replace(
        demands=[*world.demands, *world.demands],
        layout=layout._replace(
            workers=(*layout.workers, *range(nodes, nodes + new)),
            machines=(*layout.machines, *range(machines, machines + new)),
            cores=(*layout.cores, *(layout.cores_of(node) for node in layout.workers)),
            bandwidth=(*layout.bandwidth, *(layout.bandwidth[node] for node in layout.workers)),
        ),
    )


def with_shards(world: World, count: int) -> World:
    """The parameters over so many shards, each new one on a node and machine of its own like the first's."""
    layout = world.layout
    share = len(layout.shards) / count

    def change(demand: Demand) -> Demand:
        def spread(parts: tuple[float, ...]) -> tuple[float, ...]:
            return (sum(parts) / len(parts) * share,) * count

        return demand._replace(service=spread(demand.service), bytes_out=spread(demand.bytes_out),
                               bytes_in=spread(demand.bytes_in))  # fmt: skip

    new = max(0, count - len(layout.shards))
    nodes, machines = len(layout.machines), len(layout.cores)
    first = layout.shards[0]
    return world._replace(
        demands=[[change(demand) for demand in own] for own in world.demands],
        layout=layout._replace(
            shards=(*layout.shards[:count], *range(nodes, nodes + new)),
            machines=(*layout.machines, *range(machines, machines + new)),
            cores=(*layout.cores, *(layout.cores_of(first) for _ in range(new))),
            bandwidth=(*layout.bandwidth, *(layout.bandwidth[first] for _ in range(new))),
        ),
    )
