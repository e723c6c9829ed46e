"""How are Parquet and Arrow files read, so that a hostile one can neither crash `prepare` nor fill the memory?

A process of its own opens them, validates them and sends their rows over a pipe; only these reach the compiled loops.
If pyarrow crashes on a file, or the file decodes to far more than its size, that process ends and the file is refused
in one line. A file takes no longer to read, because decoding and parsing then run side by side.

Each request is answered by one Arrow stream. The metadata of a batch says where it starts and how much of the file was
read, or what is wrong with the file.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import IO, Any, NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.fs
import pyarrow.ipc

from paceline.data.sources.files import Source, open_for_seeking, open_mapped, open_stream, read_head
from paceline.errors import DataError, in_short

CHUNK_CELLS = 1 << 20
CHUNK_BYTES = 8 << 20
READ_BYTES = 1 << 20
PIPE_BYTES = 1 << 20
END_SECONDS = 5
ARROW_FILE_MAGIC = b"ARROW1"

# The memory that decoding may take. Honest files need less: they shrink by less than this, and are read in pieces.
FREE_BYTES = 1 << 30
DECODED_PER_BYTE = 16
TOO_LARGE = 3  # the exit code of a process that needs more
WATCH_SECONDS = 0.005

UNKNOWN = {"columns": "unknown"}  # what the columns of a file say that cannot be opened; those of others say nothing
# Text is bytes here: nobody promises that it is UTF-8, and keys are hashes of bytes.
AS_BYTES = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}


class TableRequest(NamedTuple):
    """Which file to read (`format` is parquet or arrow), whether with its rows, and how large pieces may be.

    `most_bytes` is the memory that decoding the file may take.
    """

    format: str
    source: Source
    with_rows: bool
    chunk_cells: int
    chunk_bytes: int
    most_bytes: int

    def encode(self) -> bytes:
        """As one line."""
        source = self.source
        place = source.name, source.path, source.num_bytes, source.below, source.uri
        return json.dumps([self.format, place, *self[2:]]).encode() + b"\n"

    @staticmethod
    def decode(line: bytes) -> TableRequest:
        format_, (name, path, num_bytes, below, uri), *rest = json.loads(line)
        file_system = pa.fs.FileSystem.from_uri(uri)[0] if uri else pa.fs.LocalFileSystem()
        return TableRequest(format_, Source(name, file_system, path, num_bytes, below, uri), *rest)

    def rows_per_chunk(self, num_columns: int, num_bytes: int, num_rows: int) -> int:
        """The number of rows in a chunk of bounded size."""
        row_bytes = max(1, num_bytes // max(1, num_rows))
        return max(1, min(self.chunk_cells // max(1, num_columns), self.chunk_bytes // row_bytes))


class TablePiece(NamedTuple):
    """Some rows of a table, the row at which they start, and how much of the file was read so far."""

    rows: pa.RecordBatch
    start: int
    bytes_read: int


class TableProcess:
    """The process that reads tables, one file at a time. It starts when it is first needed, and ends with `close`."""

    def __init__(self, format_: str) -> None:
        self._format = format_
        self._process: subprocess.Popen[bytes] | None = None

    def read_schema(self, source: Source) -> pa.Schema:
        """The columns of a file; text has a type of bytes."""
        (schema,) = self._ask(source, with_rows=False)
        return schema

    def read(self, source: Source) -> Generator[Any]:
        """The columns of a file, and then its pieces."""
        return self._ask(source, with_rows=True)

    def _ask(self, source: Source, *, with_rows: bool) -> Generator[Any]:
        most_bytes = FREE_BYTES + DECODED_PER_BYTE * (source.num_bytes or 0)
        request = TableRequest(self._format, source, with_rows, CHUNK_CELLS, CHUNK_BYTES, most_bytes)
        process = self._process = self._process or _start()
        answered = False
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(request.encode())
            process.stdin.flush()
            stream = pa.ipc.open_stream(process.stdout)
            if stream.schema.metadata is None:
                yield stream.schema
            wrong = None
            with suppress(StopIteration):
                while True:
                    rows, told = stream.read_next_batch_with_custom_metadata()
                    if "error" in told:
                        wrong = DataError(told["error"].decode(), told["hint"].decode())
                    else:
                        yield TablePiece(rows, int(told["start"]), int(told["bytes_read"]))
            answered = True
            if wrong is not None:
                raise wrong
        except (OSError, pa.ArrowException):
            raise _ended(process, request) from None
        finally:
            if not answered:
                self.close()

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with suppress(BrokenPipeError):
                    pipe.close()


def _start() -> subprocess.Popen[bytes]:
    """A process with this one's import path. `-P`, so that it imports nothing from the current folder."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve()"
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    with suppress(OSError, AttributeError):  # where the system has no such call, or gives no more
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return process


def _ended(process: subprocess.Popen[bytes], request: TableRequest) -> DataError:
    """Why a process ended before it had answered."""
    try:
        code = process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        code = 0
    name = f"`{request.source.name}`"
    if code == TOO_LARGE:
        limit = f"{request.most_bytes / 2**30:.1f} GiB"
        return DataError(
            f"{name} needs more than {limit} of memory to be decoded, far more than its {request.source.num_bytes:,} "
            "bytes",
            "write it in smaller row groups or batches, if it is what it should be",
        )
    reason = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return DataError(f"{name} cannot be read: pyarrow crashed on it ({reason})", "it is damaged: write it again")


# -- in the process


def serve() -> None:
    """Answer requests from standard input until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    limit = [0]
    threading.Thread(target=_watch_memory, args=(limit,), daemon=True).start()
    answers = os.fdopen(os.dup(1), "wb", PIPE_BYTES)
    for line in sys.stdin.buffer:
        request = TableRequest.decode(line)
        limit[0] = request.most_bytes
        _answer(request, answers)


def _watch_memory(limit: list[int]) -> NoReturn:
    before = _own_bytes()
    while True:
        time.sleep(WATCH_SECONDS)
        # pyarrow counts a buffer that grows when it has been copied, which takes memory and time.
        if max(pa.total_allocated_bytes(), _own_bytes() - before) > limit[0] > 0:
            os._exit(TOO_LARGE)


def _own_bytes() -> int:
    """The memory that this process uses, without mapped files; 0 if the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            _, resident, shared, *_ = map(int, file.read().split())
    except OSError:
        return 0
    return (resident - shared) * os.sysconf("SC_PAGESIZE")


def _answer(request: TableRequest, answers: IO[bytes]) -> None:
    """Write one stream: the columns, and the rows or what is wrong with them."""
    schema, writer = pa.schema([]), None
    try:
        pieces = _read_parquet(request) if request.format == "parquet" else _read_arrow(request)
        schema = next(pieces)
        writer = pa.ipc.new_stream(answers, schema)
        for rows, start, bytes_read in pieces:
            told = {"start": str(start), "bytes_read": str(bytes_read)}
            writer.write_batch(rows, custom_metadata=told)
    except BrokenPipeError:
        os._exit(0)  # nobody wants to know any more
    except Exception as error:  # noqa: BLE001 (damaged bytes make pyarrow raise anything)
        if not isinstance(error, DataError):
            error = DataError(f"`{request.source.name}` cannot be read: {in_short(error)}", "check the file, --format")
        if writer is None:
            schema = pa.schema([], metadata=UNKNOWN)
            writer = pa.ipc.new_stream(answers, schema)
        nothing = schema.empty_table().to_batches() or [pa.RecordBatch.from_pylist([], schema)]
        writer.write_batch(nothing[0], custom_metadata={"error": error.message, "hint": error.hint})
    writer.close()
    answers.flush()


def _read_parquet(request: TableRequest) -> Iterator[Any]:
    """The columns of a Parquet file, and its rows as pieces of row groups."""
    import pyarrow.parquet

    source = request.source
    # Without buffer_size, or with pre_buffer, whole row groups would be held in memory.
    with (
        open_for_seeking(source) as raw,
        pyarrow.parquet.ParquetFile(raw, buffer_size=READ_BYTES, pre_buffer=False) as file,
    ):
        schema = _bytes_schema(file.schema_arrow)
        yield schema
        if not request.with_rows:
            return
        metadata = file.metadata
        num_bytes = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
        chunk_rows = request.rows_per_chunk(metadata.num_columns, num_bytes, metadata.num_rows)
        start = 0
        for batch in file.iter_batches(chunk_rows):
            bytes_read = (source.num_bytes or 0) * (start + batch.num_rows) // max(1, metadata.num_rows)
            yield TablePiece(_validated(batch, schema), start, bytes_read)
            start += batch.num_rows


def _read_arrow(request: TableRequest) -> Iterator[Any]:
    """The columns of an Arrow IPC file (Feather too) or stream, and its rows as pieces of record batches."""
    batches = _record_batches(request.source)
    schema = _bytes_schema(next(batches))
    yield schema
    start = 0
    for batch, bytes_read in batches if request.with_rows else ():
        valid = _validated(batch, schema)
        chunk_rows = request.rows_per_chunk(batch.num_columns, batch.nbytes, batch.num_rows)
        for first in range(0, batch.num_rows, chunk_rows):
            yield TablePiece(valid.slice(first, chunk_rows), start + first, bytes_read)
        start += batch.num_rows


def _record_batches(source: Source) -> Iterator[Any]:
    """The columns of a file or stream, then its record batches, and how much of it was read with each."""
    if read_head(source, len(ARROW_FILE_MAGIC)).tobytes() == ARROW_FILE_MAGIC:
        with open_mapped(source) as raw:
            reader = pa.ipc.open_file(raw)
            yield reader.schema
            for i in range(reader.num_record_batches):
                yield reader.get_batch(i), (source.num_bytes or 0) * (i + 1) // reader.num_record_batches
    else:
        with open_stream(source) as stream:
            batches = pa.ipc.open_stream(stream.file)
            yield batches.schema
            for batch in batches:
                yield batch, stream.bytes_read


def _bytes_schema(schema: pa.Schema) -> pa.Schema:
    """The columns with text as bytes; whatever else a file tells of them is left out."""
    return pa.schema([pa.field(field.name, _bytes_type(field.type)) for field in schema])


def _bytes_type(found: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(found):
        return pa.dictionary(found.index_type, _bytes_type(found.value_type))
    if pa.types.is_list(found) or pa.types.is_large_list(found):
        if pa.types.is_null(found.value_type):  # all lists are empty
            return pa.large_list(pa.large_binary())
        return pa.large_list(AS_BYTES[found.value_type]) if found.value_type in AS_BYTES else found
    return AS_BYTES.get(found, found)


def _validated(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same rows with text as bytes. Raises unless all offsets, lengths and indices lie within their buffers."""
    batch.validate()
    columns = [_as_bytes(column) for column in batch.columns]
    valid = pa.RecordBatch.from_arrays(columns, schema=schema)
    valid.validate(full=True)
    return valid


def _as_bytes(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        return pa.DictionaryArray.from_arrays(column.indices, _as_bytes(column.dictionary))
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return column.cast(_bytes_type(column.type)) if column.type != _bytes_type(column.type) else column
    return column.view(AS_BYTES[column.type]) if column.type in AS_BYTES else column
