"""How fast are single rows on one core, compared with scikit-learn's SGDClassifier without shuffling?

    python benchmarks/one_core.py [--before ../old-checkout] [--rounds 5] [--skew criteo] [--folder DIR]
                                  [--only PART_OF_A_NAME]

The peer keeps its rows in memory and trains for one turn per round. In between, each case runs in its own process, in
this checkout and in the one of `--before`. Ratios are medians over rounds. Two workers are there to show that they
have not become slower. Prints a table in Markdown.
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

from embedded import FEATURES, HERE, machine

ROWS = 1_000_000
CASES: dict[str, dict[str, Any]] = {
    f"{title}, {workers} worker{'s' * (workers > 1)}": {
        "pace": "async", "batch_size": 1, "workers": workers, "optimizer": title.lower(),
    }
    for workers, titles in {1: ("SGD", "FTRL", "AdaGrad"), 2: ("SGD", "FTRL", "AdaGrad")}.items()
    for title in titles
}  # fmt: skip


def paceline_rate(source: Path, data: Path, flags: dict[str, Any]) -> float:
    command = [sys.executable, str(source / "benchmarks" / "embedded.py"), "--measure", "paceline"]
    env = os.environ | {"PYTHONPATH": str(source / "src")}
    done = subprocess.run([*command, json.dumps([str(data), flags])], env=env, stdout=subprocess.PIPE, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])["rows_per_second"])


class Peer:
    """scikit-learn in its own process, which trains when it is asked to."""

    def __init__(self, data: Path) -> None:
        command = [sys.executable, __file__, "--serve", str(data)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.rate()

    def rate(self) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def serve(data: str) -> None:
    """For each line of the input, train for some epochs and print the rate."""
    from embedded import sklearn_trainer

    train = sklearn_trainer(data, shuffle=False)
    for _ in sys.stdin:
        print(train(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--skew", default="log-uniform", help="of the generated rows: log-uniform or criteo")
    parser.add_argument("--folder", type=Path, help="where the data is kept; default: a temporary folder")
    parser.add_argument("--only", default="", help="measure the cases whose names contain this")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return
    checkouts = {"after": HERE.parent} | ({"before": arguments.before.resolve()} if arguments.before else {})
    cases = {name: flags for name, flags in CASES.items() if arguments.only in name}
    with tempfile.TemporaryDirectory() as temporary:
        data = (arguments.folder or Path(temporary)) / f"clicks-{arguments.skew}"
        if not data.exists():
            words = ["--rows", ROWS, "--features", FEATURES, "--test-rows", ROWS // 10, "--skew", arguments.skew]
            command = [sys.executable, "-m", "paceline", "generate", "clicks", "--out", data, *words]
            subprocess.run([str(word) for word in command], check=True)
        for flags in cases.values():
            for source in checkouts.values():
                paceline_rate(source, data, {**flags, "epochs": 1})
        peer = Peer(data)
        peers: list[float] = []
        rates: dict[tuple[str, str], list[float]] = {}
        for number in range(arguments.rounds):
            peers.append(peer.rate())
            for name, flags in cases.items():
                # Which checkout goes first changes from round to round.
                for which in sorted(checkouts, reverse=bool(number % 2)):
                    rates.setdefault((name, which), []).append(paceline_rate(checkouts[which], data, flags))
        peer.close()
    print(f"{machine()}. {ROWS:,} click rows, {FEATURES:,} features, skew {arguments.skew}; {arguments.rounds} rounds. "
          f"scikit-learn, shuffling off: {statistics.median(peers):,.0f} rows/s.\n")  # fmt: skip
    columns = [column for which in sorted(checkouts, reverse=True) for column in (f"{which}, rows/s", "× peer")]
    print("| " + " | ".join(["case", *columns, "after / before"]) + " |\n" + "|---" * (len(columns) + 2) + "|")
    for name in cases:
        cells = []
        for which in sorted(checkouts, reverse=True):
            found = rates[name, which]
            ratio = statistics.median(rate / other for rate, other in zip(found, peers, strict=True))
            cells += [f"{statistics.median(found):,.0f}", f"{ratio:.2f}"]
        pairs = zip(rates[name, "after"], rates.get((name, "before"), rates[name, "after"]), strict=True)
        print("| " + " | ".join([name, *cells, f"{statistics.median(a / b for a, b in pairs):.2f}"]) + " |")


if __name__ == "__main__":
    main()
