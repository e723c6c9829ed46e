"""A machine's ceilings: each is measured, remembered, and read back only where it holds."""

from __future__ import annotations

import json
import os
import time
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest

from paceline.kernels.ceilings import read_at_random
from paceline.telemetry import ceilings
from paceline.telemetry.ceilings import Ceilings, Effort, best_rate, load_ceilings, measure_ceilings, save_ceilings
from tests.conftest import Command

SMALL = Effort(seconds=0.02, copy_bytes=1 << 16, table_keys=1_000, largest_matrix=32, disk_bytes=1 << 16)
NUMBERS = [name for name in Ceilings.__struct_fields__ if "_per_second" in name or name.endswith("_seconds")]


def quiet(_: str) -> None:
    pass


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "KEYS_A_CALL", 1 << 10)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An own cache folder, which does not exist yet."""
    folder = tmp_path / "own" / "cache"
    monkeypatch.setenv("PACELINE_CACHE", str(folder))
    return folder


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Ceilings:
    return measure_ceilings(tmp_path_factory.mktemp("disk"), quiet, SMALL)


def test_everything_is_measured_or_left_out_by_name(tmp_path: Path) -> None:
    said: list[str] = []
    found = measure_ceilings(tmp_path, said.append, SMALL)
    assert len(NUMBERS) == 8
    for name in NUMBERS:
        value = getattr(found, name)
        assert value > 0 if value is not None else name in found.left_out
    assert found.table_bytes == 4_000
    assert found.folder == str(tmp_path)
    assert said[0] == "memory copy, one thread"
    assert {"matrix product", "disk read", "loopback bandwidth", "loopback round trip"} <= set(said)
    assert os.listdir(tmp_path) == []


def test_one_core_is_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ceilings, "num_cores", lambda: 1)
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
    assert "cannot be asked" in measure_ceilings(tmp_path, quiet, SMALL).left_out["disk_read_bytes_per_second"]


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
        def sleeper(thread: int) -> ceilings.Work:
            def sleep() -> int:
                time.sleep(0.01)
                return 10 * (thread + 1)

            return sleep

        # A sleep may last longer, and so the rate be lower; never higher.
        assert 0 < best_rate(sleeper, 1, 0.1) <= 1_000
        assert 0 < best_rate(sleeper, 3, 0.1) <= 6_000

    def test_a_thread_that_fails_lets_no_other_wait(self) -> None:
        def worker(thread: int) -> ceilings.Work:
            if thread == 0:
                raise MemoryError
            return lambda: 1

        with pytest.raises(MemoryError):
            best_rate(worker, 3, 0.1)


class TestRemembering:
    def test_what_is_saved_is_loaded(self, cache: Path, measured: Ceilings) -> None:
        assert load_ceilings() is None
        assert save_ceilings(measured) == cache / "machine.json"
        assert load_ceilings() == measured
        assert os.listdir(cache) == ["machine.json"]

    def test_without_a_cache_of_its_own_it_is_the_users(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, measured: Ceilings
    ) -> None:
        monkeypatch.delenv("PACELINE_CACHE", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert save_ceilings(measured) == tmp_path / "paceline" / "machine.json"

    @pytest.mark.parametrize(
        "content", [b"", b"\xff\xfe", b"[]", b"{}", b'{"processor": 5}', b'{"measured": "\xff"}'], ids=repr
    )
    def test_a_damaged_file_is_as_good_as_none(self, cache: Path, measured: Ceilings, content: bytes) -> None:
        save_ceilings(measured).write_bytes(content)
        assert load_ceilings() is None

    def test_a_file_cut_short_is_as_good_as_none(self, cache: Path, measured: Ceilings) -> None:
        path = save_ceilings(measured)
        path.write_bytes(path.read_bytes()[:-20])
        assert load_ceilings() is None

    def test_another_processors_do_not_hold_here(self, cache: Path, measured: Ceilings) -> None:
        save_ceilings(msgspec.structs.replace(measured, processor="Z80"))
        assert load_ceilings() is None

    def test_a_processor_without_a_name_has_an_architecture(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(ceilings, "CPU_INFO", tmp_path / "missing")
        assert ceilings.processor_name()
        (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Z80 @ 4 MHz\nprocessor\t: 1\n")
        monkeypatch.setattr(ceilings, "CPU_INFO", tmp_path / "cpuinfo")
        assert ceilings.processor_name() == "Z80 @ 4 MHz"


class TestCommand:
    @pytest.fixture(autouse=True)
    def _measure_little(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ceilings, "measure_ceilings", partial(measure_ceilings, effort=SMALL))

    def test_json_is_one_object(self, command: Command, cache: Path, tmp_path: Path) -> None:
        done = command("doctor", "--json", "--folder", tmp_path)
        assert done.code == 0
        printed = json.loads(done.out)
        assert printed == json.loads((cache / "machine.json").read_bytes())
        assert load_ceilings() == msgspec.convert(printed, Ceilings)
        assert "measuring memory copy, one thread …" in done.err
        assert f"remembered in {cache}/machine.json" in done.err

    def test_a_person_reads_units(self, command: Command, cache: Path, tmp_path: Path) -> None:
        done = command("doctor", "--folder", tmp_path)
        assert done.code == 0
        lines = done.out.splitlines()
        assert lines[0].startswith(ceilings.processor_name())
        for line, (title, unit) in zip(
            lines[1:],
            [("memory copy", "GB/s"), ("random reads of 0 MB", "M/s"), ("matrix product, float32", "GFLOP/s"),
             ("disk read", ""), ("loopback", "GB/s"), ("loopback round trip", "µs")],
            strict=True,
        ):  # fmt: skip
            assert line.startswith(title)
            assert unit in line

    def test_what_is_left_out_is_said(
        self, command: Command, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delattr(os, "posix_fadvise", raising=False)
        assert "note: disk_read_bytes_per_second is left out: " in command("doctor", "--folder", tmp_path).err

    def test_a_cache_that_cannot_be_written_comes_after_the_results(
        self, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "file" / "cache"))
        done = command("doctor", "--folder", tmp_path)
        assert done.code == 2
        assert "memory copy" in done.out
        assert "cannot be written" in done.err
