"""What is in a dataset, how good is a constant prediction, and what will hurt?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from paceline.data.blocks.dataset import SPLITS
from paceline.data.datasets import open_dataset
from paceline.data.label_statistics import LabelStatistics, combine, sum_classes, sum_numbers
from paceline.data.sparse.dataset import SparseDataset
from paceline.inside.concerns import concerns_of
from paceline.inside.keys import look_at_keys
from paceline.parameters.layout import Group
from paceline.parameters.optimizers import TABLE_OPTIMIZERS
from paceline.settings import OptimizerConfig

HOT_SHOWN = 20
QUARTILES = (0, 25, 50, 75, 100)


def info_of(path: Path | str) -> dict[str, Any]:
    """What there is to know about a dataset: what `paceline info --json` prints."""
    dataset = open_dataset(path)
    rows = {split: dataset.split(split).rows for split in SPLITS}
    told = {"path": str(dataset.folder), "kind": dataset.kind.name, "rows": rows, "disk_bytes": _disk_bytes(path)}
    if not isinstance(dataset, SparseDataset):
        images = {"shape": list(dataset.shape), "classes": dataset.labels.classes}
        return told | images | {"source": dataset.manifest.source, "warnings": []}
    # Values as in the source are what people know.
    dataset.use_source_values()
    keys, labels = look_at_keys(dataset), statistics_of(dataset)
    return told | {
        "features": dataset.features,
        "keys_used": keys.used,
        "nonzeros": dataset.manifest.train.nonzeros,
        "nonzeros_per_row": dataset.manifest.train.nonzeros / max(1, rows["train"]),
        "longest_row": dataset.longest_row,
        "labels": _labels(dataset, labels),
        "baseline": _baseline(dataset, labels),
        "hot_keys": _hot_keys(dataset),
        "model_bytes": model_bytes(dataset),
        "source": dataset.manifest.source,
        "warnings": [one._asdict() for one in concerns_of(dataset, keys, labels)],
    }


def statistics_of(dataset: SparseDataset) -> dict[str, LabelStatistics]:
    """The statistics of the labels of each split that has rows."""
    found: dict[str, LabelStatistics] = {}
    for split in SPLITS:
        sums = []
        for number in range(len(dataset.split(split).blocks)):
            rows = dataset.block(split, number)
            is_number = dataset.labels.kind == "numbers"
            sums.append(
                sum_numbers(rows.labels, rows.weights, number) if is_number else sum_classes(rows.labels, rows.weights)
            )
        if sums:
            found[split] = combine(sums, dataset.labels)
    return found


def _labels(dataset: SparseDataset, labels: dict[str, LabelStatistics]) -> dict[str, Any]:
    kind = dataset.labels.kind
    if kind == "numbers":
        numbers = {
            split: {
                "mean": one.mean, "deviation": one.deviation,
                "quantiles": {f"{share / 100:g}": one.quantiles[share] for share in QUARTILES},
            }
            for split, one in labels.items()
        }  # fmt: skip
        return {"kind": kind, **numbers}
    return {"kind": kind} | {
        split: dict(zip(dataset.labels.names, one.rows, strict=True)) for split, one in labels.items()
    }


def _baseline(dataset: SparseDataset, labels: dict[str, LabelStatistics]) -> dict[str, Any]:
    """The loss and the error of the best constant prediction for the training rows."""
    known = labels["train"]
    if dataset.labels.kind == "numbers":
        return {"loss": "squared", "value": known.deviation**2 / 2, "rmse": known.deviation, "prediction": known.mean}
    shares = np.array(known.weights) / sum(known.weights)
    entropy = float((shares[shares > 0] * -np.log(shares[shares > 0])).sum())
    most = dataset.labels.names[int(shares.argmax())]
    loss = "logistic" if dataset.labels.kind == "two-classes" else "softmax"
    prediction = float(shares[1]) if loss == "logistic" else most
    return {"loss": loss, "value": entropy, "error": 1 - float(shares.max()), "prediction": prediction}


def _hot_keys(dataset: SparseDataset) -> list[dict[str, Any]]:
    keys, counts = dataset.manifest.hot_keys[:HOT_SHOWN], dataset.manifest.hot_counts[:HOT_SHOWN]
    train = dataset.manifest.train
    return [
        {"feature": name, "key": key, "rows": count, "share": count / max(1, train.nonzeros)}
        for name, key, count in zip(dataset.names.of(keys), keys, counts, strict=True)
    ]


def model_bytes(dataset: SparseDataset) -> dict[str, int]:
    """The memory of a linear model and its optimizer's state over all keys of a dataset."""
    dim = dataset.labels.classes if dataset.labels.kind == "classes" else 1
    widths = {name: Group("weight", max(1, dim), OptimizerConfig(name=name)).width for name in TABLE_OPTIMIZERS}
    return {name: 4 * (dataset.features + 1) * width for name, width in widths.items()}


def _disk_bytes(path: Path | str) -> int | None:
    """The bytes of a folder of this machine."""
    folder = Path(path)
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file()) if folder.is_dir() else None
