"""How is one block stored on disk?"""

from __future__ import annotations

import struct
from io import FileIO
from pathlib import Path
from typing import Annotated, Any, Protocol, Self, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from paceline.data.blocks.folders import Folder
from paceline.errors import DataError, in_short
from paceline.files import translated_disk_errors

BLOCK_ROWS = 65_536
AGAIN = "prepare the data again"

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class MissingBlockError(DataError):
    """A file that the manifest names is not there."""


class BlockInfo(msgspec.Struct, frozen=True):
    """One block as the manifest knows it; `longest` is the largest number of nonzeros in a row."""

    file: Annotated[str, msgspec.Meta(pattern=r"^[^/\\]+$")]
    rows: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
    nonzeros: Count
    longest: Count
    checksum: str


class SplitInfo(msgspec.Struct, frozen=True):
    """The blocks of the training rows, the validation rows or the test rows.

    `weights` is the sum of the rows' weights, 0 if they have none.
    """

    rows: Count = 0
    positives: Count = 0
    nonzeros: Count = 0
    blocks: tuple[BlockInfo, ...] = ()
    weights: float = 0.0

    @property
    def mean_weight(self) -> float:
        """What a row counts on average."""
        return self.weights / self.rows if self.weights else 1.0


def first_rows(split: SplitInfo, rows: int) -> SplitInfo:
    """The first `rows` rows of a split. Other counts and weights are estimated, as if they were spread evenly."""
    blocks, left = [], rows
    for block in split.blocks:
        if left > 0:
            blocks.append(msgspec.structs.replace(block, rows=min(left, block.rows)))
            left -= block.rows
    share = rows / max(1, split.rows)
    positives, nonzeros = round(split.positives * share), round(split.nonzeros * share)
    return SplitInfo(rows, positives, nonzeros, tuple(blocks), split.weights * share)


def read_table(folder: Folder, info: BlockInfo, *schemas: pa.Schema) -> pa.RecordBatch:
    """Map one block file, and verify its checksum, its columns (those of one of `schemas`) and its number of rows.

    The checksum tells of damage, not of intent: so all offsets and lengths are verified too, and that nothing is null.
    """
    path = f"{folder}/{info.file}"
    try:
        content = folder.read(info.file)
    except FileNotFoundError:
        raise MissingBlockError(f"block `{path}` cannot be opened: it is missing", AGAIN) from None
    except OSError as error:
        raise DataError(f"block `{path}` cannot be opened: {error}", AGAIN) from None
    if xxhash.xxh3_64_hexdigest(content) != info.checksum:
        raise DataError(f"block `{path}` has a wrong checksum: its bytes changed after it was written", AGAIN)
    try:
        # After its first eight bytes, a file is a stream of messages. Reading one does not decompress it.
        messages = pa.ipc.MessageReader.open_stream(content.slice(8))
        schema = pa.ipc.read_schema(_next_message(messages, "schema"))
        found, wanted = _columns(schema), _columns(schemas[0])
        if schema not in schemas:
            raise mismatch(folder, info, f"its columns are {found} instead of {wanted}")
        message = _next_message(messages, "record batch")
        if _is_compressed(message):
            raise mismatch(folder, info, "it is compressed, and could fill the memory")
        table = pa.ipc.read_record_batch(message, schema)
        table.validate(full=True)
    except DataError:
        raise
    except Exception as error:  # noqa: BLE001 (whatever pyarrow raises for bytes that it does not understand)
        raise DataError(f"block `{path}` is not a valid Arrow file: {in_short(error)}", AGAIN) from None
    if table.num_rows != info.rows:
        raise mismatch(folder, info, f"{table.num_rows} rows instead of {info.rows}")
    if any(_has_nulls(column) for column in table.columns):
        raise mismatch(folder, info, "some of its cells are null")
    return table


def _next_message(messages: pa.ipc.MessageReader, kind: str) -> pa.ipc.Message:
    """The next message, if it is of this kind: pyarrow crashes on others."""
    message = messages.read_next_message()
    if message.type != kind:
        raise ValueError(f"another message where the {kind} should be")
    return message


def _is_compressed(message: pa.ipc.Message) -> bool:
    """Whether the rows of a message are compressed: its header, a flatbuffer, then has the field `compression`."""
    header = memoryview(message.metadata)

    def find(table: int, field: int) -> int:
        """Where the table in a field of another table is; 0 if the field is missing."""
        fields = table - struct.unpack_from("<i", header, table)[0]
        entry = fields + 4 + 2 * field
        last = fields + struct.unpack_from("<H", header, fields)[0]
        offset = struct.unpack_from("<H", header, entry)[0] if entry < last else 0
        return table + offset + int(struct.unpack_from("<I", header, table + offset)[0]) if offset else 0

    record_batch = find(struct.unpack_from("<I", header)[0], 2)
    # Earlier versions of Arrow named the compression elsewhere.
    return message.metadata_version != pa.ipc.MetadataVersion.V5 or find(record_batch, 3) != 0


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in schema)


def _has_nulls(column: pa.Array) -> bool:
    if pa.types.is_large_list(column.type):
        return bool(column.null_count) or _has_nulls(column.values)
    if pa.types.is_struct(column.type):
        return bool(column.null_count) or any(_has_nulls(column.field(i)) for i in range(column.type.num_fields))
    return bool(column.null_count)


def mismatch(folder: Folder, info: BlockInfo, what: str) -> DataError:
    return DataError(f"block `{folder}/{info.file}` does not match the manifest: {what}", AGAIN)


def check_below(folder: Folder, info: BlockInfo, what: str, numbers: NDArray[Any], limit: int, of: str) -> None:
    """Raise unless all numbers of a block (keys or labels, as `what` says) are below the limit in the manifest."""
    largest = int(numbers.max(initial=0))
    if largest >= limit:
        raise mismatch(folder, info, f"{what} {largest} is not below its {limit} {of}")


def write_table(path: Path, table: pa.RecordBatch) -> str:
    """Write one table as an Arrow file; its checksum."""
    with translated_disk_errors(path), path.open("wb", buffering=0) as file:
        hashed = HashedFile(file)
        with pa.ipc.new_file(pa.PythonFile(hashed, mode="w"), table.schema) as writer:
            writer.write_batch(table)
    return hashed.digest.hexdigest()


class HashedFile:
    """A file that keeps the checksum of everything written to it; pyarrow passes it large arrays uncopied."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self.digest = xxhash.xxh3_64()
        self.closed = False

    def write(self, content: bytes) -> int:
        self.digest.update(content)
        left = memoryview(content)
        while len(left):
            left = left[self._file.write(left) :]
        return memoryview(content).nbytes

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class Rows(Protocol):
    """Rows in memory, of any kind."""

    @property
    def labels(self) -> NDArray[Any]: ...

    @property
    def num_rows(self) -> int: ...

    def with_labels(self, labels: NDArray[Any]) -> Self: ...

    def slice(self, start: int, stop: int) -> Self: ...

    def select(self, mask: NDArray[np.bool_]) -> Self: ...


R = TypeVar("R", bound=Rows)
