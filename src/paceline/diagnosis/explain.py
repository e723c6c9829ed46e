"""The verdict on a run in words and numbers: what `diagnosis.json` holds."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, NamedTuple

from paceline.diagnosis.advice import Advice, advise
from paceline.diagnosis.evidence import Evidence, gather_evidence
from paceline.diagnosis.gpu import hint_of, lines_of
from paceline.diagnosis.steady import Steady
from paceline.diagnosis.topology import best_links
from paceline.diagnosis.verdict import BALANCED, INCONCLUSIVE, Verdict, judge, most
from paceline.errors import ConfigError, DataError, UsageError
from paceline.run_folder import TRAIN, RunFolder

# Above this share of the machine's gather rate, memory is the limit.
NEAR_CEILING = 0.6
# If readers wait for the disk for this share of the time, the disk is what input waits for.
DISK_PRESSURE = 0.2
MOST_TIMES = 99.0
CHECK_LOSS = "Check the test loss then: it may differ."


class Words(NamedTuple):
    """A bottleneck in a sentence: what a run is, and without what it would be faster; and what would limit it next."""

    bound: str
    limits: str = ""


WORDS = {
    "input": Words("input-bound: with rows available at once", "reading rows"),
    "disk": Words("disk-bound: with rows available at once"),
    "worker-compute": Words("worker-bound: with infinitely fast workers", "the workers' processors"),
    "memory-bandwidth": Words("memory-bound: with infinitely fast workers and memory"),
    "network": Words("network-bound: with an infinitely fast network", "the network"),
    "shard-compute": Words("shard-bound: with infinitely fast shards", "the shards' processors"),
    "straggler": Words("held up by stragglers: with every worker as fast as the median", "the slowest worker"),
}
WORDS_ON_GPU = {
    "gpu-memory": Words("GPU-bound: with kernels that take no time", "the GPU's kernels"),
    "bus": Words("bus-bound: with an infinitely fast bus to the GPU", "the bus to the GPU"),
    "input": Words("input-bound: with launches that are ready at once", "preparing launches on this machine"),
}
# What other programs on the machine make slower.
ON_CORES = {"worker-compute", "memory-bandwidth", "shard-compute", "straggler"}


def write_diagnosis(run: RunFolder) -> dict[str, Any]:
    """Diagnose a run and keep the result in `diagnosis.json` if it can be written. Other jobs have written theirs."""
    if run.job == TRAIN:
        found = diagnose(run)
        with suppress(UsageError):  # a folder that cannot be written can still be read
            run.write_json("diagnosis.json", found)
    elif not (found := run.saved_diagnosis):
        raise DataError(f"`{run.path}` has no diagnosis: its {run.job} did not end", "run it to its end")
    return found


def ensure_diagnosis(run: RunFolder) -> None:
    """Write `diagnosis.json` if it is missing and enough was recorded."""
    if not run.saved_diagnosis:
        # Settings of another version may be unknown to this one.
        with suppress(ConfigError, DataError):
            write_diagnosis(run)


def diagnose(run: RunFolder) -> dict[str, Any]:
    """The content of `diagnosis.json`: a function of the run folder alone. `DataError` if too little was recorded."""
    evidence = gather_evidence(run)
    verdict = judge(evidence)
    advice = advise(evidence) if verdict.bottleneck != INCONCLUSIVE else []
    bottleneck = _refined(verdict.bottleneck, evidence)
    best = most(verdict.gains)
    return {
        "bottleneck": bottleneck,
        "sentence": _sentence(bottleneck, verdict, best, advice, evidence),
        "gain_if_removed": _number(verdict.gains[best]),
        "gain_interval": [_number(each) for each in verdict.interval],
        "next_bottleneck": verdict.next_bottleneck,
        "phases": evidence.phases,
        "replay_error": verdict.replay_error,
        "evidence": _lines(evidence, verdict),
        "recommendation": _recommendation(advice, bottleneck, evidence),
        "gains": {name: _number(gain) for name, gain in verdict.gains.items()},
        "gains_if_doubled": {name: _number(gain) for name, gain in verdict.doubled.items()},
        "advice": [
            {
                "try": one.what,
                "flags": one.flags,
                "gain": _number(one.gain.likely),
                "interval": [_number(each) for each in one.gain],
            }
            for one in advice
        ],
        "needed_seconds": evidence.steady.needed_seconds,
        "taken_cores": evidence.taken_cores,
        "rows_per_second": evidence.rows_per_second,
        "nodes": [node._asdict() for node in evidence.nodes],
    }


def _refined(bottleneck: str, evidence: Evidence) -> str:
    """A finer name if other evidence gives one: workers that wait for memory, input that waits for the disk.

    The rows of a GPU are in memory.
    """
    if evidence.gpu is not None:
        return bottleneck
    if bottleneck == "worker-compute" and not evidence.topology.shards and (ceiling := _gather_ceiling(evidence)):
        return "memory-bandwidth" if evidence.gathers_per_second >= NEAR_CEILING * ceiling else bottleneck
    if bottleneck == "input" and any(node.pressure.get("io_some", 0.0) >= DISK_PRESSURE for node in evidence.nodes):
        return "disk"
    return bottleneck


def _gather_ceiling(evidence: Evidence) -> float | None:
    """What `doctor` measured, if it applies: the run was on one machine, and its table was too large for a cache."""
    facts, machines = evidence.facts, set(evidence.topology.machines)
    if facts.ceilings is None or len(machines) > 1 or facts.table_bytes < facts.ceilings.table_bytes // 2:
        return None
    return facts.ceilings.gathers_per_second_all_cores


def _sentence(bottleneck: str, verdict: Verdict, best: str, advice: list[Advice], evidence: Evidence) -> str:
    told, words = _recommendation(advice, bottleneck, evidence), WORDS_ON_GPU if evidence.gpu is not None else WORDS
    if bottleneck == INCONCLUSIVE:
        guess = f"; the best guess so far is {best}" if evidence.is_simulated or evidence.gpu is not None else ""
        return f"inconclusive: {verdict.why_inconclusive}{guess}."
    if bottleneck == BALANCED:
        return (
            "balanced: no single resource limits this run. Infinitely fast, each of them alone would make it less "
            f"than 10% faster. {told}"
        )
    if evidence.taken_cores and bottleneck in ON_CORES:
        return f"{words[bottleneck].bound.partition(':')[0]} on a busy machine. {told}"
    low, high = map(_plain, verdict.interval)
    return (
        f"{words[bottleneck].bound} this run would be {_times(verdict.gains[best])} faster ({low}–{high}); "
        f"then {words[verdict.next_bottleneck].limits} would limit it. {told}"
    )


def _recommendation(advice: list[Advice], bottleneck: str, evidence: Evidence) -> str:
    if bottleneck == INCONCLUSIVE:
        return "No advice: this run does not show clearly enough what limits it."
    if taken := evidence.taken_cores:
        return (
            f"No advice: the machine was busy. Other programs used {taken:.1f} of the cores that this run needed; "
            "train again when they do not."
        )
    hint = "" if evidence.gpu is None else hint_of(evidence.gpu, bottleneck)
    if not advice:
        none = (
            f"No change that {'the simulator' if evidence.gpu is None else 'paceline'} knows would make it 10% faster."
        )
        return f"{hint} {none}".lstrip()
    best = advice[:2]
    told = f"{hint} Try ".lstrip() + " or ".join(f"{one.what} ({one.told})" for one in best) + "."
    return f"{told} {CHECK_LOSS}" if any(one.learns_differently for one in best) else told


def _lines(evidence: Evidence, verdict: Verdict) -> list[str]:
    shares = ", ".join(f"{name} {share:.0%}" for name, share in evidence.phases.items())
    model = "the replay" if evidence.gpu is None else "the formula"
    lines = [
        f"judged by {_part(evidence.steady)}; {model} is off by {verdict.replay_error:.1%}",
        *_first_epoch(evidence),
        *(lines_of(evidence.gpu) if evidence.gpu is not None else [f"a worker's time: {shares}"]),
        "gains if infinitely fast: " + ", ".join(f"{name} {_times(gain, 2)}" for name, gain in verdict.gains.items()),
        "gains if twice as fast: " + ", ".join(f"{name} {_times(gain, 2)}" for name, gain in verdict.doubled.items()),
    ]
    if taken := evidence.taken_cores:
        lines.append(f"the machine was busy: other programs used {taken:.1f} cores that this run needed")
    lines += [
        f"node {node.node}: {node.cores} cores {node.cpu:.0%} busy, {node.memory_bytes / 1e9:.1f} GB in use, "
        f"network {node.network_sent_bytes_per_second / 1e6:.1f} MB/s out and "
        f"{node.network_received_bytes_per_second / 1e6:.1f} in, "
        f"loopback {node.loopback_bytes_per_second / 1e6:.1f} MB/s, "
        f"disk {node.disk_read_bytes_per_second / 1e6:.1f} MB/s read"
        for node in evidence.nodes
    ]
    if use := evidence.connections:
        lines.append(
            f"connections had data in flight for {use.busy:.0%} of the time: {use.receiver_limited:.0%} waiting "
            f"for the receiver, {use.buffer_limited:.0%} for the send buffer, the rest on the network"
        )
    lines += _against_links(evidence)
    if evidence.gpu is not None:
        return lines
    if gathers := evidence.gathers_per_second:
        line = f"{gathers / 1e6:.0f} million weights gathered per second"
        if ceiling := _gather_ceiling(evidence):
            line += f", {gathers / ceiling:.0%} of the machine's ceiling"
        elif evidence.facts.ceilings is None:
            line += "; run `paceline doctor` before training to compare it with what the machine can do"
        lines.append(line)
    elif evidence.facts.traits.keyed:
        lines.append("the keys per batch were not recorded, so memory and larger batches were not judged")
    return lines


def _part(steady: Steady) -> str:
    """Which part of the run counts."""
    if steady.first_epoch:
        return "later epochs"
    return f"the time after the first {steady.left_out:.2g} s" if steady.left_out else "the whole run"


def _first_epoch(evidence: Evidence) -> list[str]:
    """What to know about the first epoch, in which rows may come from a disk."""
    steady = evidence.steady
    read = f", while it read {steady.from_disk / 1e6:,.0f} MB/s from disk" if steady.from_disk else ""
    if steady.first_epoch:
        slower = f"{evidence.rows_per_second / steady.first_epoch:.1f}× slower than later ones"
        return [f"the first epoch was {slower}{read}; only later epochs count here"]
    if steady.only_first and steady.from_disk:
        return [f"all of this run was its first epoch{read}; later epochs may be faster: train for two or more"]
    return []


def _against_links(evidence: Evidence) -> list[str]:
    """What nodes sent or received, compared with what `doctor` measured of their links."""
    lines, ceiling_of = [], best_links(evidence.facts.ceilings)
    for node in evidence.nodes:
        if ceiling := ceiling_of.get(node.node):
            used = max(node.network_sent_bytes_per_second, node.network_received_bytes_per_second)
            lines.append(f"node {node.node} used {used / ceiling:.0%} of its link of {ceiling / 1e6:,.0f} MB/s")
    return lines


def _number(value: float) -> float | None:
    """A number for JSON; None if there is no bound."""
    return None if math.isinf(value) or math.isnan(value) else value


def _plain(value: float, digits: int = 1) -> str:
    return f"{value:.{digits}f}" if value < MOST_TIMES else f"over {MOST_TIMES:.0f}"


def _times(value: float, digits: int = 1) -> str:
    return f"{_plain(value, digits)}×"
