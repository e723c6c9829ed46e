from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paceline.data import prepare
from paceline.data.blocks import files as block_files
from paceline.data.blocks.dataset import SPLITS
from paceline.data.prepare_settings import PrepareConfig, PrepareProgress
from paceline.data.sources import files as sources
from paceline.data.sparse import dataset as blocks
from paceline.errors import ConfigError, DataError, UsageError
from tests.data.inputs import Row, criteo_row, record, rows_of, run, sparse_example, write


def libsvm_text(rows: int, seed: int = 0, width: int = 6, keys: int = 500) -> str:
    random = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        row = sorted(random.choice(keys, random.integers(0, width), replace=False) + 1)
        lines.append(" ".join([str(random.integers(2)), *(f"{key}:{random.integers(1, 9) / 4}" for key in row)]))
    return "\n".join(lines) + "\n"


def libsvm_rows(text: str) -> list[Row]:
    rows = []
    for line in text.splitlines():
        label, *pairs = line.split()
        rows.append((int(label), {int(key) - 1: float(value) for key, value in (pair.split(":") for pair in pairs)}))
    return rows


def left_over(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if "out" in path.name]


def test_several_sources_and_compressions_make_one_dataset(tmp_path: Path) -> None:
    texts = [libsvm_text(50, seed) for seed in range(4)]
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder / "a.txt", texts[0])
    write(folder / "b.gz", gzip.compress(texts[1].encode()))
    write(folder / "c.zst", bytes(pa.Codec("zstd").compress(texts[2].encode())))
    write(tmp_path / "d.txt", texts[3].rstrip("\n"))
    made = run(tmp_path, folder, tmp_path / "d*")
    assert rows_of(made.dataset) == libsvm_rows("".join(texts))
    assert (made.rows, made.bad_rows) == (200, 0)
    assert made.dataset.manifest.source["format"] == "libsvm"
    assert made.seconds > 0


def test_the_result_does_not_depend_on_chunks_or_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_files, "BLOCK_ROWS", 128)
    monkeypatch.setattr(blocks, "SAMPLE_ROWS", 10_000)
    path = write(tmp_path / "a.txt", libsvm_text(2000))
    manifests = []
    for chunk_bytes, threads in ((100, 4), (1000, 1), (7777, 3), (4 << 20, 2)):
        monkeypatch.setattr(sources, "CHUNK_BYTES", chunk_bytes)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, threads=threads: set(range(threads)))
        made = run(tmp_path, path, test_fraction=0.2, seed=3)
        manifests.append(made.dataset.manifest)
    assert len(manifests[0].train.blocks) > 5
    assert all(manifest == manifests[0] for manifest in manifests)


@pytest.mark.parametrize(("test_fraction", "fingerprint"), [(0.0, "1c4e1c2b427d6008"), (0.25, "11dd70e7d46ec56b")])
def test_the_bytes_do_not_depend_on_the_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, test_fraction: float, fingerprint: str
) -> None:
    """The fingerprints are those of a version in which one thread renumbered all keys."""
    monkeypatch.setattr(block_files, "BLOCK_ROWS", 100)
    monkeypatch.setattr(blocks, "SAMPLE_ROWS", 300)
    monkeypatch.setattr(blocks, "HOT_KEYS", 50)
    monkeypatch.setattr(sources, "CHUNK_BYTES", 3_000)
    chance = np.random.default_rng(0)
    path = write(tmp_path / "in.tsv", "".join(criteo_text(chance) for _ in range(1_500)))
    found = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, threads=threads: set(range(threads)))
        made = run(tmp_path, path, hash_bits=10, test_fraction=test_fraction)
        assert made.dataset.fingerprint == fingerprint
        found.append({file.name: file.read_bytes() for file in Path(str(made.dataset.folder)).iterdir()})
    assert len(found[0]) > 15
    assert found[0] == found[1] == found[2]


def criteo_text(chance: np.random.Generator) -> str:
    integers = [str(number) if number < 40 else "" for number in chance.integers(0, 50, 13)]
    strings = [f"{int(50 * number**3):x}" if number > 0.1 else "" for number in chance.random(26)]
    return "\t".join([str(chance.integers(2)), *integers, *strings]) + "\n"


def test_test_rows_from_their_own_source(tmp_path: Path) -> None:
    texts = libsvm_text(40, 1), libsvm_text(30, 2)
    paths = [write(tmp_path / name, text) for name, text in zip("ab", texts, strict=True)]
    made = run(tmp_path, paths[0], test=[paths[1]])
    assert rows_of(made.dataset) == libsvm_rows(texts[0])
    assert rows_of(made.dataset, "test") == libsvm_rows(texts[1])
    assert made.rows == 70


def test_a_seeded_fraction_of_test_rows(tmp_path: Path) -> None:
    text = libsvm_text(3000)
    path = write(tmp_path / "a", text)
    first, again, other = (run(tmp_path, path, test_fraction=0.3, seed=seed).dataset for seed in (1, 1, 2))
    train, test = rows_of(first), rows_of(first, "test")
    assert 750 < len(test) < 1050
    assert sorted(map(str, train + test)) == sorted(map(str, libsvm_rows(text)))
    assert (rows_of(again), rows_of(again, "test")) == (train, test)
    assert rows_of(other, "test") != test


def test_seeded_fractions_of_validation_and_test_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a", libsvm_text(3000))
    before = run(tmp_path, path, test_fraction=0.3, seed=1).dataset
    both = run(tmp_path, path, test_fraction=0.3, validation_fraction=0.2, seed=1).dataset
    assert rows_of(both, "test") == rows_of(before, "test")
    train, validation = rows_of(both), rows_of(both, "validation")
    assert 450 < len(validation) < 750
    assert sorted(map(str, train + validation)) == sorted(map(str, rows_of(before)))
    alone = run(tmp_path, path, validation_fraction=0.2, seed=1).dataset
    assert alone.split("test").rows == 0
    assert 450 < alone.split("validation").rows < 750
    assert alone.manifest.source["validation_fraction"] == 0.2
    assert len({made.fingerprint for made in (before, both, alone)}) == 3


def test_validation_rows_from_their_own_source(tmp_path: Path) -> None:
    texts = [libsvm_text(20, seed) for seed in range(3)]
    paths = [write(tmp_path / name, text) for name, text in zip("abc", texts, strict=True)]
    made = run(tmp_path, *paths, validation=paths[1:2], test=paths[2:])
    assert [rows_of(made.dataset, split) for split in SPLITS] == [libsvm_rows(text) for text in texts]
    assert made.left_out == (str(paths[1]), str(paths[2]))
    with pytest.raises(ConfigError, match=r"c` is in both `validation` and `test`"):
        run(tmp_path, *paths, validation=paths[1:], test=paths[2:])
    with pytest.raises(DataError, match=r"no rows in .*d"):
        run(tmp_path, paths[0], validation=[write(tmp_path / "d", "")])


def test_bad_rows_are_counted_over_all_files(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, "1 1:1\nrubbish\n0 2:1\n1 x\n") for name in "ab"]
    made = run(tmp_path, *paths, format="libsvm", skip_bad_rows=4)
    assert (made.rows, made.bad_rows) == (4, 4)
    with pytest.raises(DataError, match=r"b`, row 4, .*`x`.*after 3 other bad rows"):
        run(tmp_path, *paths, format="libsvm", skip_bad_rows=3)
    with pytest.raises(DataError, match=r"a`, row 2"):
        run(tmp_path, *paths, format="libsvm")


@pytest.mark.parametrize("chunk_bytes", [8, 1 << 20])
def test_mixed_labels_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    monkeypatch.setattr(sources, "CHUNK_BYTES", chunk_bytes)
    a, b = write(tmp_path / "a", "1 1:1\n0 1:1\n0 1:1\n"), write(tmp_path / "b", "1 1:1\n-1 1:1\n0 1:1\n")
    with pytest.raises(DataError) as error:
        run(tmp_path, a, b)
    assert f"0 in `{a}`, row 2, -1 in `{b}`, row 2" in error.value.message
    with pytest.raises(DataError, match=r"-1 in `.*b`, row 2"):
        run(tmp_path, a, test=[b])


def test_a_bad_row_before_the_mixed_labels_is_the_one_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "1 1:1\n0 1:1\nx\n-1 1:1\n")
    with pytest.raises(DataError, match="row 3"):
        run(tmp_path, path)
    with pytest.raises(DataError, match="mixed"):
        run(tmp_path, path, skip_bad_rows=1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"test": ["x"], "test_fraction": 0.1}, ["test-fraction", "0.1"]),
        ({"test_fraction": 1.0}, ["test-fraction", "is 1;"]),
        ({"test_fraction": -0.1}, ["test-fraction", "-0.1"]),
        ({"test_fraction": float("nan")}, ["test-fraction", "nan"]),
        ({"validation": ["x"], "validation_fraction": 0.1}, ["validation-fraction", "0.1"]),
        ({"validation_fraction": 2.0}, ["validation-fraction", "is 2;"]),
        (
            {"validation_fraction": 0.5, "test_fraction": 0.5},
            ["validation-fraction", "test-fraction", "no training rows"],
        ),
        ({"fields": True}, ["fields", "libsvm", "criteo", "libffm"]),
        ({"weight": "w"}, ["weight", "libsvm", "csv"]),
        ({"hash_bits": 0}, ["hash-bits", "is 0;", "1 to 32"]),
        ({"hash_bits": 33}, ["hash-bits", "is 33;"]),
        ({"features": 0}, ["features", "is 0;"]),
        ({"skip_bad_rows": -1}, ["skip-bad-rows", "is -1;"]),
        ({"seed": -1}, ["seed", "is -1;"]),
        ({"format": "xml"}, ["format", "`xml`", "libsvm"]),
        ({"index_base": "2"}, ["index-base", "`2`"]),
        ({"integers": "raw"}, ["integers", "`raw`", "log or bucket"]),
        ({"sources": []}, ["no source"]),
        ({"hash_bits": 20}, ["hash-bits", "libsvm", "criteo"]),
        ({"integers": "bucket"}, ["integers", "libsvm", "criteo"]),
        ({"label": "y"}, ["label", "libsvm", "csv"]),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, settings: dict[str, Any], words: list[str]) -> None:
    path = write(tmp_path / "a", "1 1:1\n")
    config = {"sources": [str(path)], "out": str(tmp_path / "out"), **settings}
    with pytest.raises(ConfigError) as error:
        prepare.prepare(PrepareConfig(**config), lambda _: None)
    assert error.value.exit_code == 2
    assert error.value.hint
    for word in words:
        assert word in error.value.message
    assert left_over(tmp_path) == []


def test_settings_that_contradict_the_format(tmp_path: Path) -> None:
    criteo = write(tmp_path / "a", criteo_row("1", ["1"], ["x"]))
    with pytest.raises(ConfigError, match=r"`index-base` is `1`, but the input is criteo"):
        run(tmp_path, criteo, index_base="1")
    with pytest.raises(ConfigError, match=r"`features` is 100, but the input has 1037"):
        run(tmp_path, criteo, hash_bits=10, features=100)
    assert run(tmp_path, criteo, hash_bits=10, features=1037).rows == 1


@pytest.mark.parametrize("content", ["", "\n\n", "# nothing\n"])
def test_an_empty_input_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(DataError, match=r"empty|no rows"):
        run(tmp_path, write(tmp_path / "a", content), format="libsvm")
    assert left_over(tmp_path) == []


def test_empty_files_beside_others_do_not_matter(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a", ""), write(tmp_path / "b", "1 1:1\n"), write(tmp_path / "c", "")]
    assert run(tmp_path, *paths).rows == 1


def test_empty_test_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no rows in .*b"):
        run(tmp_path, write(tmp_path / "a", "1 1:1\n"), test=[write(tmp_path / "b", "")])
    assert left_over(tmp_path) == []


def test_a_missing_file_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such file: .*nothing"):
        run(tmp_path, write(tmp_path / "a", "1 1:1\n"), tmp_path / "nothing")
    assert left_over(tmp_path) == []


def test_a_folder_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    made = run(tmp_path, write(tmp_path / "a", "1 1:1\n"))
    config = PrepareConfig(sources=[str(tmp_path / "a")], out=str(made.dataset.folder))
    with pytest.raises(UsageError, match="exists already"):
        prepare.prepare(config, lambda _: None)


def test_an_error_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_files, "BLOCK_ROWS", 16)
    monkeypatch.setattr(blocks, "SAMPLE_ROWS", 32)
    monkeypatch.setattr(sources, "CHUNK_BYTES", 500)
    path = write(tmp_path / "a", libsvm_text(300) + "rubbish\n")
    with pytest.raises(DataError, match="row 301"):
        run(tmp_path, path)
    assert left_over(tmp_path) == []


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "PROGRESS_SECONDS", 0)
    monkeypatch.setattr(sources, "CHUNK_BYTES", 500)

    def interrupt(progress: PrepareProgress) -> None:
        if progress.rows > 100:
            raise KeyboardInterrupt

    config = PrepareConfig(sources=[str(write(tmp_path / "a", libsvm_text(3000)))], out=str(tmp_path / "out"))
    with pytest.raises(KeyboardInterrupt):
        prepare.prepare(config, interrupt)
    assert left_over(tmp_path) == []


def test_progress_goes_up_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "PROGRESS_SECONDS", 0)
    monkeypatch.setattr(sources, "CHUNK_BYTES", 1000)
    paths = [
        write(tmp_path / "a", libsvm_text(500)),
        write(tmp_path / "b.gz", gzip.compress(libsvm_text(500).encode())),
    ]
    seen: list[PrepareProgress] = []
    config = PrepareConfig(sources=[str(path) for path in paths], out=str(tmp_path / "out"))
    prepare.prepare(config, seen.append)
    assert len(seen) > 10
    assert seen == sorted(seen)
    assert seen[-1] == PrepareProgress(1000, *[sum(path.stat().st_size for path in paths)] * 2)


# Not `getrusage`: its peak starts at that of the process that ran this one.
SCRIPT = """
import sys
from pathlib import Path
from paceline.data.prepare import PrepareConfig, prepare
source, times, out, options = sys.argv[1:]
config = PrepareConfig(sources=[source] * int(times), out=out, **eval(options))
made = prepare(config, lambda progress: print("rows", progress.rows, flush=True))
status = Path("/proc/self/status").read_text()
print("peak", 1024 * int(status.partition("VmHWM:")[2].split()[0]), made.rows)
"""


def start(source: Path, times: int, out: Path, **options: Any) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", SCRIPT, str(source), str(times), str(out), repr(options)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_ctrl_c_ends_it_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    source = write(tmp_path / "a", libsvm_text(3000, width=40))
    process = start(source, 100_000, tmp_path / "out")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("rows")
    assert left_over(tmp_path) != []
    # Python loses an interrupt that falls into a callback; a person would press again.
    for _ in range(10):
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=4)
            break
    _, errors = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("case", ["libsvm", "tfrecord"])
def test_memory_stays_small_however_large_the_input(tmp_path: Path, case: str) -> None:
    """Some 300 MB of input, the same few megabytes again and again."""
    if case == "libsvm":
        text = libsvm_text(20_000, width=40, keys=100_000)
        source = write(tmp_path / "a", text)
    else:
        random = np.random.default_rng(0)
        records = [
            record(sparse_example(1, sorted(random.integers(1, 10**7, 39).tolist()), [0.5] * 39)) for _ in range(200)
        ]
        source = write(tmp_path / "a", b"".join(records) * 100)
    process = start(source, (300 << 20) // source.stat().st_size, tmp_path / "out", test_fraction=0.2)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    peak = int(output.split()[-2])
    assert peak < 1 << 30


def test_test_files_among_the_training_files_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    texts = [libsvm_text(20, seed) for seed in range(3)]
    paths = [write(folder / name, text) for name, text in zip("abc", texts, strict=True)]
    made = run(tmp_path, folder, test=[folder / ".." / "in" / "c"])
    assert made.left_out == (str(paths[2]),)
    assert rows_of(made.dataset) == libsvm_rows(texts[0] + texts[1])
    assert rows_of(made.dataset, "test") == libsvm_rows(texts[2])
    assert run(tmp_path, paths[0], test=[paths[1]]).left_out == ()
    with pytest.raises(ConfigError, match=r"no training file is left: .*c` is in `test` too"):
        run(tmp_path, paths[2], test=[folder])


def test_what_a_killed_prepare_left_is_removed_by_the_next(tmp_path: Path) -> None:
    process = start(write(tmp_path / "a", libsvm_text(3000, width=40)), 100_000, tmp_path / "out")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("rows")
    config = PrepareConfig(sources=[str(write(tmp_path / "b", "1 1:1\n"))], out=str(tmp_path / "out"))
    written = left_over(tmp_path)
    prepare.prepare(config, lambda _: None)
    assert sorted(left_over(tmp_path)) == sorted([*written, "out"])
    process.kill()
    process.communicate(timeout=20)
    (tmp_path / "out").rename(tmp_path / "first")
    prepare.prepare(config, lambda _: None)
    assert left_over(tmp_path) == ["out"]
