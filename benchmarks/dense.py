"""How fast do dense models train, compared with plain PyTorch?

    python benchmarks/dense.py [--mnist FOLDER] [--only PART_OF_A_NAME] [--rounds 3] [--write]
    python benchmarks/dense.py --device cuda [--write]     (on a machine with a GPU)

- Softmax on MNIST (with --mnist; otherwise on generated images of its size), 100 epochs at batch 275, one worker:
  compared with a loop of the same steps in PyTorch, with images in memory as floats.
- AlexNet on 224 × 224 pixels at batch 64 and 128, one worker: compared with a loop of the same steps in PyTorch.
- AlexNet, two workers in sync: allreduce compared with PyTorch's DistributedDataParallel with gloo; over a shard,
  compared with the time to move the weights at the measured bandwidth of the loopback.
- With --device cuda: AlexNet in bfloat16 at batch 512, images on the GPU, compared with the same loop in PyTorch.

Each peer runs right after paceline. Prints one JSON line per measurement, then a table; `--write` keeps it under
benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from embedded import machine

HERE = Path(__file__).parent
EPOCHS, BATCH = 100, 275
STEPS, WARM_UP = 8, 2
ALEXNET: dict[str, Any] = {"pace": "sync", "optimizer": "sgd", "learning_rate": 0.01, "momentum": 0.9, "l2": 5e-4}


def say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def train(look: Callable[[Path], Any] | None = None, **flags: Any) -> Any:
    """A run of paceline in its own process: its result, or what `look` finds in its folder."""
    with tempfile.TemporaryDirectory(prefix="plb") as folder:
        words = [sys.executable, "-m", "paceline", "train", "--run", f"{folder}/run", "--checkpoint-every", "0"]
        settings = flags.pop("settings", [])
        for name, value in flags.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        for setting in settings:
            words += ["--set", setting]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"error: {' '.join(words)}\n{done.stderr[-3000:]}")
        run = Path(folder, "run")
        return look(run) if look else json.loads((run / "result.json").read_text())


def seconds_per_step(steps: int = STEPS, **flags: Any) -> float:
    """Seconds per step once everything is warm: the difference between runs of two lengths."""
    short, long = (train(steps=count, **flags) for count in (WARM_UP, WARM_UP + steps))
    return float((long["train_seconds"] - short["train_seconds"]) / steps)


def peer(what: str, *words: Any) -> float:
    """The seconds of a peer of dense_peers.py, in its own process."""
    command = [sys.executable, str(HERE / "peers" / "pytorch_dense.py"), what, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: {' '.join(command)}\n{done.stderr[-3000:]}")
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def softmax(folder: Path, mnist: Path | None) -> dict[str, Any]:
    data = folder / "digits"
    if not data.exists():
        if mnist:
            subprocess.run([sys.executable, "-m", "paceline", "prepare", str(mnist), "--out", str(data)], check=True)
        else:
            generate(data, 60_000, 28, 10, channels=1)
    ours = train(
        data=data, model="softmax", pace="sync", workers=1, batch_size=BATCH, epochs=EPOCHS, optimizer="sgd",
        learning_rate=0.5,
    )  # fmt: skip
    theirs = peer("softmax", data, BATCH, EPOCHS)
    return {"seconds": ours["train_seconds"], "peer": theirs, "ratio": theirs / ours["train_seconds"],
            "accuracy": ours["test"].get("accuracy")}  # fmt: skip


def generate(out: Path, rows: int, size: int, classes: int, channels: int = 3) -> None:
    from paceline.data.synthetic_images import generate_images

    generate_images(out, rows=rows, size=size, classes=classes, channels=channels, test_rows=1, seed=0,
                    progress=lambda _: None)  # fmt: skip


def pictures(folder: Path) -> Path:
    data = folder / "pictures"
    if not data.exists():
        generate(data, 2_048, 224, 1000)
    return data


def alexnet_alone(folder: Path, batch: int) -> dict[str, Any]:
    ours = seconds_per_step(data=pictures(folder), model="alexnet", workers=1, batch_size=batch, **ALEXNET)
    theirs = peer("alexnet", batch, WARM_UP, STEPS)
    return {"seconds": ours, "peer": theirs, "ratio": theirs / ours}


def alexnet_allreduce(folder: Path) -> dict[str, Any]:
    flags: dict[str, Any] = {"data": pictures(folder), "model": "alexnet", "engine": "ray", "workers": 2,
                             "batch_size": 64, **ALEXNET}  # fmt: skip
    ours = seconds_per_step(exchange="allreduce", **flags)
    theirs = peer("ddp", 64, WARM_UP, STEPS)
    return {"seconds": ours, "peer": theirs, "ratio": theirs / ours}


def exchange_seconds(run: Path) -> tuple[float, float]:
    """Medians: seconds per step, and the part in which the worker that the others wait for does not compute.

    Taken from one run, step by step: compute time varies from run to run by more than everything else.
    """
    from paceline.telemetry.recorder import Telemetry
    from paceline.telemetry.records import StepSample

    steps: dict[int, list[StepSample]] = {}
    for sample in Telemetry(run).read(StepSample):
        steps.setdefault(sample.step, []).append(sample)
    warm = [samples for step, samples in steps.items() if step > WARM_UP]
    whole = [statistics.fmean(sample.seconds for sample in samples) for samples in warm]
    beyond = [min(sample.seconds - sample.input - sample.compute for sample in samples) for samples in warm]
    return statistics.median(whole), statistics.median(beyond)


def alexnet_shards(folder: Path) -> dict[str, Any]:
    """Two workers and a shard: the time for the exchange, on top of computing."""
    from paceline.telemetry.measure_ceilings import Effort, measure_loopback

    ours, beyond = train(
        look=exchange_seconds, steps=WARM_UP + 2 * STEPS, data=pictures(folder), model="alexnet", engine="ray",
        workers=2, batch_size=64, **ALEXNET,
    )  # fmt: skip
    loopback = measure_loopback(Effort(), lambda _: None)
    moving = 2 * 2 * 4 * 61_100_840 / loopback
    return {"seconds": ours, "beyond": beyond, "moving": moving, "peer": ours - beyond + moving,
            "loopback_bytes_per_second": loopback, "ratio": beyond / moving}  # fmt: skip


def alexnet_on_gpu(folder: Path) -> dict[str, Any]:
    data = folder / "gpu-pictures"
    if not data.exists():
        generate(data, 8_192, 224, 1000)
    ours = seconds_per_step(
        200, data=data, model="alexnet", batch_size=512, device="cuda", settings=['precision="bfloat16"'], **ALEXNET
    )
    theirs = peer("gpu", 512, 20, 200)
    return {"seconds": ours, "peer": theirs, "ratio": theirs / ours}


# name → (measurement, its peer in words, the least ratio, or the largest if it is negative)
CASES: dict[str, tuple[Callable[..., dict[str, Any]], str, float]] = {
    "softmax, 100 epochs, batch 275": (softmax, "PyTorch", 1.5),
    "AlexNet, batch 64": (lambda folder: alexnet_alone(folder, 64), "PyTorch", 0.97),
    "AlexNet, batch 128": (lambda folder: alexnet_alone(folder, 128), "PyTorch", 0.97),
    "AlexNet, 2 workers, allreduce": (alexnet_allreduce, "DistributedDataParallel, gloo", 0.95),
    "AlexNet, 2 workers, a shard": (alexnet_shards, "computing, and moving the weights", -1.5),
}
GPU_CASES: dict[str, tuple[Callable[..., dict[str, Any]], str, float]] = {
    "AlexNet, one GPU, bfloat16, batch 512": (alexnet_on_gpu, "PyTorch", 0.95),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, help="a folder with MNIST's IDX files")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--only", default="", help="part of the name of a case")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the data is kept")
    parser.add_argument("--write", action="store_true", help="keep the table under benchmarks/results/")
    flags = parser.parse_args()
    cases = GPU_CASES if flags.device == "cuda" else CASES
    lines = []
    with tempfile.TemporaryDirectory(prefix="pld") as temporary:
        folder = flags.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name, (measure, words, asked) in cases.items():
            if flags.only not in name:
                continue
            found = []
            for _ in range(flags.rounds):
                more = (flags.mnist,) if measure is softmax else ()
                found.append(measure(folder, *more))
                say({"measured": name, **found[-1]})
            median = sorted(found, key=lambda one: one["ratio"])[len(found) // 2]
            holds = median["ratio"] <= -asked if asked < 0 else median["ratio"] >= asked
            lines.append({"case": name, "peer_name": words, "asked": asked, "holds": holds, **median})
            say(lines[-1])
    table = markdown(lines, flags.rounds, flags.device)
    print(table)
    if flags.write:
        name = "dense-gpu" if flags.device == "cuda" else "dense"
        (HERE / "results" / f"{datetime.now(UTC):%Y-%m-%d}-{name}.md").write_text(table)


def markdown(lines: list[dict[str, Any]], rounds: int, device: str) -> str:
    where = machine() if device == "cpu" else f"{machine()}, {gpu_name()}"
    out = (
        f"# Dense models, {datetime.now(UTC):%Y-%m-%d}\n\n{where}. Seconds of training (softmax: in total; AlexNet: "
        f"per step, over {STEPS} after {WARM_UP}), from the round with the median ratio of {rounds}; the peer right "
        f"after. Over a shard, the ratio is the time of a step beyond computing to the time for moving the weights. "
        f"`python benchmarks/dense.py`.\n\n"
        f"| case | seconds | peer | its seconds | ratio | required | holds |\n|---|---|---|---|---|---|---|\n"
    )
    for line in lines:
        asked = f"≤ {-line['asked']:g}" if line["asked"] < 0 else f"≥ {line['asked']:g}"
        out += (
            f"| {line['case']} | {line['seconds']:.3f} | {line['peer_name']} | {line['peer']:.3f} "
            f"| {line['ratio']:.2f} | {asked} | {'yes' if line['holds'] else '**no**'} |\n"
        )
    return out


def gpu_name() -> str:
    import torch

    return str(torch.cuda.get_device_name())


if __name__ == "__main__":
    os.environ.pop("RAY_ADDRESS", None)
    began = time.perf_counter()
    main()
    say({"minutes": round((time.perf_counter() - began) / 60, 1)})
