"""How is standard input read like a file: first looked at, to recognise its format, and then read from the front?

What was read is kept, so that it can be read again, until it is more than the longest row.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.fs

from paceline.errors import UsageError

MOST_KEPT = 64 << 20  # the longest row that can be read
COPY_BYTES = 1 << 20


class StandardInput:
    """A file system of one file, as far as `files.py` needs one."""

    type_name = "standard input"

    def __init__(self, stream: BinaryIO | None = None) -> None:
        found = stream or getattr(sys.stdin, "buffer", None)
        if found is None:
            raise UsageError("there is no standard input", "name a file")
        self._stream: BinaryIO = found
        self._kept: bytearray | None = bytearray()

    def open_input_file(self, path: str) -> Reopened:
        """The stream from its beginning."""
        if self._kept is None:
            raise OSError("it can be read only once")
        return Reopened(self)

    def begins_with(self, *magics: bytes) -> bool:
        """Whether the first bytes are one of these."""
        return self.open_input_file("-").read(max(map(len, magics))).startswith(magics)

    def copied(self) -> TemporaryFile:
        """All of it in a file."""
        found = TemporaryFile()
        shutil.copyfileobj(self.open_input_file("-"), found.file, COPY_BYTES)
        found.file.flush()
        return found

    def read_at(self, position: int, most: int) -> bytes:
        """Some bytes from `position` on: of those kept, or else the next ones."""
        if self._kept is not None and position < len(self._kept):
            return bytes(self._kept[position : position + most])
        found = self._stream.read(most)
        if self._kept is not None:
            self._kept += found
            self._kept = self._kept if len(self._kept) <= MOST_KEPT else None
        return found


class Reopened(io.RawIOBase):
    """Standard input, opened once more."""

    def __init__(self, standard_input: StandardInput) -> None:
        self._input = standard_input
        self._position = 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        self._position = position
        return position

    def read(self, most: int = -1) -> bytes:
        """At most this many bytes, fewer only at the end."""
        parts: list[bytes] = []
        while most < 0 or most > 0:
            part = self._input.read_at(self._position, most if most > 0 else COPY_BYTES)
            if not part:
                break
            parts.append(part)
            self._position += len(part)
            most -= len(part) if most > 0 else 0
        return b"".join(parts)

    def readinto(self, buffer: Any) -> int:
        room = memoryview(buffer).cast("B")
        found = self.read(len(room))
        room[: len(found)] = found
        return len(found)


class TemporaryFile(pa.fs.LocalFileSystem):  # type: ignore[misc]
    """The local file system, with a file that is removed with this object."""

    def __init__(self) -> None:
        super().__init__()
        self.file = tempfile.NamedTemporaryFile(prefix="paceline-")  # noqa: SIM115 - closed with this object
        self.path = self.file.name
