"""Which features have the largest weights in a model, and how often do they occur?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data.blocks.folders import LocalFolder
from paceline.data.datasets import open_dataset
from paceline.data.sparse.dataset import SparseDataset
from paceline.data.sparse.feature_counts import read_counts
from paceline.data.sparse.key_order import NO_COUNTS
from paceline.errors import PacelineError, UsageError
from paceline.kernels.keys import fill_dictionary
from paceline.kernels.names import count_listed
from paceline.models.trained import TrainedModel, load_model
from paceline.run_folder import RunFolder

OF_FACTORS = "linear weights: the factors of pairs of features count, too"


def top_features(run: Path | str, count: int = 20, code: str = "") -> dict[str, Any]:
    """The features of a run's model with the largest weights, for each class if there are several.

    `rows` of a feature are the training rows that have it, None if that is not known. `code` is PACKAGE:FUNCTION, if
    the model needs it.
    """
    if count < 1:
        raise UsageError(f"`count` is {count}; it must be at least 1", "--count 20")
    folder = RunFolder(Path(run))
    model = load_model(folder.path, code)
    found = model.top(count)
    notes = [OF_FACTORS] if model.entry.has_factors else []
    if found and (said := _about_names(model, [one.key for one in found])):
        notes.append(said)
    rows, total, said = _rows_of(folder, model, sorted({one.key for one in found}))
    notes += [said] if said else []
    total = max(1, total)  # files can say anything
    features = [
        {
            "feature": one.feature, "key": one.key, "weight": one.weight, "rows": rows.get(one.key),
            "share": rows[one.key] / total if one.key in rows else None, **({"class": one.label} if one.label else {}),
        }
        for one in found
    ]  # fmt: skip
    return {"model": model.info.model, "features": features, "notes": notes}


def _about_names(model: TrainedModel, keys: list[int]) -> str:
    """What to say if some features have no name."""
    if model.names.has(keys).all():
        return ""
    if "hash_bits" in model.info.source:
        return "features without a name are called by their keys"
    base = model.info.source.get("index_base", 0)
    return f"features are called by their index, which counts from {base}"


def _rows_of(folder: RunFolder, model: TrainedModel, keys: list[int]) -> tuple[dict[int, int], int, str]:
    """How many training rows have each of these keys, how many rows there are, and what to say if it is not known."""
    known = read_counts(LocalFolder(folder.path / "model"), model.info.counts)
    rows = known.of(keys) if known is not None else {}
    if known is not None and len(rows) == len(keys):
        return rows, known.rows, ""
    try:
        dataset = _dataset_of(folder)
        return count_rows(dataset, keys), dataset.manifest.train.rows, ""
    except PacelineError as error:
        return rows, known.rows if known is not None else 0, f"how often features occur is not known: {error.message}"


def _dataset_of(folder: RunFolder) -> SparseDataset:
    """The dataset that a run was trained on; raises if it is gone, or if another one has taken its place."""
    dataset = open_dataset(folder.config.data)
    trained_on = folder.result.get("data_fingerprint", dataset.fingerprint)
    if not isinstance(dataset, SparseDataset) or dataset.fingerprint != trained_on:
        raise UsageError(f"`{dataset.folder}` now holds other data", "")
    return dataset


def count_rows(dataset: SparseDataset, keys: list[int]) -> dict[int, int]:
    """How many training rows have each of these input keys. The manifest knows it of hot keys."""
    hot = dict(zip(dataset.manifest.hot_keys, dataset.manifest.hot_counts, strict=True))
    found = {key: hot[key] for key in keys if key in hot}
    others = np.array([key for key in keys if key not in hot], np.uint64)
    if not len(others):
        return found
    in_blocks: NDArray[np.uint64] = others.copy()
    dataset.key_order.renumber(in_blocks, NO_COUNTS)
    dictionary = np.zeros((max(4, 1 << (4 * len(others)).bit_length()), 2), np.uint64)
    fill_dictionary(dictionary, in_blocks, np.arange(len(others), dtype=np.uint64))
    counts = np.zeros(len(others), np.int64)
    for number in range(len(dataset.manifest.train.blocks)):
        count_listed(dataset.block("train", number).keys, dictionary, counts)
    return found | dict(zip(others.tolist(), counts.tolist(), strict=True))
