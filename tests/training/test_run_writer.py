"""What a run leaves in its folder, and what it does when the disk is full."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.errors import UsageError
from paceline.run_folder import RunFolder
from paceline.settings import RunConfig
from paceline.telemetry.recorder import Telemetry
from paceline.telemetry.records import NodeProbe
from paceline.training.backend import Keep, Snapshot, Tally
from paceline.training.checkpoint import Handed, Progress, States, load_checkpoint
from paceline.training.run_writer import RunWriter

SNAPSHOT = Snapshot(Tally(100, 1, 0.0, 0, 0), States(np.zeros((4, 1), np.float32)), Handed(bases=[7]))


class FakeBackend:
    """What a writer asks of a backend."""

    def __init__(self) -> None:
        self.recoveries: list[dict[str, Any]] = []
        self.named: list[dict[str, Any]] = [{"role": "worker", "rank": 0}]

    def snapshot(self, keep: Keep) -> None:
        keep(SNAPSHOT)

    def account(self) -> dict[str, Any]:
        return {"recoveries": self.recoveries}

    def roles(self) -> list[dict[str, Any]]:
        return list(self.named)


class Folder:
    """A writer, its folder, and what it told the user."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[str] = []
        backend: Any = FakeBackend()
        self.backend = backend
        self.run = RunFolder.create(RunConfig(data="-", run=str(path / "run")))
        self.writer = RunWriter(self.run, self.backend, {"data": "fake"}, self.told.append)
        self._patch = monkeypatch

    def fill(self) -> None:
        """From now on, nothing can be written."""

        def refuse(path: Path, *_: object) -> None:
            raise UsageError(f"no room for {path.name}", "free some space")

        for name in ("run_folder.append", "run_folder.replace_file", "training.checkpoint.replace_file"):
            self._patch.setattr(f"paceline.{name}", refuse)

    def free(self) -> None:
        self._patch.undo()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    return Folder(tmp_path, monkeypatch)


def test_a_checkpoint_holds_the_leases_of_its_snapshot(folder: Folder) -> None:
    folder.writer.save(Progress(position=100), SNAPSHOT)
    saved = load_checkpoint(folder.run.path / "checkpoints")
    assert (saved.progress.position, saved.progress.handed, saved.made_by) == (100, SNAPSHOT.handed, {"data": "fake"})


def test_a_checkpoint_is_due_some_time_after_the_last(folder: Folder) -> None:
    assert not folder.writer.checkpoint_due(0)
    assert folder.writer.checkpoint_due(1e-9)
    assert not folder.writer.checkpoint_due(1_000)
    folder.fill()
    folder.writer._last_saved -= 2_000
    assert folder.writer.checkpoint_due(1_000)
    folder.writer.save(Progress(), SNAPSHOT)
    assert not folder.writer.checkpoint_due(1_000), "a refused one is not tried again immediately"


def test_missing_checkpoints_are_told_once_until_one_is_saved(folder: Folder) -> None:
    folder.fill()
    for _ in range(3):
        folder.writer.save(Progress(), SNAPSHOT)
    assert len(folder.told) == 1
    assert folder.told[0].endswith("; training continues without a new checkpoint")
    folder.free()
    folder.writer.save(Progress(position=5), SNAPSHOT)
    folder.fill()
    folder.writer.save(Progress(position=6), SNAPSHOT)
    assert len(folder.told) == 2
    folder.free()
    assert load_checkpoint(folder.run.path / "checkpoints").progress.position == 5


def test_at_the_end_it_says_whether_a_checkpoint_is_saved(folder: Folder) -> None:
    assert folder.writer.save_at_the_end(Progress(position=9)) == "a checkpoint is saved"
    folder.fill()
    assert folder.writer.save_at_the_end(Progress(position=10)).startswith("no checkpoint is saved: no room for ")
    folder.free()
    assert load_checkpoint(folder.run.path / "checkpoints").progress.position == 9


def metrics_after(rows: int) -> dict[str, Any]:
    return {"rows": rows, "steps": rows, "seconds": 1.0}


def test_metrics_that_the_disk_refuses_are_written_later_or_cut(folder: Folder) -> None:
    folder.backend.records = list
    folder.writer.add_metrics(metrics_after(1))
    folder.fill()
    for rows in (2, 3, 4):
        folder.writer.add_metrics(metrics_after(rows))
    assert folder.told == ["no room for metrics.jsonl; training continues without new lines there"]
    folder.free()
    folder.writer.cut_metrics(3)
    folder.writer.finish()
    assert [line["rows"] for line in folder.run.metrics] == [1, 2, 3]


def test_telemetry_is_written_after_an_evaluation_and_at_the_end(folder: Folder) -> None:
    probes = iter(
        NodeProbe(node="here", time=float(i), seconds=1, cores=[], memory_bytes=0, memory_total_bytes=1)
        for i in range(9)
    )
    folder.backend.records = lambda: [next(probes)]
    folder.writer.write_telemetry()
    folder.writer.write_telemetry()
    assert len(Telemetry(folder.run.path).read(NodeProbe)) == 1, "too early for a second one"
    folder.writer.add_metrics(metrics_after(1))
    assert len(Telemetry(folder.run.path).read(NodeProbe)) == 2
    folder.writer.finish()
    assert len(Telemetry(folder.run.path).read(NodeProbe)) == 3


def test_roles_json_follows_the_backend_and_recoveries_are_told_once(folder: Folder) -> None:
    folder.writer.write_roles()
    folder.backend.named.append({"role": "worker", "rank": 1})
    folder.backend.recoveries.append(
        {"role": "worker", "rank": 1, "cause": "its process ended", "node": "here", "seconds": 2.5}
    )
    for _ in range(2):
        folder.writer.write_roles()
    assert folder.told == ["worker 1 was lost (its process ended); back on node here after 2.5 s"]
    assert json.loads((folder.run.path / "roles.json").read_text()) == folder.backend.named


def test_roles_that_a_full_disk_refused_are_written_later(folder: Folder) -> None:
    folder.fill()
    folder.writer.write_roles()
    assert folder.told == ["no room for roles.json; training continues without it"]
    folder.free()
    folder.writer.write_roles()
    assert json.loads((folder.run.path / "roles.json").read_text()) == folder.backend.named
