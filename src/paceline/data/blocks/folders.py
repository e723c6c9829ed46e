"""Where is a dataset? In a folder of this machine, or behind a URL that pyarrow reads: s3://, gs://, hdfs://."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlparse

import pyarrow as pa

from paceline.errors import DataError
from paceline.files import check_name
from paceline.machine import num_cores, release_mapped

# Per core, of mapped files. One block may have more, and most have less.
MOST_MAPPED = 32 << 20
SCHEMES = "s3://, gs://, hdfs:// and file:// are possible"


class Folder(Protocol):
    """`name` is how any process of this machine finds it, `str` what the user called it. Reading the files of a folder
    that `is_near` once more costs little.
    """

    name: str
    is_near: bool

    def exists(self) -> bool: ...

    def read(self, file: str) -> pa.Buffer:
        """The content of a file; raises `FileNotFoundError` if there is none, and `DataError` if it is elsewhere."""

    def use(self, file: str) -> None:
        """Say that what was read of a file is about to be used. Of files that were not for a while, the memory goes
        back to the system if they are mapped. Reading them again gives the same bytes.
        """

    def copy(self, file: str, to: Path) -> None:
        """Copy a file to a folder of this machine, or let both folders share it; raises `OSError` if it cannot be,
        and `DataError` if it is elsewhere.
        """


def check_file(file: str) -> str:
    """The name of a file in a folder; raises if it could lead out of the folder.

    >>> check_file("manifest.json")
    'manifest.json'
    """
    if file in ("", ".", "..") or "/" in file or "\\" in file:
        raise DataError(f"`{file}` is not the name of a file in a dataset", "prepare the data again")
    return file


class LocalFolder:
    """A folder of this machine. Its files are mapped, not copied."""

    is_near = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = str(path.resolve())
        self._most_mapped = MOST_MAPPED * num_cores()
        self._mapped: dict[str, pa.Buffer] = {}
        self._used: dict[str, int] = {}  # bytes, by file; the one used last is at the end
        self._lock = threading.Lock()

    def exists(self) -> bool:
        return self._path.exists()

    def read(self, file: str) -> pa.Buffer:
        path = self._path / check_file(file)
        # Opening a named pipe would wait for a writer.
        if path.exists() and not path.is_file():
            raise DataError(f"`{path}` is not a regular file", "prepare the data again")
        with pa.memory_map(str(path)) as source:
            self._mapped[file] = source.read_buffer()
        return self._mapped[file]

    def use(self, file: str) -> None:
        with self._lock:
            self._used.pop(file, None)
            self._used[file] = self._mapped[file].size
            while len(self._used) > 1 and sum(self._used.values()) > self._most_mapped:
                oldest = next(iter(self._used))
                del self._used[oldest]
                release_mapped(self._mapped[oldest].address, self._mapped[oldest].size)

    def copy(self, file: str, to: Path) -> None:
        (to / check_file(file)).unlink(missing_ok=True)
        try:
            # A second name: the files of a dataset never change. It stays when the dataset is removed.
            os.link(self._path / file, to / file, follow_symlinks=False)
        except OSError:
            shutil.copyfile(self._path / file, to / file, follow_symlinks=False)

    def __str__(self) -> str:
        return str(self._path)


class StoredFolder:
    """A folder in a file system of pyarrow's. Its files are read whole, over the network."""

    is_near = False

    def __init__(self, url: str) -> None:
        # Not at the top: it takes a hundredth of a second.
        from pyarrow import fs

        self.name = url
        self._nothing = fs.FileType.NotFound
        try:
            self._files, self._path = fs.FileSystem.from_uri(url)
        except (ValueError, ImportError, OSError) as error:
            raise _unreachable(url, error) from None

    def exists(self) -> bool:
        try:
            return bool(self._files.get_file_info(self._path).type != self._nothing)
        except OSError as error:
            raise _unreachable(self.name, error) from None

    def read(self, file: str) -> pa.Buffer:
        with self._files.open_input_file(f"{self._path}/{check_file(file)}") as source:
            return source.read_buffer()

    def use(self, file: str) -> None:
        pass

    def copy(self, file: str, to: Path) -> None:
        (to / check_file(file)).unlink(missing_ok=True)
        (to / file).write_bytes(self.read(file))

    def __str__(self) -> str:
        return self.name


def open_folder(place: Path | str) -> Folder:
    """The folder at a path or URL.

    >>> open_folder("file:///data/my%20clicks").name
    '/data/my clicks'
    """
    url = str(place).rstrip("/")
    if isinstance(place, Path) or "://" not in url or url.startswith("file://"):
        path = Path(unquote(urlparse(url).path) if url.startswith("file://") else place)
        check_name(path)
        return LocalFolder(path)
    return StoredFolder(url)


def _unreachable(url: str, error: Exception) -> DataError:
    return DataError(f"`{url}` cannot be reached: {error}", f"check the URL; {SCHEMES}")
