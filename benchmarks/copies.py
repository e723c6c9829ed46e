"""How many copies of a model's weights does each role of a dense run hold?

    python benchmarks/copies.py [--write]

A module with 10 and then 40 million weights trains in sync on three workers and a shard, with momentum and a checkpoint
every half second. Nearly all weights are in one layer, so that its gradient alone is as large as all weights. The peak
memory of each process is sampled every few milliseconds. The number of copies is the difference between the two sizes,
divided by the difference in weights: everything that does not grow with the model cancels out.

Limits: a worker that pushes to shards needs weights and gradient, and may hold one more copy. A shard needs weights and
momentum, and may hold two more. A worker of an allreduce needs weights, momentum and gradient, and may hold one more.
Shared memory is counted once, for all its processes together. The coordinator is the command itself, which evaluates
the model and saves checkpoints; it has no limit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from embedded import machine

HERE = Path(__file__).parent
SIZE, CLASSES, ROWS = 32, 10, 60
HIDDEN = (3_300, 13_200)
WORKERS = 3
SETTINGS = {
    "over sockets": ["--exchange", "shard", "--set", "wire.shared_memory=false"],
    "shared memory": ["--exchange", "shard"],
    "allreduce": ["--exchange", "allreduce"],
}
# Activations within the module grow with it, too.
NOT_WEIGHTS = 0.02
COORDINATOR = "coordinator 0"
ALLOWED = {"worker": 3, "shard": 4, "adding worker": 4}


def num_weights(hidden: int) -> int:
    return (SIZE * SIZE * 3 + 1) * hidden + (hidden + 1) * CLASSES


def module_in(folder: Path, hidden: int) -> str:
    """Write a module with this many hidden units; return its name for --model."""
    (folder / f"wide_{hidden}.py").write_text(
        "from torch import nn\n\n\ndef build():\n"
        f"    layers = nn.Linear({SIZE * SIZE * 3}, {hidden}), nn.Linear({hidden}, {CLASSES})\n"
        "    return nn.Sequential(nn.Flatten(), *layers)\n"
    )
    return f"wide_{hidden}:build"


def peaks(folder: Path, data: Path, hidden: int, words: list[str], shared: bool) -> dict[str, float]:
    """The peak memory of each role, or of all together with shared memory, in bytes."""
    run = folder / f"run-{time.monotonic_ns()}"
    command = [
        sys.executable, "-m", "paceline", "train", "--data", str(data), "--model", module_in(folder, hidden), "--run",
        str(run), "--engine", "ray", "--workers", str(WORKERS), "--pace", "sync", "--batch-size", "2", "--epochs", "3",
        "--optimizer", "sgd", "--learning-rate", "0.001", "--set", "optimizer.momentum=0.9",
        "--checkpoint-every", "0.5", *words,
    ]  # fmt: skip
    found: dict[str, float] = {}
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        roles: list[dict[str, Any]] = []
        while process.poll() is None:
            if not roles and (run / "roles.json").exists():
                with suppress(json.JSONDecodeError):
                    roles = json.loads((run / "roles.json").read_text())
            sizes = {f"{role['role']} {role['rank']}": memory_of(role["pid"], shared) for role in roles}
            if shared and sizes:
                command_itself = sizes.pop(COORDINATOR)
                sizes = {"all workers and the shard": sum(sizes.values()), COORDINATOR: command_itself}
            for name, size in sizes.items():
                found[name] = max(found.get(name, 0), size)
            time.sleep(0.003)
        _, err = process.communicate()
        if process.returncode:
            sys.exit(f"error: {' '.join(command)}\n{err[-3000:]}")
    return found


def memory_of(pid: int, shared: bool) -> float:
    """A process's own memory, or with its share of what several processes map."""
    with suppress(psutil.Error):
        found = psutil.Process(pid).memory_full_info() if shared else psutil.Process(pid).memory_info()
        return float(found.pss) if shared else float(found.rss - found.shared)
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    flags = parser.parse_args()
    weights = 4 * (num_weights(HIDDEN[1]) - num_weights(HIDDEN[0]))
    lines = []
    with tempfile.TemporaryDirectory(prefix="plc") as place:
        folder = Path(place)
        data = folder / "images"
        words = ["generate", "images", "--rows", ROWS, "--size", SIZE, "--classes", CLASSES, "--out", data]
        subprocess.run([sys.executable, "-m", "paceline", *map(str, words)], check=True, capture_output=True)
        for name, settings in SETTINGS.items():
            shared = name == "shared memory"
            small, large = (peaks(folder, data, hidden, settings, shared) for hidden in HIDDEN)
            for role in large:
                copies = (large[role] - small[role]) / weights
                kind = "adding worker" if name == "allreduce" and role.startswith("worker") else role.split()[0]
                print(json.dumps({"exchange": name, "role": role, "copies": copies}), flush=True)
                allowed = WORKERS * ALLOWED["worker"] + ALLOWED["shard"] if kind == "all" else ALLOWED.get(kind)
                holds = "–" if allowed is None else "yes" if copies <= allowed + NOT_WEIGHTS else "NO"
                lines.append(f"| {name} | {role} | {copies:.2f} | {allowed or '–'} | {holds} |")
    today = datetime.now(UTC).date().isoformat()
    table = "\n".join(
        [
            f"# Copies of a dense model's weights, {today}",
            "",
            f"{machine()}. Three workers in sync and a shard, momentum, a checkpoint every half second; from the "
            "peak memory of each process with 10 and with 40 million weights. `python benchmarks/copies.py`. "
            f"Up to {NOT_WEIGHTS} beyond the limit does not count as a copy, because activations within the module "
            "grow with it, too.",
            "",
            "| exchange | role | most copies | allowed | holds |",
            "|---|---|---|---|---|",
            *lines,
        ]
    )
    print(table)
    if flags.write:
        (HERE / "results" / f"{today}-copies.md").write_text(table + "\n")


if __name__ == "__main__":
    main()
