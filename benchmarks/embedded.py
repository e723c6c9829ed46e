"""How fast is embedded training, compared with scikit-learn's SGDClassifier on the same rows?

    python benchmarks/embedded.py [--rows 1000000] [--rounds 3] [--folder DIR] [--write]

Prints one JSON line per case and a table. Each measurement runs in its own process. The peer and paceline alternate for
`--rounds` rounds, and the median of the ratios within a round counts, because absolute figures on a shared machine vary
by a third. Data is prepared and kernels are compiled beforehand. `--write` keeps the table under benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FEATURES = 33_762_578
EPOCHS = 4
HERE = Path(__file__).parent

# name → (flags of paceline.train, what its ratio refers to, least ratio)
CASES: dict[str, tuple[dict[str, Any], str, float]] = {
    "async, SGD, batch 1, 1 worker": ({"pace": "async", "workers": 1, "batch_size": 1}, "scikit-learn", 2.0),
    "async, SGD, batch 1, 2 workers": (
        {"pace": "async", "workers": 2, "batch_size": 1}, "async, SGD, batch 1, 1 worker", 1.6,
    ),
    "async, SGD, batch 1,000, 2 workers": ({"pace": "async", "workers": 2, "batch_size": 1000}, "scikit-learn", 1.5),
    "sync, SGD, batch 1,000, 2 workers": ({"pace": "sync", "workers": 2, "batch_size": 1000}, "scikit-learn", 1.0),
    "async, FTRL, batch 1, 1 worker": (
        {"pace": "async", "workers": 1, "batch_size": 1, "optimizer": "ftrl"}, "scikit-learn", 0.8,
    ),
    "async, AdaGrad, batch 1, 1 worker": (
        {"pace": "async", "workers": 1, "batch_size": 1, "optimizer": "adagrad"}, "scikit-learn", 0.8,
    ),
}  # fmt: skip
PEERS = {"scikit-learn": True, "scikit-learn, unshuffled": False}
FIRST_STEP_SECONDS = 2.0
MOST_PRIVATE_BYTES = 135_050_312 + 500_000_000
LOSS_SEEDS = 5
LOSS_RATE = 0.02
LOSS_TOLERANCE = 0.01


def measure_paceline(data: str, flags: dict[str, Any]) -> dict[str, Any]:
    """Train in this process; return the result."""
    import paceline

    with tempfile.TemporaryDirectory() as folder:
        settings = {"optimizer": "sgd", "learning_rate": 0.02, "epochs": EPOCHS, **flags}
        return paceline.train(data=data, run=f"{folder}/run", **{"checkpoint_every": 0, **settings}).result


def measure_sklearn(data: str, shuffle: bool) -> dict[str, Any]:
    """Train scikit-learn in this process."""
    return {"rows_per_second": sklearn_trainer(data, shuffle)()}


def sklearn_trainer(data: str, shuffle: bool) -> Callable[[], float]:
    """What trains scikit-learn and returns its rows per second, on the rows of the dataset, as CSR in memory, with the
    keys of the input.
    """
    import numpy as np
    import scipy.sparse
    from sklearn.linear_model import SGDClassifier

    from paceline.data.sparse.dataset import SparseDataset

    dataset = SparseDataset(data)
    blocks = [dataset.block("train", i) for i in range(len(dataset.split("train").blocks))]
    input_key = dataset.key_order.to_blocks(np.arange(dataset.features, dtype=np.int32))
    keys = np.concatenate([input_key[block.keys] for block in blocks])
    values = np.concatenate([block.values for block in blocks]).astype(np.float64)
    labels = np.concatenate([block.labels for block in blocks])
    ends = np.cumsum(np.concatenate([np.diff(block.offsets) for block in blocks]))
    rows = scipy.sparse.csr_matrix(
        (values, keys, np.concatenate([[0], ends]).astype(np.int32)), shape=(len(labels), dataset.features)
    )
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.02, alpha=0, penalty=None, shuffle=shuffle)
    model.partial_fit(rows[:1000], labels[:1000], classes=[0, 1])

    def train() -> float:
        began = time.perf_counter()
        for _ in range(EPOCHS):
            model.partial_fit(rows, labels)
        return EPOCHS * len(labels) / (time.perf_counter() - began)

    return train


def in_a_process(kind: str, *arguments: Any) -> dict[str, Any]:
    """Call one of the measurements above in a new process; return its answer."""
    command = [sys.executable, __file__, "--measure", kind, json.dumps(arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure_memory(data: str) -> int:
    """The peak of a training process's private memory, including checkpoints and saving the model.

    In a separate run, because sampling every few milliseconds slows the training down.
    """
    flags = {"pace": "async", "workers": 2, "batch_size": 1, "checkpoint_every": 0.2}
    command = [sys.executable, __file__, "--measure", "paceline", json.dumps([data, flags])]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        peak = [0]
        watch_memory(process, peak)
    return peak[0]


def watch_memory(process: subprocess.Popen[bytes], peak: list[int]) -> None:
    """Keep the largest anonymous resident memory of a process: its own, without mapped files (Linux)."""
    path = Path(f"/proc/{process.pid}/status")
    while process.poll() is None:
        try:
            fields = dict(line.split(":", 1) for line in path.read_text().splitlines())
        except (OSError, ValueError):
            return
        if "RssAnon" in fields:
            peak[0] = max(peak[0], 1024 * int(fields["RssAnon"].split()[0]))
        time.sleep(0.002)


def measure_first_step(data: str) -> float:
    """Seconds from typing `paceline train` to its first step."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "paceline", "train", "--data", data, "--pace", "sync", "--workers", "1",
                   "--optimizer", "sgd", "--steps", "1"]  # fmt: skip
        subprocess.run([*command, "--run", f"{folder}/run"], check=True, capture_output=True)
        return float(json.loads(Path(folder, "run", "result.json").read_text())["startup_seconds"])


def measure_losses(data: str) -> dict[str, Any]:
    """Median held-out loss of five seeds after one epoch, with one worker and with two."""
    flags = {"pace": "async", "batch_size": 1, "learning_rate": LOSS_RATE, "epochs": 1}
    medians = {
        workers: statistics.median(
            measure_paceline(data, {**flags, "workers": workers, "seed": seed})["test"]["loss"]
            for seed in range(LOSS_SEEDS)
        )
        for workers in (1, 2)
    }
    return {"one": medians[1], "two": medians[2]}


def run_all(data: str, rounds: int) -> list[dict[str, Any]]:
    """Every case, as rows of the table; each is printed as JSON when it is done."""
    rates: dict[str, list[float]] = {}
    for number in range(rounds):
        for peer, shuffle in PEERS.items():
            rates.setdefault(peer, []).append(in_a_process("sklearn", data, shuffle)["rows_per_second"])
        for name, (flags, _, _) in CASES.items():
            rates.setdefault(name, []).append(in_a_process("paceline", data, flags)["rows_per_second"])
        print(f"round {number + 1} of {rounds} done", file=sys.stderr)
    median = {name: statistics.median(values) for name, values in rates.items()}
    lines = [{"case": peer, "rows_per_second": round(median[peer])} for peer in PEERS]
    for name, (_, against, at_least) in CASES.items():
        ratio = median[name] / median[against]
        lines.append({"case": name, "rows_per_second": round(median[name]), "against": against,
                      "ratio": round(ratio, 2), "at_least": at_least, "holds": ratio >= at_least,
                      "against_unshuffled": round(median[name] / median["scikit-learn, unshuffled"], 2)})  # fmt: skip
    losses = in_a_process("losses", data)
    lines.append({"case": "test loss, 2 workers against 1, median of 5 seeds", "value": losses["two"],
                  "ratio": round(losses["two"] / losses["one"], 4), "at_most": 1 + LOSS_TOLERANCE,
                  "holds": losses["two"] <= (1 + LOSS_TOLERANCE) * losses["one"]})  # fmt: skip
    seconds = statistics.median(measure_first_step(data) for _ in range(rounds))
    lines.append({"case": "command to first step, seconds", "value": round(seconds, 2),
                  "at_most": FIRST_STEP_SECONDS, "holds": seconds <= FIRST_STEP_SECONDS})  # fmt: skip
    private_bytes = measure_memory(data)
    lines.append({"case": "peak private memory, SGD, bytes", "value": private_bytes,
                  "at_most": MOST_PRIVATE_BYTES, "holds": private_bytes <= MOST_PRIVATE_BYTES})  # fmt: skip
    return lines


def markdown(lines: list[dict[str, Any]], rows: int) -> str:
    """The table, with date and machine."""
    head = (
        f"# Embedded training, {datetime.now(UTC):%Y-%m-%d}\n\n"
        f"{machine()}. {rows:,} click rows, {FEATURES:,} features, {EPOCHS} epochs per measurement; "
        f"`python benchmarks/embedded.py`.\n\n| case | figure | ratio | required | holds |\n|---|---|---|---|---|\n"
    )
    body = ""
    for line in lines:
        figure = f"{line['rows_per_second']:,} rows/s" if "rows_per_second" in line else f"{line['value']:,}"
        ratio = f"{line['ratio']} × {line['against']}" if "against" in line else str(line.get("ratio", ""))
        asked = f"≥ {line['at_least']}" if "at_least" in line else f"≤ {line['at_most']:,}" if "at_most" in line else ""
        holds = ("yes" if line["holds"] else "**no**") if "holds" in line else ""
        body += f"| {line['case']} | {figure} | {ratio} | {asked} | {holds} |\n"
    return head + body


def machine() -> str:
    """This machine in a few words."""
    import psutil

    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = found[0] if found else name
    memory = f"{psutil.virtual_memory().total / 2**30:.0f} GiB"
    return f"{os.cpu_count()} cores ({name}), {memory}, Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the data is kept; default: a temporary folder")
    parser.add_argument("--write", action="store_true", help="keep the table under benchmarks/results/")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        kind, values = arguments.measure
        measure: dict[str, Callable[..., Any]] = {
            "paceline": measure_paceline, "sklearn": measure_sklearn, "losses": measure_losses,
        }  # fmt: skip
        print(json.dumps(measure[kind](*json.loads(values))))
        return
    from paceline.data.synthetic import generate_clicks

    with tempfile.TemporaryDirectory() as temporary:
        data = (arguments.folder or Path(temporary)) / f"clicks-{arguments.rows}"
        if not data.exists():
            generate_clicks(data, rows=arguments.rows, features=FEATURES, test_rows=arguments.rows // 10, seed=0,
                            progress=lambda _: None)  # fmt: skip
        for flags, _, _ in CASES.values():
            measure_paceline(str(data), {**flags, "epochs": 1})
        lines = run_all(str(data), arguments.rounds)
    for line in lines:
        print(json.dumps(line))
    table = markdown(lines, arguments.rows)
    print(table)
    if arguments.write:
        out = HERE / "results" / f"{datetime.now(UTC):%Y-%m-%d}-embedded.md"
        out.write_text(table)


if __name__ == "__main__":
    main()
