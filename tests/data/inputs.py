"""Inputs for the tests of formats, and a look at what was made of them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paceline.data.blocks.dataset import Split
from paceline.data.images.dataset import ImageDataset
from paceline.data.prepare import prepare
from paceline.data.prepare_settings import PrepareConfig, Prepared
from paceline.data.sources.files import Chunk, Source, find_sources
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import SparseDataset

Row = tuple[int, dict[int, float]]


def run(tmp_path: Path, *sources: Path | str, **settings: Any) -> Prepared[SparseDataset]:
    """Prepare rows into a folder of `tmp_path` that is named after how many were made there before."""
    made = run_any(tmp_path, *sources, **settings)
    assert isinstance(made.dataset, SparseDataset)
    return made


def run_any(tmp_path: Path, *sources: Path | str, **settings: Any) -> Prepared[SparseDataset] | Prepared[ImageDataset]:
    out = tmp_path / f"out-{len(list(tmp_path.glob('out-*')))}"
    for name in {"test", "validation", "weights"} & settings.keys():
        settings[name] = [str(source) for source in settings[name]]
    return prepare(PrepareConfig(sources=[str(source) for source in sources], out=str(out), **settings), lambda _: None)


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def chunk_of(content: Any, name: str = "file", start: int = 0) -> Chunk[Any]:
    return Chunk(Source(name, None, name, None), content, start, 0)


def text_of(content: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(content, np.uint8)


def source_of(path: Path) -> Source:
    return find_sources([str(path)])[0]


def rows_of_batch(batch: Batch) -> list[Row]:
    bounds = zip(batch.offsets[:-1].tolist(), batch.offsets[1:].tolist(), strict=True)
    return [
        (label, dict(zip(batch.keys[a:b].tolist(), batch.values[a:b].tolist(), strict=True)))
        for label, (a, b) in zip(batch.labels.tolist(), bounds, strict=True)
    ]


def rows_of(dataset: SparseDataset, split: Split = "train") -> list[Row]:
    """All rows of a split, with the input's keys and values."""
    dataset.use_source_values()
    input_keys = dataset.key_order.to_blocks(np.arange(dataset.features))
    rows = []
    for index in range(len(dataset.split(split).blocks)):
        for label, features in rows_of_batch(dataset.block(split, index)):
            rows.append((label, {int(input_keys[key]): value for key, value in features.items()}))
    return rows


# TFRecord, written the plain way.


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    encoded = b""
    while number > 127:
        encoded += bytes([number & 127 | 128])
        number >>= 7
    return encoded + bytes([number])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def integers(numbers: Iterable[int]) -> bytes:
    """A Feature with a packed int64 list."""
    return field(3, field(1, b"".join(varint(number) for number in numbers)))


def unpacked_integers(numbers: Iterable[int]) -> bytes:
    return field(3, b"".join(varint(1 << 3) + varint(number) for number in numbers))


def floats(numbers: Sequence[float]) -> bytes:
    """A Feature with a packed float list."""
    return field(2, field(1, struct.pack(f"<{len(numbers)}f", *numbers)))


def unpacked_floats(numbers: Iterable[float]) -> bytes:
    return field(2, b"".join(varint(1 << 3 | 5) + struct.pack("<f", number) for number in numbers))


def example(**features: bytes) -> bytes:
    """A tf.Example of named Features."""
    entries = (field(1, field(1, name.encode()) + field(2, feature)) for name, feature in features.items())
    return field(1, b"".join(entries))


def sparse_example(label: int, index: Sequence[int], value: Sequence[float]) -> bytes:
    return example(label=integers([label]), index=integers(index), value=floats(value))


# Criteo.


def criteo_row(
    label: str = "0", numbers: Sequence[str] = (), strings: Sequence[str] = (), separator: str = "\t"
) -> str:
    """A line of Criteo data; what is left out is blank."""
    cells = [label, *numbers, *[""] * (13 - len(numbers)), *strings, *[""] * (26 - len(strings))]
    return separator.join(cells) + "\n"


def with_weights_and_fields(count: int, fields: int = 5) -> Batch:
    """Random rows that have weights, and nonzeros in this many fields."""
    random = np.random.default_rng(count)
    keys = [random.choice(300, random.integers(1, 9), replace=False).tolist() for _ in range(count)]
    rows = Batch.from_lists(random.integers(0, 2, count).tolist(), keys, [[1.0] * len(row) for row in keys])
    weights = random.integers(0, 8, count).astype(np.float32)
    return rows._replace(weights=weights, fields=random.integers(0, fields, rows.num_nonzeros).astype(np.uint16))
