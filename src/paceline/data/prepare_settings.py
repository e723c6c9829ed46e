"""What can `paceline prepare` be asked for, and what of that can be?"""

from __future__ import annotations

from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from paceline.data.images.dataset import ImageDataset
from paceline.data.sources.criteo import Integers
from paceline.data.sources.formats import FORMATS, FormatName
from paceline.data.sources.image_formats import IMAGE_FORMATS, ImageFormat
from paceline.data.sparse.dataset import Dataset
from paceline.errors import ConfigError

DEFAULT_HASH_BITS = 22
DEFAULT_LABEL = "label"
LARGEST_SIZE = 4096
HASHED: tuple[FormatName, ...] = ("criteo", "parquet", "arrow", "csv")
WITH_LABEL_COLUMN: tuple[FormatName, ...] = ("parquet", "arrow", "csv")
INDEXED: tuple[FormatName, ...] = ("libsvm", "tfrecord")
MOST_LABELS = 256

D = TypeVar("D", Dataset, ImageDataset)


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
    size: int | None = None
    classes: int | None = None


class Progress(NamedTuple):
    """How far it is: rows read, and bytes of the files as they lie on disk, so far and in all (None: not known)."""

    rows: int
    bytes_read: int
    bytes_total: int | None


class Prepared(NamedTuple, Generic[D]):
    """What was made.

    `left_out` are files among the training sources that are test files, and were only that; `notes` are sentences for
    the user about what was found out from the input.
    """

    dataset: D
    rows: int
    bad_rows: int
    seconds: float
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def check_settings(config: PrepareConfig) -> None:
    """Raise for settings that are wrong whatever the input is."""
    if not config.sources:
        raise ConfigError("no source was given", "name a file, a folder, a glob or a URI")
    formats = (*FORMATS, *IMAGE_FORMATS)
    if config.format not in ("auto", *formats):
        raise ConfigError(
            f"`format` is `{config.format}`; it is auto or one of {', '.join(formats)}", "auto looks at the input"
        )
    if config.features is not None and not 1 <= config.features < 1 << 62:
        raise ConfigError(f"`features` is `{config.features}`; it is 1 or more", "leave --features out to count them")
    if not 1 <= config.hash_bits <= 32:
        raise ConfigError(f"`hash-bits` is `{config.hash_bits}`; it is 1 to 32", "22 keeps collisions rare for Criteo")
    if config.index_base not in ("auto", "0", "1"):
        raise ConfigError(f"`index-base` is `{config.index_base}`; it is auto, 0 or 1", "auto looks at the input")
    if config.integers not in ("log", "bucket"):
        raise ConfigError(f"`integers` is `{config.integers}`; it is log or bucket", "log keeps them numbers")
    if not 0 <= config.test_fraction < 1:
        raise ConfigError(
            f"`test-fraction` is `{config.test_fraction}`; it is 0 up to below 1", "0.1 takes every tenth row"
        )
    if config.test and config.test_fraction:
        raise ConfigError(
            f"`test` and `test-fraction` ({config.test_fraction}) are both given",
            "test rows come from their own source or are drawn from the input",
        )
    if config.skip_bad_rows < 0:
        raise ConfigError(f"`skip-bad-rows` is `{config.skip_bad_rows}`; it is 0 or more", "0 stops at the first")
    if config.size is not None and not 1 <= config.size <= LARGEST_SIZE:
        raise ConfigError(
            f"`size` is `{config.size}`; it is 1 to {LARGEST_SIZE}", "--size 256 is usual for photographs"
        )
    if config.classes is not None and not 1 <= config.classes <= MOST_LABELS:
        raise ConfigError(
            f"`classes` is `{config.classes}`; it is 1 to {MOST_LABELS}, for labels are bytes", "MNIST has 10"
        )
    if not 0 <= config.seed < 1 << 64:
        raise ConfigError(f"`seed` is `{config.seed}`; it is 0 up to 2**64 - 1", "any number will do")


def check_settings_for(name: FormatName | ImageFormat, config: PrepareConfig) -> None:
    """Raise for settings that mean nothing in the input's format, rather than pass over them."""
    settings: tuple[tuple[str, Any, Any, tuple[str, ...]], ...] = (
        ("features", config.features, None, FORMATS),
        ("index-base", config.index_base, "auto", INDEXED),
        ("hash-bits", config.hash_bits, DEFAULT_HASH_BITS, HASHED),
        ("integers", config.integers, "log", ("criteo",)),
        ("label", config.label, DEFAULT_LABEL, WITH_LABEL_COLUMN),
        ("skip-bad-rows", config.skip_bad_rows, 0, FORMATS),
        ("size", config.size, None, ("images",)),
        ("classes", config.classes, None, ("idx",)),
    )
    for setting, value, default, formats in settings:
        if value != default and name not in formats:
            raise ConfigError(
                f"`{setting}` is `{value}`, but the input is {name}; it is for {', '.join(formats)}",
                f"leave --{setting} out, or say --format",
            )
