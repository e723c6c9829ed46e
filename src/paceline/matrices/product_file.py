"""Where does a product go while it is computed? Into a partial file beside its name, with a journal of finished tiles.

The journal's first line says what is computed and in which tiles; each further line is a tile that is on the disk.
After a kill, the same command finds both and continues. When all tiles are there, the partial file gets its name.
"""

from __future__ import annotations

import io
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from paceline.errors import BAD_TEXT, ConfigError, DataError, UsageError
from paceline.files import locked, open_regular, refuse_existing, sync_to_disk, translated_disk_errors
from paceline.matrices.nodes import Matrix
from paceline.matrices.plan import Plan, in_bytes

MARGIN_BYTES = 1 << 20
# Waiting for the disk after every small tile would take longer than computing it again.
SYNC_SECONDS = 0.2


class Heading(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is computed: fingerprints of both factors, the result's shape and dtype, and the tiles."""

    left: str
    right: str
    shape: tuple[int, int]
    dtype: str
    plan: Plan
    engine: str = "local"

    def is_like(self, other: Heading, **ignored: Any) -> bool:
        """Whether both are the same product, whatever its tiles."""
        return msgspec.structs.replace(self, plan=other.plan, **ignored) == other

    @property
    def is_possible(self) -> bool:
        """Whether paceline can have written it."""
        return self.dtype in ("float32", "float64") and min(*self.shape, *self.plan) > 0


class ProductFile:
    """The partial file of one product, open for writing; `done` are the tiles that are finished."""

    def __init__(self, out: Path, heading: Heading, done: set[tuple[int, int]]) -> None:
        self.out = out
        self.heading = heading
        self.done = done
        self.partial, self.journal = _names(out)
        self._offset = len(npy_header(heading))
        # For writing only: with a network disk, a process that may also read writes whole pages back, with its
        # neighbours' bytes.
        try:
            self._file = open_regular(str(self.partial), os.O_WRONLY)
        except OSError as error:
            raise DataError(
                f"`{self.partial}` cannot be written here: {error.strerror}",
                f"every node must see the folder `{out.parent}` and be able to write there",
            ) from None
        self._unsynced: list[tuple[int, int]] = []
        self._synced = 0.0

    def write(self, row: int, column: int, tile: Matrix) -> None:
        """Put a tile into the file; from any process that has it open."""
        width, size = self.heading.shape[1], tile.dtype.itemsize
        with translated_disk_errors(self.partial):
            if tile.shape[1] == width:
                self._write(tile.reshape(-1), row * width * size)
                return
            for i, line in enumerate(tile):
                self._write(line, ((row + i) * width + column) * size)

    def finish_tile(self, row: int, column: int) -> None:
        """Note that the tile that begins there is written. From time to time, what is on the disk is journalled."""
        self.done.add((row, column))
        self._unsynced.append((row, column))
        if time.monotonic() - self._synced >= SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Bring what is written to the disk, then into the journal."""
        tiles, self._unsynced = self._unsynced, []
        with translated_disk_errors(self.partial):
            os.fdatasync(self._file)
        with translated_disk_errors(self.journal), open(self.journal, "ab", opener=open_regular) as journal:
            journal.write(b"".join(msgspec.json.encode(tile) + b"\n" for tile in tiles))
        self._synced = time.monotonic()

    def finish(self) -> None:
        """Give the whole file its name."""
        with translated_disk_errors(self.out):
            self._unsynced.clear()
            os.fsync(self._file)
            refuse_existing(self.out)
            self.partial.rename(self.out)
            sync_to_disk(self.out.parent)
            self.journal.unlink()

    def close(self) -> None:
        """Keep what is done for a later attempt."""
        try:
            if self._unsynced and self.partial.exists():
                self.sync()
        finally:
            os.close(self._file)

    def _write(self, line: Matrix, offset: int) -> None:
        view, offset = line.data.cast("B"), offset + self._offset
        while len(view):
            count = os.pwrite(self._file, view[: 1 << 30], offset)
            view, offset = view[count:], offset + count


def read_journal(out: Path) -> tuple[Heading, set[tuple[int, int]]] | None:
    """What an earlier attempt at `out` has left: its heading and finished tiles; None if nothing is usable."""
    partial, journal = _names(out)
    try:
        with open(journal, "rb", opener=open_regular) as file:
            lines = file.read().splitlines(keepends=True)
        heading = msgspec.json.decode(lines[0], type=Heading)
        if not heading.is_possible or partial.lstat().st_size != _file_bytes(heading):
            return None
        header = npy_header(heading)
        with open(partial, "rb", opener=open_regular) as file:
            if file.read(len(header)) != header:
                return None
    except (OSError, IndexError, *BAD_TEXT):
        return None
    done = set()
    for line in lines[1:]:
        # A line without its end was cut short by a kill.
        if line.endswith(b"\n"):
            with suppress(*BAD_TEXT):
                tile = msgspec.json.decode(line, type=tuple[int, int])
                if tile[0] in range(heading.shape[0]) and tile[1] in range(heading.shape[1]):
                    done.add(tile)
    return heading, done


def tell_of_other_tiles(out: Path, heading: Heading, notice: Callable[[str], None]) -> None:
    """Tell the user if an earlier attempt at the same product has tiles of other sizes."""
    found, done = read_journal(out) or (heading, set())
    if done and found != heading and found.is_like(heading, engine=heading.engine):
        notice(f"{len(done):,} tiles of an earlier attempt have other sizes and are computed again")


def check_out(out: Path, shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
    """Raise unless `out` is free to be written and its disk has room."""
    refuse_existing(out)
    if out.is_dir():
        raise UsageError(f"`{out}` is a folder", "--out names the file that is written, such as C.npy")
    if out.suffix != ".npy":
        raise ConfigError(f"`{out}` does not end in .npy, the only format that is written", "--out C.npy")
    if not out.parent.is_dir():
        raise UsageError(f"no such folder: `{out.parent}`", "make it first, or write elsewhere")
    needed = _file_bytes(Heading("", "", shape, str(dtype), Plan(0, 0, 0))) + MARGIN_BYTES
    with suppress(OSError):
        # An earlier attempt has taken this part of the disk already.
        needed -= _names(out)[0].stat().st_blocks * 512
    free = shutil.disk_usage(out.parent).free
    if free < needed:
        message = f"`{out}` needs {in_bytes(needed)}, but its disk has {in_bytes(free)} free"
        raise UsageError(message, "free some space, or write elsewhere")


@contextmanager
def product_file(out: Path, heading: Heading) -> Iterator[ProductFile]:
    """The partial file, locked against other processes; it is kept until it is finished.

    An earlier attempt with the same heading is continued; any other is removed.
    """
    partial, journal = _names(out)
    with translated_disk_errors(partial):
        open(journal, "ab", opener=open_regular).close()
    with locked(journal):
        # Only now: another process may have held the lock until a moment ago.
        found = read_journal(out)
        done = found[1] if found is not None and found[0] == heading else set()
        if not done:
            _start_over(out, heading)
        elif not journal.read_bytes().endswith(b"\n"):
            with translated_disk_errors(journal), open(journal, "ab", opener=open_regular) as file:
                file.write(b"\n")
        product = ProductFile(out, heading, done)
        try:
            yield product
        finally:
            product.close()
            if not product.done:
                # Nothing is worth keeping.
                partial.unlink(missing_ok=True)
                journal.unlink(missing_ok=True)


def _start_over(out: Path, heading: Heading) -> None:
    """A new partial file and its journal. If this is interrupted, no journal names tiles that are not there.

    A process of an earlier attempt may still have its file open, and must not write into this one.
    """
    partial, journal = _names(out)
    with translated_disk_errors(journal):
        _write_to_disk(journal, "wb", b"")
    with translated_disk_errors(partial):
        partial.unlink(missing_ok=True)
        _write_to_disk(partial, "xb", npy_header(heading), _file_bytes(heading))
        sync_to_disk(out.parent)
    with translated_disk_errors(journal):
        _write_to_disk(journal, "wb", msgspec.json.encode(heading) + b"\n")


def _write_to_disk(path: Path, mode: str, content: bytes, size: int | None = None) -> None:
    """Write a file, extended to `size` if given, and wait until it is on the disk."""
    with open(path, mode, opener=open_regular) as file:
        file.write(content)
        if size is not None:
            file.truncate(size)
        file.flush()
        os.fsync(file.fileno())


def npy_header(heading: Heading) -> bytes:
    """The bytes with which the result's file begins."""
    header = io.BytesIO()
    fields = {"descr": np.dtype(heading.dtype).str, "fortran_order": False, "shape": heading.shape}
    np.lib.format.write_array_header_1_0(header, fields)
    return header.getvalue()


def _file_bytes(heading: Heading) -> int:
    rows, columns = heading.shape
    return len(npy_header(heading)) + rows * columns * np.dtype(heading.dtype).itemsize


def _names(out: Path) -> tuple[Path, Path]:
    return out.with_name(f".{out.name}.partial"), out.with_name(f".{out.name}.journal")
