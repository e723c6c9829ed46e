"""How are TFRecord files of sparse tf.Example read?

Each record is one row: `label` (one int64 or float), `index` (int64s) and `value` (one float per index; all ones if
absent). Other features are ignored. Indices count from 1 unless `--index-base` says otherwise. Both checksums of a
record are verified. TensorFlow is not needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data.prepare_settings import PrepareConfig
from paceline.data.sources.files import LONGEST_ROW_BYTES, Chunk, Source, cut_at_rows
from paceline.data.sources.libsvm import explain
from paceline.data.sources.parsed import BadRow, Parsed, Room, input_key_dtype, most_features
from paceline.data.sparse.name_collector import NameCollector
from paceline.errors import DataError
from paceline.kernels import problems
from paceline.kernels.tfrecord import (
    CUT_SHORT,
    FOOTER_BYTES,
    HEADER_BYTES,
    LENGTH_CHECKSUM,
    parse_tfrecord,
    walk_records,
)

Data = NDArray[np.uint8]


class TFRecord:
    """TFRecord files. Index i is key i - `base`; without declared `features` keys are 32 bits wide."""

    label_column = "label"
    weighted = False
    fields: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    names: NameCollector | None = None

    def __init__(self, features: int | None, base: int, *, labelled: bool = True) -> None:
        self.features = features
        self.base = base
        self._labelled = labelled
        self.settings: dict[str, Any] = {"index_base": base}

    def chunks(self, source: Source) -> Iterator[Chunk[Data]]:
        """Chunks of whole records. The lengths are verified here, because without them the next record is lost."""
        num_records = 0
        for chunk in cut_at_rows(source, _end_of_records):
            data = chunk.content
            end, count, stopped, needed = walk_records(data)
            if end:
                yield chunk._replace(content=data[:end])
            num_records += count
            if end < len(data):
                raise _broken(source, num_records + 1, chunk.start + end, stopped, needed, len(data) - end)

    def parse(self, chunk: Chunk[Data], most_bad: int) -> Parsed:
        data = chunk.content
        most_rows = len(data) // (HEADER_BYTES + FOOTER_BYTES)
        room = Room.of(most_rows, len(data), input_key_dtype(self.features), most_bad)
        limit = most_features(self.features) + self.base
        label_bits, bits = room.labels.view(np.uint32), room.values.view(np.uint32)
        counts = parse_tfrecord(
            data, self.base, limit, room, label_bits, bits, np.empty((3, 3), np.int64), self._labelled
        )
        return room.parsed(counts, [self._explain(*row[:3]) for row in room.bad[: counts.bad].tolist()])

    def _explain(self, record: int, problem: int, number: int) -> BadRow:
        schema = "records are tf.Example with `label`, `index` and `value`"
        match problem:
            case problems.DATA_CHECKSUM:
                return BadRow(record, "data", "wrong checksum: it is damaged", "fetch or write the file again")
            case problems.NO_EXAMPLE:
                return BadRow(record, "data", "not a tf.Example", schema)
            case problems.NO_LABEL:
                return BadRow(record, "label", "not one number", schema)
            case problems.NO_INDEX:
                return BadRow(record, "index", "not a list of int64", schema)
            case problems.LENGTHS_DIFFER:
                return BadRow(record, "value", "not one float for each index", schema)
            case problems.LABEL_NOT_FINITE:
                return BadRow(record, "label", f"the label is {_as_float(number)}, not a finite number", schema)
            case problems.NOT_FINITE:
                return BadRow(record, "value", *explain(problem, _as_float(number), None, 0))
            case _:
                return BadRow(record, "index", *explain(problem, f"`{number}`", self.features, self.base))


def open_tfrecord(_source: Source, config: PrepareConfig) -> TFRecord:
    return TFRecord(config.features, 0 if config.index_base == "0" else 1, labelled=config.labelled)


def _end_of_records(data: Data) -> int:
    """Where the last whole record ends; the end of the data if what follows is broken: then nothing more is read."""
    end, _, stopped, needed = walk_records(data)
    return len(data) if stopped == LENGTH_CHECKSUM or needed > LONGEST_ROW_BYTES else end


def _as_float(bits: int) -> str:
    return f"`{np.array([bits], np.uint32).view(np.float32)[0]}`"


def _broken(source: Source, record: int, position: int, stopped: int, needed: int, left: int) -> DataError:
    where = f"`{source.name}`, record {record} at byte {position}"
    if stopped == CUT_SHORT and needed <= LONGEST_ROW_BYTES:
        return DataError(
            f"{where}: cut short, {left} bytes of at least {needed} are left", "fetch or write the file again"
        )
    if stopped == CUT_SHORT:
        return DataError(f"{where}: longer than {LONGEST_ROW_BYTES >> 20} MiB", "check the file and --format")
    return DataError(
        f"{where}: wrong checksum of its length", "the file is damaged or not a TFRecord; check it and --format"
    )
