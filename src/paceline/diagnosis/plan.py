"""What would other numbers of workers and shards, other links and other paces give? Asked of the simulator.

Without a bandwidth, new roles are where the recorded ones were: on the same machine if there was only one, otherwise on
machines like those. With a bandwidth, every role has a machine of its own, like the recorded ones, with a link of that
speed, and a delay of at least that of a small network.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from paceline.defaults import MOST_WORKERS
from paceline.diagnosis.changes import Range, at_pace, over_shards, possible_worlds, resized, world_of
from paceline.diagnosis.embedded import EmbeddedSetup, embedded_gain
from paceline.diagnosis.evidence import Evidence
from paceline.diagnosis.simulator import Topology
from paceline.diagnosis.verdict import RESOURCES, STEPS_TOGETHER, World, most, rate, why_inconclusive
from paceline.errors import ConfigError

BITS = 8
# One way between machines of a small network. A run on one machine has less, and cannot tell.
LEAST_LATENCY_SECONDS = 5e-5
UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
MOST_CHOICES = 400
RANGES = "ranges: `paceline doctor` before the next run lets it tell more exactly"


class Choice(NamedTuple):
    """One way to run it; `bandwidth` is in bytes per second, None for links as they were."""

    pace: str | int
    workers: int
    shards: int
    bandwidth: float | None


class Prediction(NamedTuple):
    """What a choice would give: rows per second, and what would limit it; on how many machines.

    `interval` are the rows per second between which it lies: the same twice, if that is known.
    """

    choice: Choice
    rows_per_second: float
    interval: Range
    limit: str
    machines: int


def counts(text: str, what: str) -> list[int]:
    """The numbers that a range asks for: its ends, and powers of two between them.

    >>> counts("1..12", "workers"), counts("3", "workers")
    ([1, 2, 4, 8, 12], [3])
    """
    found = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text.strip())
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if first < 1 or last < first:
        raise ConfigError(f"`{text}` is not a range of {what}", f"--{what} 1..8")
    if last > MOST_WORKERS:
        message = f"`{text}` asks for {last} {what}; the limit is {MOST_WORKERS}"
        raise ConfigError(message, f"--{what} 1..{MOST_WORKERS}")
    between = [1 << power for power in range(last.bit_length())]
    return sorted({first, last, *(count for count in between if first < count < last)})


def bandwidths(text: str) -> list[float]:
    """The link speeds that a range asks for, in bytes per second: its ends, and doublings between them.

    >>> [speed * 8 / 1e9 for speed in bandwidths("1Gbit..5Gbit")]
    [1.0, 2.0, 4.0, 5.0]
    """
    first, dots, last = text.partition("..")
    ends = [_bytes_per_second(first, text), _bytes_per_second(last if dots else first, text)]
    if ends[1] < ends[0]:
        raise ConfigError(f"`{text}` ends below its beginning", "--bandwidth 1Gbit..25Gbit")
    found = [ends[0]]
    while found[-1] * 2 < ends[1]:
        found.append(found[-1] * 2)
    return sorted({*found, ends[1]})


def _bytes_per_second(text: str, whole: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]+)(?:/s)?", text.strip())
    unit = UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None or float(found[1]) <= 0:
        hint = "--bandwidth 1Gbit..25Gbit; the units are bit, kbit, Mbit and Gbit"
        raise ConfigError(f"`{whole}` is not a bandwidth", hint)
    return float(found[1]) * unit / BITS


def choices(evidence: Evidence, workers: Sequence[int], shards: Sequence[int],
            speeds: Sequence[float | None]) -> list[Choice]:  # fmt: skip
    """All combinations, at the paces sync, async and the run's own."""
    if evidence.gpu is not None:
        raise ConfigError(
            "plan predicts workers, shards and paces, but one worker trains sparse rows on a GPU",
            "`paceline diagnose` says what limits this run, or plan from a run with `--device cpu`",
        )
    if not evidence.is_simulated:
        raise ConfigError("allreduce is not simulated", "plan from a run with `--exchange shard`")
    if not evidence.topology.shards and (list(shards) != [1] or list(speeds) != [None]):
        message = "a run with `--engine local` has no shards and no network, so it cannot tell what a network would do"
        raise ConfigError(message, "plan from a run with `--engine ray`")
    # Old run folders do not know the number of keys: it is 0.
    if 0 < evidence.facts.keys < max(shards):
        message = f"{max(shards)} shards are asked for, but there are only {evidence.facts.keys} keys to share out"
        raise ConfigError(message, f"--shards 1..{evidence.facts.keys}")
    paces: dict[str | int, None] = dict.fromkeys(["sync", "async", evidence.config.pace])
    found = [
        Choice(pace, num_workers, num_shards, speed)
        for pace, speed, num_shards, num_workers in itertools.product(paces, speeds, shards, workers)
    ]
    if len(found) > MOST_CHOICES:
        raise ConfigError(f"{len(found)} combinations are asked for; the limit is {MOST_CHOICES}", "narrow the ranges")
    return found


def predict(evidence: Evidence, choice: Choice) -> Prediction:
    """Simulate a choice; for threads in one process, use what was measured on the machine (`embedded.py`)."""
    worlds = planned(evidence, choice)
    rates = [rate(world, most_steps=STEPS_TOGETHER) for world in worlds]
    gains = {
        name: rate(change(worlds[0], math.inf), most_steps=STEPS_TOGETHER) / rates[0]
        for name, change in RESOURCES.items()
        if name != "straggler"
    }
    interval = Range(min(rates), max(rates))
    if not evidence.topology.shards and evidence.facts.traits.compiled_steps:
        gain = embedded_gain(evidence, EmbeddedSetup(choice.pace, choice.workers, evidence.config.batch_size))
        interval = Range(*(evidence.rows_per_second * each for each in gain))
    return Prediction(choice, interval.likely, interval, most(gains), len(set(worlds[0].topology.machines)))


def plan_of(evidence: Evidence, found: Sequence[Prediction]) -> dict[str, Any]:
    """The predictions, with the best of each pace marked, and how far the simulation of the run itself is off.

    `unreliable` says why the predictions are not reliable; empty if they are.
    """
    best = {one.choice.pace: one for one in sorted(found, key=lambda one: one.rows_per_second)}
    error = abs(rate(world_of(evidence)) / evidence.rows_per_second - 1)
    unreliable = why_inconclusive(evidence, error)
    ranges = not all(one.interval.is_known for one in found)
    return {
        "rows_per_second": evidence.rows_per_second,
        "replay_error": error,
        "has_shards": bool(evidence.topology.shards),
        "note": RANGES if ranges else "",
        "unreliable": unreliable,
        "predictions": [
            {
                **one.choice._asdict(),
                "rows_per_second": one.rows_per_second,
                "interval": list(one.interval),
                "rows_per_second_per_machine": one.rows_per_second / one.machines,
                "machines": one.machines,
                "limit": one.limit,
                "best": one is best[one.choice.pace],
                "reliable": not unreliable,
            }
            for one in found
        ],
    }


def planned(evidence: Evidence, choice: Choice) -> list[World]:
    """The run as it would be: one world, or two between which the truth lies."""
    recorded, keyed = evidence.topology, evidence.facts.traits.keyed
    found = []
    for world in possible_worlds(world_of(evidence)):
        if not recorded.shards:
            pool = [demand for own in world.demands for demand in own]
            workers = (recorded.workers[0],) * choice.workers
            world = World([pool] * choice.workers, recorded._replace(workers=workers), world.rules)
        elif choice.bandwidth is None and len({*recorded.workers, *recorded.shards}) == 1:
            world = resized(world, choice.workers, choice.shards, evidence.company)
        else:
            pool = [over_shards(demand, choice.shards) for own in world.demands for demand in own]
            topology = _placed(recorded, choice, max((node.cores for node in evidence.nodes), default=1))
            world = World([pool] * choice.workers, topology, world.rules)
        found.append(at_pace(world, choice.pace, keyed))
    return found


def _placed(recorded: Topology, choice: Choice, num_cores: int) -> Topology:
    """Nodes for all roles of a choice."""
    roles = choice.shards + choice.workers
    one_machine = choice.bandwidth is None and len(set(recorded.machines)) == 1
    # Another machine would have all its cores free; on this one, other programs keep theirs.
    cores = max(recorded.cores) if one_machine else num_cores
    shard_speed, worker_speed = recorded.bandwidth[recorded.shards[0]], recorded.bandwidth[recorded.workers[0]]
    speeds = (shard_speed,) * choice.shards + (worker_speed,) * choice.workers
    return Topology(
        workers=tuple(range(choice.shards, roles)),
        shards=tuple(range(choice.shards)),
        machines=(0,) * roles if one_machine else tuple(range(roles)),
        cores=(cores,) if one_machine else (cores,) * roles,
        bandwidth=speeds if choice.bandwidth is None else (choice.bandwidth,) * roles,
        latency=recorded.latency if choice.bandwidth is None else max(recorded.latency, LEAST_LATENCY_SECONDS),
        wake=recorded.wake,
    )
