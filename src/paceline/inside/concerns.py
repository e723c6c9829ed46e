"""Which properties of a dataset harm training?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.data.label_statistics import LabelStatistics
from paceline.data.sparse.dataset import SparseDataset
from paceline.inside.keys import UsedKeys

ONE_SIDED = 0.99  # the share of rows from which on labels are nearly all one class
MOST_SAMPLE_ROWS, MOST_COLUMNS = 16_384, 200
FEWEST_ROWS = 1_000  # to tell of columns whether each row has its own value
UNIQUE = 0.9
UNIQUE_TEXTS = 0.5
FULL = 0.5  # the share of hashed keys in use from which on many values share one
SPARSE_BYTES, SPARSE_SHARE = 1 << 30, 0.01
GROWS = 0.99
SECONDS = (5e8, 2.2e9), (5e11, 2.2e12)  # times since 1970 in seconds and in milliseconds
SIGMAS, LEAST_CHANGE, DEVIATIONS = 6.0, 0.2, 0.5


class Concern(NamedTuple):
    """What will hurt, and what to do about it."""

    warning: str
    hint: str


def concerns_of(dataset: SparseDataset, keys: UsedKeys, labels: dict[str, LabelStatistics]) -> list[Concern]:
    """All concerns about a dataset, whose rows must be read with the values of the source."""
    return [*_of_size(dataset, keys), *_of_labels(dataset, labels), *_of_texts(dataset), *_of_columns(dataset)]


def _of_size(dataset: SparseDataset, keys: UsedKeys) -> Iterator[Concern]:
    manifest, features = dataset.manifest, dataset.features
    if keys.stray is not None:
        yield Concern(keys.stray.words(int(manifest.source.get("index_base", 0))), keys.stray.hint)
    elif keys.used is not None and keys.used < SPARSE_SHARE * features and 4 * features >= SPARSE_BYTES:
        yield Concern(
            f"a model has {features:,} weights ({4 * features / 1e9:.1f} GB), but rows use {keys.used:,} keys",
            "fewer --hash-bits, or number the keys without gaps",
        )
    bits = manifest.source.get("hash_bits")
    if isinstance(bits, int) and keys.used is not None and keys.used - len(manifest.names.numeric) > FULL * 2**bits:
        yield Concern(
            f"{keys.used / 2**bits:.0%} of the 2^{bits} hashed keys are in use, so many values share one",
            f"--hash-bits {bits + 2}",
        )


def _of_labels(dataset: SparseDataset, labels: dict[str, LabelStatistics]) -> Iterator[Concern]:
    train, test = labels["train"], labels.get("test")
    if dataset.labels.kind == "numbers":
        if test is not None and abs(test.mean - train.mean) > DEVIATIONS * train.deviation:
            yield Concern(
                f"labels of test rows have the mean {test.mean:.4g}, those of training rows {train.mean:.4g}",
                "draw test rows at random: --test-fraction 0.1",
            )
        return
    shares, names = np.array(train.weights) / sum(train.weights), dataset.labels.names
    most = int(shares.argmax())
    unseen = [name for name, rows in zip(names, train.rows, strict=True) if not rows]
    if unseen:
        yield Concern(f"no training row has the label {unseen[0]}: no model can learn it", "give rows of all classes")
    if shares[most] >= ONE_SIDED and np.count_nonzero(train.rows) > 1:
        yield Concern(
            f"{shares[most]:.2%} of the training rows have the label {names[most]}",
            "the error says little: look at the AUC; with --class-weight balanced, all classes count the same",
        )
    if test is None or not sum(test.weights):
        return
    tested = np.array(test.weights) / sum(test.weights)
    noise = np.sqrt(np.maximum(shares * (1 - shares), 1e-9) / max(1, sum(test.rows)))
    away = np.abs(tested - shares)
    differs = (away > SIGMAS * noise) & (away > LEAST_CHANGE * np.minimum(shares, tested)) & (shares + tested > 0.02)
    if differs.any():
        worst = int(np.where(differs, away, 0).argmax())
        yield Concern(
            f"the label {names[worst]} has {tested[worst]:.1%} of test rows and {shares[worst]:.1%} of training rows",
            "if this is not on purpose, draw test rows at random: --test-fraction 0.1",
        )


def _of_texts(dataset: SparseDataset) -> Iterator[Concern]:
    """Columns of text in which nearly every value is unique."""
    info, bits = dataset.manifest.names, dataset.manifest.source.get("hash_bits")
    rows = sum(dataset.split(split).rows for split in ("train", "validation", "test"))
    if not isinstance(bits, int) or rows < FEWEST_ROWS:
        return
    # Of as many different texts as rows, this many would have a key of their own.
    own_keys = 2.0**bits * -math.expm1(-rows / 2.0**bits)
    for column, count in dataset.names.count_by_column().items():
        if count > UNIQUE_TEXTS * own_keys and info.complete:
            yield Concern(
                f"column {column} has {count:,} different values in {rows:,} rows: an id or a time became features",
                f"--drop {column}, or --timestamp {column} if it holds times",
            )


def _of_columns(dataset: SparseDataset) -> Iterator[Concern]:
    """Columns of numbers that are an id or a time, the same everywhere, or the same as another one."""
    keys, cells = _sample(dataset)
    if len(cells) < FEWEST_ROWS:
        return
    names = dataset.names.of(keys)
    seen: dict[bytes, str] = {}
    for name, column in zip(names, cells.T, strict=True):
        if problem := _problem_of(column):
            yield Concern(f"column {name} {problem}", f"leave it out: --drop {name}")
        same = seen.setdefault(column.tobytes(), name)
        if same != name and not problem:
            yield Concern(f"column {name} has the same values as {same}", f"leave one out: --drop {name}")


def _problem_of(column: NDArray[np.float32]) -> str:
    """What is wrong with the numbers of a column; empty if nothing is."""
    numbers = column[~np.isnan(column)].astype(np.float64)
    if len(numbers) < len(column) / 2:
        return ""
    low, high = float(numbers.min()), float(numbers.max())
    if low == high and len(numbers) < len(column):
        return ""
    if low == high:
        return f"is {low:g} in all of the first {len(column):,} rows"
    are_whole = bool((np.abs(numbers - np.round(numbers)) <= 1e-6 * np.abs(numbers)).all())
    if not are_whole:
        return ""
    if any(start <= low and high <= stop for start, stop in SECONDS):
        return "holds times, from which a model learns nothing about other days"
    places = np.arange(len(numbers))
    if (np.diff(numbers) >= 0).all() and np.corrcoef(numbers, places)[0, 1] > GROWS:
        return "grows with the row number: it is an id or a time"
    if len(np.unique(numbers)) > UNIQUE * len(numbers):
        return "has another whole number in nearly every row: it is an id"
    return ""


def _sample(dataset: SparseDataset) -> tuple[list[int], NDArray[np.float32]]:
    """The input's keys that most rows have, and their values in the first training rows [rows, keys], or NaN."""
    manifest = dataset.manifest
    most = manifest.train.rows / 2
    keys = [key for key, count in zip(manifest.hot_keys, manifest.hot_counts, strict=True) if count > most]
    # Values of hashed texts are all 1.
    named = len(manifest.names.numeric)
    keys = [key for key in keys if not named or key < named][:MOST_COLUMNS]
    rows = dataset.block("train", 0)
    rows = rows.slice(0, min(rows.num_rows, MOST_SAMPLE_ROWS))
    cells = np.full((rows.num_rows, len(keys)), np.nan, np.float32)
    input_keys = dataset.key_order.input_keys(rows.keys)
    row_of = np.repeat(np.arange(rows.num_rows), np.diff(rows.offsets))
    for j, key in enumerate(keys):
        places = np.flatnonzero(input_keys == key)
        cells[row_of[places], j] = rows.values[places]
    return keys, cells
