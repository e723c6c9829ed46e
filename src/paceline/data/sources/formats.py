"""Which format is an input in, and how is it opened?"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from paceline.data.prepare_settings import FORMATS, PrepareConfig
from paceline.data.sources.criteo import find_layout, has_no_label, open_criteo
from paceline.data.sources.csv_text import open_csv, read_header
from paceline.data.sources.files import Source, read_head, without_mark
from paceline.data.sources.libsvm import open_libffm, open_libsvm
from paceline.data.sources.parsed import Format
from paceline.data.sources.tables import open_arrow, open_parquet
from paceline.data.sources.tfrecord import open_tfrecord
from paceline.errors import DataError
from paceline.kernels.tfrecord import HEADER_BYTES, LENGTH_CHECKSUM, walk_records

# How files of a format are read, with what the first of them leaves to be found out.
ROW_FORMATS: dict[str, Callable[[Source, PrepareConfig], Format]] = {
    "criteo": open_criteo,
    "libsvm": open_libsvm,
    "libffm": open_libffm,
    "tfrecord": open_tfrecord,
    "parquet": open_parquet,
    "arrow": open_arrow,
    "csv": open_csv,
}
# An empty file of these has no rows; one of the others is damaged.
WITHOUT_HEADER = ("criteo", "libsvm", "libffm", "tfrecord")
SUFFIXES = {
    ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
    ".csv": "csv", ".tsv": "csv", ".svm": "libsvm", ".libsvm": "libsvm", ".svmlight": "libsvm",
    ".ffm": "libffm", ".libffm": "libffm",
    ".tfrecord": "tfrecord", ".tfrecords": "tfrecord",
}  # fmt: skip
COLUMNS_LOOKED_FOR = 1000
LABEL = rb"[+-]?[\d.]+([eE][+-]?\d+)?(:[+-]?[\d.]+([eE][+-]?\d+)?)?"
LIBSVM_LINE = re.compile(LABEL + rb"(\s+qid:\S+)?(\s+\d+:\S+)*\s*(#.*)?")
LIBFFM_LINE = re.compile(rb"(" + LABEL + rb"(\s+qid:\S+)?\s+)?(\d+:\d+:[^:\s]+\s*)+(#.*)?")


def recognise(source: Source, config: PrepareConfig) -> str:
    """The format of a file of rows: what its first bytes say, or else its suffix."""
    head = read_head(source, 1 << 16)
    if not len(head):
        raise DataError(f"`{source.name}` is empty", "check how it was made")
    found = _by_bytes(head, _columns_of_csv(config)) or SUFFIXES.get(source.suffix)
    if found is None:
        raise DataError(f"`{source.name}` is in an unknown format", f"say which: --format {'|'.join(FORMATS)}")
    return found


def refuse_other_formats(name: str, sources: Iterable[Source], config: PrepareConfig) -> None:
    """Raise if a source is not of the format `name`. Only the first file of each known suffix is opened."""
    first = {source.suffix: source for source in reversed([*sources]) if source.suffix in SUFFIXES}
    for source in first.values() if len(first) > 1 else ():
        if source.num_bytes != 0 and (other := recognise(source, config)) != name:
            message = f"the sources have different formats: `{source.name}` is {other}, others are {name}"
            raise DataError(message, f"prepare each format on its own, or give --format {name}")


def _columns_of_csv(config: PrepareConfig) -> list[str]:
    """Columns of which one in the first line shows that it is a header."""
    known = [config.id, *config.columns] if not config.labelled else [config.label]
    return [name for name in known[:COLUMNS_LOOKED_FOR] if name]


def _by_bytes(head: NDArray[np.uint8], columns: list[str]) -> str | None:
    start = head[:8].tobytes()
    if start.startswith(b"PAR1"):
        return "parquet"
    if start.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return "arrow"
    if len(head) >= HEADER_BYTES and walk_records(head[:HEADER_BYTES])[2] != LENGTH_CHECKSUM:
        return "tfrecord"
    return _by_first_line(without_mark(head), columns)


def _by_first_line(head: NDArray[np.uint8], columns: list[str]) -> str | None:
    lines = (line.strip(b"\r") for line in head.tobytes().split(b"\n"))
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith(b"#")), b"")
    if find_layout(first) or has_no_label(first):
        return "criteo"
    if LIBFFM_LINE.fullmatch(first.strip()):
        return "libffm"
    if LIBSVM_LINE.fullmatch(first.strip()):
        return "libsvm"
    header = read_header(np.frombuffer(first + b"\n", np.uint8))
    if header is not None and not {*columns}.isdisjoint(header.names):
        return "csv"
    return None
