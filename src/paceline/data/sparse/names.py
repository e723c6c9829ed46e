"""What are the features of a dataset called? `column=value` where texts were hashed, else by their column.

Hashing forgets the text, so `prepare` keeps it (`name_collector.py`): `names.arrow` beside the blocks lists keys, the
numbers of their columns, and their texts, in the order in which they were found.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from paceline.data.blocks.files import BlockInfo, MissingBlockError, read_table, write_table
from paceline.data.blocks.folders import Folder
from paceline.errors import DataError, printable, warn
from paceline.kernels.names import LONGEST_TEXT

FILE: Literal["names.arrow"] = "names.arrow"
MOST_BYTES = 256 << 20  # of texts, and of 16 bytes for each of them
NOTE_BYTES = 16
SCHEMA = pa.schema([("key", pa.uint32()), ("column", pa.uint16()), ("text", pa.binary())])


class NamesInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a manifest says about the names of keys.

    `numeric` are the names of the first keys. Texts of hashed keys are in `file`, if that is not empty, with `columns`
    as what comes before their `=`. They are not `complete` if there was not room for all.
    """

    numeric: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    # No other name: the file is copied to folders of runs, where it replaces what has its name.
    file: Literal["", "names.arrow"] = ""
    rows: int = 0
    checksum: str = ""
    complete: bool = True


def write_names(folder: Path, table: pa.RecordBatch, info: NamesInfo) -> NamesInfo:
    """Write the file of names to a folder; `info` with what is to be known about it."""
    # A model's file may be a second name of a dataset's.
    (folder / FILE).unlink(missing_ok=True)
    checksum = write_table(folder / FILE, table)
    return msgspec.structs.replace(info, file=FILE, rows=table.num_rows, checksum=checksum)


def read_names(folder: Folder, info: NamesInfo) -> pa.RecordBatch | None:
    """The file of names; None if there is none, or if it was removed."""
    if not info.file:
        return None
    try:
        table = read_table(folder, BlockInfo(FILE, info.rows, 0, 0, info.checksum), SCHEMA)
    except MissingBlockError:
        warn(f"`{folder}/{FILE}` is missing: features are called by their keys")
        return None
    if table.column("column").to_numpy().max(initial=0) >= len(info.columns):
        raise DataError(f"`{folder}/{FILE}` does not match the manifest", "prepare the data again")
    return table


class FeatureNames:
    """The names of a dataset's or a model's keys; those without a name are called by their index in the
    source, which counts from 0 or 1.

    `folder` has the file of names, and `source` says how the data was made: it names the numeric columns of data that
    older versions prepared.

    >>> FeatureNames(None, NamesInfo(numeric=("age",)), {}).of([0, 7])
    ['age', '7']
    """

    def __init__(self, folder: Folder | None, info: NamesInfo, source: dict[str, Any]) -> None:
        self._folder = folder
        self.info = info
        self._numeric = info.numeric or _numeric_of(source)
        base = source.get("index_base", 0)
        self._base = base if isinstance(base, int) else 0

    def of(self, keys: Iterable[int] | NDArray[Any]) -> list[str]:
        """The names of keys, in their order."""
        wanted = np.asarray([*keys] if not isinstance(keys, np.ndarray) else keys, np.uint64)
        found, texts = self._texts(wanted)
        numeric, columns = self._numeric, self.info.columns
        return [
            f"{printable(columns[column])}={_shown(text)}" if is_named
            else printable(numeric[key]) if key < len(numeric) else str(key + self._base)
            for key, is_named, (column, text) in zip(wanted.tolist(), found.tolist(), texts, strict=True)
        ]  # fmt: skip

    def has(self, keys: Iterable[int] | NDArray[Any]) -> NDArray[np.bool_]:
        """Which of some keys have a name."""
        wanted = np.asarray([*keys] if not isinstance(keys, np.ndarray) else keys, np.uint64)
        named: NDArray[np.bool_] = self._find(wanted)[1] | (wanted < len(self._numeric))
        return named

    def count_by_column(self) -> dict[str, int]:
        """How many hashed keys are called by each column."""
        if self._table is None:
            return {}
        counts = np.bincount(self._table.column("column").to_numpy(), minlength=len(self.info.columns))
        return {name: count for name, count in zip(self.info.columns, counts.tolist(), strict=True) if count}

    @cached_property
    def _table(self) -> pa.RecordBatch | None:
        """The file of names, if there is one."""
        return None if self._folder is None else read_names(self._folder, self.info)

    @cached_property
    def _sorted(self) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """The rows of the file in the order of their keys, and these keys."""
        assert self._table is not None
        keys = self._table.column("key").to_numpy()
        order = np.argsort(keys, kind="stable")
        return order, keys[order]

    def _find(self, wanted: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Where keys are in the table, and whether they are there."""
        if self._table is None or not self._table.num_rows:
            return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
        order, keys = self._sorted
        places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return order[places], keys[places] == wanted

    def _texts(self, wanted: NDArray[np.uint64]) -> tuple[NDArray[np.bool_], list[tuple[int, bytes]]]:
        """Which keys have a text, and the column and text of each; of those without, some other."""
        places, found = self._find(wanted)
        if not found.any():
            return found, [(0, b"")] * len(wanted)
        assert self._table is not None
        chosen = self._table.take(pa.array(places))
        columns, texts = chosen.column("column").to_pylist(), chosen.column("text").to_pylist()
        return found, [*zip(columns, texts, strict=True)]


def _shown(text: bytes) -> str:
    cut = "…" if len(text) == LONGEST_TEXT else ""
    return printable(text.decode(errors="backslashreplace")) + cut


def _numeric_of(source: dict[str, Any]) -> tuple[str, ...]:
    """The names of the first keys, in data that was prepared before manifests had them."""
    columns = source.get("columns")
    if isinstance(columns, dict):
        return tuple(name for name, kind in columns.items() if kind == "number")
    return tuple(f"I{j}" for j in range(1, 14)) if source.get("integers") == "log" else ()
