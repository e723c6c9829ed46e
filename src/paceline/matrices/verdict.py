"""What limited a matrix job? The verdict in `diagnosis.json`, from what its processes waited for.

A job has no pace and no gate, so there is nothing to replay. The time that a process waited for a disk or for another
node, instead of multiplying, is what it would gain if that were infinitely fast.
"""

from __future__ import annotations

from typing import Any

from paceline.telemetry.meter import PHASES

BOTTLENECKS = {"compute": "worker-compute", "input": "disk", "push": "disk", "pull": "network", "wait": "straggler"}
WORDS = {
    "compute": "the processors: all processes multiplied for {share:.0%} of the time",
    "input": "reading: {share:.0%} of the time was spent waiting for the disk that holds the factors",
    "push": "writing: {share:.0%} of the time was spent waiting for the disk that receives the result",
    "pull": "the network: {share:.0%} of the time was spent waiting for blocks from other nodes",
    "wait": "the slowest process: the others waited for it for {share:.0%} of the time",
}
ADVICE = {
    "compute": "Use more nodes with `--engine ray`, or float32 instead of float64.",
    "input": "Use a faster disk for the factors, or more `--memory`, so that less is read twice.",
    "push": "Use a faster disk for the result.",
    "pull": "Use fewer nodes with more cores each, or more `--memory`, so that less is fetched twice.",
    "wait": "Use smaller blocks (`--block`), which can be spread more evenly.",
}
# Of all processes together.
SHORTEST_SECONDS = 0.1
# If a job that only multiplies uses less than this share of its cores, something else than their speed holds it up.
NEARLY_ALL = 0.8
IDLE_CORES = "Larger blocks keep all cores busy for longer; other programs may have had the rest."


def judge(seconds: dict[str, float], whole: float, used: float | None = None) -> dict[str, Any]:
    """The diagnosis of a job: `seconds` of all processes by phase, and the `whole` time of all processes. `used` is the
    share of its cores' time that the job used, if that is known: cores may idle while a process multiplies.
    """
    phases = {name: seconds.get(name, 0.0) / whole if whole > 0 else 0.0 for name in PHASES}
    most, second = sorted(ADVICE, key=lambda name: -phases[name])[:2]
    share, is_idle = phases[most], most == "compute" and used is not None and used < NEARLY_ALL
    if used is not None:
        phases["compute"] = min(phases["compute"], used)
    phases["other"] = max(0.0, 1.0 - sum(phases.values()))
    if share < 0.2 or whole < SHORTEST_SECONDS:
        sentence, bottleneck = "inconclusive: the job was too short to say what limited it", "inconclusive"
    else:
        words = WORDS[most].format(share=share) if used is None or most != "compute" else _of_cores(used)
        sentence, bottleneck = f"Limited by {words}.", BOTTLENECKS[most]
    # How much faster the job would be without this waiting; without computing, nothing would be left.
    gain = None if most == "compute" else 1 / (1 - share) if share < 1 else None
    return {
        "bottleneck": bottleneck,
        "sentence": sentence,
        "gain_if_removed": gain,
        "gain_interval": [gain, gain],
        "next_bottleneck": BOTTLENECKS[second],
        "phases": phases,
        "replay_error": None,
        "evidence": [f"{name}: {value:.1%} of the time" for name, value in phases.items() if value > 0],
        "recommendation": "" if bottleneck == "inconclusive" else IDLE_CORES if is_idle else ADVICE[most],
        "nodes": [],
    }


def _of_cores(used: float) -> str:
    """How much of their time the cores worked for the job."""
    if used < NEARLY_ALL:
        return f"the processors, of whose time the job could use only {used:.0%}"
    return f"the processors, which the job kept {min(used, 1.0):.0%} busy"
