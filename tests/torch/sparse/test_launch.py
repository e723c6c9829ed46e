"""What kernels are told, and how many of their programs run at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline.data.sparse.batch import Batch
from paceline.errors import UsageError
from paceline.torch.sparse.launch import mean_weight, programs_at_a_time
from paceline.torch.sparse.triton_ import check_version

H200 = SimpleNamespace(
    multi_processor_count=132, max_threads_per_multi_processor=2048, regs_per_multiprocessor=65_536,
    shared_memory_per_multiprocessor=233_472,
)  # fmt: skip


def kernel(registers: int, warps: int, shared: int = 1024) -> Any:
    return SimpleNamespace(n_regs=registers, metadata=SimpleNamespace(num_warps=warps, shared=shared))


@pytest.mark.parametrize(
    ("compiled", "per_processor"),
    [
        (kernel(64, 8), 4),  # registers
        (kernel(255, 8), 1),
        (kernel(16, 8), 8),  # threads
        (kernel(16, 1), 32),  # the most there can be
        (kernel(32, 4, shared=100_000), 2),  # shared memory
        (kernel(255, 32), 1),  # which would not run at all
    ],
)
def test_how_many_programs_run_at_a_time(compiled: Any, per_processor: int) -> None:
    assert programs_at_a_time(compiled, H200) == 132 * per_processor


def test_how_much_a_row_counts() -> None:
    rows = Batch.from_lists([0, 1, 1, 1], [[0]] * 4, [[1.0]] * 4)
    assert mean_weight(rows, None) == 1.0
    assert mean_weight(rows, np.array([4.0, 2.0], np.float32)) == 2.5
    weighted = rows._replace(weights=np.array([1, 2, 3, 0], np.float32))
    assert mean_weight(weighted, None) == 1.5
    assert mean_weight(weighted, np.array([4.0, 2.0], np.float32)) == 3.5
    assert mean_weight(rows.slice(0, 0), None) == 1.0


@pytest.mark.parametrize("version", ["3.4.0", "2.11.1+git"])
def test_old_versions_of_triton_are_refused(version: str) -> None:
    with pytest.raises(UsageError, match=r"need Triton 3\.5 or newer; this is") as error:
        check_version(version)
    assert error.value.hint


@pytest.mark.parametrize("version", ["3.5.0", "3.10.0a1", "4.0", "unknown"])
def test_newer_versions_of_triton_are_not(version: str) -> None:
    check_version(version)
