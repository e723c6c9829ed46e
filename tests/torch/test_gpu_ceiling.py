"""How fast a GPU's memory and bus are: measured once, or known from `paceline doctor`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from paceline.errors import ConfigError
from paceline.telemetry.ceilings import GpuCeiling, processor_name, save_ceilings
from paceline.torch import gpu_ceiling as measuring
from paceline.torch.gpu_ceiling import ceiling_of, measure_first_gpu, measure_gpu
from paceline.torch.model import torch
from tests.diagnosis.folders import ceilings
from tests.skips import needs_gpu

CPU = torch.device("cpu")


def test_what_stands_in_for_a_gpu_is_measured() -> None:
    found = measure_gpu(CPU)
    assert found.name == "Triton's interpreter"
    assert min(found.memory_bytes_per_second, found.bus_bytes_per_second) > 1e6


@needs_gpu
def test_a_gpu_has_faster_memory_than_its_bus() -> None:
    found = measure_first_gpu()
    assert found.memory_bytes_per_second > found.bus_bytes_per_second > 1e8


def test_what_doctor_measured_is_not_measured_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    known = GpuCeiling(name="Triton's interpreter", memory_bytes_per_second=1.0, bus_bytes_per_second=2.0)
    remembered = msgspec.structs.replace(ceilings(1.0), processor=processor_name(), gpu=known)
    save_ceilings(remembered)
    assert ceiling_of(CPU) == known
    # Another GPU has other ceilings.
    save_ceilings(msgspec.structs.replace(remembered, gpu=msgspec.structs.replace(known, name="another")))
    assert ceiling_of(CPU).memory_bytes_per_second > 1e6


def test_no_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "has_gpu", lambda: False)
    with pytest.raises(ConfigError, match="PyTorch finds no GPU here"):
        measure_first_gpu()
