"""How fast do sparse models train on a GPU, and how well, compared with PyTorch's gather and index_add?

    python benchmarks/gpu.py [--rows 20000000] [--skew criteo] [--rounds 3] [--seconds 3] [--only PART_OF_A_NAME]
                             [--folder DIR] [--loss-rows 2000000] [--write]

Click rows of 39 nonzeros over 33,762,578 features, on the GPU unless a case says that they are streamed. The peer is a
loop in plain PyTorch over the same rows, which has them on the GPU and adds up gradients with index_add. It runs right
after paceline in every round, and the median of the ratios within a round counts. Kernels are compiled beforehand.

- *copy* is how many packed rows per second the bus can copy, to compare streamed rows with.
- *loss* is the test loss after two epochs, and the CPU's: async with a core per worker, or sync with the same batches.
- *first step* is from the start of a process to the first step, with kernels in their cache.
- *long run* trains on 4.2 billion rows, as many as Criteo's terabyte has: the rows in host memory are streamed again in
  every epoch.

Prints a line per case, then a table; `--write` keeps it under benchmarks/results/.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from embedded import FEATURES, HERE, machine
from paceline.data.limits import SKEW_NAMES
from paceline.data.sparse.dataset import SparseDataset
from scaling import generated

CUDA = {"device": "cuda", "workers": 1, "checkpoint_every": 0, "progress": False}
FM = {"model": "fm", "dim": 16, "settings": ["factors.row_wise=true"]}
PEER_ROWS, PEER_BATCH, FACTORS = 2_000_000, 262_144, 16
FIRST_STEP_ROWS, FIRST_STEP_SECONDS = 4_000_000, 6.0
LONG_RUN_ROWS, LONG_RUN_SECONDS = 4_200_000_000, 25.0
COPIED_WINDOWS = 16


class Case(NamedTuple):
    """Flags of `train`, the peer, what is required: rows per second, and times the peer's."""

    flags: dict[str, Any]
    peer: str
    least_rate: float
    least_ratio: float = 0.0
    of_copy: float = 0.0


CASES = {
    "linear, SGD": Case({"optimizer": "sgd", "learning_rate": 0.05, "pace": "async"}, "linear", 500e6, 3),
    "linear, AdaGrad": Case({"optimizer": "adagrad", "pace": "async"}, "linear", 350e6),
    "linear, FTRL": Case({"optimizer": "ftrl", "pace": "async"}, "linear", 0),
    "fm, 16 factors, row-wise AdaGrad": Case({**FM, "optimizer": "adagrad", "pace": "async"}, "fm", 200e6, 10),
    "linear, SGD, streamed": Case(
        {"optimizer": "sgd", "learning_rate": 0.05, "pace": "async", "settings": ["resident=0"]}, "linear", 300e6,
        of_copy=0.8,
    ),
    "linear, AdaGrad, sync, batch 10,000": Case(
        {"optimizer": "adagrad", "pace": "sync", "batch_size": 10_000}, "linear", 0
    ),
}  # fmt: skip


def train(data: Path, **flags: Any) -> dict[str, Any]:
    """The result of a run."""
    import paceline

    with tempfile.TemporaryDirectory() as folder:
        settings = {**CUDA, **flags}
        result: dict[str, Any] = paceline.train(data=str(data), run=f"{folder}/run", **settings).result
        return result


def rows_for_peer(data: Path) -> tuple[Any, Any, Any]:
    """Keys [rows, 39], values and labels of the first rows, on the GPU."""
    dataset, found, count = SparseDataset(data), [], 0
    for index in range(len(dataset.split("train").blocks)):
        block = dataset.block("train", index)
        shape = block.num_rows, block.num_nonzeros // block.num_rows
        arrays = block.keys.reshape(shape).astype("int64"), block.values.reshape(shape).copy(), block.labels.copy()
        found.append(arrays)
        count += block.num_rows
        if count >= PEER_ROWS:
            break
    keys, values, labels = (
        torch.cat([torch.from_numpy(part) for part in parts])[:PEER_ROWS].cuda() for parts in zip(*found, strict=True)
    )
    return keys, values, labels.float()


def table_of_linear() -> tuple[Any, ...]:
    return (torch.zeros(FEATURES, device="cuda"),)


def peer_linear(weights: Any, keys: Any, values: Any, labels: Any) -> None:
    """An epoch of gradient descent on logistic regression."""
    for start in range(0, len(labels), PEER_BATCH):
        i, x = keys[start : start + PEER_BATCH], values[start : start + PEER_BATCH]
        slopes = torch.sigmoid((weights[i] * x).sum(1)) - labels[start : start + PEER_BATCH]
        weights.index_add_(0, i.view(-1), (slopes[:, None] * x).view(-1), alpha=-1e-4)


def table_of_fm() -> tuple[Any, ...]:
    return torch.zeros(FEATURES, device="cuda"), 0.01 * torch.randn(FEATURES, FACTORS, device="cuda")


def peer_fm(weights: Any, factors: Any, keys: Any, values: Any, labels: Any) -> None:
    """An epoch of gradient descent on a factorization machine."""
    for start in range(0, len(labels), PEER_BATCH // 4):
        i, x = keys[start : start + PEER_BATCH // 4], values[start : start + PEER_BATCH // 4]
        terms = factors[i] * x[..., None]
        both = terms.sum(1)
        scores = (weights[i] * x).sum(1) + 0.5 * ((both * both).sum(1) - (terms * terms).sum((1, 2)))
        by = (torch.sigmoid(scores) - labels[start : start + PEER_BATCH // 4])[:, None] * x
        factors.index_add_(0, i.view(-1), (by[..., None] * (both[:, None] - terms)).view(-1, FACTORS), alpha=-1e-4)
        weights.index_add_(0, i.view(-1), by.view(-1), alpha=-1e-4)


# An epoch of each peer, and what makes its table.
PEERS: dict[str, tuple[Callable[..., None], Callable[[], tuple[Any, ...]]]] = {
    "linear": (peer_linear, table_of_linear),
    "fm": (peer_fm, table_of_fm),
}


def rate_of_peer(name: str, rows: tuple[Any, Any, Any]) -> float:
    run, make_table = PEERS[name]
    table = make_table()
    # Loads what PyTorch needs.
    run(*table, *(part[:PEER_BATCH] for part in rows))
    torch.cuda.synchronize()
    began = time.perf_counter()
    run(*table, *rows)
    torch.cuda.synchronize()
    return len(rows[2]) / (time.perf_counter() - began)


def copied_rows(data: Path) -> float:
    """Packed rows per second that the bus copies from pinned memory, and nothing else happens."""
    from paceline.torch.sparse.rows import MOST_HOT, choose_columns, pack, shape_of, tensors_of

    dataset = SparseDataset(data)
    block = dataset.block("train", 0)
    columns = choose_columns(block, MOST_HOT, 128)
    packed = pack(block, columns, FEATURES)
    pinned = tensors_of(packed, shape_of([packed], columns, FEATURES), pinned=True)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(COPIED_WINDOWS * 16):
        copies = [tensor.to("cuda", non_blocking=True) for tensor in pinned[:-1]]
    torch.cuda.synchronize()
    del copies
    return COPIED_WINDOWS * 16 * block.num_rows / (time.perf_counter() - began)


def measure(
    case: Case, data: Path, rounds: int, seconds: float, peer_rows: tuple[Any, Any, Any]
) -> tuple[float, float]:
    """Median rows per second, and the median of the ratios to the peer."""
    train(data, steps=4, epochs=0, **case.flags)  # compiles
    rates, ratios = [], []
    for _ in range(rounds):
        rates.append(train(data, seconds=seconds, epochs=0, **case.flags)["rows_per_second"])
        ratios.append(rates[-1] / rate_of_peer(case.peer, peer_rows))
    return statistics.median(rates), statistics.median(ratios)


def losses(case: Case, data: Path) -> tuple[float, float]:
    """The test losses after two epochs: on the GPU, and on the CPU."""
    on_cpu = {"device": "cpu", "workers": 1 if case.flags["pace"] == "sync" else None}
    flags = {name: value for name, value in {**case.flags, **on_cpu}.items() if value is not None}
    flags |= {} if "batch_size" in flags else {"batch_size": 1}
    import paceline

    with tempfile.TemporaryDirectory() as folder:
        expected = paceline.train(
            data=str(data), run=f"{folder}/run", epochs=2, progress=False, checkpoint_every=0, **flags
        )
        return train(data, epochs=2, **case.flags)["test"]["loss"], expected.result["test"]["loss"]


def first_step(data: Path) -> float:
    """Seconds from the command to the first step, in a process of its own."""
    program = (
        "import sys, time; import paceline; called = time.time(); "
        f"run = paceline.train(data=sys.argv[1], run=sys.argv[2], steps=1, epochs=0, pace='async', **{CUDA!r}); "
        "print(called - float(sys.argv[3]) + run.result['startup_seconds'])"
    )
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", program, str(data), f"{folder}/run"]
        # The first one loads kernels into their cache.
        found = [subprocess.run([*command, str(time.time())], check=True, stdout=subprocess.PIPE) for _ in range(2)]
    return float(found[1].stdout.splitlines()[-1])


def long_run(data: Path) -> str:
    """How long training on 4.2 billion rows takes, in a sentence."""
    epochs = math.ceil(LONG_RUN_ROWS / SparseDataset(data).split("train").rows)
    result = train(data, epochs=epochs, **CASES["linear, SGD, streamed"].flags)
    seconds, rows = result["train_seconds"], result["rows"]
    holds = "yes" if seconds <= LONG_RUN_SECONDS else "**no**"
    return (
        f"{rows:,} rows, which are {epochs:,} epochs streamed from host memory, with SGD: {seconds:.1f} s of training "
        f"(at most {LONG_RUN_SECONDS:g}): {holds}.\n"
    )


def row(name: str, case: Case, rate: float, ratio: float, copy: float, found: tuple[float, float]) -> str:
    """One row of the table."""
    required = [f"≥ {case.least_rate / 1e6:.0f} M/s"] * bool(case.least_rate)
    required += [f"≥ {case.least_ratio:g} × peer"] * bool(case.least_ratio)
    required += [f"≥ {case.of_copy} × copy"] * bool(case.of_copy)
    limit = 1.001 if case.flags["pace"] == "sync" else 1.01
    holds = rate >= case.least_rate and ratio >= case.least_ratio and rate >= case.of_copy * copy
    holds = holds and found[0] <= limit * found[1]
    figures = f"{rate / 1e6:.0f} | {ratio:.1f} | {found[0]:.4f} | {found[1]:.4f}"
    return f"| {name} | {figures} | {', '.join(required) or 'loss'} | {'yes' if holds else '**no**'} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--loss-rows", type=int, default=2_000_000, help="rows of the data for losses")
    parser.add_argument("--skew", choices=SKEW_NAMES, default="log-uniform", help="how hot the hottest features are")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long a run trains")
    parser.add_argument("--only", default="", help="measure the cases whose names contain this")
    parser.add_argument("--folder", type=Path, help="where the data is kept; default: a temporary folder")
    parser.add_argument("--write", action="store_true", help="keep the table under benchmarks/results/")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(2, "error: PyTorch finds no GPU here\nhint: see `nvidia-smi`\n")
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        data = generated(folder, arguments.rows, FEATURES, arguments.skew)
        smaller = generated(folder, arguments.loss_rows, FEATURES, arguments.skew)
        peer_rows, copy = rows_for_peer(data), copied_rows(data)
        text = (
            f"# Sparse models on a GPU, {datetime.now(UTC):%Y-%m-%d}\n\n{torch.cuda.get_device_name()}; {machine()}. "
            f"{arguments.rows:,} click rows, skew {arguments.skew}, {FEATURES:,} features, the default batch size "
            f"unless named; medians of {arguments.rounds} rounds of {arguments.seconds:g} seconds; "
            "`python benchmarks/gpu.py`. "
            f"The bus copies {copy / 1e6:.0f} million packed rows per second. Losses after two epochs of "
            f"{arguments.loss_rows:,} rows.\n\n| case | M rows/s | × PyTorch | loss | the CPU's | required | holds |\n"
            "|---|---|---|---|---|---|---|\n"
        )
        for name, case in CASES.items():
            if arguments.only in name:
                rate, ratio = measure(case, data, arguments.rounds, arguments.seconds, peer_rows)
                found = row(name, case, rate, ratio, copy, losses(case, smaller))
                print(found, end="", flush=True)
                text += found
        first = generated(folder, FIRST_STEP_ROWS, FEATURES, arguments.skew)
        seconds = first_step(first)
        holds = "yes" if seconds <= FIRST_STEP_SECONDS else "**no**"
        text += f"\nFirst step, {FIRST_STEP_ROWS:,} rows: {seconds:.1f} s (at most {FIRST_STEP_SECONDS:g}): {holds}.\n"
        text += "" if arguments.only else f"\n{long_run(data)}"
    print(text)
    if arguments.write:
        (HERE / "results" / f"{datetime.now(UTC):%Y-%m-%d}-gpu-{arguments.skew}.md").write_text(text)


if __name__ == "__main__":
    main()
