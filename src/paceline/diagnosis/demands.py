"""What does one step of a worker take? From totals and sampled steps to the demands of the simulator.

The exact totals of chunks give the mean time of a step. Samples of single steps tell how it varies, and how much of it
was processor time. If there are more roles than cores on a node, the time that a role waits for a core is not its own
work: then processor time counts, otherwise wall time.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence

import msgspec

from paceline.diagnosis.simulator import IDLE_SECONDS, Demand, PaceRules, Topology, spinning
from paceline.errors import DataError
from paceline.telemetry.records import ShardChunk, StepSample, WorkerChunk

WARM_UP_SHARE = 0.1
# How much of a role's processor time outside its phases counts as receiving frames, as multiples of what sending one
# takes. A shard reads a request and sends a reply. The rest is due to a slow link.
RECEIVE_PER_PUSH = 1.0
SERVE_PER_PUSH = 1.5
# How much of a shard's work on a frame follows the opening of the gate, if the run does not tell: gathering, sending
# and half of the fold's work.
AFTER_GATE = 0.5
# The frames of a shard that did not complete a clock are the quicker ones.
NOT_LAST = 0.2
DRAWS, TURN_STEPS = 2000, 200
# What a byte of a frame takes, as a share of what `doctor` measured for long streams: frames are still in the caches.
WARM = 0.5


def demands_of(chunks: Sequence[WorkerChunk], samples: Sequence[StepSample], crowded: bool,
               shards: Sequence[Sequence[ShardChunk]], keyed: bool, byte_seconds: float) -> list[Demand]:  # fmt: skip
    """A worker's sampled steps, scaled so that their means are those of the exact totals.

    `byte_seconds` is what sending or receiving a byte takes each side; 0 if that is not known.
    """
    samples = [sample for sample in samples if len(sample.replies) == len(shards)]
    if not samples:
        raise DataError("no step of this run was recorded with all of its shards", "train for a few more seconds")
    samples = samples[int(len(samples) * WARM_UP_SHARE) :]
    if not shards:
        samples = [_with_own_work(sample) for sample in samples]
    steps = sum(chunk.steps for chunk in chunks)
    sampled = sum(sample.steps for sample in samples)
    scale = {}
    for name in ("input", "compute", "push", "rows"):
        exact = sum(getattr(chunk, name) for chunk in chunks) / steps
        # Every sample is drawn equally often, however many steps it covers.
        seen = statistics.fmean(getattr(sample, name) / sample.steps for sample in samples)
        scale[name] = exact / seen if seen > 0 else 1.0
    stretch = _stretch(samples) if crowded else 1.0
    # Time that sending to shards takes beyond its work is waiting for a link, which the simulator adds again.
    sends = bool(samples[0].replies)
    if sends:
        scale["push"] = min(1.0, scale["push"])
    processor = {
        name: statistics.fmean(getattr(sample, f"{name}_processor") / sample.steps for sample in samples) * scale[name]
        for name in ("input", "compute", "push")
    }
    push = processor["push"]
    # Receiving a reply is work too, but no phase shows it, because a worker mostly waits there. Without keys, workers
    # do not spin while they wait for replies, and may copy much.
    most = RECEIVE_PER_PUSH * push if keyed else math.inf
    receive = min(max(0.0, _work(chunks, "steps") - sum(processor.values())), most) if sends else 0.0
    service_scale = _service_scale(chunks, samples)
    served = [
        statistics.fmean(reply.service for reply in replies) * service_scale
        for replies in zip(*(sample.replies for sample in samples), strict=True)
    ]
    stretch_of = [
        mean / min(work, mean + (SERVE_PER_PUSH * push if keyed else math.inf)) if work > 0 and mean > 0 else 1.0
        for mean, work in zip(served, (_work(own, "requests") for own in shards), strict=True)
    ]
    awake = _awake(chunks, samples, processor["compute"], crowded)
    # What idling costs a shard is not measured: as much as it costs a worker, if the shard idles.
    shard_awake = awake if all(map(_idles, shards)) else 1.0
    after_gate = _after_gate(samples, served, stretch_of) if shards else 0.0
    step_fixed = max(chunk.one_row for chunk in chunks)
    found = []
    for sample in samples:
        one = 1 / sample.steps
        input_work = sample.input_processor if crowded else min(sample.input, sample.input_processor * 1.25)
        delay = max(0.0, sample.input - input_work * max(1.0, stretch))
        found.append(
            Demand(
                delay=delay * scale["input"] * one,
                input=input_work * scale["input"] * one,
                compute=(sample.compute_processor if crowded else sample.compute) * scale["compute"] * one,
                push=(sample.push_processor if sends or crowded else sample.push) * scale["push"] * one + receive,
                rows=round(sample.rows * scale["rows"] * one),
                service=tuple(
                    reply.service * service_scale / stretched
                    for reply, stretched in zip(sample.replies, stretch_of, strict=True)
                ),
                bytes_out=tuple(float(reply.bytes_sent) for reply in sample.replies),
                bytes_in=tuple(float(reply.bytes_received) for reply in sample.replies),
                awake=awake,
                shard_awake=shard_awake,
                after_gate=after_gate,
                step_fixed=step_fixed,
            )
        )
    found = _spread(found, sampled / len(samples))
    return [_with_fixed(demand, served, byte_seconds) for demand in found] if byte_seconds and keyed else found


def _with_own_work(sample: StepSample) -> StepSample:
    """A sample of a thread whose loops read, compute and wait in one call. Only the time of each is known, so processor
    time is divided by it; what exceeds it was spent on spinning at the gate.
    """
    wall = sample.input + sample.compute
    processor = min(wall, sample.input_processor + sample.compute_processor)
    if wall <= 0:
        return sample
    shares = {f"{name}_processor": processor * getattr(sample, name) / wall for name in ("input", "compute")}
    return msgspec.structs.replace(sample, **shares)


def _with_fixed(demand: Demand, timed: Sequence[float], byte_seconds: float) -> Demand:
    """A demand with what its frames take regardless of their size: what bytes do not explain of sending and receiving.
    What shards time themselves is work on keys.
    """
    frames = len(demand.service)
    if not frames:
        return demand
    seconds = (sum(demand.bytes_out) + sum(demand.bytes_in)) * byte_seconds * WARM
    return demand._replace(
        push_fixed=max(0.0, demand.push - seconds) / frames,
        service_fixed=max(0.0, sum(demand.service) - sum(timed) - seconds) / frames,
    )


def _after_gate(samples: Sequence[StepSample], served: Sequence[float], stretch_of: Sequence[float]) -> float:
    """How much of the work on a frame follows the opening of the gate, if steps were held back.

    The last frame of a clock adds up all gradients. What others take is receiving and answering, about half of it each;
    all of the rest waits for the last one.
    """
    replies = [reply for sample in samples for reply in sample.replies]
    if not any(reply.held > 0 for reply in replies) or min(served) <= 0:
        return AFTER_GATE
    quick = statistics.quantiles([reply.service for reply in replies], n=round(1 / NOT_LAST))[0]
    mean = statistics.fmean(reply.service for reply in replies)
    # Receiving and sending outside of what a shard times is in equal parts before and after.
    timed = min(1.0, 1 / statistics.fmean(1 / stretched for stretched in stretch_of))
    before = timed * min(1.0, quick / mean) / 2 + (1 - timed) / 2
    return 1 - before


def _spread(demands: list[Demand], steps: float) -> list[Demand]:
    """Demands that are means over several steps, as single steps: these vary more, by the root of their number."""
    if steps <= 1:
        return demands
    mean = statistics.fmean(demand.compute for demand in demands)
    if mean <= 0:
        return demands

    def single(compute: float) -> float:
        return min(3 * mean, max(mean / 3, mean + (compute - mean) * math.sqrt(steps)))

    spread = [demand._replace(compute=single(demand.compute)) for demand in demands]
    correction = mean / statistics.fmean(demand.compute for demand in spread)
    return [demand._replace(compute=demand.compute * correction) for demand in spread]


def in_step(demands: Sequence[list[Demand]], lasts: float) -> list[list[Demand]]:
    """The steps of threads that wait for each other in every step, such that one step of all lasts as recorded.

    Samples are means over many steps and cannot tell how single steps vary. That the slowest of a step's threads takes
    longer than the mean tells it. What is left of `lasts` is the cost of waiting and being woken up.
    """
    chance = random.Random(0)
    draws = [[chance.choice(own) for own in demands] for _ in range(DRAWS // max(1, len(demands)))]
    means = [statistics.fmean(demand.compute for demand in own) for own in demands]

    def varied(demand: Demand, mean: float, times: float) -> Demand:
        return demand._replace(compute=max(0.0, mean + (demand.compute - mean) * times))

    def slowest(times: float) -> float:
        return statistics.fmean(
            max(demand.delay + demand.input + demand.push + varied(demand, mean, times).compute
                for demand, mean in zip(draw, means, strict=True))
            for draw in draws
        )  # fmt: skip

    low, high = 0.0, 1.0
    if slowest(high) <= lasts:
        low = high
    for _ in range(10):
        times = (low + high) / 2
        low, high = (times, high) if slowest(times) <= lasts else (low, times)
    gate = max(0.0, lasts - slowest(low))
    return [
        [varied(demand, mean, low)._replace(gate=gate) for demand in own]
        for own, mean in zip(demands, means, strict=True)
    ]


def taking_turns(topology: Topology, demands: list[list[Demand]], rules: PaceRules,
                 spun: float) -> tuple[Topology, list[list[Demand]]]:  # fmt: skip
    """The steps of roles that take turns on the cores, such that these spin for as long per step as recorded (`spun`).

    The simulator shares cores evenly. Where it spins for too long, roles spin for a shorter time before they sleep.
    Otherwise the rest was spent on waiting for one that had no core, half of it by workers.
    """

    def simulated(most: float) -> float:
        return spinning(demands, topology._replace(spin=most), rules, TURN_STEPS)

    low, high = 0.0, topology.spin
    if (seen := simulated(high)) <= spun:
        return topology, [[demand._replace(turn=(spun - seen) / 2) for demand in own] for own in demands]
    for _ in range(6):
        most = (low + high) / 2
        low, high = (most, high) if simulated(most) <= spun else (low, most)
    return topology._replace(spin=low), demands


def _stretch(samples: Sequence[StepSample]) -> float:
    """How many times longer work takes than its processor time, because others use the core."""
    wall, processor = sum(s.compute for s in samples), sum(s.compute_processor for s in samples)
    return max(1.0, wall / processor) if processor > 0 else 1.0


def _work(chunks: Sequence[WorkerChunk] | Sequence[ShardChunk], counted: str) -> float:
    """Processor seconds per step or request, as `counted`, without spinning for frames; 0 if that is not known."""
    seconds = sum(chunk.processor - chunk.spun for chunk in chunks)
    count: int = sum(getattr(chunk, counted) for chunk in chunks)
    return max(0.0, seconds) / max(1, count)


def _awake(chunks: Sequence[WorkerChunk], samples: Sequence[StepSample], compute: float, crowded: bool) -> float:
    """The share of their time that steps would take without idling before them; 1 if most did not idle."""
    at_best = max(chunk.compute_in_company if crowded else chunk.compute_alone for chunk in chunks)
    idled = statistics.median(s.pull + s.wait + max(0.0, s.input - 2 * s.input_processor) for s in samples)
    return min(1.0, at_best / compute) if at_best > 0 and compute > 0 and idled >= IDLE_SECONDS else 1.0


def _idles(chunks: Sequence[ShardChunk]) -> bool:
    """Whether a shard mostly idles before a request."""
    idle = sum(chunk.seconds - chunk.processor for chunk in chunks)
    return idle >= IDLE_SECONDS * sum(chunk.requests for chunk in chunks)


def _service_scale(chunks: Sequence[WorkerChunk], samples: Sequence[StepSample]) -> float:
    replies = [reply.service for sample in samples for reply in sample.replies]
    exact = sum(chunk.service for chunk in chunks) / max(1, sum(chunk.replies for chunk in chunks))
    return exact / statistics.fmean(replies) if replies and exact > 0 else 1.0
