"""What can `paceline prepare` be asked for, and which settings are possible?

The command line reads this before anything is imported that takes long.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from paceline.data import limits
from paceline.errors import ConfigError, as_value, printable

LARGEST_SIZE = 4096
MOST_LABELS = 256
MOST_BINS = 1024

INDEXED = ("features", "index-base", "labels", "scale", "skip-bad-rows", "weights")
COLUMNS = ("bins", "categorical", "cross", "drop", "numeric", "timestamp")
TABLE = ("id", *COLUMNS, "features", "fields", "hash-bits", "label", "labels", "scale", "skip-bad-rows", "weight")
# All formats, each with those of its settings that do not apply to every format.
FORMATS: dict[str, tuple[str, ...]] = {
    "criteo": ("features", "fields", "hash-bits", "integers", "scale", "skip-bad-rows", "weights"),
    "libsvm": INDEXED,
    "libffm": (*INDEXED, "fields"),
    "tfrecord": INDEXED,
    "parquet": TABLE,
    "arrow": TABLE,
    "csv": TABLE,
    "idx": ("classes",),
    "cifar": (),
    "images": ("size",),
}

D = TypeVar("D", covariant=True)


class PrepareConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What `paceline prepare` was asked to do; the flags of the command.

    The settings of columns are also in the `source` of a manifest, which has everything needed to prepare more rows in
    the same way. There, `bins` lists edges, and `columns` says what each column became. With `columns`, only these are
    read, and nothing is found out from the first rows.
    """

    sources: list[str]
    out: str
    format: str = "auto"
    features: int | None = None
    hash_bits: int = 22
    index_base: limits.IndexBase = "auto"
    test: list[str] = []
    test_fraction: float = 0.0
    validation: list[str] = []
    validation_fraction: float = 0.0
    skip_bad_rows: int = 0
    seed: int = 0
    integers: limits.Integers = "log"
    label: str = "label"
    labels: limits.LabelKind = "two-classes"
    weight: str = ""
    weights: list[str] = []
    fields: bool = False
    drop: list[str] = []
    categorical: list[str] = []
    numeric: list[str] = []
    timestamp: list[str] = []
    cross: list[list[str]] = []
    bins: dict[str, int | list[float]] = {}
    columns: dict[str, limits.ColumnKind] = {}
    labelled: bool = True
    weighted: bool = False
    id: str = ""
    scale: limits.Scale = "auto"
    names: bool = True
    size: int | None = None
    classes: int | None = None


class PrepareProgress(NamedTuple):
    """How much was read: rows, and bytes of the files on disk, of how many (None if that is not known)."""

    rows: int
    bytes_read: int
    bytes_total: int | None


class Prepared(NamedTuple, Generic[D]):
    """What was made.

    `left_out` are training sources that are also validation or test files, and were not used for training. `notes` tell
    the user what was found in the input.
    """

    dataset: D
    rows: int
    bad_rows: int
    seconds: float
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def check_settings(config: PrepareConfig) -> None:
    """Raise for settings that are wrong for any input."""
    if not config.sources:
        raise ConfigError("no source was given", "name a file, a folder, a glob or a URL")
    limits.check_choices(
        ("format", config.format, ("auto", *FORMATS), "auto looks at the input"),
        ("index-base", config.index_base, limits.INDEX_BASES, "auto looks at the input"),
        ("integers", config.integers, limits.INTEGERS, "log keeps them as numbers"),
        ("scale", config.scale, limits.SCALES, "none keeps all values as they are"),
        ("labels", config.labels, limits.LABEL_KINDS, "numbers are for regression"),
    )
    limits.check_limits(
        ("features", config.features, 1, limits.NO_LIMIT, "leave --features out to count them"),
        ("hash-bits", config.hash_bits, 1, 32, "22 keeps collisions rare for Criteo"),
        ("skip-bad-rows", config.skip_bad_rows, 0, limits.NO_LIMIT, "0 stops at the first"),
        ("size", config.size, 1, LARGEST_SIZE, "--size 256 is usual for photographs"),
        ("classes", config.classes, 1, MOST_LABELS, "labels are bytes; MNIST has 10 classes"),
        ("seed", config.seed, 0, (1 << 64) - 1, "any such number works"),
    )
    check_columns(config)
    if config.weight and config.weight == config.label:
        raise ConfigError(f"`weight` and `label` are both {as_value(config.label)}", "they are two columns")
    _check_held_out(config)


def split_names(text: str) -> list[str]:
    """The names in the text of a flag; a name that holds a comma is quoted.

    >>> split_names('age, town,"a,b"')
    ['age', 'town', 'a,b']
    """
    return [name for name in next(csv.reader([text], skipinitialspace=True), []) if name]


def read_bins(text: str) -> dict[str, int | list[float]]:
    """The column in the text of a flag, and its number of bins or their edges.

    >>> read_bins("age=10"), read_bins("age=18,65"), read_bins("age=18,")
    ({'age': 10}, {'age': [18.0, 65.0]}, {'age': [18.0]})
    """
    name, _, bins = text.rpartition("=")
    try:
        return {name: [float(edge) for edge in split_names(bins)] if "," in bins else int(bins)}
    except ValueError:
        message = f"`bins` has {as_value(text)}; it must be a column and a number of bins, or the edges between them"
        raise ConfigError(message, "--bins age=10, or --bins age=18,30,65") from None


def with_columns(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of columns as Python's callers give them, as `PrepareConfig` has them. Text is read as that of a flag.

    >>> with_columns({"drop": "id", "cross": [("town", "age"), "a,b"], "bins": "age=10"})
    {'drop': ['id'], 'cross': [['town', 'age'], ['a', 'b']], 'bins': {'age': 10}}
    """
    found = dict(settings)
    for name in ("drop", "categorical", "numeric", "timestamp"):
        if name in found:
            found[name] = split_names(found[name]) if isinstance(found[name], str) else [*found[name]]
    if "cross" in found:
        crosses = [found["cross"]] if isinstance(found["cross"], str) else found["cross"]
        found["cross"] = [split_names(names) if isinstance(names, str) else [*names] for names in crosses]
    if isinstance(found.get("bins"), str):
        found["bins"] = read_bins(found["bins"])
    return found


def check_columns(config: PrepareConfig) -> None:
    """Raise for settings of columns that contradict each other, or that are wrong for any column."""
    chosen: dict[str, str] = {}
    for setting in ("drop", "categorical", "numeric", "timestamp", "bins"):
        for name in getattr(config, setting):
            before = chosen.setdefault(name, setting)
            if setting != before and (before, setting) != ("numeric", "bins"):
                raise ConfigError(f"`{name}` is in both `{before}` and `{setting}`", "name it in one of them")
    for names in config.cross:
        if len(set(names)) < max(2, len(names)):
            what = ", ".join(map(as_value, names))
            raise ConfigError(f"`cross` has {what}; it must be two or more columns", "--cross A,B")
    for name, bins in config.bins.items():
        if isinstance(bins, int):
            limits.check_limits((f"bins of {name}", bins, 2, MOST_BINS, f"--bins {printable(name)}=10"))
        elif not all(map(math.isfinite, bins)) or sorted(set(bins)) != bins or len(bins) >= MOST_BINS:
            edges = ", ".join(f"{edge:g}" for edge in bins[:5])
            problem = f"the edges of the bins of `{name}` are {edges}; they must rise, and be fewer than {MOST_BINS}"
            raise ConfigError(problem, f"--bins {printable(name)}=18,30,65")


def _check_held_out(config: PrepareConfig) -> None:
    """Raise for impossible choices of validation and test rows."""
    for split, sources, fraction in (
        ("validation", config.validation, config.validation_fraction),
        ("test", config.test, config.test_fraction),
    ):
        if not 0 <= fraction < 1:
            raise ConfigError(
                f"`{split}-fraction` is {as_value(fraction)}; it must be at least 0 and below 1",
                "0.1 draws about a tenth of the rows at random",
            )
        if sources and fraction:
            raise ConfigError(
                f"`{split}` and `{split}-fraction` ({fraction}) are both given",
                f"{split} rows come from their own source or are drawn from the input",
            )
    if config.validation_fraction + config.test_fraction >= 1:
        raise ConfigError(
            f"`validation-fraction` ({config.validation_fraction}) and `test-fraction` ({config.test_fraction}) "
            "leave no training rows",
            "their sum must be below 1",
        )


def check_settings_for(name: str, config: PrepareConfig) -> None:
    """Raise for settings that do not apply to the input's format, instead of ignoring them."""
    defaults = PrepareConfig(sources=config.sources, out=config.out)
    for setting in sorted({setting for settings in FORMATS.values() for setting in settings}):
        field = setting.replace("-", "_")
        value = getattr(config, field)
        if setting not in FORMATS[name] and value != getattr(defaults, field):
            others = [other for other, settings in FORMATS.items() if setting in settings]
            raise ConfigError(
                f"`{setting}` is {as_value(value)}, but the input is {name}; it is for {', '.join(others)}",
                f"leave --{setting} out, or give --format",
            )
