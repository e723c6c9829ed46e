"""What counts of a run: not its first second, and not a first epoch that reads from a disk."""

from __future__ import annotations

import msgspec
import pytest

from paceline.diagnosis.steady import FEWEST_STEPS, steady_part
from paceline.telemetry.records import NodeProbe, StepSample, WorkerChunk


def chunks(rates: list[int], steps: int = 100, seconds: float = 1.0) -> list[WorkerChunk]:
    """One worker that trained this many rows in each second."""
    return [
        WorkerChunk(time=seconds * (second + 1), rank=0, seconds=seconds, rows=rows, processor=1.0, steps=steps)
        for second, rows in enumerate(rates)
    ]


def probes(disk: list[float]) -> list[NodeProbe]:
    return [
        NodeProbe(time=second + 1.0, seconds=1.0, cores=[1.0], memory_bytes=1, memory_total_bytes=2,
                  disk_read_bytes_per_second=read)
        for second, read in enumerate(disk)
    ]  # fmt: skip


def test_the_first_second_does_not_count() -> None:
    found = steady_part(chunks([10, 100, 100, 100]), [], num_rows=0)
    assert [chunk.rows for chunk in found.chunks] == [100, 100, 100]
    assert (found.first_epoch, found.needed_seconds, found.only_first) == (0, 0, False)
    assert found.left_out == 1
    assert steady_part(chunks([10, 100]), [], num_rows=0).left_out == 0


def test_a_first_epoch_from_disk_is_told_apart() -> None:
    """400 rows per epoch, which come from a disk for three seconds."""
    found = steady_part(chunks([100, 150, 150, 400, 400]), probes([5e7, 5e7, 5e7, 0.0, 0.0]), num_rows=400)
    assert [chunk.rows for chunk in found.chunks] == [400, 400]
    assert found.first_epoch == pytest.approx(150)
    assert found.since == 3
    assert found.from_disk == pytest.approx(5e7)
    samples = [StepSample(time=time, rank=0, seconds=0.1, rows=1, step=1) for time in (0.5, 2.5, 3.5)]
    assert [sample.time for sample in found.samples(samples)] == [3.5]
    # A worker without a later sample: all count.
    assert len(found.samples([*samples, StepSample(time=0.5, rank=1, seconds=0.1, rows=1, step=1)])) == 4


def test_epochs_that_are_alike_count_together() -> None:
    found = steady_part(chunks([400, 400, 405, 400]), probes([0.0] * 4), num_rows=400)
    assert len(found.chunks) == 3
    assert (found.first_epoch, found.from_disk) == (0, 0)


def test_both_parts_have_all_workers() -> None:
    """One worker alone in the first epoch, after its first second, is slower than two; that tells nothing."""
    late = [msgspec.structs.replace(chunk, rank=1, time=chunk.time + 0.5) for chunk in chunks([100, 100, 100, 100])]
    found = steady_part([*chunks([100, 100, 100, 100]), *late], [], num_rows=380)
    assert found.first_epoch == 0


def test_a_run_that_never_ended_its_first_epoch() -> None:
    found = steady_part(chunks([100, 100, 100]), probes([5e7] * 3), num_rows=1000)
    assert found.only_first
    assert found.from_disk == pytest.approx(5e7)


def test_too_few_steps_to_tell() -> None:
    """Five steps per second: twenty of them, and what comes before, take some seconds."""
    found = steady_part(chunks([10, 10, 10], steps=5), [], num_rows=0)
    assert found.needed_seconds == 2 + 1.5 * FEWEST_STEPS / 5
    assert steady_part(chunks([10], steps=100, seconds=0.5), [], num_rows=0).needed_seconds == 4
    assert not steady_part(chunks([10] * 9, steps=5), [], num_rows=0).needed_seconds
