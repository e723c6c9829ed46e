from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.sources import files as sources
from paceline.data.sources.files import Source, cut_at_lines, find_sources, leave_out, read_head, total_bytes
from paceline.errors import DataError
from tests.data.inputs import source_of, write


def zstd(content: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(content))


def names(*given_names: Path | str) -> list[str]:
    return [Path(source.name).name for source in find_sources([str(name) for name in given_names])]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.txt", "a.txt", ".hidden", "_SUCCESS", "sub/c.txt", "_tmp/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def test_files_folders_and_globs(folder: Path) -> None:
    assert names(folder) == ["a.txt", "b.txt", "c.txt"]
    assert names(folder / "b.txt", folder / "a.txt") == ["b.txt", "a.txt"]
    assert names(folder / "*.txt") == ["a.txt", "b.txt"]
    assert names(folder / "**/*.txt") == ["c.txt", "a.txt", "b.txt"] or names(folder / "**" / "c.*") == ["c.txt"]
    assert names(folder / "[b]*", folder / "sub") == ["b.txt", "c.txt"]


def test_uris(folder: Path) -> None:
    assert names(f"file://{folder}/a.txt") == ["a.txt"]
    assert names(f"file://{folder}") == ["a.txt", "b.txt", "c.txt"]
    assert names(f"file://{folder}/*.txt")[:2] == ["a.txt", "b.txt"]
    assert total_bytes(find_sources([f"file://{folder}/a.txt"])) == 5


def test_a_name_with_brackets_is_a_name_first(tmp_path: Path) -> None:
    write(tmp_path / "a[1].txt", "x")
    assert names(tmp_path / "a[1].txt") == ["a[1].txt"]


@pytest.mark.parametrize("missing", ["nothing.txt", "*.nothing", "file:///nowhere/x.txt", "nosuchscheme://a/b"])
def test_what_is_missing_is_named(tmp_path: Path, missing: str) -> None:
    name = missing if ":" in missing else str(tmp_path / missing)
    with pytest.raises(DataError) as error:
        find_sources([name])
    assert name in error.value.message


def test_a_folder_with_nothing_to_read(tmp_path: Path) -> None:
    write(tmp_path / "_SUCCESS", "")
    with pytest.raises(DataError, match="holds no files"):
        find_sources([str(tmp_path)])


def test_an_unreadable_file_is_named() -> None:
    class Locked:
        def open_input_file(self, path: str) -> None:
            raise PermissionError(13, "Permission denied", path)

    with pytest.raises(DataError, match=r"secret.txt` cannot be read: permission denied"):
        read_head(Source("secret.txt", Locked(), "secret.txt", None))


@pytest.mark.parametrize(
    ("name", "encode"),
    [
        ("plain.txt", bytes),
        ("a.gz", gzip.compress),
        ("no-suffix", gzip.compress),
        ("a.zst", zstd),
        ("two-members.gz", lambda text: gzip.compress(text[:1000]) + gzip.compress(text[1000:])),
        ("two-frames.zst", lambda text: zstd(text[:1000]) + zstd(text[1000:])),
    ],
)
def test_compressed_files_read_as_plain_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, encode: object
) -> None:
    monkeypatch.setattr(sources, "CHUNK_BYTES", 500)
    content = b"".join(b"%d some text\n" % i for i in range(300))
    path = write(tmp_path / name, encode(content))  # type: ignore[operator]
    chunks = list(cut_at_lines(source_of(path)))
    assert b"".join(chunk.content.tobytes() for chunk in chunks) == content
    assert chunks[-1].bytes_read == path.stat().st_size
    assert len(chunks) > 5


@pytest.mark.parametrize(("name", "encode"), [("a.gz", gzip.compress), ("a.zst", zstd)])
def test_a_truncated_file_is_named(tmp_path: Path, name: str, encode: object) -> None:
    whole = encode(np.random.default_rng(0).bytes(10_000))  # type: ignore[operator]
    path = write(tmp_path / name, whole[: len(whole) // 2])
    with pytest.raises(DataError) as error:
        list(cut_at_lines(source_of(path)))
    assert str(path) in error.value.message
    assert "cut short" in error.value.hint


def test_a_suffix_that_lies_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gz", "plain text\n")
    with pytest.raises(DataError, match="is not a gzip file"):
        list(cut_at_lines(source_of(path)))


@given(st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b" ")), max_size=30), st.integers(1, 50))
def test_chunks_are_whole_lines_and_miss_nothing(lines: list[bytes], chunk_bytes: int) -> None:
    import tempfile

    content = b"\n".join([b"not compressed", *lines])
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "CHUNK_BYTES", chunk_bytes)
        chunks = list(cut_at_lines(source_of(write(Path(folder) / "a", content))))
    assert chunks
    assert all(chunk.content.tobytes().endswith(b"\n") for chunk in chunks)
    joined = b"".join(chunk.content.tobytes() for chunk in chunks)
    assert joined in (content, content + b"\n")
    position = 0
    for chunk in chunks:
        assert chunk.start == position
        position += len(chunk.content)


def test_an_endless_row_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "CHUNK_BYTES", 100)
    monkeypatch.setattr(sources, "LONGEST_ROW_BYTES", 1000)
    path = write(tmp_path / "a", b"1 1:1\n" + b"x" * 5000)
    with pytest.raises(DataError, match="row of more than"):
        list(cut_at_lines(source_of(path)))


def test_a_remote_file_that_cannot_be_reached_has_a_hint_of_its_own() -> None:
    class Unreachable:
        def open_input_file(self, path: str) -> None:
            raise OSError("curlCode: 6, Couldn't resolve host name")

    with pytest.raises(DataError, match=r"s3://a/b` cannot be read: curlCode: 6") as error:
        read_head(Source("s3://a/b", Unreachable(), "a/b", None))
    assert "credentials" in error.value.hint
    assert "network" in error.value.hint


def test_files_are_the_same_whatever_their_names(folder: Path) -> None:
    (folder / "link").symlink_to(folder / "sub")
    others = find_sources([f"file://{folder}/a.txt", str(folder / "link" / "c.txt")])
    kept, left = leave_out(find_sources([str(folder / "sub" / ".." / "a.txt"), str(folder)]), others)
    assert [Path(source.name).name for source in kept] == ["b.txt"]
    assert [Path(source.name).name for source in left][:2] == ["a.txt", "a.txt"]
