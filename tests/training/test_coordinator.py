"""The coordinator, with a backend that only pretends: when it tests, saves, stops, returns, and what it tells."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.data.blocks.dataset import Split
from paceline.data.blocks.files import SplitInfo
from paceline.errors import DataError, DivergedError, InterruptedRunError, RunError
from paceline.models.losses import LabelUnits
from paceline.models.model import Parameters, TableView
from paceline.models.sparse import LossOutput
from paceline.models.tasks import TWO_CLASSES
from paceline.parameters.layout import Group, Layout, TableLayout
from paceline.run_folder import RunFolder
from paceline.settings import OptimizerConfig, RunConfig, WireConfig
from paceline.training.backend import Due, Keep, Look, LostShardError, Snapshot, Tally
from paceline.training.checkpoint import Handed, Progress, States, has_checkpoint, load_checkpoint
from paceline.training.coordinator import Coordinator, Status
from paceline.training.interrupts import on_interrupt
from tests.conftest import OLDER_RUNS

ROWS, BATCH = 1_000, 100
TABLE = TableLayout(3, (Group("weight", 1, OptimizerConfig(name="sgd")),))


class FakeModel:
    """What the coordinator asks of a model."""

    layout = Layout(TABLE)
    fingerprint = ""
    output = LossOutput(TWO_CLASSES, None)
    start_loss = 0.7
    knows_start = True
    label_units = LabelUnits()


class FakeSplit:
    rows = ROWS
    nonzeros = 0
    mean_weight = 1.0


@pytest.fixture(autouse=True)
def nothing_to_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake dataset has no rows in which keys could be counted."""
    monkeypatch.setattr("paceline.telemetry.gather_facts.count_keys", lambda *_: {})


class FakeDataset:
    """As many training as test rows, and none for validation."""

    fingerprint = "fake"

    def split(self, name: str) -> FakeSplit | SplitInfo:
        return SplitInfo() if name == "validation" else FakeSplit()


class FakeBackend:
    """Counts: a step is `BATCH` rows, and its whole state is where it is. `during` is called at each step."""

    def __init__(self) -> None:
        self.model: Any = FakeModel()
        self.at = Progress()
        self.during: Callable[[int], None] = lambda _position: None
        self.loss = 0.5
        self.segments: list[tuple[int, int]] = []
        self.restored: list[int] = []
        self.recoveries: list[dict[str, Any]] = []
        self.ready = 0
        self.why = ""
        self._losses, self._rows = 0.0, 0

    def restore(self, progress: Progress, states: States | None) -> None:
        assert states is None or float(states.table[0, 0]) == progress.position  # type: ignore[index]
        self.at = progress
        self.restored.append(progress.position)

    def make_ready(self) -> None:
        self.ready += 1

    def run_segment(self, until: int, look: Look, keep: Keep) -> Tally:
        start, self._losses, self._rows = self.at.position, 0.0, 0
        due = Due.NOTHING
        while self.at.position < until and due is not Due.STOP:
            self.at = Progress(position=self.at.position + BATCH, clock=self.at.clock + 1)
            self._losses += self.loss * BATCH
            self._rows += BATCH
            self.during(self.at.position)
            due = look(self._tally())
            if due is Due.SNAPSHOT:
                self.snapshot(keep)
            if self.at.position >= 3 * ROWS:
                break
        self.segments.append((start, self.at.position))
        return self._tally()

    def snapshot(self, keep: Keep) -> None:
        keep(Snapshot(self._tally(), States(np.full((4, 1), self.at.position, np.float32)), Handed()))

    def _tally(self) -> Tally:
        return Tally(self.at.position, self.at.clock, self._losses, self._rows, 2)

    def evaluate(self, split: Split, rows: int, stop: Callable[[], bool]) -> dict[str, float] | None:
        assert rows == self.at.position
        return {"loss": 1 / rows, "error": 0.25, "auc": float("nan")}

    def parameters(self, rows: int) -> Parameters:
        return Parameters(TableView.of_values(np.full(4, rows, np.float32), TABLE))

    def roles(self) -> list[dict[str, Any]]:
        return [{"role": "worker", "rank": 0}]

    def failing(self) -> str:
        return self.why

    def waits(self) -> list[str]:
        return ["worker 0 waits for shard 0"]

    def gpu_facts(self) -> None:
        return None

    def account(self) -> dict[str, Any]:
        wire = {"bytes_sent": 10, "bytes_received": 5, "bytes_per_row": 0.0, "refused": 0}
        return {
            "wire": wire, "restarts": {"workers": 1, "shards": 0}, "recoveries": list(self.recoveries),
            "peak_memory_bytes": 7,
        }  # fmt: skip

    def records(self) -> list[Any]:
        return []

    def close(self) -> None: ...


class Setting:
    """A coordinator over a fake backend, its run folder, and what it told."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.backend = FakeBackend()
        self.told: list[str] = []
        self.watched: list[Status] = []
        self.config = RunConfig(data="-", run=str(folder / "run"), **{"epochs": 3, "batch_size": BATCH, **settings})
        self.run = RunFolder.create(self.config)
        self.coordinator = self.make()

    def make(self) -> Coordinator:
        dataset: Any = FakeDataset()
        return Coordinator(self.config, dataset, self.backend, self.watched.append, self.told.append)

    def train(self) -> Parameters:
        trained = self.coordinator.train(self.run)
        assert trained is not None
        return trained.parameters


def test_one_segment_an_evaluation_at_the_end_and_the_parameters(tmp_path: Path) -> None:
    at = Setting(tmp_path)
    assert at.train().table.rows.tolist() == [3_000.0] * 4  # type: ignore[union-attr]
    assert at.backend.segments == [(0, 3_000)]
    (line,) = at.run.metrics
    assert (line["rows"], line["steps"], line["epoch"]) == (3_000, 30, 3.0)
    assert (line["train_loss"], line["test_loss"], line["test_auc"]) == (0.5, 1 / 3_000, None)
    assert at.coordinator.progress.tested == 3_000
    assert at.coordinator.progress.largest_lead == 2


def test_it_stops_to_evaluate_at_the_interval_asked_for(tmp_path: Path) -> None:
    at = Setting(tmp_path, test_every=1_100)
    at.train()
    assert at.backend.segments == [(0, 1_100), (1_100, 2_200), (2_200, 3_000)]
    assert [line["rows"] for line in at.run.metrics] == [1_100, 2_200, 3_000]


def test_the_furthest_worker_has_done_all_steps_or_time_is_up(tmp_path: Path) -> None:
    at = Setting(tmp_path, epochs=0, steps=10, test_every=500)
    at.train()
    assert [line["rows"] for line in at.run.metrics] == [500, 1_000]
    assert at.watched[-1].share == 1.0
    at = Setting(tmp_path / "time", epochs=0, seconds=1e-9)
    at.train()
    assert at.backend.segments == [(0, BATCH)], "the first look around stops it"


def test_a_checkpoint_when_it_is_due(tmp_path: Path) -> None:
    at = Setting(tmp_path, checkpoint_every=1e-9)
    at.train()
    checkpoint = load_checkpoint(at.run.path / "checkpoints")
    assert checkpoint.progress.position == 3_000
    assert checkpoint.progress.losses == pytest.approx(0.5 * 3_000)
    assert checkpoint.progress.train_seconds > 0
    assert not has_checkpoint(Setting(tmp_path / "none", checkpoint_every=0).run.path / "checkpoints")


def test_interrupted_it_saves_and_another_continues_from_there(tmp_path: Path) -> None:
    at = Setting(tmp_path, checkpoint_every=0)
    at.backend.during = lambda position: signal.raise_signal(signal.SIGINT) if position == 700 else None
    with pytest.raises(InterruptedRunError, match="interrupted after 700 rows"), on_interrupt(at.coordinator.interrupt):
        at.train()
    checkpoint = load_checkpoint(at.run.path / "checkpoints")
    assert checkpoint.progress.position == 700
    at.backend.during = lambda _position: None
    at.coordinator = at.make()
    at.coordinator.restore(checkpoint)
    at.train()
    assert at.backend.segments == [(0, 700), (700, 3_000)]
    assert [line["rows"] for line in at.run.metrics] == [3_000]
    assert at.run.metrics[0]["train_loss"] == 0.5, "over the rows before the interruption, too"


class TestFailing:
    """A backend that must end soon, because its cluster is lost."""

    WHY = "the head no longer answers"

    def test_it_saves_and_says_why(self, tmp_path: Path) -> None:
        at = Setting(tmp_path, checkpoint_every=0)
        at.backend.during = lambda position: setattr(at.backend, "why", self.WHY if position >= 700 else "")
        with pytest.raises(RunError, match=rf"{self.WHY}: stopped after 700 rows; a checkpoint is saved") as caught:
            at.train()
        assert caught.value.exit_code == 1
        assert caught.value.hint == f"`paceline resume {at.run.path}` continues it"
        assert load_checkpoint(at.run.path / "checkpoints").progress.position == 700

    def test_a_run_that_is_done_is_done(self, tmp_path: Path) -> None:
        at = Setting(tmp_path)
        at.backend.during = lambda position: setattr(at.backend, "why", self.WHY if position >= 3_000 else "")
        at.train()
        assert [line["rows"] for line in at.run.metrics] == [3_000]

    def test_a_shard_is_lost_too(self, tmp_path: Path) -> None:
        at = Setting(tmp_path)

        def lose(position: int) -> None:
            at.backend.why = self.WHY
            raise LostShardError("shard 0 was lost")

        at.backend.during = lose
        with pytest.raises(RunError, match=f"shard 0 was lost, and {self.WHY}"):
            at.train()
        assert at.backend.restored == []


def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path) -> None:
    at = Setting(tmp_path, checkpoint_every=1e-9)
    at.train()
    checkpoint = load_checkpoint(at.run.path / "checkpoints")
    other = Setting(tmp_path / "other", workers=2)
    with pytest.raises(DataError, match=r"another `workers`: 1, now 2"):
        other.coordinator.restore(checkpoint)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"wire": WireConfig(mac=True)}, r"another `wire.mac`: False, now True\n"),
        ({"wire": WireConfig(pull="all")}, r"another `wire.pull`: keys, now all\n"),
        ({"optimizer": OptimizerConfig(learning_rate=0.1)}, r"another `optimizer.learning_rate`: 0.05, now 0.1\n"),
        ({"optimizer": OptimizerConfig(own={"epsilon": 0.5})}, r"another `optimizer.epsilon`: 1e-06, now 0.5\n"),
        ({"model": "softmax"}, r"another `model`: logistic, now softmax\n"),
        ({}, ""),
    ],
)
def test_a_checkpoint_of_an_older_version(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    """Settings that the version did not have are at their defaults; an error names the only setting that differs."""
    checkpoint = load_checkpoint(OLDER_RUNS / "sparse" / "checkpoints")
    assert "mac" not in checkpoint.made_by["wire"]
    at = Setting(tmp_path, workers=2, batch_size=2, **settings)
    checkpoint.states.table[0, 0] = checkpoint.progress.position  # type: ignore[index]
    made_by = checkpoint.made_by | {"data": FakeDataset.fingerprint}
    with pytest.raises(DataError, match=message) if message else nullcontext():
        at.coordinator.restore(checkpoint._replace(made_by=made_by))
    assert at.coordinator.progress.position == (0 if message else 12)


@pytest.mark.parametrize(("checkpoint_every", "back_to"), [(1e-9, 1_500), (0, 0)])
def test_a_lost_shard_takes_the_run_back(tmp_path: Path, checkpoint_every: float, back_to: int) -> None:
    """To the last checkpoint, or to the beginning; what was evaluated since is forgotten and evaluated again."""
    at = Setting(tmp_path, test_every=500, checkpoint_every=checkpoint_every)
    lost: list[int] = []

    def lose_once(position: int) -> None:
        if position == 1_600 and not lost:
            lost.append(position)
            raise LostShardError("shard 0 was lost: its process ended")

    at.backend.during = lose_once
    at.train()
    assert at.backend.restored == [back_to]
    assert at.backend.ready == 1
    assert at.told == [f"shard 0 was lost: its process ended; back to {back_to:,} rows"]
    assert [line["rows"] for line in at.run.metrics] == [500, 1_000, 1_500, 2_000, 2_500, 3_000]
    assert at.coordinator.progress.train_seconds >= at.run.metrics[-1]["seconds"]


def test_a_damaged_checkpoint_is_told_when_a_shard_is_lost(tmp_path: Path) -> None:
    at = Setting(tmp_path, checkpoint_every=1e-9)
    lost: list[int] = []

    def lose_once(position: int) -> None:
        if position == 1_600 and not lost:
            lost.append(position)
            (at.run.path / "checkpoints" / f"{1_500:015d}" / "states.safetensors").write_bytes(b"damaged")
            raise LostShardError("shard 0 was lost")

    at.backend.during = lose_once
    at.train()
    damage, back = at.told
    assert f"{1_500:015d}` cannot be read" in damage
    assert damage.endswith("; continuing from the one before, after 1,400 rows")
    assert back == "shard 0 was lost; back to 1,400 rows"


def test_a_second_shard_lost_while_returning(tmp_path: Path) -> None:
    at = Setting(tmp_path, checkpoint_every=0)
    failures = iter([LostShardError("shard 0 was lost"), LostShardError("shard 1 was lost")])
    ready = at.backend.make_ready

    def fail(_position: int) -> None:
        if (failure := next(failures, None)) is not None:
            raise failure

    def fail_once_more() -> None:
        ready()
        fail(0)

    at.backend.during, at.backend.make_ready = fail, fail_once_more  # type: ignore[method-assign]
    at.train()
    assert len(at.told) == 2
    assert [line["rows"] for line in at.run.metrics] == [3_000]


def test_a_loss_that_is_no_longer_a_number_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = Setting(tmp_path)
    at.backend.loss = float("inf")
    with pytest.raises(DivergedError, match="no longer a number") as caught:
        at.train()
    assert at.config.optimizer.name not in caught.value.hint
    at = Setting(tmp_path / "weights")
    values = np.array([1, np.nan, 1, 1], np.float32)
    monkeypatch.setattr(at.backend, "parameters", lambda _rows: Parameters(TableView.of_values(values, TABLE)))
    with pytest.raises(DivergedError):
        at.train()


def test_it_tells_of_roles_that_came_back_and_keeps_roles_json(tmp_path: Path) -> None:
    at = Setting(tmp_path)
    back = {"role": "worker", "rank": 1, "cause": "its process ended", "node": "here", "seconds": 2.5}
    at.backend.during = lambda position: at.backend.recoveries.append(back) if position == 500 else None
    at.train()
    assert at.told == ["worker 1 was lost (its process ended); back on node here after 2.5 s"]
    assert (at.run.path / "roles.json").exists()


def test_it_says_who_waits_when_nothing_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.training.coordinator.STANDSTILL_SECONDS", -1.0)
    at = Setting(tmp_path)

    def run_segment(until: int, look: Look, keep: Keep) -> Tally:
        for _ in range(2):
            look(at.backend._tally())
        return real(until, look, keep)

    real = at.backend.run_segment
    at.backend.run_segment = run_segment  # type: ignore[method-assign]
    at.train()
    assert at.told[0] == "no progress for -1 s: worker 0 waits for shard 0"


def test_accounts_of_a_resumed_run_add_up(tmp_path: Path) -> None:
    at = Setting(tmp_path)
    at.train()
    at.coordinator.account_before = {
        "wire": {"bytes_sent": 100, "bytes_received": 50, "refused": 3},
        "restarts": {"workers": 2, "shards": 1},
        "recoveries": [{"role": "shard"}],
    }
    account = at.coordinator.account()
    assert account["wire"] == {"bytes_sent": 110, "bytes_received": 55, "refused": 3, "bytes_per_row": 165 / 3_000}
    assert account["restarts"] == {"workers": 3, "shards": 1}
    assert account["recoveries"] == [{"role": "shard"}]
    assert account["peak_memory_bytes"] > 7
