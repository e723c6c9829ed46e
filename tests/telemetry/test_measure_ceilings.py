"""A machine's ceilings are measured, and what cannot be measured is named."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from paceline.kernels.ceilings import read_at_random
from paceline.telemetry import measure_ceilings as measuring
from paceline.telemetry.ceilings import Ceilings
from paceline.telemetry.measure_ceilings import Effort, best_rate, measure_ceilings

SMALL = Effort(seconds=0.02, copy_bytes=1 << 16, table_keys=1_000, largest_matrix=32, disk_bytes=1 << 16)
NUMBERS = [name for name in Ceilings.__struct_fields__ if "_per_second" in name or name.endswith("trip_seconds")]


def quiet(_: str) -> None:
    pass


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "KEYS_PER_CALL", 1 << 10)


def test_everything_is_measured_or_left_out_by_name(tmp_path: Path) -> None:
    said: list[str] = []
    found = measure_ceilings(tmp_path, said.append, SMALL)
    assert len(NUMBERS) == 8
    for name in NUMBERS:
        value = getattr(found, name)
        assert value > 0 if value is not None else name in found.left_out
    assert set(found.left_out) <= {"disk_read_bytes_per_second"}
    assert found.table_bytes == 4_000
    assert found.folder == str(tmp_path)
    assert said[0] == "memory copy, one thread"
    assert {"matrix product", "disk read", "loopback bandwidth", "loopback round trip"} <= set(said)
    assert os.listdir(tmp_path) == []


def test_one_core_is_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measuring, "num_cores", lambda: 1)
    said: list[str] = []
    found = measure_ceilings(tmp_path, said.append, SMALL)
    assert len(said) == len(set(said)) == 6
    assert found.copy_bytes_per_second == found.copy_bytes_per_second_all_cores


def test_a_file_that_stays_in_memory_says_nothing_of_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "posix_fadvise", lambda *_: None, raising=False)
    found = measure_ceilings(tmp_path, quiet, SMALL)
    assert found.disk_read_bytes_per_second is None
    assert str(tmp_path) in found.left_out["disk_read_bytes_per_second"]


def test_a_system_that_cannot_drop_files_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    assert "cannot be told" in measure_ceilings(tmp_path, quiet, SMALL).left_out["disk_read_bytes_per_second"]


def test_a_folder_that_cannot_be_written_is_left_out(tmp_path: Path) -> None:
    found = measure_ceilings(tmp_path / "missing", quiet, SMALL)
    assert found.left_out == {"disk_read_bytes_per_second": f"`{tmp_path}/missing`: No such file or directory"}


def test_random_reads_read_what_they_should() -> None:
    table = np.arange(100, dtype=np.float32)
    keys = np.random.default_rng(0).integers(0, 100, 64, np.uint32)
    out = np.zeros(32, np.float32)
    read_at_random(table, keys, out)
    assert np.array_equal(out, table[keys[32:]])


class TestRate:
    def test_threads_add_up(self) -> None:
        def sleeper(thread: int) -> measuring.Work:
            return lambda: time.sleep(0.01 * (thread + 1))

        # A sleep may last longer, and so the rate be lower; never higher.
        assert 0 < best_rate(sleeper, 10, 1, 0.1) <= 1_000
        assert 0 < best_rate(sleeper, 10, 3, 0.1) <= 1_000 + 500 + 334

    def test_a_thread_that_fails_lets_no_other_wait(self) -> None:
        def worker(thread: int) -> measuring.Work:
            if thread == 0:
                raise MemoryError
            return lambda: 1

        with pytest.raises(MemoryError):
            best_rate(worker, 1, 3, 0.1)
