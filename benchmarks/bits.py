"""Do sync runs still give the same bits? Trains a fixed set of runs and prints `model_sha256` of each.

    python benchmarks/bits.py --write benchmarks/results/2026-11-16-bits.json     # record
    python benchmarks/bits.py --against benchmarks/results/2026-11-16-bits.json   # compare; exit code 1 if any differ

Bits are a property of the code, the machine's instruction set and the versions of NumPy, Numba and PyTorch, so compare
on the machine that recorded them. `--source DIR` trains with the package in another checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODULE = """
from torch import nn

def build(shape, classes):
    return nn.Sequential(
        nn.Conv2d(shape[2], 4, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(4 * (shape[0] // 2) * (shape[1] // 2), classes),
    )
"""

CLICKS = ("--data", "clicks", "--pace", "sync", "--workers", "1", "--batch-size", "100", "--epochs", "1")
IMAGES = ("--data", "images", "--pace", "sync", "--workers", "1", "--batch-size", "50", "--learning-rate", "0.05")
RAY = ("--engine", "ray")
CASES: dict[str, tuple[str, ...]] = {
    "sgd, 1 worker": (*CLICKS, "--optimizer", "sgd", "--l1", "1e-5"),
    "sgd, 3 workers, decay": (
        *CLICKS, "--optimizer", "sgd", "--workers", "3", "--l2", "1e-4", "--set", "optimizer.decay_rows=10000",
    ),
    "adagrad, 1 worker": CLICKS,
    "adagrad, 3 workers": (*CLICKS, "--workers", "3", "--l1", "1e-4", "--l2", "1e-4"),
    "adagrad, 3 workers, batch 1": (*CLICKS, "--workers", "3", "--batch-size", "1", "--steps", "2000"),
    "ftrl, 3 workers": (*CLICKS, "--optimizer", "ftrl", "--workers", "3", "--l1", "0.1", "--learning-rate", "0.1"),
    "adagrad, 3 workers, resumed": (*CLICKS, "--workers", "3", "--epochs", "80", "--checkpoint-every", "0.3"),
    "ray: sgd, 1 worker": (*CLICKS, *RAY, "--optimizer", "sgd", "--l1", "1e-5"),
    "ray: adagrad, 3 workers, 2 shards": (
        *CLICKS, *RAY, "--workers", "3", "--shards", "2", "--l1", "1e-4", "--l2", "1e-4",
    ),
    "ray: ftrl, 3 workers": (
        *CLICKS, *RAY, "--optimizer", "ftrl", "--workers", "3", "--l1", "0.1", "--learning-rate", "0.1",
    ),
    "ray: adagrad, 3 workers, resumed": (
        *CLICKS, *RAY, "--workers", "3", "--epochs", "80", "--checkpoint-every", "0.3",
    ),
    "softmax, sgd with momentum, 3 workers": (
        *IMAGES, "--model", "softmax", "--optimizer", "sgd", "--momentum", "0.9", "--workers", "3",
    ),
    "softmax, adam, 1 worker": (*IMAGES, "--model", "softmax", "--optimizer", "adam", "--learning-rate", "0.001"),
    "ray: softmax, adagrad, 3 workers, 2 shards": (
        *IMAGES, *RAY, "--model", "softmax", "--workers", "3", "--shards", "2",
    ),
    "softmax, adagrad, 3 workers, resumed": (
        *IMAGES, "--model", "softmax", "--workers", "3", "--epochs", "60", "--checkpoint-every", "0.2",
    ),
    "module, adam, 3 workers": (
        *IMAGES, "--model", "bits_module:build", "--optimizer", "adam", "--learning-rate", "0.001", "--workers", "3",
    ),
    "ray: module, sgd, 3 workers, 2 shards": (
        *IMAGES, *RAY, "--model", "bits_module:build", "--optimizer", "sgd", "--workers", "3", "--shards", "2",
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--source", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    recorded = json.loads(options.against.read_text())["sha256"] if options.against else {}
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "bits_module.py").write_text(MODULE)
        # No folder of this script on the path: `-P` keeps it from shadowing the package.
        environment = os.environ | {"PYTHONPATH": f"{(options.source / 'src').resolve()}:{folder}"}
        environment["OMP_NUM_THREADS"] = "1"
        command = [sys.executable, "-P", "-m", "paceline"]

        def run(*arguments: str) -> None:
            subprocess.run(
                [*command, *arguments], cwd=place, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=600
            )

        run("generate", "clicks", "--rows", "40000", "--features", "300000", "--out", "clicks", "--seed", "7")
        run("generate", "images", "--rows", "2000", "--size", "12", "--classes", "10", "--out", "images", "--seed", "7")
        for number, (name, flags) in enumerate(CASES.items()):
            if options.only not in name:
                continue
            out = place / f"run-{number}"
            train = ("train", *flags, "--seed", "3", "--run", str(out))
            if name.endswith("resumed"):
                _kill_after_checkpoint([*command, *train], place, environment, out)
                run("resume", str(out))
            else:
                run(*train)
            found[name] = json.loads((out / "result.json").read_text())["model_sha256"]
            said = "" if not recorded else "  same" if recorded.get(name) == found[name] else "  DIFFERENT"
            print(f"{found[name][:16]}  {name}{said}", flush=True)
    if options.write:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        options.write.write_text(json.dumps({"machine": machine, "sha256": found}, indent=2) + "\n")
    if recorded and any(recorded.get(name) != sha256 for name, sha256 in found.items()):
        sys.exit(1)


def _kill_after_checkpoint(command: list[str], place: Path, environment: dict[str, str], out: Path) -> None:
    """Start a run in its own process group and kill the group once there is a checkpoint."""
    process = subprocess.Popen(
        command,
        cwd=place,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not (out / "checkpoints" / "latest").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    if process.poll() is not None:
        sys.exit(f"{' '.join(command)} ended before it could be killed")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    main()
