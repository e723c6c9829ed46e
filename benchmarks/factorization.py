"""How fast are factorization machines, compared with PyTorch's sparse embeddings on the same rows?

    python benchmarks/factorization.py [--rounds 3] [--rows 400000] [--cluster] [--folder DIR]

Generated clicks over 5,000,000 keys, and 1,000,000 for the field-aware machine, whose rows have fields. In each round
the peer (`peers/pytorch_fm.py`) trains, then each case in its own process. Ratios are medians over rounds, of cases
with the peer's model: the peer keeps a sum of squares per factor, the others one per key unless they say otherwise.
`--cluster` adds two workers and a shard over Ray. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from embedded import HERE, machine

KEYS, FIELD_KEYS = 5_000_000, 1_000_000
ROW_WISE, FACTOR_WISE = ["factors.row_wise=true"], ["factors.row_wise=false"]
ASYNC: dict[str, Any] = {"pace": "async", "batch_size": 1, "optimizer": "adagrad", "learning_rate": 0.05}
FM: dict[str, Any] = {"model": "fm", "settings": ROW_WISE, **ASYNC}
PEER = {"features": KEYS, "dim": 16, "rate": 0.05, "passes": 1, "most_seconds": 20, "tune": False}
CASES: dict[str, dict[str, Any]] = {
    "FM, 16 factors, 1 worker": {**FM, "dim": 16, "workers": 1},
    "FM, 16 factors, 2 workers": {**FM, "dim": 16, "workers": 2},
    "FM, 16 factors, a sum of squares each, 1 worker": {**FM, "dim": 16, "workers": 1, "settings": FACTOR_WISE},
    "FM, 8 factors, 1 worker": {**FM, "dim": 8, "workers": 1},
    "FFM, 4 factors per field, 1 worker": {**FM, "model": "ffm", "dim": 4, "workers": 1},
    "FWFM, 8 factors, batches of 100, 1 worker": {**FM, "model": "fwfm", "dim": 8, "workers": 1, "batch_size": 100},
}
ON_CLUSTER = {
    "FM, 16 factors, Ray, 2 workers, batches of 1,000": {
        **FM, "dim": 16, "workers": 2, "engine": "ray", "shards": 1, "batch_size": 1000,
    }
}  # fmt: skip


def measure(data: str, flags: dict[str, Any]) -> float:
    """Train in this process; rows per second."""
    import paceline

    with tempfile.TemporaryDirectory() as folder:
        run = paceline.train(data=data, run=f"{folder}/run", checkpoint_every=0, **flags)
        rate: float = run.result["rows_per_second"]
        return rate


def in_process(data: Path, flags: dict[str, Any]) -> float:
    command = [sys.executable, __file__, "--measure", json.dumps([str(data), flags])]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return float(done.stdout.splitlines()[-1])


def peer_rate(rows: Path, batch_size: int) -> float:
    command = [sys.executable, str(HERE / "peers" / "pytorch_fm.py"), str(rows)]
    setting = json.dumps({**PEER, "batch_size": batch_size})
    done = subprocess.run([*command, setting], stdout=subprocess.PIPE, check=True, env=os.environ)
    return float(json.loads(done.stdout.splitlines()[-1])["rows_per_second"])


def make_data(folder: Path, rows: int) -> tuple[Path, Path, Path]:
    """(rows of clicks, the same for the peer, rows with fields); made if they are not there."""
    from paceline.data.sparse.dataset import SparseDataset
    from paceline.data.synthetic import generate_clicks
    from peer_rows import export

    plain, exported, with_fields = (folder / f"{name}-{rows}" for name in ("clicks", "clicks-exported", "fields"))
    sizes: dict[str, Any] = {"rows": rows, "test_rows": rows // 10, "seed": 0, "progress": lambda _: None}
    if not plain.exists():
        generate_clicks(plain, features=KEYS, **sizes)
    if not exported.exists():
        export(SparseDataset(plain), exported)
    if not with_fields.exists():
        generate_clicks(with_fields, features=FIELD_KEYS, fields=True, **sizes)
    return plain, exported, with_fields


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--cluster", action="store_true", help="over Ray too")
    parser.add_argument("--folder", type=Path, help="where the data is kept; default: a temporary folder")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(measure(*json.loads(arguments.measure)))
        return
    cases = CASES | (ON_CLUSTER if arguments.cluster else {})
    with tempfile.TemporaryDirectory() as temporary:
        plain, exported, with_fields = make_data(arguments.folder or Path(temporary), arguments.rows)
        data = {name: plain if flags["model"] == "fm" else with_fields for name, flags in cases.items()}
        for name, flags in cases.items():
            in_process(data[name], {**flags, "steps": 10})
        peers: list[float] = []
        rates: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(arguments.rounds):
            peers.append(peer_rate(exported, 1000))
            for name, flags in cases.items():
                rates[name].append(in_process(data[name], {**flags, "epochs": 3}))
    print(
        f"{machine()}. {arguments.rows:,} click rows, {arguments.rounds} rounds. PyTorch, FM with 16 factors, AdaGrad, "
        f"batches of 1,000: {statistics.median(peers):,.0f} rows/s.\n\n| case | rows/s | × PyTorch |\n|---|---|---|"
    )
    for name, found in rates.items():
        ratio = statistics.median(rate / peer for rate, peer in zip(found, peers, strict=True))
        is_same = cases[name]["model"] == "fm" and cases[name]["dim"] == PEER["dim"]
        print(f"| {name} | {statistics.median(found):,.0f} | {f'{ratio:.1f}' if is_same else ''} |")


if __name__ == "__main__":
    main()
