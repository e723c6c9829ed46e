"""How good are the models that the shipped recipes train, on real data?

    python benchmarks/quality.py DATA [--write]

DATA holds `libsvm/a9a` and `a9a.t`, `criteo/criteo_80k.tsv.gz` and `tfrecord/criteo-80k/tfrecordsNN`. What is missing
is listed and left out. Prints one JSON line per case and a table; `--write` keeps it under benchmarks/results/.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import paceline
from embedded import machine
from paceline.data.prepare import prepare
from paceline.data.prepare_settings import PrepareConfig

RECIPES = Path(__file__).parent.parent / "recipes"
RESULTS = Path(__file__).parent / "results"
HOLDS = {True: "yes", False: "**no**", None: "–"}


def a9a(data: Path, folder: Path) -> dict[str, Any]:
    return {"sources": [str(data / "libsvm" / "a9a")], "test": [str(data / "libsvm" / "a9a.t")], "features": 123}


def criteo(data: Path, folder: Path) -> dict[str, Any]:
    """The last tenth of the rows is for testing."""
    with gzip.open(data / "criteo" / "criteo_80k.tsv.gz", "rb") as file:
        lines = file.readlines()
    cut = len(lines) * 9 // 10
    for name, part in (("train.tsv", lines[:cut]), ("test.tsv", lines[cut:])):
        (folder / name).write_bytes(b"".join(part))
    return {"sources": [str(folder / "train.tsv")], "test": [str(folder / "test.tsv")], "integers": "bucket"}


def criteo_tfrecord(data: Path, folder: Path) -> dict[str, Any]:
    files = data / "tfrecord" / "criteo-80k"
    return {"sources": [str(files / f"tfrecords0{i}") for i in range(4)], "test": [str(files / "tfrecords22")]}


# recipe → (its data, what its test figures must be: name, bound, whether the bound is the least or the most)
CASES: dict[str, tuple[Callable[[Path, Path], dict[str, Any]], list[tuple[str, float, str]]]] = {
    "a9a": (a9a, [("error", 0.152, "at most"), ("auc", 0.900, "at least")]),
    "criteo": (criteo, [("auc", 0.765, "at least")]),
    "criteo-tfrecord": (criteo_tfrecord, []),
}


def measure(data: Path) -> Iterator[dict[str, Any]]:
    """Prepare and train each case; one line per case."""
    for name, (source, bounds) in CASES.items():
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            try:
                prepared = prepare(PrepareConfig(**source(data, folder), out=str(folder / "data")), lambda _: None)
            except (OSError, paceline.PacelineError) as error:
                yield {"recipe": name, "left out": str(error).splitlines()[0]}
                continue
            result = paceline.train(RECIPES / f"{name}.toml", data=folder / "data", run=folder / "run").result
        test = result["test"]
        signs = [(test[key] - bound, how) for key, bound, how in bounds]
        holds: bool | None = all(difference <= 0 if how == "at most" else difference >= 0 for difference, how in signs)
        rows = {"train": prepared.dataset.split("train").rows, "test": prepared.dataset.split("test").rows}
        asked = ", ".join(f"{key} {how} {bound}" for key, bound, how in bounds)
        if not bounds:
            holds = None
        yield {"recipe": name, "rows": rows, **test, "asked": asked, "holds": holds}


def read_tiny(data: Path) -> dict[str, Any]:
    """Every record of criteo-tfr-tiny must be read: 23 files of 10 rows with at most 39 nonzeros each."""
    files = sorted((data / "tfrecord" / "criteo-tfr-tiny").glob("tfrecords*"))
    with tempfile.TemporaryDirectory() as folder:
        config = PrepareConfig(sources=[str(file) for file in files], out=f"{folder}/data", features=33_762_578)
        prepared = prepare(config, lambda _: None)
        split = prepared.dataset.split("train")
        whole = split.rows == 10 * len(files)
        return {"files": len(files), "rows": split.rows, "nonzeros": split.nonzeros, "holds": whole}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    table = (
        f"# Models of the shipped recipes, {datetime.now(UTC):%Y-%m-%d}\n\n{machine()}. "
        "`python benchmarks/quality.py DATA`.\n\n"
        "| recipe | rows | test rows | test loss | error | AUC | required | holds |\n"
        "|---|---|---|---|---|---|---|---|\n"
    )
    for line in measure(arguments.data):
        print(json.dumps(line), flush=True)
        if "left out" in line:
            table += f"| {line['recipe']} | left out: {line['left out']} | | | | | | |\n"
            continue
        rows = line["rows"]
        table += (
            f"| {line['recipe']} | {rows['train']:,} | {rows['test']:,} | {line['loss']:.4f} | {line['error']:.4f} "
            f"| {line['auc']:.4f} | {line['asked']} | {HOLDS[line['holds']]} |\n"
        )
    if (arguments.data / "tfrecord" / "criteo-tfr-tiny").is_dir():
        tiny = read_tiny(arguments.data)
        print(json.dumps({"read": "criteo-tfr-tiny", **tiny}), flush=True)
        table += (
            f"\ncriteo-tfr-tiny: {tiny['rows']} rows and {tiny['nonzeros']:,} nonzeros read from {tiny['files']} files "
            f"of 10 rows: {'without loss' if tiny['holds'] else '**rows are missing**'}.\n"
        )
    print(table)
    if arguments.write:
        (RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-quality.md").write_text(table)


if __name__ == "__main__":
    main()
