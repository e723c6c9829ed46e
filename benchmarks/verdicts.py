"""Is the diagnosis right? Plants and removes bottlenecks, and compares predicted with measured gains.

    python benchmarks/verdicts.py [--rows 300000] [--repeats 10] [--write]    (as root, for the network)

Each plant is a real run over Ray (or embedded, if nothing is planted). The simulator predicts the gain from the planted
run alone, except for the speed of the resource without the plant: a straggler becomes like the others, a network has no
limit, and otherwise the run without the plant shows it. `plan` predicts runs over 200 Mbit/s links from one of them.

Prints one JSON line per measurement, then a table; `--write` keeps it under benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from cluster import RAY_PORT, environment, lab, make_data, say, session, wait_for
from embedded import machine
from hosts import Hosts, exit_on_signals
from paceline.diagnosis.evidence import Evidence, gather_evidence
from paceline.diagnosis.explain import diagnose
from paceline.diagnosis.plan import Choice, predict
from paceline.diagnosis.simulator import Demand
from paceline.diagnosis.verdict import RESOURCES, World, rate
from paceline.run_folder import RunFolder

HERE = Path(__file__).parent
SECONDS = 6.0
WHOLE_MODEL_SECONDS = 20.0
WITHIN = 0.2
# For pairs of runs with very different speeds: both get the same number of rows, and the same number of first reads, in
# which files are read and memory is touched.
EPOCHS = 12
# Large enough that the cost of a step is the cost of its rows, with and without a plant. While a plant lets processors
# idle, the small steps of small batches look slower than they are when processors stay awake.
BATCH_SIZE = 10_000


class Plant(NamedTuple):
    """A bottleneck: the roles' entry points with and without it, and the expected verdict."""

    name: str
    expected: str
    planted: str
    removed: str
    flags: dict[str, Any]


PLANTS = [
    Plant("extra work per row, all workers", "worker-compute", "slow_workers", "nothing", {}),
    Plant("extra work per push", "shard-compute", "slow_shard", "nothing", {}),
    Plant(
        "one of four workers three times slower",
        "straggler",
        "one_slow_worker",
        "even_workers",
        {"workers": 4, "pace": "sync"},
    ),
    Plant("a throttled reader", "input", "slow_input", "nothing", {}),
]


def command(entry: str, data: Path, run: Path, flags: dict[str, Any]) -> list[str]:
    until = {} if "epochs" in flags else {"seconds": SECONDS}
    asked = {"pace": "async", "batch_size": BATCH_SIZE, "workers": 2, "shards": 1, **until, **flags}
    words = [sys.executable, str(HERE / "plants.py"), entry, "train", "--data", str(data), "--run", str(run),
             "--engine", "ray", "--optimizer", "sgd", "--learning-rate", "0.02", "--checkpoint-every", "0"]  # fmt: skip
    settings = asked.pop("settings", [])
    for name, value in asked.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    for setting in settings:
        words += ["--set", setting]
    return words


class Place:
    """Where runs take place: this machine, or hosts with limited links."""

    def __init__(self, folder: Path, data: Path, hosts: Hosts | None = None, env: dict[str, str] | None = None) -> None:
        self._folder = folder
        self._data = data
        self._hosts = hosts
        self._env = env

    def train(self, entry: str, flags: dict[str, Any]) -> RunFolder:
        path = self._folder / f"run-{time.monotonic_ns()}"
        log = path.with_suffix(".log")
        if self._hosts is not None:
            flags = flags | {"address": f"{self._hosts.addresses[0]}:{RAY_PORT}"}
        words = command(entry, self._data, path, flags)
        with log.open("wb") as out:
            if self._hosts is None:
                with session(words, environment(self._env), stdout=out, stderr=out) as process:
                    wait_for(process, log)
            else:
                process = self._hosts.start(0, words, env=environment(self._env), stdout=out, stderr=out)
                wait_for(process, log)
        return RunFolder(path)


def means(evidence: Evidence, field: str) -> float:
    """The mean of a part of all steps, in seconds."""
    parts = [getattr(demand, field) for own in evidence.demands for demand in own]
    return statistics.fmean(sum(part) if isinstance(part, tuple) else part for part in parts)


FIELDS = {"worker-compute": ("compute",), "shard-compute": ("service",), "input": ("delay", "input")}


def predicted_gain(expected: str, planted: Evidence, removed: Evidence) -> float:
    """How many times faster the planted run would be without its plant, according to the simulator."""
    world = World(planted.demands, planted.topology, planted.rules)
    if expected in ("straggler", "network"):
        return rate(RESOURCES[expected](world, math.inf)) / rate(world)
    times = {field: means(planted, field) / max(1e-12, means(removed, field)) for field in FIELDS[expected]}

    def lighter(demand: Demand) -> Demand:
        changed: dict[str, Any] = {}
        for field, factor in times.items():
            value = getattr(demand, field)
            changed[field] = tuple(v / factor for v in value) if isinstance(value, tuple) else value / factor
        return demand._replace(**changed)

    without = world._replace(demands=[[lighter(demand) for demand in own] for own in world.demands])
    return rate(without) / rate(world)


def compare(name: str, expected: str, planted: RunFolder, removed: RunFolder) -> dict[str, Any]:
    """One row of the table."""
    found, before, after = diagnose(planted), gather_evidence(planted), gather_evidence(removed)
    predicted, measured = predicted_gain(expected, before, after), after.rows_per_second / before.rows_per_second
    line = {
        "plant": name,
        "expected": expected,
        "verdict": found["bottleneck"],
        "replay_error": round(found["replay_error"], 3),
        "rows_per_second": round(before.rows_per_second),
        "predicted_gain": round(predicted, 2),
        "measured_gain": round(measured, 2),
        "holds": found["bottleneck"] == expected and abs(predicted / measured - 1) <= WITHIN,
        "sentence": found["sentence"],
    }
    say(line)
    return line


def nothing_planted(data: Path, folder: Path) -> dict[str, Any]:
    """An embedded run: limited by its processors or its memory."""
    import paceline

    path = folder / "embedded"
    run = paceline.train(data=str(data), run=str(path), workers=2, pace="async", batch_size=1000, seconds=SECONDS)
    found = diagnose(run)
    line = {
        "plant": "nothing, embedded",
        "expected": "worker-compute or memory-bandwidth",
        "verdict": found["bottleneck"],
        "replay_error": round(found["replay_error"], 3),
        "rows_per_second": round(found["rows_per_second"]),
        "holds": found["bottleneck"] in ("worker-compute", "memory-bandwidth"),
        "sentence": found["sentence"],
    }
    say(line)
    return line


def same_verdict(place: Place, repeats: int) -> dict[str, Any]:
    """The verdicts of several runs with the same configuration."""
    verdicts = [diagnose(place.train("slow_shard", {}))["bottleneck"] for _ in range(repeats)]
    line = {
        "plant": f"{repeats} runs alike",
        "expected": "the same verdict",
        "verdict": ", ".join(sorted(set(verdicts))),
        "holds": len(set(verdicts)) == 1,
    }
    say(line)
    return line


def planned(where: str, recorded: Evidence, pace: str, workers: int, measured: float, within: float | None) -> Any:
    """A row on what `plan` predicts for other workers and paces. Without `within`, its error is only reported."""
    predicted = predict(recorded, Choice(pace, workers, 1, None)).rows_per_second
    line = {
        "plant": f"plan from 1 worker async, {where}: {workers} worker{'s' if workers > 1 else ''} {pace}",
        "expected": f"{predicted:,.0f} rows/s",
        "verdict": f"{measured:,.0f} rows/s",
        "predicted_gain": round(predicted / recorded.rows_per_second, 2),
        "measured_gain": round(measured / recorded.rows_per_second, 2),
        "holds": within is None or abs(predicted / measured - 1) <= within,
        "told": within is None,
    }
    say(line)
    return line


def plans_here(place: Place, data: Path, folder: Path) -> list[dict[str, Any]]:
    """What `plan` predicts for more workers on this machine, which share its cores: embedded, and over the loopback."""
    import paceline

    def embedded(pace: str, workers: int) -> Evidence:
        path = folder / f"planned-{pace}-{workers}"
        return gather_evidence(
            paceline.train(data=str(data), run=str(path), workers=workers, pace=pace, batch_size=1000, seconds=SECONDS)
        )

    def over_ray(pace: str, workers: int) -> Evidence:
        return gather_evidence(place.train("nothing", {"workers": workers, "pace": pace}))

    lines = []
    for where, train in (("embedded", embedded), ("loopback", over_ray)):
        recorded = train("async", 1)
        lines += [planned(where, recorded, pace, 2, train(pace, 2).rows_per_second, None) for pace in ("async", "sync")]
    return lines


def over_slow_links(data: Path, folder: Path) -> list[dict[str, Any]]:
    """The network, with the keys of the batches and with the whole model; and what `plan` predicts over slow links."""
    lines = []
    with ExitStack() as stack:
        hosts, env = stack.enter_context(lab(3, "100Mbit"))
        slow = Place(folder, data, hosts, env).train("nothing", {"epochs": EPOCHS})
    with ExitStack() as stack:
        hosts, env = stack.enter_context(lab(3, "10Gbit"))
        fast = Place(folder, data, hosts, env).train("nothing", {"epochs": EPOCHS})
    lines.append(compare("links of 100 Mbit/s", "network", slow, fast))
    with ExitStack() as stack:
        hosts, env = stack.enter_context(lab(3, "200Mbit"))
        place = Place(folder, data, hosts, env)
        recorded = gather_evidence(place.train("nothing", {"workers": 1}))
        for pace, workers in (("async", 2), ("sync", 1), ("sync", 2)):
            flags = {"workers": workers, "pace": pace}
            measured = gather_evidence(place.train("nothing", flags)).rows_per_second
            lines.append(planned("200 Mbit/s", recorded, pace, workers, measured, WITHIN))
    return lines


def whole_model_or_keys(data: Path, folder: Path) -> list[dict[str, Any]]:
    """Five hosts at batch 1,000: sending the whole model fills the network, sending the batch's keys does not."""
    lines = []
    with lab(5, "1.8Gbit") as (hosts, env):
        place = Place(folder, data, hosts, env)
        for pull, seconds in (("all", WHOLE_MODEL_SECONDS), ("keys", SECONDS)):
            settings = [f'wire.pull="{pull}"']
            flags = {"batch_size": 1000, "workers": 4, "seconds": seconds, "settings": settings}
            found = diagnose(place.train("nothing", flags))
            network = found["bottleneck"] == "network"
            lines.append({
                "plant": f"five hosts, 1.8 Gbit/s, batch 1,000, {'whole model' if pull == 'all' else 'keys'}",
                "expected": "network" if pull == "all" else "not network",
                "verdict": found["bottleneck"],
                "replay_error": round(found["replay_error"], 3),
                "rows_per_second": round(found["rows_per_second"]),
                "holds": network == (pull == "all") and found["bottleneck"] != "inconclusive",
                "sentence": found["sentence"],
            })  # fmt: skip
            say(lines[-1])
    return lines


def markdown(lines: list[dict[str, Any]], rows: int) -> str:
    out = (
        f"# Verdicts on planted bottlenecks, {datetime.now(UTC):%Y-%m-%d}\n\n{machine()}. {rows:,} click rows, "
        f"{SECONDS:g} seconds per run, batch {BATCH_SIZE:,}, over Ray unless stated otherwise. "
        f"`python benchmarks/verdicts.py`.\n\n"
        f"| planted | expected | found | replay off by | predicted gain | measured gain | holds |\n"
        f"|---|---|---|---|---|---|---|\n"
    )
    for line in lines:
        error = f"{line['replay_error']:.1%}" if "replay_error" in line else ""
        holds = "reported" if line.get("told") else "yes" if line["holds"] else "**no**"
        out += (
            f"| {line['plant']} | {line['expected']} | {line['verdict']} | {error} | {line.get('predicted_gain', '')} "
            f"| {line.get('measured_gain', '')} | {holds} |\n"
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--folder", type=Path, help="where the data is kept")
    parser.add_argument("--only", help="part of the name of a plant")
    parser.add_argument("--write", action="store_true")
    flags = parser.parse_args()
    exit_on_signals()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory(prefix="plv") as folder:
        data = make_data(flags.folder or Path(folder), flags.rows)
        place = Place(Path(folder), data)
        wanted: Callable[[str], bool] = lambda name: not flags.only or flags.only in name  # noqa: E731
        lines = [
            compare(plant.name, plant.expected, place.train(plant.planted, plant.flags),
                    place.train(plant.removed, plant.flags))
            for plant in PLANTS if wanted(plant.name)
        ]  # fmt: skip
        if wanted("nothing"):
            lines.append(nothing_planted(data, Path(folder)))
        if wanted("plan"):
            lines += plans_here(place, data, Path(folder))
        if wanted("links") and os.geteuid() == 0:
            lines += over_slow_links(data, Path(folder))
        if wanted("five") and os.geteuid() == 0:
            lines += whole_model_or_keys(data, Path(folder))
        if wanted("alike") and flags.repeats:
            lines.append(same_verdict(place, flags.repeats))
    table = markdown(lines, flags.rows)
    judged = [line for line in lines if not line.get("told")]
    print(json.dumps({"holds": sum(line["holds"] for line in judged), "of": len(judged)}))
    print(table)
    if flags.write:
        (HERE / "results" / f"{datetime.now(UTC):%Y-%m-%d}-verdicts.md").write_text(table)


if __name__ == "__main__":
    main()
