"""Where is a dataset? In a folder of this machine, or behind a URL that pyarrow reads: s3://, gs://, hdfs://."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlparse

import pyarrow as pa

from paceline.errors import DataError
from paceline.files import check_name

SCHEMES = "s3://, gs://, hdfs:// and file:// are possible"


class Folder(Protocol):
    """`name` is how any process of this machine finds it, `str` what the user called it. Reading the files of a folder
    that `is_near` once more costs little.
    """

    name: str
    is_near: bool

    def exists(self) -> bool: ...

    def read(self, file: str) -> pa.Buffer:
        """The content of a file; raises `FileNotFoundError` if there is none."""

    def copy(self, file: str, to: Path) -> None:
        """Copy a file to a folder of this machine, or let both folders share it; raises `OSError` if it cannot be."""


class LocalFolder:
    """A folder of this machine. Its files are mapped, not copied."""

    is_near = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = str(path.resolve())

    def exists(self) -> bool:
        return self._path.exists()

    def read(self, file: str) -> pa.Buffer:
        path = self._path / file
        # Opening a named pipe would wait for a writer.
        if path.exists() and not path.is_file():
            raise DataError(f"`{path}` is not a regular file", "prepare the data again")
        with pa.memory_map(str(path)) as source:
            return source.read_buffer()

    def copy(self, file: str, to: Path) -> None:
        (to / file).unlink(missing_ok=True)
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
        with self._files.open_input_file(f"{self._path}/{file}") as source:
            return source.read_buffer()

    def copy(self, file: str, to: Path) -> None:
        (to / file).unlink(missing_ok=True)
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
