"""Where does a dataset lie? In a folder of this machine, or behind a URL that pyarrow reads: s3://, gs://, hdfs://."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlparse

import pyarrow as pa

from paceline.errors import DataError

SCHEMES = "s3://, gs://, hdfs:// and file:// will do"


class LocalFolder:
    """A folder of this machine; files are mapped, not copied."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        """How any process of this machine finds it."""
        return str(self.path.resolve())

    def exists(self) -> bool:
        return self.path.is_dir()

    def read(self, file: str) -> pa.Buffer:
        """The content of a file; `FileNotFoundError` where there is none."""
        path = self.path / file
        if path.stat().st_size == 0:
            return pa.py_buffer(b"")
        return pa.memory_map(str(path)).read_buffer()

    def __str__(self) -> str:
        return str(self.path)


class RemoteFolder:
    """A folder behind a URL; files are read whole, over the network."""

    def __init__(self, url: str) -> None:

        try:
            self._files, self._path = pa.fs.FileSystem.from_uri(url)
        except (pa.ArrowInvalid, ImportError, OSError) as error:
            raise DataError(f"`{url}` cannot be reached: {error}", f"check the URL; {SCHEMES}") from None
        self.name = url

    def exists(self) -> bool:
        try:
            return bool(self._files.get_file_info(self._path).type != pa.fs.FileType.NotFound)
        except OSError as error:
            raise DataError(f"`{self.name}` cannot be reached: {error}", f"check the URL; {SCHEMES}") from None

    def read(self, file: str) -> pa.Buffer:
        with self._files.open_input_file(f"{self._path}/{file}") as source:
            return source.read_buffer()

    def __str__(self) -> str:
        return self.name


Folder = LocalFolder | RemoteFolder


def open_folder(place: Path | str) -> Folder:
    """The folder at a path or URL.

    >>> open_folder("file:///data/my%20clicks").name
    '/data/my clicks'
    """
    text = str(place)
    if isinstance(place, Path) or "://" not in text:
        return LocalFolder(Path(place))
    if text.startswith("file://"):
        return LocalFolder(Path(unquote(urlparse(text).path)))
    return RemoteFolder(text.rstrip("/"))
