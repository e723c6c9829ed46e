"""Where is a dataset? In a folder of this machine, or behind a URL that pyarrow reads: s3://, gs://, hdfs://."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.fs

from paceline.errors import DataError
from paceline.files import check_name

SCHEMES = "s3://, gs://, hdfs:// and file:// are possible"


class Folder:
    """A folder in a file system. Local files are mapped, not copied; others are read whole, over the network.

    `name` is how any process of this machine finds it, `shown` what the user called it.
    """

    def __init__(self, file_system: pa.fs.FileSystem, path: str, name: str, shown: str) -> None:
        self._files = file_system
        self._path = path
        self.name = name
        self._shown = shown

    def exists(self) -> bool:
        try:
            return bool(self._files.get_file_info(self._path).type != pa.fs.FileType.NotFound)
        except OSError as error:
            raise _unreachable(self.name, error) from None

    def read(self, file: str) -> pa.Buffer:
        """The content of a file; raises `FileNotFoundError` if there is none."""
        path = f"{self._path}/{file}"
        # Opening a named pipe would wait for a writer.
        if isinstance(self._files, pa.fs.LocalFileSystem) and Path(path).exists() and not Path(path).is_file():
            raise DataError(f"`{path}` is not a regular file", "prepare the data again")
        with self._files.open_input_file(path) as source:
            return source.read_buffer()

    def __str__(self) -> str:
        return self._shown


def open_folder(place: Path | str) -> Folder:
    """The folder at a path or URL.

    >>> open_folder("file:///data/my%20clicks").name
    '/data/my clicks'
    """
    url = str(place).rstrip("/")
    if isinstance(place, Path) or "://" not in url or url.startswith("file://"):
        path = Path(unquote(urlparse(url).path) if url.startswith("file://") else place)
        check_name(path)
        return Folder(pa.fs.LocalFileSystem(use_mmap=True), str(path), str(path.resolve()), str(path))
    try:
        file_system, path_there = pa.fs.FileSystem.from_uri(url)
    except (ValueError, ImportError, OSError) as error:
        raise _unreachable(url, error) from None
    return Folder(file_system, path_there, url, url)


def _unreachable(url: str, error: Exception) -> DataError:
    return DataError(f"`{url}` cannot be reached: {error}", f"check the URL; {SCHEMES}")
