"""How good are models on real data: those of `paceline train --data D` without any setting, and those of the recipes?

    python benchmarks/quality.py DATA [--write]

DATA holds `libsvm/a9a` and `a9a.t`, `libsvm/agaricus.txt.train` and `.test`, `criteo/criteo_80k.tsv.gz`,
`criteo/criteo_raw_first1999.csv` and `tfrecord/criteo-80k/tfrecordsNN`; breast cancer comes with scikit-learn. What is
missing is listed and left out. Without settings, at the default pace, in sync and over Ray, the peer is scikit-learn's
`LogisticRegression()` on the same rows, with the values of the source. For other losses it is the lowest training
objective (`objectives.py`), and for factorization machines it is PyTorch (`quality_fm.py`). Prints one JSON line per
case and tables; `--write` keeps them under benchmarks/results/.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import tempfile
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import objectives
import paceline
from embedded import machine
from paceline.data.prepare import prepare
from paceline.data.prepare_settings import PrepareConfig
from paceline.data.sparse.batch import concatenate

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


def agaricus(data: Path, folder: Path) -> dict[str, Any]:
    train, test = (data / "libsvm" / f"agaricus.txt.{name}" for name in ("train", "test"))
    return {"sources": [str(train)], "test": [str(test)]}


def criteo_logs(data: Path, folder: Path) -> dict[str, Any]:
    return {"sources": [str(data / "criteo" / "criteo_80k.tsv.gz")], "test_fraction": 0.1}


def criteo_raw(data: Path, folder: Path) -> dict[str, Any]:
    return {"sources": [str(data / "criteo" / "criteo_raw_first1999.csv")], "test_fraction": 0.2}


def breast_cancer(data: Path, folder: Path) -> dict[str, Any]:
    """Columns from 0.001 to 4,000, as scikit-learn has them."""
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    lines = [",".join(map(repr, [*row, label])) for row, label in zip(found.data.tolist(), found.target, strict=True)]
    header = ",".join([*(name.replace(" ", "_") for name in found.feature_names), "label"])
    (folder / "cancer.csv").write_text("\n".join([header, *lines]).replace("np.int64(", "").replace(")", "") + "\n")
    return {"sources": [str(folder / "cancer.csv")], "test_fraction": 0.2}


# Trained without any setting. Rows drawn at random are drawn with several seeds.
PLAIN: dict[str, tuple[Callable[[Path, Path], dict[str, Any]], int]] = {
    "a9a": (a9a, 1),
    "agaricus": (agaricus, 1),
    "criteo_80k": (criteo_logs, 3),
    "criteo_raw_first1999": (criteo_raw, 5),
    "breast cancer": (breast_cancer, 5),
}


# What is given in the section without settings.
WAYS: dict[str, dict[str, Any]] = {"": {}, "--pace sync": {"pace": "sync"}, "--engine ray": {"engine": "ray"}}


def measure_plain(data: Path) -> Iterator[dict[str, Any]]:
    """Train each dataset of `PLAIN` as `paceline train --data D` does, in several ways, and as scikit-learn does; one
    line per split and way.
    """
    for name, (source, seeds) in PLAIN.items():
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as temporary:
                folder = Path(temporary)
                try:
                    config = PrepareConfig(**source(data, folder), seed=seed, out=str(folder / "data"))
                    dataset = prepare(config, lambda _: None).dataset
                except (OSError, paceline.PacelineError) as error:
                    yield {"data": name, "left out": str(error).splitlines()[0]}
                    break
                theirs = peer_loss(dataset)
                limit = max(1.02 * theirs, theirs + 0.01)
                rows = {"train": dataset.split("train").rows, "test": dataset.split("test").rows}
                for number, (way, flags) in enumerate(WAYS.items()):
                    run = paceline.train(data=folder / "data", run=folder / f"run-{number}", **flags)
                    result, ours = run.result, run.result["test"]["loss"]
                    yield {
                        "data": name, "given": way, "seed": seed, "rows": rows, "epochs": run.config.epochs,
                        "workers": run.config.workers, "batch_size": run.config.batch_size,
                        "seconds": result["train_seconds"], "loss": ours, "error": result["test"]["error"],
                        "scikit_learn": theirs, "limit": limit, "holds": ours <= limit,
                    }  # fmt: skip


def peer_loss(dataset: Any) -> float:
    """The test log loss of scikit-learn's logistic regression with its default settings."""
    import numpy as np
    import scipy.sparse
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss

    dataset.use_source_values()

    def matrix(split: str) -> tuple[Any, Any]:
        blocks = [dataset.block(split, index) for index in range(len(dataset.split(split).blocks))]
        rows = concatenate(blocks)
        shape = rows.num_rows, dataset.features
        return scipy.sparse.csr_matrix((rows.values, rows.keys.astype(np.int64), rows.offsets), shape), rows.labels

    train, labels = matrix("train")
    test, held_out = matrix("test")
    used = np.unique(train.indices)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on unscaled columns, it says that it did not converge
        fitted = LogisticRegression().fit(train[:, used], labels)
    return float(log_loss(held_out, fitted.predict_proba(test[:, used])[:, 1], labels=[0, 1]))


def plain_table(lines: list[dict[str, Any]]) -> str:
    table = (
        "## Without any setting\n\n`paceline train --data D`, and scikit-learn's `LogisticRegression()` on the same "
        "rows. The limit is 2 % or 0.01 above the latter.\n\n"
        "| data | given | split | rows | test rows | epochs | workers | batch | seconds | test loss | error "
        "| scikit-learn | limit | holds |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
    )
    for line in sorted(lines, key=lambda line: [*WAYS].index(line.get("given", ""))):
        if "left out" in line:
            table += f"| {line['data']} | left out: {line['left out']} {'| ' * 12}|\n"
            continue
        rows = line["rows"]
        table += (
            f"| {line['data']} | {line['given']} | {line['seed']} | {rows['train']:,} | {rows['test']:,} "
            f"| {line['epochs']} | {line['workers']} | {line['batch_size']} | {line['seconds']:.2f} "
            f"| {line['loss']:.4f} | {line['error']:.4f} | {line['scikit_learn']:.4f} | {line['limit']:.4f} "
            f"| {HOLDS[line['holds']]} |\n"
        )
    return f"{table}\n{means_table(lines)}"


def means_table(lines: list[dict[str, Any]]) -> str:
    """The means over the splits of each dataset, and in how many of them the limit holds."""
    splits: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in lines:
        if "left out" not in line:
            splits.setdefault((line["data"], line["given"]), []).append(line)
    table = (
        "Means over the splits:\n\n| data | given | test loss | error | scikit-learn | limit | holds in |\n"
        "|---|---|---|---|---|---|---|\n"
    )
    for (name, way), found in splits.items():
        means = (statistics.mean(line[key] for line in found) for key in ("loss", "error", "scikit_learn", "limit"))
        figures = " | ".join(f"{mean:.4f}" for mean in means)
        table += f"| {name} | {way} | {figures} | {sum(line['holds'] for line in found)} of {len(found)} |\n"
    return table


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
    plain = []
    for line in measure_plain(arguments.data):
        print(json.dumps(line), flush=True)
        plain.append(line)
    table = (
        f"# Models on real data, {datetime.now(UTC):%Y-%m-%d}\n\n{machine()}. `python benchmarks/quality.py DATA`.\n\n"
        f"{plain_table(plain)}\n## Recipes\n\n"
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
    table += f"\n## Training objectives\n\n{objectives.report(arguments.data)}"
    print(table)
    if arguments.write:
        (RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-quality.md").write_text(table)


if __name__ == "__main__":
    main()
