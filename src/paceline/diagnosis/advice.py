"""What could be tried next? Changes that a user can make, and how many times faster each would be."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from paceline.diagnosis.changes import (
    Range,
    at_pace,
    gain_of,
    half_values,
    keys_alone,
    more_keys_in_larger_batches,
    resized,
    with_larger_batches,
    with_shards,
    with_workers,
    world_of,
)
from paceline.diagnosis.embedded import embedded_gain, setup_of, slower_in_larger_batches
from paceline.diagnosis.evidence import Evidence
from paceline.diagnosis.gpu import GpuUse, faster, with_fewer_bytes, with_larger_launches
from paceline.diagnosis.simulator import Topology
from paceline.diagnosis.verdict import WORTH_TRYING, rate
from paceline.settings import RunConfig
from paceline.telemetry.facts import TIMES_LARGER

# How many times longer work on a batch takes at most, if another role has used the core and its caches since the last.
COLD_CACHES = 1.35


class Advice(NamedTuple):
    """Something to try, and how many times faster it would be.

    `learns_differently`: it changes which rows an update is made of, or which values a gradient is computed from.
    """

    what: str
    gain: Range
    learns_differently: bool = True

    @property
    def flags(self) -> str:
        """The flags to add to the command, which `what` has between backquotes."""
        return self.what.split("`")[1]

    @property
    def told(self) -> str:
        """The gain in words: a range if it is one."""
        if self.gain.is_known:
            return f"{self.gain.likely:.1f}×"
        return f"{self.gain.low:.1f}–{self.gain.high:.1f}×"


def advise(evidence: Evidence) -> list[Advice]:
    """What would make a run at least 10% faster, best first; nothing if other programs had the cores that it needed."""
    if evidence.taken_cores or (not evidence.is_simulated and evidence.gpu is None):
        return []
    if evidence.gpu is not None:
        found = list(_on_a_gpu(evidence.config, evidence.gpu))
    else:
        found = list(_embedded(evidence) if not evidence.topology.shards else _on_a_cluster(evidence))
    return sorted((one for one in found if one.gain.likely >= WORTH_TRYING), key=lambda one: -one.gain.likely)


def _embedded(evidence: Evidence) -> Iterator[Advice]:
    config, facts = evidence.config, evidence.facts
    if not facts.traits.compiled_steps:
        # More threads gain nothing if steps take turns in Python, or spread over all cores by themselves.
        yield from _paces(evidence)
        yield from _larger_batches(evidence)
        return
    now, free = setup_of(evidence), int(evidence.topology.cores[0])
    more = now._replace(workers=free) if free > now.workers else now
    if more != now:
        yield Advice(f"`--workers {free}`", embedded_gain(evidence, more), config.pace == "sync")
    for pace in dict.fromkeys(("async", 4 if config.pace == "sync" else "async")):
        if pace != config.pace:
            yield Advice(f"`--pace {pace}`", embedded_gain(evidence, now._replace(pace=pace)))
            if more != now:
                both = f"`--pace {pace} --workers {free}`"
                yield Advice(both, embedded_gain(evidence, more._replace(pace=pace)))
    if more_keys_in_larger_batches(config, facts):
        size = TIMES_LARGER * config.batch_size
        yield Advice(f"`--batch-size {size}`", embedded_gain(evidence, now._replace(batch_size=size)))


def _on_a_gpu(config: RunConfig, use: GpuUse) -> Iterator[Advice]:
    """The gains are upper bounds: how much of them there is depends on what was not measured."""
    for flags, gain in with_fewer_bytes(use).items():
        yield Advice(f"`{flags}`", Range(1.0, gain))
    if larger := with_larger_launches(use, config.batch_size):
        yield Advice(f"`--batch-size {larger[0]}`", Range(1.0, larger[1]))
    if use.facts.streamed and config.resident < 1:
        gain = use.time.gain(faster(use.time, "bus", math.inf))
        yield Advice("`--set resident=1`, if the rows fit", Range(gain, gain), learns_differently=False)


def _on_a_cluster(evidence: Evidence) -> Iterator[Advice]:
    config, keyed, world = evidence.config, evidence.facts.traits.keyed, world_of(evidence)
    gain = partial(gain_of, world, base=rate(world))
    yield from _paces(evidence)
    yield from _larger_batches(evidence)
    if config.wire.values == "float32" and config.wire.pull == "keys" and keyed:
        yield Advice("`--set wire.values=bfloat16`", gain(half_values))
    if config.wire.pull == "all":
        yield Advice("`--set wire.pull=keys`", gain(keys_alone), learns_differently=False)
    workers, shards = 2 * config.workers, 2 * config.shards
    cores = evidence.topology.cores[0]
    if len(evidence.topology.cores) == 1 and config.workers + config.shards < cores:
        for count_workers, count_shards, what in (
            (config.workers, shards, f"`--shards {shards}`"),
            (workers, config.shards, f"`--workers {workers}`"),
            (workers, shards, f"`--workers {workers} --shards {shards}`"),
        ):
            if count_workers + count_shards <= cores:
                change = partial(resized, workers=count_workers, shards=count_shards, company=evidence.company)
                yield Advice(what, gain(change), count_workers > config.workers)
        return
    apart = "each new one on its own machine"
    yield Advice(f"`--shards {shards}`, {apart}", gain(partial(with_shards, count=shards)), learns_differently=False)
    yield Advice(f"`--workers {workers}`, {apart}", gain(with_workers))


def _paces(evidence: Evidence) -> Iterator[Advice]:
    config, keyed, world = evidence.config, evidence.facts.traits.keyed, world_of(evidence)
    base = rate(world)
    if config.pace != "async":
        yield Advice("`--pace async`", gain_of(world, lambda each: at_pace(each, "async", keyed), base))
    if config.pace == "sync":
        yield Advice("`--pace 4`", gain_of(world, lambda each: at_pace(each, 4, keyed), base))


def _larger_batches(evidence: Evidence) -> Iterator[Advice]:
    if more_keys_in_larger_batches(evidence.config, evidence.facts):
        yield Advice(f"`--batch-size {TIMES_LARGER * evidence.config.batch_size}`", larger_batches_gain(evidence))


def larger_batches_gain(evidence: Evidence) -> Range:
    """How many times faster the run would be with `TIMES_LARGER` times the rows per batch.

    If roles take turns on a core, each finds less of a larger batch in the caches; how much less is not known.
    """
    config, world = evidence.config, world_of(evidence)
    more_keys = more_keys_in_larger_batches(config, evidence.facts)
    least, base = slower_in_larger_batches(evidence, TIMES_LARGER), rate(world)
    take_turns = evidence.facts.traits.keyed and _roles_take_turns(evidence.topology)
    gains = [
        gain_of(
            world,
            partial(with_larger_batches, more_keys=more_keys, whole_model=config.wire.pull == "all", slower=slower),
            base,
        )
        for slower in (least, max(least, COLD_CACHES if take_turns else 1.0))
    ]
    return Range(min(gain.low for gain in gains), max(gain.high for gain in gains))


def _roles_take_turns(topology: Topology) -> bool:
    """Whether a machine has more roles than cores."""
    machines = [topology.machines[node] for node in (*topology.workers, *topology.shards)]
    return any(machines.count(machine) > cores for machine, cores in enumerate(topology.cores))
