"""How fast is `prepare`, compared with Vowpal Wabbit reading text?

    python benchmarks/prepare.py [--rows 1000000] [--rounds 3] [--vw-python PYTHON_WITH_VOWPALWABBIT] [--write]

Writes files of click rows to a temporary folder (39 nonzeros per row, heavy-tailed keys over 33,762,578 features), runs
`prepare` on each in its own process, with compiled kernels, and prints one JSON line per case and a table.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from embedded import machine
from paceline.data.prepare import prepare
from paceline.data.prepare_settings import PrepareConfig
from paceline.kernels.crc32c import checksum

FEATURES, NUMERIC = 33_762_578, 13
# The number of distinct strings in each of Criteo's 26 columns.
VOCABULARY = [
    10131227, 8351593, 5461306, 7046547, 2202608, 286181, 142572, 93145, 25000, 14992, 12517, 10000, 5683,
    5652, 3194, 2173, 1460, 633, 583, 305, 105, 27, 24, 18, 15, 4,
]  # fmt: skip
PIECE_ROWS = 50_000
VW_ROWS = 300_000
LEAST_ROWS_PER_SECOND = 600_000
LEAST_TIMES_VOWPAL_WABBIT = 3
VW_SCRIPT = """
import sys, time, vowpalwabbit
began = time.perf_counter()
vowpalwabbit.Workspace(f"-d {sys.argv[1]} --loss_function logistic -b 25 --sgd -l 0.05 --quiet").finish()
print(time.perf_counter() - began)
"""


class Clicks(NamedTuple):
    """Rows of click data: `labels` [n], `integers` [n, 13], `keys` of the strings [n, 26]."""

    labels: NDArray[np.int64]
    integers: NDArray[np.int64]
    keys: NDArray[np.int64]

    @property
    def all_keys(self) -> NDArray[np.int64]:
        """The 39 keys of each row, counted from 0; the integers come first."""
        numeric = np.broadcast_to(np.arange(NUMERIC), self.integers.shape)
        return np.concatenate([numeric, self.keys], axis=1)

    @property
    def all_values(self) -> NDArray[np.float32]:
        values = np.ones((len(self.labels), NUMERIC + len(VOCABULARY)), np.float32)
        values[:, :NUMERIC] = np.round(np.log1p(self.integers) * 0.3, 4)
        return values


def make_clicks(num_rows: int, seed: int = 0) -> Iterator[Clicks]:
    """Rows in pieces. The rank of a string in its column is log-uniform: few are frequent, most are rare."""
    random = np.random.default_rng(seed)
    sizes = np.maximum(3, (np.array(VOCABULARY) * ((FEATURES - NUMERIC) / sum(VOCABULARY))).astype(np.int64))
    first = NUMERIC + np.concatenate([[0], np.cumsum(sizes)[:-1]])
    for start in range(0, num_rows, PIECE_ROWS):
        count = min(PIECE_ROWS, num_rows - start)
        ranks = (np.power(sizes.astype(float), random.random((count, len(sizes)))) - 1).astype(np.int64)
        keys = first + np.minimum(ranks, sizes - 1) * 2654435761 % sizes
        integers = random.exponential(20, (count, NUMERIC)).astype(np.int64)
        yield Clicks((random.random(count) < 0.25).astype(np.int64), integers, keys)


def join(columns: list[Any], separator: str) -> bytes:
    """Lines of text from columns of text."""
    rows = pc.binary_join_element_wise(*columns, separator)
    lines = pc.binary_join_element_wise(rows, "", "\n").cast(pa.large_string())
    return bytes(lines.buffers()[2])


def pairs(clicks: Clicks, base: int) -> list[Any]:
    keys, values = clicks.all_keys + base, clicks.all_values
    return [
        pc.binary_join_element_wise(pa.array(keys[:, j]).cast("string"), pa.array(values[:, j]).cast("string"), ":")
        for j in range(keys.shape[1])
    ]


def libsvm(clicks: Clicks) -> bytes:
    return join([pa.array(clicks.labels).cast("string"), *pairs(clicks, 1)], " ")


def vowpal_wabbit(clicks: Clicks) -> bytes:
    labels = pa.array(np.where(clicks.labels == 1, "1 |", "-1 |"))
    numeric = pairs(clicks, 0)[:NUMERIC]
    return join([labels, *numeric, *(pa.array(clicks.keys[:, j]).cast("string") for j in range(len(VOCABULARY)))], " ")


def criteo(clicks: Clicks) -> bytes:
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    numbers = clicks.keys * 2654435761 & 0xFFFFFFFF
    texts = digits[numbers[:, :, None] >> np.arange(28, -1, -4) & 15]
    strings = [
        pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), len(texts), [None, pa.py_buffer(texts[:, j].tobytes())])
        .cast(pa.binary())
        .cast(pa.string())
        for j in range(texts.shape[1])
    ]
    integers = [pa.array(clicks.integers[:, j]).cast("string") for j in range(NUMERIC)]
    return join([pa.array(clicks.labels).cast("string"), *integers, *strings], "\t")


def tfrecord(clicks: Clicks) -> bytes:
    keys = clicks.all_keys + 1
    values = clicks.all_values.view(np.uint8)
    out = np.empty(len(keys) * 600, np.uint8)
    return out[: encode_records(clicks.labels.astype(np.uint8)[:, None], keys, values, out)].tobytes()


INDEX, VALUE, LABEL = (np.frombuffer(name, np.uint8) for name in (b"index", b"value", b"label"))
FLOATS, INTEGERS = 2, 3


@numba.njit  # type: ignore[untyped-decorator]
def encode_records(labels: Any, keys: Any, values: Any, out: Any) -> int:
    """Write rows as TFRecord of tf.Example; return their size in bytes."""
    packed = np.empty(keys.shape[1] * 5, np.uint8)
    start = 0
    for row in range(len(labels)):
        size = 0
        for key in keys[row]:
            size = put_varint(packed, size, key)
        # The features are between 128 and 16,383 bytes: a tag and two bytes of length come before them.
        example = start + 12
        i = put_feature(out, example + 3, INDEX, INTEGERS, packed[:size])
        i = put_feature(out, i, VALUE, FLOATS, values[row])
        i = put_feature(out, i, LABEL, INTEGERS, labels[row])
        out[example] = 0x0A
        put_varint(out, example + 1, i - example - 3)
        put_fixed(out, start, i - example, 8)
        put_fixed(out, start + 8, checksum(out, start, start + 8), 4)
        put_fixed(out, i, checksum(out, example, i), 4)
        start = i + 4
    return start


@numba.njit  # type: ignore[untyped-decorator]
def put_feature(out: Any, i: int, name: Any, kind: int, content: Any) -> int:
    """Write one entry of the map of features: its name and a packed list."""
    inner = 1 + num_varint_bytes(content.size) + content.size
    feature = 1 + num_varint_bytes(inner) + inner
    entry = 2 + name.size + 1 + num_varint_bytes(feature) + feature
    i = put_varint(out, put_varint(out, i, 0x0A), entry)
    i = put_varint(out, put_varint(out, i, 0x0A), name.size)
    out[i : i + name.size] = name
    i = put_varint(out, put_varint(out, i + name.size, 0x12), feature)
    i = put_varint(out, put_varint(out, i, kind << 3 | 2), inner)
    i = put_varint(out, put_varint(out, i, 0x0A), content.size)
    out[i : i + content.size] = content
    return int(i + content.size)


@numba.njit  # type: ignore[untyped-decorator]
def put_varint(out: Any, i: int, number: int) -> int:
    while number > 127:
        out[i] = number & 127 | 128
        number >>= 7
        i += 1
    out[i] = number
    return i + 1


@numba.njit  # type: ignore[untyped-decorator]
def num_varint_bytes(number: int) -> int:
    count = 1
    while number > 127:
        number >>= 7
        count += 1
    return count


@numba.njit  # type: ignore[untyped-decorator]
def put_fixed(out: Any, i: int, number: int, num_bytes: int) -> None:
    for k in range(num_bytes):
        out[i + k] = number >> (8 * k) & 255


ENCODERS = {"criteo": criteo, "libsvm": libsvm, "tfrecord": tfrecord, "vw": vowpal_wabbit}


def write(path: Path, encode: Any, num_rows: int) -> None:
    with path.open("wb") as file:
        for clicks in make_clicks(num_rows):
            file.write(encode(clicks))


def measure(case: str, path: Path, small: Path, folder: Path) -> dict[str, Any]:
    """Prepare one file, after a small one so that everything is compiled and imported."""
    settings: dict[str, Any] = {"format": case}
    settings |= {"hash_bits": 25} if case == "criteo" else {"features": FEATURES}
    warm = folder / f"{case}-small.data"
    prepare(PrepareConfig(sources=[str(small)], out=str(warm), **settings), lambda _: None)
    shutil.rmtree(warm)
    out = folder / f"{case}.data"
    made = prepare(PrepareConfig(sources=[str(path)], out=str(out), **settings), lambda _: None)
    shutil.rmtree(out)  # otherwise the system keeps writing it to disk while the next case runs
    return {
        "case": case,
        "rows": made.rows,
        "rows_per_second": round(made.rows / made.seconds),
        "megabytes_per_second": round(path.stat().st_size / made.seconds / 1e6),
        "peak_memory_mib": int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) >> 10,
        "cores": os.cpu_count(),
    }


def measure_vowpal_wabbit(python: str, path: Path, num_rows: int) -> float:
    run = subprocess.run([python, "-c", VW_SCRIPT, path], check=True, capture_output=True, text=True)
    return num_rows / float(run.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="how often to measure; the medians count")
    parser.add_argument("--vw-python", help="a Python that has vowpalwabbit, to compare with")
    parser.add_argument("--cases", nargs="+", default=["criteo", "libsvm", "tfrecord"])
    parser.add_argument("--folder", help="keep the input files here, and take them from here if they exist")
    parser.add_argument("--write", action="store_true", help="keep the table under benchmarks/results/")
    arguments = parser.parse_args()
    measured: dict[str, list[dict[str, Any]]] = {case: [] for case in arguments.cases}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.folder or temporary)
        for case in [*arguments.cases] * arguments.rounds:
            measured[case].append(
                measure_beside_peer(case, folder, Path(temporary), arguments.rows, arguments.vw_python)
            )
            print(json.dumps(measured[case][-1]), flush=True)
    table = markdown([medians(results) for results in measured.values()], arguments.rounds)
    print(table)
    if arguments.write:
        (Path(__file__).parent / "results" / f"{datetime.now(UTC):%Y-%m-%d}-prepare.md").write_text(table)


def measure_beside_peer(case: str, folder: Path, scratch: Path, rows: int, vw_python: str | None) -> dict[str, Any]:
    """One case in its own process, then Vowpal Wabbit on the same rows in its own text format."""
    small, path = input_file(folder, case, 10_000), input_file(folder, case, rows)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        result = process.submit(measure, case, path, small, scratch).result()
    if vw_python:
        vw_rows = min(VW_ROWS, rows)
        vw = measure_vowpal_wabbit(vw_python, input_file(folder, "vw", vw_rows), vw_rows)
        result["vowpal_wabbit_rows_per_second"] = round(vw)
        result["times_vowpal_wabbit"] = round(result["rows_per_second"] / vw, 2)
    return result


def medians(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure over the rounds."""
    first = results[0]
    return {
        name: value if isinstance(value, str) else round(statistics.median(r[name] for r in results), 2)
        for name, value in first.items()
    }


def input_file(folder: Path, case: str, num_rows: int) -> Path:
    path = folder / f"{case}-{num_rows}"
    if not path.exists():
        write(path, ENCODERS[case], num_rows)
    return path


def markdown(results: list[dict[str, Any]], rounds: int) -> str:
    """The table, with date and machine."""
    out = (
        f"# Preparing data, {datetime.now(UTC):%Y-%m-%d}\n\n{machine()}. {results[0]['rows']:,} rows with 39 nonzeros, "
        f"medians of {rounds} rounds; `python benchmarks/prepare.py`.\n\n"
        f"| input | rows/s (required: {LEAST_ROWS_PER_SECOND:,}) | MB/s | peak MiB | Vowpal Wabbit on text, rows/s "
        f"| ratio (required: {LEAST_TIMES_VOWPAL_WABBIT}) |\n|---|---|---|---|---|---|\n"
    )
    for result in results:
        vw, times = result.get("vowpal_wabbit_rows_per_second"), result.get("times_vowpal_wabbit", "–")
        out += (
            f"| {result['case']} | {result['rows_per_second']:,.0f} | {result['megabytes_per_second']:.0f} "
            f"| {result['peak_memory_mib']:.0f} | {f'{vw:,.0f}' if vw else '–'} | {times} |\n"
        )
    return out


if __name__ == "__main__":
    main()
