"""The verdict on a run in words and numbers: what `diagnosis.json` holds."""

from __future__ import annotations

import math
from typing import Any

from paceline.diagnosis.advice import Advice, advise
from paceline.diagnosis.evidence import Evidence, gather_evidence
from paceline.diagnosis.verdict import LARGEST_REPLAY_ERROR, Verdict, judge, most
from paceline.run_folder import Run
from paceline.telemetry.ceilings import Ceilings, load_ceilings

# A gather rate this near to what the machine can do is limited by memory.
NEAR_CEILING = 0.6
# Input that waits while the disk has waiting readers for this share of the time waits for the disk.
DISK_PRESSURE = 0.2
MOST_TIMES = 99.0

BOUND = {
    "input": "input-bound: with rows that are there at once",
    "disk": "disk-bound: with rows that are there at once",
    "worker-compute": "worker-bound: with infinitely fast workers",
    "memory-bandwidth": "memory-bound: with infinitely fast workers and memory",
    "network": "network-bound: with an infinitely fast network",
    "shard-compute": "shard-bound: with infinitely fast shards",
    "straggler": "held up by stragglers: with every worker as fast as the median",
}
LIMITS = {
    "input": "reading rows limits",
    "disk": "the disk limits",
    "worker-compute": "the workers' processors limit",
    "memory-bandwidth": "memory limits",
    "network": "the network limits",
    "shard-compute": "the shards' processors limit",
    "straggler": "the slowest worker limits",
}


def diagnose(run: Run) -> dict[str, Any]:
    """The diagnosis of a run, as `diagnosis.json` has it. `DataError` where too little was recorded."""
    ceilings = load_ceilings()
    evidence = gather_evidence(run, _best_links(ceilings))
    verdict = judge(evidence)
    gather_rate = evidence.rows_per_second * evidence.gathers_per_row
    bottleneck = _refined(verdict.bottleneck, evidence, gather_rate, ceilings)
    advice = advise(evidence)
    best = most(verdict.gains)
    return {
        "bottleneck": bottleneck,
        "sentence": _sentence(bottleneck, verdict, best, advice, evidence),
        "gain_if_removed": _number(verdict.gains[best]),
        "gain_interval": [_number(each) for each in verdict.interval],
        "next_bottleneck": verdict.next_bottleneck,
        "phases": evidence.phases,
        "replay_error": verdict.replay_error,
        "evidence": _lines(evidence, verdict, gather_rate, ceilings),
        "recommendation": _recommendation(advice, bottleneck),
        "gains": {name: _number(gain) for name, gain in verdict.gains.items()},
        "gains_if_doubled": {name: _number(gain) for name, gain in verdict.doubled.items()},
        "advice": [{"try": one.what, "gain": _number(one.gain)} for one in advice],
        "rows_per_second": evidence.rows_per_second,
        "nodes": [
            {
                "node": node.node,
                "cores": node.cores,
                "cpu": node.cpu,
                "memory_bytes": node.memory_bytes,
                "network_sent_bytes_per_second": node.network_sent,
                "network_received_bytes_per_second": node.network_received,
                "disk_read_bytes_per_second": node.disk_read,
                "pressure": node.pressure,
            }
            for node in evidence.nodes
        ],
    }


def _refined(bottleneck: str, evidence: Evidence, gather_rate: float, ceilings: Ceilings | None) -> str:
    """A finer name where other evidence gives one: workers that wait for memory, input that waits for the disk."""
    embedded = evidence.config.engine == "local"
    ceiling = _gather_ceiling(evidence, ceilings)
    if bottleneck == "worker-compute" and embedded and ceiling and gather_rate >= NEAR_CEILING * ceiling:
        return "memory-bandwidth"
    if bottleneck == "input" and any(node.pressure.get("io_some", 0.0) >= DISK_PRESSURE for node in evidence.nodes):
        return "disk"
    return bottleneck


def _gather_ceiling(evidence: Evidence, ceilings: Ceilings | None) -> float | None:
    """What `doctor` measured, where the run looked weights up like it: on one machine, and no cache holds them all."""
    if ceilings is None or len(set(evidence.layout.machines)) > 1 or evidence.table_bytes < ceilings.table_bytes // 2:
        return None
    return ceilings.gathers_per_second_all_cores


def _sentence(bottleneck: str, verdict: Verdict, best: str, advice: list[Advice], evidence: Evidence) -> str:
    if not evidence.is_simulated:
        return (
            f"inconclusive: how workers add up among themselves (allreduce) is not simulated; they spent "
            f"{evidence.phases['push']:.0%} of their time on that and waiting for each other, and "
            f"{evidence.phases['compute']:.0%} computing."
        )
    if bottleneck == "inconclusive":
        return (
            f"inconclusive: the replay is off by {verdict.replay_error:.0%}, more than {LARGEST_REPLAY_ERROR:.0%}; "
            f"it would name {best} ({_times(verdict.gains[best])})."
        )
    low, high = verdict.interval
    text = f"{BOUND[bottleneck]} this run would be {_times(verdict.gains[best])} faster ({_plain(low)}–{_plain(high)})"
    text += f"; then {LIMITS[verdict.next_bottleneck]}. {_recommendation(advice, bottleneck)}"
    return text.strip()


def _recommendation(advice: list[Advice], bottleneck: str) -> str:
    if bottleneck == "inconclusive":
        return "Nothing is advised, for the replay is not to be trusted here."
    if not advice:
        return "Nothing that the simulator knows to try would make it a tenth faster."
    return "Try " + " or ".join(f"{one.what} ({one.gain:.1f}×)" for one in advice[:2]) + "."


def _lines(evidence: Evidence, verdict: Verdict, gather_rate: float, ceilings: Ceilings | None) -> list[str]:
    shares = ", ".join(f"{name} {share:.0%}" for name, share in evidence.phases.items())
    lines = [
        f"{evidence.rows_per_second:,.0f} rows/s, the first second left out; "
        f"the replay is off by {verdict.replay_error:.1%}",
        f"a worker's time: {shares}",
        "gains if infinitely fast: " + ", ".join(f"{name} {_times(gain)}" for name, gain in verdict.gains.items()),
        "gains if twice as fast: " + ", ".join(f"{name} {gain:.2f}×" for name, gain in verdict.doubled.items()),
    ]
    lines += [
        f"node {node.node}: {node.cores} cores {node.cpu:.0%} busy, {node.memory_bytes / 1e9:.1f} GB in use, "
        f"network {node.network_sent / 1e6:.1f} MB/s out and {node.network_received / 1e6:.1f} in, "
        f"disk {node.disk_read / 1e6:.1f} MB/s read"
        for node in evidence.nodes
    ]
    if use := evidence.connections:
        lines.append(
            f"connections had something on the way for {use.busy:.0%} of the time: {use.receiver_limited:.0%} waiting "
            f"for the receiver, {use.buffer_limited:.0%} for the send buffer, the rest on the network"
        )
    lines += _against_links(evidence, ceilings)
    if gather_rate:
        line = f"{gather_rate / 1e6:.0f} million weights gathered a second"
        if ceiling := _gather_ceiling(evidence, ceilings):
            line += f", {gather_rate / ceiling:.0%} of this machine's ceiling"
        elif ceilings is None:
            line += "; `paceline doctor` measures what this machine can do"
        lines.append(line)
    return lines


def _best_links(ceilings: Ceilings | None) -> dict[str, float]:
    """What `doctor` has measured of nodes' links, in bytes a second."""
    return {link.node: link.bytes_per_second for link in ceilings.links} if ceilings is not None else {}


def _against_links(evidence: Evidence, ceilings: Ceilings | None) -> list[str]:
    """What nodes sent or received, against what `doctor` measured of their links."""
    best = _best_links(ceilings)
    return [
        f"node {node.node} used {max(node.network_sent, node.network_received) / best[node.node]:.0%} of its link of "
        f"{best[node.node] / 1e6:,.0f} MB/s"
        for node in evidence.nodes
        if node.node in best
    ]


def _number(value: float) -> float | None:
    """As JSON has it; None for what has no bound."""
    return None if math.isinf(value) or math.isnan(value) else value


def _plain(value: float) -> str:
    return f"{value:.1f}" if value < MOST_TIMES else f"over {MOST_TIMES:.0f}"


def _times(value: float) -> str:
    return f"{_plain(value)} times"
