"""How fast are products and traces of matrices that do not fit in memory, and how many bytes do they move?

    python benchmarks/matrices.py [--case product|trace|hosts]... [--rounds 3] [--folder DIR] [--write]

Prints one JSON line per case and a table. Each measurement runs in its own process. The product is compared with
NumPy's product of the same matrices in memory, the trace with only generating its random numbers. They alternate for
`--rounds` rounds, and the median of the ratios counts, because absolute figures on a shared machine vary by a third.
The hosts are network namespaces (`hosts.py`, which needs root). Kernels are compiled beforehand. `--write` keeps the
table under benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cluster import RAY_PORT, environment, lab
from embedded import machine
from hosts import exit_on_signals

HERE = Path(__file__).parent
PRODUCT_SIZE, PRODUCT_MEMORY, PRODUCT_RATIO = 12_000, 1_000_000_000, 0.85
TRACE_SIZE, TRACE_BLOCKS, TRACE_SEED = 100_000, 40, 1024
TRACE_SECONDS, TRACE_RATIO = 60.0, 1.5
HOSTS_SIZE, HOSTS_BLOCK, NUM_HOSTS, HOSTS_RATIO = 20_000, 2_000, 5, 1.2
HOSTS_SECONDS = 1200.0
STRIP_ROWS = 32
CASES = ("product", "trace", "hosts")


# -- in processes of their own


def numpy_product(left: str, right: str) -> dict[str, float]:
    """Multiply two matrices in memory; loading them does not count."""
    import numpy as np

    a, b = np.load(left), np.load(right)
    began = time.perf_counter()
    a @ b
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "flop_per_second": 2.0 * len(a) * a.shape[1] * b.shape[1] / seconds}


def paceline_product(left: str, right: str, out: str) -> dict[str, float]:
    """Multiply two matrices from disk to disk, including the last write."""
    from paceline.matrices.product import multiply_to_file, prepare_product
    from paceline.matrices.sources import open_matrix

    a, b = open_matrix(left), open_matrix(right)
    began = time.perf_counter()
    multiply_to_file(prepare_product(a, b, Path(out), PRODUCT_MEMORY))
    seconds = time.perf_counter() - began
    Path(out).unlink()
    peak = 1024 * int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
    flops = 2.0 * a.shape[0] * a.shape[1] * b.shape[1]
    return {"seconds": seconds, "flop_per_second": flops / seconds, "peak_memory_bytes": peak}


def trace(size: int, blocks: int) -> dict[str, float]:
    """The trace of A²."""
    import paceline

    matrix = paceline.BlockMatrix.random(size, blocks=blocks, seed=TRACE_SEED)
    began = time.perf_counter()
    value = (matrix @ matrix).trace()
    return {"seconds": time.perf_counter() - began, "trace": value}


def generation(size: int, blocks: int) -> dict[str, float]:
    """Generate every block of A once, on all cores, in strips that stay in a core's cache: as fast as possible."""
    import threading
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

    import paceline
    from paceline.machine import num_cores
    from paceline.matrices.nodes import cuts

    edges = cuts(size, blocks)
    matrix, own = paceline.BlockMatrix.random(size, blocks=blocks, seed=TRACE_SEED), threading.local()

    def make(place: int) -> None:
        i, j = divmod(place, blocks)
        columns = edges[j + 1] - edges[j]
        if not hasattr(own, "room"):
            own.room = np.empty(STRIP_ROWS * (size // blocks + 1), np.float32)
        for row in range(edges[i], edges[i + 1], STRIP_ROWS):
            rows = min(STRIP_ROWS, edges[i + 1] - row)
            matrix.node.fill(row, edges[j], own.room[: rows * columns].reshape(rows, columns))

    began = time.perf_counter()
    with ThreadPoolExecutor(num_cores()) as pool:
        list(pool.map(make, range(blocks * blocks)))
    return {"seconds": time.perf_counter() - began}


def in_a_process(kind: str, *arguments: Any) -> dict[str, Any]:
    """Call one of the measurements above in a new process; return its answer."""
    command = [sys.executable, __file__, "--measure", kind, json.dumps(arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


# -- the cases


def make_matrix(folder: Path, size: int, seed: int) -> str:
    """A random matrix as a .npy file."""
    import paceline

    path = folder / f"random-{size}-{seed}.npy"
    if not path.exists():
        paceline.BlockMatrix.random(size, seed=seed).to_npy(path)
    return str(path)


def measure_product(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Disk to disk within 1 GB, compared with NumPy in memory."""
    factors = [make_matrix(folder, PRODUCT_SIZE, seed) for seed in (1, 2)]
    ratios, ours, theirs = [], [], []
    for _ in range(rounds):
        theirs.append(in_a_process("numpy_product", *factors))
        ours.append(in_a_process("paceline_product", *factors, str(folder / "product.npy")))
        ratios.append(ours[-1]["flop_per_second"] / theirs[-1]["flop_per_second"])
    ratio = statistics.median(ratios)
    return [
        {
            "case": f"product of two {PRODUCT_SIZE:,} × {PRODUCT_SIZE:,} float32, disk to disk, 1 GB",
            "figure": f"{median(ours, 'flop_per_second') / 1e9:.0f} GFLOP/s (NumPy in memory "
            f"{median(theirs, 'flop_per_second') / 1e9:.0f}), peak {median(ours, 'peak_memory_bytes') / 1e6:,.0f} MB",
            "ratio": round(ratio, 3),
            "asked": f"≥ {PRODUCT_RATIO} × NumPy's rate",
            "holds": ratio >= PRODUCT_RATIO,
        }
    ]


def measure_trace(_folder: Path, rounds: int) -> list[dict[str, Any]]:
    """The trace of A², and only generating the numbers."""
    in_a_process("trace", 1_000, 4)
    in_a_process("generation", 1_000, 4)
    ours, alone, ratios = [], [], []
    for _ in range(rounds):
        alone.append(in_a_process("generation", TRACE_SIZE, TRACE_BLOCKS))
        ours.append(in_a_process("trace", TRACE_SIZE, TRACE_BLOCKS))
        ratios.append(ours[-1]["seconds"] / alone[-1]["seconds"])
    seconds, ratio = median(ours, "seconds"), statistics.median(ratios)
    name = f"trace of A², {TRACE_SIZE:,}, {TRACE_BLOCKS} × {TRACE_BLOCKS} blocks"
    return [
        {
            "case": name,
            "figure": f"{seconds:.2f} s",
            "ratio": None,
            "asked": f"≤ {TRACE_SECONDS:g} s",
            "holds": seconds <= TRACE_SECONDS,
        },
        {
            "case": f"{name}, compared with only generating the numbers",
            "figure": f"{seconds:.2f} s (only generating {median(alone, 'seconds'):.2f} s)",
            "ratio": round(ratio, 3),
            "asked": f"≤ {TRACE_RATIO} ×",
            "holds": ratio <= TRACE_RATIO,
        },
    ]


def measure_hosts(folder: Path, _rounds: int) -> list[dict[str, Any]]:
    """Bytes that a product moves between five hosts. They are counted, so one run is enough."""
    factors = [make_matrix(folder, HOSTS_SIZE, seed) for seed in (1, 2)]
    out = folder / "product.npy"
    with lab(NUM_HOSTS, "1.8Gbit") as (hosts, env):
        run, log = hosts.folder / "run", hosts.folder / "log"
        words = ["matmul", *factors, "--out", str(out), "--block", str(HOSTS_BLOCK), "--engine", "ray", "--address",
                 f"{hosts.addresses[0]}:{RAY_PORT}", "--run", str(run)]  # fmt: skip
        before = hosts.usage()
        with log.open("wb") as file:
            command = [sys.executable, "-m", "paceline", *words]
            process = hosts.start(0, command, env=environment(env), stdout=file, stderr=file)
            if process.wait(HOSTS_SECONDS):
                sys.exit(f"error: {command} ended with {process.returncode}\n{log.read_text(errors='replace')[-4000:]}")
        after = hosts.usage()
        result = json.loads((run / "result.json").read_text())
    out.unlink()
    on_links = sum(now.received_bytes - then.received_bytes for then, now in zip(before, after, strict=True))
    ratio = result["bytes_moved"] / result["bytes_lower_bound"]
    return [
        {
            "case": f"bytes moved on {NUM_HOSTS} hosts, product of {HOSTS_SIZE:,} in "
            f"{HOSTS_SIZE // HOSTS_BLOCK} × {HOSTS_SIZE // HOSTS_BLOCK} blocks",
            "figure": f"{result['bytes_moved'] / 1e9:.3f} GB (links, with Ray's own: {on_links / 1e9:.3f} GB; lower "
            f"bound {result['bytes_lower_bound'] / 1e9:.3f}; naive {result['bytes_naive'] / 1e9:.3f}), "
            f"{result['seconds']:.0f} s",
            "ratio": round(ratio, 3),
            "asked": f"≤ {HOSTS_RATIO} × the lower bound",
            "holds": ratio <= HOSTS_RATIO,
        }
    ]


def median(results: list[dict[str, Any]], name: str) -> float:
    return float(statistics.median(result[name] for result in results))


def markdown(lines: list[dict[str, Any]], rounds: int) -> str:
    """The table, with date and machine."""
    head = (
        f"# Matrices, {datetime.now(UTC):%Y-%m-%d}\n\n{machine()}. Medians of {rounds} rounds; "
        f"`python benchmarks/matrices.py`.\n\n| case | figure | ratio | required | holds |\n|---|---|---|---|---|\n"
    )
    return head + "".join(
        f"| {line['case']} | {line['figure']} | {line['ratio'] or ''} | {line['asked']} "
        f"| {'yes' if line['holds'] else '**no**'} |\n"
        for line in lines
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, action="append", help="all if left out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the matrices are kept; a temporary folder if left out")
    parser.add_argument("--write", action="store_true", help="keep the table under benchmarks/results/")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        kind, values = arguments.measure
        measures: dict[str, Callable[..., dict[str, float]]] = {
            "numpy_product": numpy_product, "paceline_product": paceline_product, "trace": trace,
            "generation": generation,
        }  # fmt: skip
        print(json.dumps(measures[kind](*json.loads(values))))
        return
    exit_on_signals()
    cases = {"product": measure_product, "trace": measure_trace, "hosts": measure_hosts}
    lines = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for name in arguments.case or CASES:
            for line in cases[name](folder, arguments.rounds):
                lines.append(line)
                print(json.dumps(line), flush=True)
    table = markdown(lines, arguments.rounds)
    print(table)
    if arguments.write:
        (HERE / "results" / f"{datetime.now(UTC):%Y-%m-%d}-matrices.md").write_text(table)


if __name__ == "__main__":
    main()
