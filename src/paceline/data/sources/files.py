"""Which files are read, in what order, decompressed how, and in what pieces?

A source is what a user names: a file, a folder, a glob, a URL that pyarrow's file systems reach, or `-` for standard
input. A file is read as
a stream and cut into chunks of some megabytes that end where a row ends, so memory does not grow with the input.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.fs
from numpy.typing import NDArray

from paceline.data.sources.standard_input import StandardInput
from paceline.errors import ConfigError, DataError
from paceline.files import check_name

CHUNK_BYTES = 4 << 20
LONGEST_ROW_BYTES = 64 << 20
HEAD_BYTES = 1 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
MAPPED = pa.fs.LocalFileSystem(use_mmap=True)
SUFFIXES = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}

STANDARD_INPUT = "-"
NOT_STREAMED = (b"PAR1", b"ARROW1", b"\xff\xff\xff\xff")  # Parquet and Arrow

T = TypeVar("T")


class Source(NamedTuple):
    """One file to read: `name` as the user would recognise it, and where it is.

    `below` is its path within the folder that it was found in, or empty if the file itself was named. `uri` is what
    another process finds the file system by; empty for local files.
    """

    name: str
    file_system: pa.fs.FileSystem
    path: str
    num_bytes: int | None
    below: str = ""
    uri: str = ""

    @property
    def plain_name(self) -> str:
        """The file's name without a suffix that names a compression: `a.CSV` of `b/a.CSV.gz`."""
        path = Path(self.path)
        return path.stem if path.suffix.lower() in SUFFIXES else path.name

    @property
    def suffix(self) -> str:
        """The last suffix that does not name a compression, in lower case: `.csv` of `a.CSV.gz`."""
        return Path(self.plain_name).suffix.lower()

    @property
    def is_local(self) -> bool:
        return isinstance(self.file_system, pa.fs.LocalFileSystem)

    @property
    def place(self) -> tuple[str, str]:
        """The same for two sources that are one file, whatever the names by which they were found."""
        return ("local", os.path.realpath(self.path)) if self.is_local else (self.file_system.type_name, self.path)


class Chunk(NamedTuple, Generic[T]):
    """A piece of one source that ends where a row ends.

    `start` is where it begins: in (decompressed) bytes for text and records, in rows for tables. `bytes_read` is how
    much of the file had been read, as it lies on disk.
    """

    source: Source
    content: T
    start: int
    bytes_read: int


def find_sources(names: list[str]) -> list[Source]:
    """Every file that `names` stand for, in their order; the files of a folder or glob are sorted by name.

    Files whose name begins with `.` or `_` are left out of folders, as are such folders.
    """
    if names.count(STANDARD_INPUT) > 1:
        raise ConfigError("standard input, `-`, is named twice", "it can be read only once")
    return [source for name in names for source in _find(name)]


def leave_out(sources: list[Source], others: list[Source]) -> tuple[list[Source], list[Source]]:
    """The sources that are not among the others, and those that are."""
    places = {source.place for source in others}
    kept = [source for source in sources if source.place not in places]
    return kept, [source for source in sources if source.place in places]


def _find(name: str) -> list[Source]:
    if name == STANDARD_INPUT:
        return [_standard_input()]
    check_name(name)
    if "://" in name:
        return _find_remote(name)
    local = pa.fs.LocalFileSystem()
    if os.path.isdir(name):
        return _find_in_folder(local, name, name)
    if os.path.exists(name):
        return [Source(name, local, name, os.path.getsize(name))]
    if glob.has_magic(name):
        paths = sorted(path for path in glob.glob(name, recursive=True) if os.path.isfile(path))
        if not paths:
            raise DataError(f"`{name}` matches no file", "quote globs, and check the folder")
        for path in paths:
            check_name(path)
        return [Source(path, local, path, os.path.getsize(path)) for path in paths]
    raise DataError(f"no such file: `{name}`", "check the path; folders, globs and URLs (s3://…) are possible too")


def _standard_input() -> Source:
    """Standard input as a file. Tables, which are not read from the front to the end, are copied to a temporary one."""
    stream = StandardInput()
    copied = stream.copied() if stream.begins_with(*NOT_STREAMED) else None
    if copied is None:
        return Source(stream.type_name, stream, STANDARD_INPUT, None)
    return Source(stream.type_name, copied, copied.path, os.path.getsize(copied.path))


def _find_remote(uri: str) -> list[Source]:
    before, star, _ = uri.partition("*")
    listed = before[: before.rindex("/")] if star else uri
    with _translated(uri, remote=not uri.startswith("file://")):
        try:
            file_system, path = pa.fs.FileSystem.from_uri(listed)
        except (pa.ArrowInvalid, ImportError) as error:
            raise DataError(
                f"`{uri}` cannot be reached: {error}", "check the URL; s3://, gs://, hdfs:// and file:// are possible"
            ) from None
        info = file_system.get_file_info(path)
        if info.type == pa.fs.FileType.NotFound:
            raise DataError(f"no such file: `{uri}`", "check the address")
        if info.type == pa.fs.FileType.File:
            return [Source(uri, file_system, path, info.size, uri=listed)]
        pattern = f"{path}{uri[len(listed) :]}" if star else "*"
        return [source._replace(uri=listed) for source in _find_in_folder(file_system, path, uri, pattern)]


def _find_in_folder(file_system: pa.fs.FileSystem, folder: str, name: str, pattern: str = "*") -> list[Source]:
    """The files below a folder that match a glob in which `*` also matches slashes."""
    local = isinstance(file_system, pa.fs.LocalFileSystem)
    with _translated(name, remote=not local):
        infos = file_system.get_file_info(pa.fs.FileSelector(folder, recursive=True))
    try:
        infos.sort(key=lambda info: info.path)
    except UnicodeDecodeError as error:
        raise DataError(f"`{name}` has a file whose name is not UTF-8: {error.object!r}", "rename it") from None
    sources = []
    for info in infos:
        below = info.path[len(folder) :].lstrip("/")
        hidden = any(part.startswith((".", "_")) for part in below.split("/"))
        if info.type == pa.fs.FileType.File and not hidden and fnmatchcase(info.path, pattern):
            shown = os.path.join(folder, below) if local else info.path
            sources.append(Source(shown, file_system, info.path, info.size, below))
    if not sources:
        raise DataError(f"`{name}` holds no files to read", "names that begin with `.` or `_` are left out")
    return sources


def total_bytes(sources: list[Source]) -> int | None:
    """The size of all files on disk, or None if one is unknown."""
    sizes = [source.num_bytes for source in sources]
    return None if None in sizes else sum(size for size in sizes if size is not None)


class FileStream:
    """A file opened for reading from the front; `file` is the decompressed bytes as a pyarrow file."""

    def __init__(self, raw: Any, compression: str | None) -> None:
        self._raw = raw
        self.file = pa.CompressedInputStream(raw, compression) if compression else raw

    @property
    def bytes_read(self) -> int:
        """How much of the file was read so far, as it lies on disk."""
        return int(self._raw.tell())

    def read_into(self, buffer: NDArray[np.uint8]) -> int:
        """Fill `buffer` as far as the file goes; returns the number of bytes."""
        filled = 0
        while filled < len(buffer):
            count = self.file.readinto(buffer[filled:])
            if not count:
                break
            filled += count
        return filled


@contextmanager
def open_stream(source: Source) -> Iterator[FileStream]:
    """Open a file for streaming; reading errors become a `DataError` that names it."""
    with _translated(source.name, remote=not source.is_local), source.file_system.open_input_file(source.path) as raw:
        yield FileStream(raw, _compression(source, raw))


@contextmanager
def open_for_seeking(source: Source) -> Iterator[Any]:
    """Open a file that is read from several places; it cannot be compressed as a whole."""
    with _translated(source.name, remote=not source.is_local), source.file_system.open_input_file(source.path) as raw:
        if _compression(source, raw):
            raise DataError(f"`{source.name}` is a compressed table file", "decompress it first")
        yield raw


def open_mapped(source: Source) -> AbstractContextManager[Any]:
    """Like `open_for_seeking`, with a local file's pages mapped: what is read of it takes no memory of its own."""
    return open_for_seeking(source._replace(file_system=MAPPED) if source.is_local else source)


def _compression(source: Source, raw: Any) -> str | None:
    """How a file is compressed, by its first bytes; its suffix must not promise something else."""
    first = raw.read(4)
    raw.seek(0)
    found = next((name for magic, name in MAGIC.items() if first.startswith(magic)), None)
    promised = SUFFIXES.get(Path(source.path.lower()).suffix)
    if promised and first and found != promised:
        raise DataError(
            f"`{source.name}` is not a {promised} file: it begins with {first.hex(' ')}", "check how it was made"
        )
    return found


@contextmanager
def _translated(name: str, *, remote: bool) -> Iterator[None]:
    """Turn what a file system or a decompressor raises into one clear line."""
    damaged = "the file may be cut short or damaged: fetch or write it again"
    unreachable = "check the address, the credentials and the network, and that the file is whole"
    try:
        yield
    except FileNotFoundError:
        hint = "check the address" if remote else "check the path"
        raise DataError(f"no such file: `{name}`", hint) from None
    except PermissionError:
        hint = "check the credentials" if remote else "check its permissions"
        raise DataError(f"`{name}` cannot be read: permission denied", hint) from None
    except OSError as error:
        hint = unreachable if remote else damaged
        raise DataError(f"`{name}` cannot be read: {_one_line(error)}", hint) from None
    except pa.ArrowException as error:
        raise DataError(f"`{name}` cannot be read: {_one_line(error)}", "check the file and --format") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def read_head(source: Source, num_bytes: int = HEAD_BYTES) -> NDArray[np.uint8]:
    """The first bytes of a file, decompressed."""
    buffer = np.empty(num_bytes, np.uint8)
    with open_stream(source) as stream:
        return buffer[: stream.read_into(buffer)]


def cut_at_rows(source: Source, find_end: Callable[[NDArray[np.uint8]], int]) -> Iterator[Chunk[NDArray[np.uint8]]]:
    """The bytes of a file in chunks that end where `find_end` says that the last whole row of a piece ends (0: none).

    The last chunk holds whatever is left, even half a row.
    """
    with open_stream(source) as stream:
        start = 0
        rest = np.empty(0, np.uint8)
        while True:
            buffer = np.empty(len(rest) + CHUNK_BYTES, np.uint8)
            buffer[: len(rest)] = rest
            filled = len(rest) + stream.read_into(buffer[len(rest) :])
            if filled < len(buffer):
                if filled:
                    yield Chunk(source, buffer[:filled], start, stream.bytes_read)
                return
            end = find_end(buffer)
            if end == 0 and filled > LONGEST_ROW_BYTES:
                raise DataError(
                    f"`{source.name}` has a row of more than {LONGEST_ROW_BYTES >> 20} MiB at byte {start}",
                    "check the file and --format",
                )
            if end:
                yield Chunk(source, buffer[:end], start, stream.bytes_read)
            start += end
            rest = buffer[end:].copy()


def cut_at_lines(source: Source) -> Iterator[Chunk[NDArray[np.uint8]]]:
    """The text of a file in chunks of whole lines, each of which ends with a newline; no byte order mark."""
    for chunk in cut_at_rows(source, _end_of_lines):
        text = without_mark(chunk.content) if chunk.start == 0 else chunk.content
        if len(text):
            yield chunk._replace(content=end_with_newline(text))


def without_mark(text: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The beginning of a file without the byte order mark that some programs put there."""
    return text[3:] if text[:3].tobytes() == BYTE_ORDER_MARK else text


def end_with_newline(text: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The text, with a newline after its last line."""
    return text if text[-1] == 10 else np.append(text, np.uint8(10))


def _end_of_lines(text: NDArray[np.uint8]) -> int:
    """Where the last whole line ends, or 0. Most lines are short, so a short tail is searched first."""
    for tail in (text[-(1 << 12) :], text):
        found = np.flatnonzero(tail == 10)
        if len(found):
            return len(text) - len(tail) + int(found[-1]) + 1
    return 0


def first_lines(source: Source) -> NDArray[np.uint8]:
    """The whole lines among a file's first bytes, ending with a newline; empty for an empty file.

    The first bytes are `HEAD_BYTES`, or more if the first line is longer.
    """
    for most in (HEAD_BYTES, LONGEST_ROW_BYTES):
        head = read_head(source, most)
        end = _end_of_lines(head) if len(head) == most else len(head)
        if end or not len(head):
            break
    else:
        message = f"the first line of `{source.name}` (in CSV, its header) is longer than {LONGEST_ROW_BYTES >> 20} MiB"
        raise DataError(message, "check the file and --format; lines end with \\n or \\r\\n, not with \\r alone")
    head = head[:end]
    head = without_mark(head)
    return end_with_newline(head) if len(head) else head
