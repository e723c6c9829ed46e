"""How fast are runs that do not have a core for each thread: beside other processes, or with many workers?

    python benchmarks/loaded.py [--rows 1000000] [--rounds 5] [--only PART_OF_A_NAME] [--folder DIR] [--write]

- A PyTorch module in sync, on a machine where one other process per core does nothing but burn it. The peer is plain
  PyTorch with the same rows per update, under the same load.
- Single rows at pace N, with more workers than cores. The peer is the same run with one worker per core.

Both contestants alternate for `--rounds` rounds, each run in its own process, and the median of the ratios within a
round counts. Prints one JSON line per round and a table. `--write` keeps the table under benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from embedded import FEATURES, HERE, machine
from paceline.machine import num_cores

SECONDS = 4.0
PEERS = HERE / "peers"
MODULE_BATCH = 100
IMAGES, IMAGE_SIZE, CLASSES = 20_000, 28, 10


class Case(NamedTuple):
    """Flags of `train`; what to compare with: other flags, or the plain PyTorch of peers/pytorch_module.py if there are
    none; the least ratio; and whether other processes burn all cores meanwhile.
    """

    flags: dict[str, Any]
    peer_flags: dict[str, Any] | None
    at_least: float
    burning: bool = False
    data: str = "clicks"


def pace_n(pace: int, workers_per_core: int) -> Case:
    flags = {"pace": pace, "batch_size": 1, "optimizer": "sgd", "learning_rate": 0.02}
    crowded, alone = ({**flags, "workers": count * num_cores()} for count in (workers_per_core, 1))
    return Case(crowded, alone, 0.5)


def module(workers: int) -> Case:
    flags = {
        "model": "pytorch_module:build", "pace": "sync", "workers": workers, "batch_size": MODULE_BATCH // workers,
        "optimizer": "sgd", "learning_rate": 0.05,
    }  # fmt: skip
    return Case(flags, None, 1 / 3, burning=True, data="digits")


CASES = {
    "PyTorch module, sync, 2 workers, beside burners": module(2),
    "PyTorch module, sync, 4 workers, beside burners": module(4),
    "pace 8, batch 1, 2 workers per core": pace_n(8, 2),
    "pace 8, batch 1, 4 workers per core": pace_n(8, 4),
    "pace 64, batch 1, 4 workers per core": pace_n(64, 4),
}


@contextmanager
def burners(count: int) -> Iterator[None]:
    """`count` processes that burn a core each."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run(command: list[str]) -> str:
    done = subprocess.run(command, cwd=PEERS, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: {' '.join(command)}\n{done.stderr[-3000:]}")
    return done.stdout


def paceline_rate(data: Path, flags: dict[str, Any], seconds: float = SECONDS) -> float:
    """Rows per second of a run, in its own process."""
    with tempfile.TemporaryDirectory() as folder:
        words = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
        words += [f"--data={data}", f"--seconds={seconds}", f"--run={folder}/run", "--checkpoint-every=0"]
        run([sys.executable, "-m", "paceline", "train", *words])
        return float(json.loads(Path(folder, "run", "result.json").read_text())["rows_per_second"])


def pytorch_rate(data: Path) -> float:
    """Rows per second of plain PyTorch, in its own process."""
    words = [str(data), str(MODULE_BATCH), str(SECONDS)]
    return float(json.loads(run([sys.executable, "pytorch_module.py", *words]).splitlines()[-1])["rows_per_second"])


def measure(case: Case, data: Path) -> tuple[float, float]:
    """Rows per second of the case and of its peer, one right after the other."""
    with burners(num_cores() if case.burning else 0):
        peer = pytorch_rate(data) if case.peer_flags is None else paceline_rate(data, case.peer_flags)
        return paceline_rate(data, case.flags), peer


def prepare(folder: Path, rows: int) -> dict[str, Path]:
    """The data of all cases."""
    from paceline.data.synthetic import generate_clicks
    from paceline.data.synthetic_images import generate_images

    clicks, digits = folder / "clicks", folder / "digits"
    if not clicks.exists():
        generate_clicks(clicks, rows=rows, features=FEATURES, test_rows=1000, seed=0, progress=lambda _: None)
    if not digits.exists():
        generate_images(digits, rows=IMAGES, size=IMAGE_SIZE, classes=CLASSES, channels=1, test_rows=100, seed=0,
                        progress=lambda _: None)  # fmt: skip
    return {"clicks": clicks, "digits": digits}


def markdown(lines: list[dict[str, Any]], rounds: int) -> str:
    """The table, with date and machine."""
    out = (
        f"# Without a core for each thread, {datetime.now(UTC):%Y-%m-%d}\n\n{machine()}. Rows per second, medians of "
        f"{rounds} rounds; the ratio is the median of the ratios within a round. The peer is plain PyTorch under the "
        f"same load, or the same run with one worker per core. `python benchmarks/loaded.py`.\n\n"
        f"| case | rows/s | peer | ratio | required | holds |\n|---|---|---|---|---|---|\n"
    )
    for line in lines:
        out += (
            f"| {line['case']} | {line['rows_per_second']:,} | {line['peer']:,} | {line['ratio']} "
            f"| ≥ {line['at_least']:.2f} | {'yes' if line['holds'] else '**no**'} |\n"
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="part of the name of a case")
    parser.add_argument("--folder", type=Path, help="where the data is kept; default: a temporary folder")
    parser.add_argument("--write", action="store_true", help="keep the table under benchmarks/results/")
    arguments = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        data = prepare(folder, arguments.rows)
        for name, case in CASES.items():
            if arguments.only not in name:
                continue
            paceline_rate(data[case.data], case.flags, 0.1)  # kernels are compiled now
            found = []
            for _ in range(arguments.rounds):
                found.append(measure(case, data[case.data]))
                print(json.dumps({"case": name, "rows_per_second": found[-1][0], "peer": found[-1][1]}), flush=True)
            ours, peers = zip(*found, strict=True)
            ratio = statistics.median(our / peer for our, peer in found)
            lines.append({"case": name, "rows_per_second": round(statistics.median(ours)),
                          "peer": round(statistics.median(peers)), "ratio": round(ratio, 2),
                          "at_least": case.at_least, "holds": ratio >= case.at_least})  # fmt: skip
    table = markdown(lines, arguments.rounds)
    print(table)
    if arguments.write:
        (HERE / "results" / f"{datetime.now(UTC):%Y-%m-%d}-loaded.md").write_text(table)


if __name__ == "__main__":
    main()
