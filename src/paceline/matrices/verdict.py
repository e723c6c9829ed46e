"""What held a matrix job back? What its processes waited for, as `diagnosis.json` has it.

A job has no pace and no gate, so there is nothing to replay: the time in which a process could not multiply because it
waited for a disk or for another node is what it would gain if that were infinitely fast.
"""

from __future__ import annotations

from typing import Any

PHASES = ("input", "pull", "compute", "push", "wait", "other")
BOTTLENECKS = {"compute": "worker-compute", "input": "disk", "push": "disk", "pull": "network", "wait": "straggler"}
WORDS = {
    "compute": "the processors: {share:.0%} of the time they multiplied",
    "input": "reading: {share:.0%} of the time went into waiting for the disk that the factors are on",
    "push": "writing: {share:.0%} of the time went into waiting for the disk that the result goes to",
    "pull": "the network: {share:.0%} of the time went into waiting for blocks of other nodes",
    "wait": "the slowest process: {share:.0%} of the time others waited for the end",
}
ADVICE = {
    "compute": "More nodes with `--engine ray`, or float32 where it is float64 now.",
    "input": "A faster disk for the factors, or more `--memory`, so that less is read twice.",
    "push": "A faster disk for the result.",
    "pull": "Fewer nodes with more processors each, or more `--memory`, so that less is fetched twice.",
    "wait": "Smaller blocks (`--block`) can be spread more evenly.",
}


def judge(seconds: dict[str, float], whole: float) -> dict[str, Any]:
    """The diagnosis of a job: `seconds` are all processes' by phase, `whole` is all their time."""
    phases = {name: seconds.get(name, 0.0) / whole if whole > 0 else 0.0 for name in PHASES}
    phases["other"] = max(0.0, 1.0 - sum(phases[name] for name in PHASES if name != "other"))
    most = max(ADVICE, key=lambda name: phases[name])
    share = phases[most]
    if share < 0.2 or whole <= 0:
        sentence, bottleneck = "inconclusive: the job was too short to say what limited it", "inconclusive"
    else:
        sentence, bottleneck = f"Limited by {WORDS[most].format(share=share)}.", BOTTLENECKS[most]
    # How much faster without any of its waiting; without its computing nothing would be left.
    gain = None if most == "compute" else 1 / (1 - share) if share < 1 else None
    return {
        "bottleneck": bottleneck,
        "sentence": sentence,
        "gain_if_removed": gain,
        "gain_interval": [gain, gain],
        "next_bottleneck": BOTTLENECKS[max((n for n in ADVICE if n != most), key=lambda name: phases[name])],
        "phases": phases,
        "replay_error": None,
        "evidence": [f"{name}: {value:.1%} of the time" for name, value in phases.items() if value > 0],
        "recommendation": "" if bottleneck == "inconclusive" else ADVICE[most],
        "nodes": [],
    }
