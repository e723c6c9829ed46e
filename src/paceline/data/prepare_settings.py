"""What can `paceline prepare` be asked for, and which settings are possible?"""

from __future__ import annotations

from typing import Any, Generic, Literal, NamedTuple

import msgspec

from paceline.data.blocks.writer import D
from paceline.data.labels import LABEL_KINDS, LabelKind
from paceline.data.limits import NO_LIMIT, check_limits
from paceline.data.sources.criteo import Integers
from paceline.data.sources.formats import FORMATS, FormatName
from paceline.data.sources.image_formats import IMAGE_FORMATS, ImageFormat
from paceline.errors import ConfigError

DEFAULT_HASH_BITS = 22
DEFAULT_LABEL = "label"
LARGEST_SIZE = 4096
HASHED: tuple[FormatName, ...] = ("criteo", "parquet", "arrow", "csv")
WITH_LABEL_COLUMN: tuple[FormatName, ...] = ("parquet", "arrow", "csv")
INDEXED: tuple[FormatName, ...] = ("libsvm", "tfrecord")
MOST_LABELS = 256


class PrepareConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What `paceline prepare` was asked to do; the flags of the command."""

    sources: list[str]
    out: str
    format: Literal["auto"] | FormatName | ImageFormat = "auto"
    features: int | None = None
    hash_bits: int = DEFAULT_HASH_BITS
    index_base: Literal["auto", "0", "1"] = "auto"
    test: list[str] = []
    test_fraction: float = 0.0
    skip_bad_rows: int = 0
    seed: int = 0
    integers: Integers = "log"
    label: str = DEFAULT_LABEL
    labels: LabelKind = "two-classes"
    size: int | None = None
    classes: int | None = None


class PrepareProgress(NamedTuple):
    """How much was read: rows, and bytes of the files on disk, of how many (None if that is not known)."""

    rows: int
    bytes_read: int
    bytes_total: int | None


class Prepared(NamedTuple, Generic[D]):
    """What was made.

    `left_out` are training sources that are also test files, and were used for testing only. `notes` tell the user what
    was found in the input.
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
        raise ConfigError("no source was given", "name a file, a folder, a glob or a URI")
    formats = (*FORMATS, *IMAGE_FORMATS)
    if config.format not in ("auto", *formats):
        raise ConfigError(
            f"`format` is `{config.format}`; it must be auto or one of {', '.join(formats)}", "auto looks at the input"
        )
    check_limits(
        ("features", config.features, 1, NO_LIMIT, "leave --features out to count them"),
        ("hash-bits", config.hash_bits, 1, 32, "22 keeps collisions rare for Criteo"),
        ("skip-bad-rows", config.skip_bad_rows, 0, NO_LIMIT, "0 stops at the first"),
        ("size", config.size, 1, LARGEST_SIZE, "--size 256 is usual for photographs"),
        ("classes", config.classes, 1, MOST_LABELS, "labels are bytes; MNIST has 10 classes"),
        ("seed", config.seed, 0, (1 << 64) - 1, "any number will do"),
    )
    if config.index_base not in ("auto", "0", "1"):
        raise ConfigError(f"`index-base` is `{config.index_base}`; it must be auto, 0 or 1", "auto looks at the input")
    if config.integers not in ("log", "bucket"):
        raise ConfigError(f"`integers` is `{config.integers}`; it must be log or bucket", "log keeps them as numbers")
    if config.labels not in LABEL_KINDS:
        raise ConfigError(
            f"`labels` is `{config.labels}`; it must be one of {', '.join(LABEL_KINDS)}", "numbers are for regression"
        )
    if not 0 <= config.test_fraction < 1:
        raise ConfigError(
            f"`test-fraction` is `{config.test_fraction}`; it must be at least 0 and below 1",
            "0.1 takes every tenth row",
        )
    if config.test and config.test_fraction:
        raise ConfigError(
            f"`test` and `test-fraction` ({config.test_fraction}) are both given",
            "test rows come from their own source or are drawn from the input",
        )


def check_settings_for(name: FormatName | ImageFormat, config: PrepareConfig) -> None:
    """Raise for settings that do not apply to the input's format, instead of ignoring them."""
    settings: tuple[tuple[str, Any, Any, tuple[str, ...]], ...] = (
        ("features", config.features, None, FORMATS),
        ("index-base", config.index_base, "auto", INDEXED),
        ("hash-bits", config.hash_bits, DEFAULT_HASH_BITS, HASHED),
        ("integers", config.integers, "log", ("criteo",)),
        ("label", config.label, DEFAULT_LABEL, WITH_LABEL_COLUMN),
        ("labels", config.labels, "two-classes", INDEXED + WITH_LABEL_COLUMN),
        ("skip-bad-rows", config.skip_bad_rows, 0, FORMATS),
        ("size", config.size, None, ("images",)),
        ("classes", config.classes, None, ("idx",)),
    )
    for setting, value, default, formats in settings:
        if value != default and name not in formats:
            raise ConfigError(
                f"`{setting}` is `{value}`, but the input is {name}; it is for {', '.join(formats)}",
                f"leave --{setting} out, or give --format",
            )
