"""What TensorBoard's own reader finds in the event files."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import paceline
from paceline.errors import PacelineError, UsageError
from paceline.reports import tensorboard
from paceline.reports.phases import PHASES
from paceline.reports.tensorboard import on_board
from paceline.run_folder import RunFolder
from tests.conftest import SmallDisk
from tests.reports.folders import make_half_run
from tests.skips import needs_mount


def scalars(run: RunFolder) -> dict[str, list[tuple[int, float]]]:
    """Every curve that TensorBoard would draw."""
    reader = EventAccumulator(str(run.path / "tensorboard"))
    reader.Reload()
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def test_evaluations_and_phases_are_found(run: RunFolder) -> None:
    add = on_board(run)
    for line in run.metrics:
        add(line)
    found = scalars(run)
    phases = {name: found.pop(f"phases/{name}") for name in PHASES}
    assert set(found) == {"train_loss", "test_loss", "test_error", "test_auc"}
    assert [step for step, _ in found["test_auc"]] == [line["rows"] for line in run.metrics]
    assert [value for _, value in found["test_auc"]] == pytest.approx([line["test_auc"] for line in run.metrics])
    # All telemetry was there at the first evaluation, and nothing came after it.
    assert [[step for step, _ in steps] for steps in phases.values()] == [[run.metrics[0]["rows"]]] * len(PHASES)
    assert sum(steps[0][1] for steps in phases.values()) == pytest.approx(1)


def test_what_was_not_measured_is_left_out(half_run: RunFolder) -> None:
    on_board(half_run)({"rows": 10, "train_loss": 0.5, "test_loss": None, "test_auc": float("nan")})
    assert scalars(half_run) == {"train_loss": [(10, 0.5)]}


def test_a_resumed_run_continues_after_its_last_evaluation(tmp_path: Path) -> None:
    run = make_half_run(tmp_path / "run")
    add = on_board(run)
    for rows in (10, 20, 30):
        add({"rows": rows, "train_loss": 1.0})
    run.add_metrics({"rows": 10, "steps": 1, "seconds": 0.1, "train_loss": 1.0})
    again = on_board(run)
    for rows in (20, 30):
        again({"rows": rows, "train_loss": 0.5})
    assert len(list((run.path / "tensorboard").iterdir())) == 2
    assert scalars(run) == {"train_loss": [(10, 1.0), (20, 0.5), (30, 0.5)]}


def test_without_the_extra_there_is_no_board(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "find_spec", lambda _: None)
    on_board(run)(run.metrics[0])
    assert not (run.path / "tensorboard").exists()


def test_a_folder_that_cannot_be_written_is_said(half_run: RunFolder) -> None:
    (half_run.path / "tensorboard").write_text("in the way")
    with pytest.raises(PacelineError, match="File exists"):
        on_board(half_run)({"rows": 10, "train_loss": 0.5})


def test_a_full_disk_leaves_one_file_and_nothing_is_missing_when_there_is_room(
    half_run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(path: Path, _: bytes) -> None:
        path.touch()  # as on a disk that has room for names only
        raise UsageError("no room left on the disk")

    add = on_board(half_run)
    with monkeypatch.context() as patch:
        patch.setattr(tensorboard, "append", no_room)
        for rows in (10, 20, 30):
            with pytest.raises(UsageError, match="no room left"):
                add({"rows": rows, "train_loss": 0.5})
    assert len(list((half_run.path / "tensorboard").iterdir())) == 1
    add({"rows": 40, "train_loss": 0.5})
    add({"rows": 50, "train_loss": 0.5})
    assert scalars(half_run) == {"train_loss": [(rows, 0.5) for rows in (10, 20, 30, 40, 50)]}


@needs_mount
def test_a_disk_without_room(small_disk: SmallDisk) -> None:
    run = make_half_run(small_disk.path / "run")
    add = on_board(run)
    small_disk.fill()
    for rows in (10, 20, 30):
        with pytest.raises(UsageError, match="no room left"):
            add({"rows": rows, "train_loss": 0.5})
    small_disk.free()
    add({"rows": 40, "train_loss": 0.5})
    assert scalars(run) == {"train_loss": [(rows, 0.5) for rows in (10, 20, 30, 40)]}


def test_a_run_is_on_the_board_while_it_trains(clicks: Path, tmp_path: Path) -> None:
    run = paceline.train(data=clicks, run=tmp_path / "run", epochs=1, test_every=2_000)
    found = scalars(run)
    rows = [line["rows"] for line in run.metrics]
    assert len(rows) == 3
    assert [step for step, _ in found["test_loss"]] == rows
    assert [step for step, _ in found["phases/compute"]] == rows
