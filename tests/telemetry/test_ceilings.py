"""A machine's ceilings are remembered, and read back only on that machine."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import msgspec
import pytest

from paceline.telemetry import ceilings
from paceline.telemetry import measure_ceilings as measuring
from paceline.telemetry.ceilings import Ceilings, GpuCeiling, TrainingSpeed, load_ceilings, save_ceilings
from paceline.telemetry.measure_ceilings import measure_ceilings
from paceline.torch import gpu_ceiling
from paceline.training.embedded import measure_training as measuring_training
from tests.conftest import Command
from tests.telemetry.test_measure_ceilings import SMALL, quiet

SPEEDS = [
    TrainingSpeed(pace="sync", workers=workers, batch_size=1000, rows_per_second=speed)
    for workers, speed in ((1, 2.1e6), (2, 3.5e6))
]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "KEYS_PER_CALL", 1 << 10)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An own cache folder, which does not exist yet."""
    folder = tmp_path / "own" / "cache"
    monkeypatch.setenv("PACELINE_CACHE", str(folder))
    return folder


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Ceilings:
    return measure_ceilings(tmp_path_factory.mktemp("disk"), quiet, SMALL)


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
        monkeypatch.setattr(measuring, "measure_ceilings", partial(measure_ceilings, effort=SMALL))
        monkeypatch.setattr(measuring_training, "measure_training", lambda _: SPEEDS)
        monkeypatch.setattr(gpu_ceiling, "has_gpu", lambda: False)

    def test_json_is_one_object(self, command: Command, cache: Path, tmp_path: Path) -> None:
        done = command("doctor", "--json", "--folder", tmp_path)
        assert done.code == 0
        printed = json.loads(done.out)
        assert printed == json.loads((cache / "machine.json").read_bytes())
        assert load_ceilings() == msgspec.convert(printed, Ceilings)
        assert "measuring memory copy, one thread …" in done.err
        assert f"saved to {cache}/machine.json" in done.err

    def test_a_person_reads_units(self, command: Command, cache: Path, tmp_path: Path) -> None:
        done = command("doctor", "--folder", tmp_path)
        assert done.code == 0
        lines = done.out.splitlines()
        assert lines[0].startswith(ceilings.processor_name())
        for line, (title, unit) in zip(
            lines[1:],
            [("memory copy", "GB/s"), ("random reads of 0 MB", "M/s"), ("matrix product, float32", "GFLOP/s"),
             ("disk read", ""), ("loopback", "GB/s"), ("loopback round trip", "µs"),
             ("training, M rows/s", "2 workers"), ("pace sync, batch 1,000", "3.50")],
            strict=True,
        ):  # fmt: skip
            assert line.startswith(title)
            assert unit in line

    def test_without_a_gpu_there_is_none_and_the_reason_is_told(
        self, command: Command, cache: Path, tmp_path: Path
    ) -> None:
        done = command("doctor", "--folder", tmp_path)
        assert "note: gpu was not measured: PyTorch finds no GPU here" in done.err
        assert "GPU" not in done.out
        known = load_ceilings()
        assert known is not None
        assert (known.gpu, known.left_out["gpu"]) == (None, "PyTorch finds no GPU here")

    def test_a_gpu_is_measured_and_shown(
        self, command: Command, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        gpu = GpuCeiling(name="a GPU", memory_bytes_per_second=4e12, bus_bytes_per_second=5e10)
        monkeypatch.setattr(gpu_ceiling, "measure_first_gpu", lambda: gpu)
        lines = command("doctor", "--folder", tmp_path).out.splitlines()
        assert any(line.startswith("memory of the GPU") and "4000 GB/s" in line for line in lines)
        assert any(line.startswith("bus to the GPU") and "50.0 GB/s" in line for line in lines)
        known = load_ceilings()
        assert known is not None
        assert known.gpu == gpu

    def test_what_is_left_out_is_said(
        self, command: Command, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delattr(os, "posix_fadvise", raising=False)
        assert "note: disk_read_bytes_per_second was not measured: " in command("doctor", "--folder", tmp_path).err

    def test_a_cache_that_cannot_be_written_comes_after_the_results(
        self, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "file" / "cache"))
        done = command("doctor", "--folder", tmp_path)
        assert done.code == 2
        assert "memory copy" in done.out
        assert "cannot be written" in done.err
