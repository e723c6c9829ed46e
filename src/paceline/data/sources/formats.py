"""Which format is an input in, and how is it opened?"""

from __future__ import annotations

import re
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from paceline.data.sources.criteo import Integers, find_layout, has_no_label, open_criteo
from paceline.data.sources.csv_text import Csv, columns_of_csv, read_header
from paceline.data.sources.files import Source, read_head, without_mark
from paceline.data.sources.image_formats import IMAGE_FORMATS
from paceline.data.sources.libsvm import Libsvm, open_libsvm
from paceline.data.sources.parsed import Format
from paceline.data.sources.tables import Arrow, Parquet, columns_of_arrow, columns_of_parquet
from paceline.data.sources.tfrecord import TFRecord
from paceline.errors import DataError
from paceline.kernels.tfrecord import HEADER_BYTES, LENGTH_CHECKSUM, walk_records

FormatName = Literal["criteo", "libsvm", "tfrecord", "parquet", "arrow", "csv"]
FORMATS: tuple[FormatName, ...] = get_args(FormatName)

SUFFIXES: dict[str, FormatName] = {
    ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
    ".csv": "csv", ".tsv": "csv", ".svm": "libsvm", ".libsvm": "libsvm", ".svmlight": "libsvm",
    ".tfrecord": "tfrecord", ".tfrecords": "tfrecord",
}  # fmt: skip
LIBSVM_LINE = re.compile(rb"[+-]?[\d.]+([eE][+-]?\d+)?(\s+qid:\S+)?(\s+\d+:\S+)*\s*(#.*)?")


def recognise(source: Source, label: str) -> FormatName:
    """The format of a file, by its first bytes; its suffix decides where these leave it open."""
    head = read_head(source, 1 << 16)
    if not len(head):
        raise DataError(f"`{source.name}` is empty", "check how it was made")
    found = _by_bytes(head, label) or SUFFIXES.get(source.suffix)
    if found is None:
        raise DataError(
            f"`{source.name}` is in an unknown format",
            f"say which: --format {'|'.join((*FORMATS, *IMAGE_FORMATS))}",
        )
    return found


def open_format(
    name: FormatName,
    source: Source,
    *,
    features: int | None,
    hash_bits: int,
    index_base: Literal["auto", "0", "1"],
    integers: Integers,
    label: str,
) -> Format:
    """How files of a format are read, with what the first of them leaves to be found out."""
    base: Literal[0, 1] = 0 if index_base == "0" else 1
    match name:
        case "criteo":
            return open_criteo(source, hash_bits, integers)
        case "libsvm":
            return open_libsvm(source, features) if index_base == "auto" else Libsvm(features, base)
        case "tfrecord":
            return TFRecord(features, base)
        case "parquet":
            return Parquet(columns_of_parquet(source, label), hash_bits)
        case "arrow":
            return Arrow(columns_of_arrow(source, label), hash_bits)
        case "csv":
            return Csv(columns_of_csv(source, label), hash_bits)


def _by_bytes(head: NDArray[np.uint8], label: str) -> FormatName | None:
    start = head[:8].tobytes()
    if start.startswith(b"PAR1"):
        return "parquet"
    if start.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return "arrow"
    if len(head) >= HEADER_BYTES and walk_records(head[:HEADER_BYTES])[2] != LENGTH_CHECKSUM:
        return "tfrecord"
    return _by_first_line(without_mark(head), label)


def _by_first_line(head: NDArray[np.uint8], label: str) -> FormatName | None:
    lines = (line.strip(b"\r") for line in head.tobytes().split(b"\n"))
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith(b"#")), b"")
    if find_layout(first) or has_no_label(first):
        return "criteo"
    if LIBSVM_LINE.fullmatch(first.strip()):
        return "libsvm"
    header = read_header(np.frombuffer(first + b"\n", np.uint8))
    if header is not None and label in header.names:
        return "csv"
    return None
