"""A run that was stopped goes on as if it had not been; damage is found, not trained on."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.numpy
import xxhash
from safetensors import SafetensorError

import paceline
from paceline import run as runs
from paceline.data.synthetic import generate_clicks
from paceline.errors import DataError, InterruptedRunError, RunError, UsageError
from paceline.files import locked
from paceline.models.registry import MODELS
from paceline.training import interrupts
from paceline.training.checkpoint import Checkpoint, Handed, Progress, States, load_checkpoint, save_checkpoint
from paceline.training.coordinator import Coordinator


def stop_after(monkeypatch: pytest.MonkeyPatch, num_segments: int) -> None:
    """Interrupt runs, as Ctrl-C does, after `num_segments` segments."""
    run_segment, segments = Coordinator._run_segment, [0]

    def segment(coordinator: Coordinator) -> None:
        run_segment(coordinator)
        segments[0] += 1
        coordinator._interrupted = segments[0] == num_segments

    monkeypatch.setattr(Coordinator, "_run_segment", segment)


def without_seconds(line: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in line.items() if k != "seconds"}


@pytest.mark.parametrize("optimizer", MODELS["linear"].optimizers)
def test_a_resumed_sync_run_has_the_bits_of_an_undisturbed_one(
    tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    flags: dict[str, Any] = {"data": clicks, "pace": "sync", "workers": 3, "batch_size": 40, "epochs": 2,
                             "optimizer": optimizer, "test_every": 2_500}  # fmt: skip
    whole = paceline.train(run=tmp_path / "whole", **flags)
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(InterruptedRunError, match="checkpoint is saved"):
            paceline.train(run=tmp_path / "parts", **flags)
    stopped = paceline.Run(tmp_path / "parts")
    assert stopped.result["status"] == "interrupted"
    assert 0 < stopped.result["rows"] < 12_000
    with pytest.raises(UsageError, match="no trained model"):
        paceline.load(stopped.path)
    resumed = runs.resume(stopped.path)
    assert resumed.result["status"] == "done"
    assert resumed.result["model_sha256"] == whole.result["model_sha256"]
    assert resumed.result["rows"] == 12_000
    assert len(resumed.metrics) == len(whole.metrics) > 3
    for got, expected in zip(resumed.metrics, whole.metrics, strict=True):
        assert without_seconds(got) == pytest.approx(without_seconds(expected), rel=1e-12)


@pytest.mark.parametrize("pace", ["async", 2])
@pytest.mark.parametrize("batch_size", [1, 16])
def test_resumed_runs_read_the_rest_of_the_rows(
    tmp_path: Path, one_key_per_row: Path, monkeypatch: pytest.MonkeyPatch, pace: Any, batch_size: int
) -> None:
    rate = 2.0**-40
    flags: dict[str, Any] = {"data": one_key_per_row, "pace": pace, "workers": 3, "batch_size": batch_size,
             "optimizer": "sgd", "learning_rate": rate, "epochs": 1, "test_every": 160}  # fmt: skip
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        with pytest.raises(InterruptedRunError):
            paceline.train(run=tmp_path / "run", **flags)
    run = runs.resume(tmp_path / "run")
    assert run.result["rows"] == 997
    visits = np.abs(paceline.load(run.path).weights) / (rate / 2) * batch_size
    tail = 997 % batch_size or batch_size
    # Once each; a row of the short last batch of the epoch counts batch_size / tail.
    possible = np.array([1, batch_size / tail])
    assert np.abs(visits[:, None] - possible).min(axis=1).max() < 1e-6


def test_checkpoints_come_every_so_often_and_two_are_kept(tmp_path: Path, clicks: Path) -> None:
    run = paceline.train(data=clicks, run=tmp_path / "run", epochs=0, seconds=0.6, checkpoint_every=0.1, workers=2)
    saved = sorted(path.name for path in (run.path / "checkpoints").iterdir())
    assert len(saved) == 3
    assert saved[-1] == "latest"
    assert (run.path / "checkpoints" / "latest").read_text() == saved[1]


def states(seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).random((50, 2), dtype=np.float32)


def table_of(checkpoint: Checkpoint) -> np.ndarray[Any, Any]:
    assert checkpoint.states.table is not None
    return checkpoint.states.table


def crash(*_: object) -> None:
    raise ZeroDivisionError


def refuse_for_lack_of_room(*_: object) -> None:
    """What safetensors raises where the disk is full."""
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


def test_a_full_disk_at_the_end_fails_the_run_in_one_line(
    tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("safetensors.numpy.save_file", refuse_for_lack_of_room)
    with pytest.raises(UsageError, match="no room left on the disk"):
        paceline.train(data=clicks, run=tmp_path / "run")
    assert paceline.Run(tmp_path / "run").result["status"] == "failed"


class TestDamage:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for position in (100, 200):
            save_checkpoint(
                tmp_path / "checkpoints", Progress(position=position, clock=3), {"a": 1}, States(states(position))
            )
        return tmp_path / "checkpoints"

    def test_the_newest_is_loaded(self, folder: Path) -> None:
        loaded = load_checkpoint(folder)
        assert loaded.progress == Progress(position=200, clock=3)
        assert loaded.made_by == {"a": 1}
        assert np.array_equal(table_of(loaded), states(200))
        assert not loaded.damaged

    def test_states_are_kept_as_they_lie(self, tmp_path: Path) -> None:
        """Row by row or plane by plane, without a copy of them in another order."""
        rows = np.arange(30, dtype=np.float32).reshape(10, 3)
        cases = {"table": States(rows), "dense": States(dense=np.asfortranarray(rows)), "both": States(rows, rows + 1)}
        names = {"table": ["states"], "dense": ["planes"], "both": ["planes", "states"]}
        for case, given in cases.items():
            folder = tmp_path / case
            save_checkpoint(folder, Progress(position=1), {}, given)
            found = safetensors.numpy.load_file(folder / f"{1:015d}" / "states.safetensors")
            assert sorted(found) == names[case]
            for loaded, wanted in zip(load_checkpoint(folder).states, given, strict=True):
                np.testing.assert_array_equal(loaded, wanted)

    @pytest.mark.parametrize("file", ["states.safetensors", "checkpoint.json"])
    @pytest.mark.parametrize("how", ["flip", "cut", "remove"])
    def test_a_damaged_one_gives_way_to_the_one_before(self, folder: Path, file: str, how: str) -> None:
        path = folder / f"{200:015d}" / file
        content = bytearray(path.read_bytes())
        content[-9 if file.endswith("s") else 2] ^= 0x55
        if how == "remove":
            path.unlink()
        else:
            path.write_bytes(content if how == "flip" else content[: len(content) // 2])
        loaded = load_checkpoint(folder)
        assert loaded.progress.position == 100
        assert len(loaded.damaged) == 1
        save_checkpoint(folder, Progress(position=150), {}, States(states(150)))
        assert sorted(p.name for p in folder.glob("0*")) == [f"{100:015d}", f"{150:015d}"]

    @pytest.mark.parametrize(
        ("file", "old", "new"),
        [
            ("states.safetensors", b'"F32"', b'"I32"'),
            ("states.safetensors", b'"shape":[50,2]', b'"shape":[2,50]'),
            ("states.safetensors", b'"states"', b'"planes"'),
            ("checkpoint.json", b'"made_by":{"a"', b'"made_by":{"\xff"'),
        ],
    )
    def test_other_headers_and_bytes_that_are_not_text_are_damage(
        self, folder: Path, file: str, old: bytes, new: bytes
    ) -> None:
        path = folder / f"{200:015d}" / file
        content = path.read_bytes()
        assert old in content
        path.write_bytes(content.replace(old, new))
        loaded = load_checkpoint(folder)
        assert loaded.progress.position == 100
        assert len(loaded.damaged) == 1

    def test_one_of_an_earlier_version_is_loaded(self, folder: Path) -> None:
        """Without `header`, as its checksum was made then."""
        path = folder / f"{200:015d}" / "checkpoint.json"
        content = {**msgspec.json.decode(path.read_bytes()), "checksum": ""}
        del content["header"]
        checksum = xxhash.xxh3_64_hexdigest(msgspec.json.encode(content, order="sorted"))
        path.write_bytes(msgspec.json.encode({**content, "checksum": checksum}))
        assert load_checkpoint(folder).progress.position == 200

    def test_an_edited_position_is_damage(self, folder: Path) -> None:
        path = folder / f"{200:015d}" / "checkpoint.json"
        path.write_text(path.read_text().replace('"position":200', '"position":299'))
        assert load_checkpoint(folder).progress.position == 100

    @pytest.mark.parametrize(
        "progress", [Progress(position=250, clock=1 << 63), Progress(position=250, loss_rows=-1),
                     Progress(position=250, handed=Handed(rows=[1 << 63]))],
    )  # fmt: skip
    def test_counts_that_no_run_reaches_are_damage(self, folder: Path, progress: Progress) -> None:
        save_checkpoint(folder, progress, {}, States(states(250)))
        found = load_checkpoint(folder)
        assert found.progress.position == 200
        assert "cannot be read" in found.damaged[0]

    def test_saving_twice_at_a_position_keeps_the_first_until_the_second_stands(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", crash)
            with pytest.raises(ZeroDivisionError):
                save_checkpoint(folder, Progress(position=200, tested=200), {}, States(states(7)))
        assert np.array_equal(table_of(load_checkpoint(folder)), states(200))
        save_checkpoint(folder, Progress(position=200, tested=200), {}, States(states(7)))
        assert np.array_equal(table_of(load_checkpoint(folder)), states(7))
        assert (folder / "latest").read_text() == f"{200:015d}-001"

    def test_one_that_a_kill_left_unfinished_is_removed(self, folder: Path) -> None:
        (folder / ".000000000000150.partial").mkdir()
        save_checkpoint(folder, Progress(position=300), {}, States(states(300)))
        assert sorted(path.name for path in folder.iterdir()) == [f"{200:015d}", f"{300:015d}", "latest"]

    def test_all_damaged(self, folder: Path) -> None:
        for path in folder.glob("0*/states.safetensors"):
            path.write_bytes(b"nonsense")
        with pytest.raises(DataError, match=r"(?s)cannot be read.*train again"):
            load_checkpoint(folder)

    def test_none(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="no checkpoint to resume from"):
            load_checkpoint(tmp_path / "checkpoints")

    def test_a_crash_while_saving_leaves_the_old_ones(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("safetensors.numpy.save_file", refuse_for_lack_of_room)
        with pytest.raises(UsageError, match="no room left"):
            save_checkpoint(folder, Progress(position=300), {}, States(states(300)))
        assert load_checkpoint(folder).progress.position == 200
        assert not list(folder.glob(".*"))


def test_metrics_are_cut_back_to_the_checkpoint(tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run killed after evaluations that no checkpoint has seen writes them again, once."""
    flags: dict[str, Any] = {"data": clicks, "pace": "sync", "batch_size": 100, "epochs": 1, "test_every": 1_000}
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(InterruptedRunError):
            paceline.train(run=tmp_path / "run", **flags)
    run = paceline.Run(tmp_path / "run")
    run.add_metrics({"rows": 3_000, "steps": 30, "seconds": 1.0, "test_loss": 0.1})
    runs.resume(run.path)
    assert [line["rows"] for line in run.metrics] == [1000, 2000, 3000, 4000, 5000, 6000]


def test_resuming_what_cannot_be(tmp_path: Path, clicks: Path) -> None:
    run = paceline.train(data=clicks, run=tmp_path / "run")
    with pytest.raises(UsageError, match="is finished"):
        runs.resume(run.path)
    with pytest.raises(DataError, match="not a run folder"):
        runs.resume(tmp_path)
    (run.path / "result.json").unlink()
    with pytest.raises(DataError, match="no checkpoint"):
        runs.resume(run.path)


@pytest.mark.parametrize("name", ["telemetry/nodes.jsonl", "checkpoints/0", "tensorboard"])
def test_resuming_writes_through_no_planted_link(
    tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(InterruptedRunError):
            paceline.train(data=clicks, run=tmp_path / "run", batch_size=100, test_every=1_000)
    (precious := tmp_path / "precious").mkdir()
    (tmp_path / "run" / name).unlink(missing_ok=True)
    (tmp_path / "run" / name).symlink_to(precious)
    with pytest.raises(UsageError, match=f"{name}` is a link"):
        runs.resume(tmp_path / "run")
    assert list(precious.iterdir()) == []


def test_a_swallowed_interrupt_before_training_leaves_no_folder(
    tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries may swallow a Ctrl-C while they load. The hint is to run the same command again, so it must work."""
    early = threading.Event()
    monkeypatch.setattr(interrupts, "_early", early)
    monkeypatch.setattr(Coordinator, "make_ready", lambda _: early.set())
    with pytest.raises(InterruptedRunError, match="interrupted"):
        paceline.train(data=clicks, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_resuming_after_the_data_is_gone(tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(clicks, tmp_path / "data")
    stop_after(monkeypatch, 1)
    with pytest.raises(InterruptedRunError):
        paceline.train(data=tmp_path / "data", run=tmp_path / "run", test_every=1_000)
    shutil.rmtree(tmp_path / "data")
    with pytest.raises(DataError, match="no dataset at"):
        runs.resume(tmp_path / "run")


def test_a_diverging_run_says_where_and_what_to_do(tmp_path: Path, clicks: Path) -> None:
    where = r"worker \d, by step \d+, in the rows from [\d,]+ on, learning rate 1e\+38"
    for pace, batch_size in (("sync", 50), ("async", 1), (2, 50)):
        path = tmp_path / f"{pace}"
        flags: dict[str, Any] = {"pace": pace, "batch_size": batch_size, "workers": 2, "optimizer": "sgd"}
        with pytest.raises(RunError, match=f"no longer a number: {where}") as error:
            paceline.train(data=clicks, run=path, learning_rate=1e38, **flags)
        assert "--learning-rate 1e+37" in error.value.hint
        assert paceline.Run(path).result["status"] == "failed"


def test_a_model_that_is_not_a_number_is_not_saved(tmp_path: Path, clicks: Path) -> None:
    """One step at a huge rate: the loss before it was fine, the weights after it are not."""
    with pytest.raises(RunError, match="no longer a number"):
        paceline.train(data=clicks, run=tmp_path / "run", optimizer="sgd", learning_rate=3e38, steps=1, batch_size=1)
    assert paceline.Run(tmp_path / "run").result["status"] == "failed"
    assert not (tmp_path / "run" / "model").exists()


@pytest.mark.parametrize(
    ("setting", "edited", "named"),
    [
        ("seed = 0", "seed = 1", "seed"),
        ('name = "adagrad"', 'name = "ftrl"', "optimizer.name"),
        ("workers = 1", "workers = 2", "workers"),
    ],
)
def test_what_must_not_change_on_the_way(
    tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch, setting: str, edited: str, named: str
) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(InterruptedRunError):
            paceline.train(data=clicks, run=tmp_path / "run", epochs=1, test_every=1_000)
    config = tmp_path / "run" / "config.toml"
    assert setting in config.read_text()
    config.write_text(config.read_text().replace(setting, edited))
    with pytest.raises(DataError, match=f"made with another `{named}`"):
        runs.resume(tmp_path / "run")


def test_other_data_is_refused(tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    generate_clicks(data, rows=2_000, features=500, test_rows=100, seed=1, progress=lambda _: None)
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(InterruptedRunError):
            paceline.train(data=data, run=tmp_path / "run", test_every=1_000)
    shutil.rmtree(data)
    generate_clicks(data, rows=2_000, features=500, test_rows=100, seed=2, progress=lambda _: None)
    with pytest.raises(DataError, match="made with another `data`"):
        runs.resume(tmp_path / "run")


def test_interrupted_after_the_last_evaluation(tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between the last evaluation and the end: resuming only finishes, and evaluates no second time."""
    evaluate = Coordinator._evaluate

    def then_interrupt(coordinator: Coordinator) -> None:
        evaluate(coordinator)
        coordinator._interrupted = coordinator.progress.position == 6_000

    with monkeypatch.context() as patch:
        patch.setattr(Coordinator, "_evaluate", then_interrupt)
        with pytest.raises(InterruptedRunError):
            paceline.train(data=clicks, run=tmp_path / "run", epochs=1, test_every=3_000)
    run = runs.resume(tmp_path / "run")
    assert run.result["status"] == "done"
    assert [line["rows"] for line in run.metrics] == [3_000, 6_000]
    assert run.result["test"]["loss"] == run.metrics[-1]["test_loss"]


def test_a_torn_last_line_of_metrics_is_dropped(tmp_path: Path, clicks: Path) -> None:
    run = paceline.train(data=clicks, run=tmp_path / "run", epochs=1, test_every=3_000)
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"rows": 7000, "test_lo')
    assert [line["rows"] for line in run.metrics] == [3_000, 6_000]


def test_the_largest_lead_survives_a_resume(tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(InterruptedRunError):
            paceline.train(data=clicks, run=tmp_path / "run", pace=3, workers=2, batch_size=1, test_every=5_900)
    before = paceline.Run(tmp_path / "run").result["max_staleness"]
    assert 0 < before <= 3
    assert runs.resume(tmp_path / "run").result["max_staleness"] >= before


def test_two_processes_do_not_share_a_run(tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(InterruptedRunError):
            paceline.train(data=clicks, run=tmp_path / "run", epochs=1, test_every=1_000)
    # As a run that has been evaluated since its last checkpoint.
    paceline.Run(tmp_path / "run").add_metrics({"rows": 2_000, "steps": 20, "seconds": 1.0})
    metrics = tmp_path / "run" / "metrics.jsonl"
    before = metrics.read_bytes(), metrics.stat().st_ino
    with locked(tmp_path / "run" / "config.toml"):
        for use in (runs.resume, paceline.load):
            with pytest.raises(UsageError, match=rf"run` is still training \(process {os.getpid()}\)"):
                use(tmp_path / "run")
    assert (metrics.read_bytes(), metrics.stat().st_ino) == before
    assert runs.resume(tmp_path / "run").result["status"] == "done"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("metrics.jsonl", line) for line in ("{}", "5", "[]", '{"rows": "x"}', '{"rows": null}')),
        *(("result.json", text) for text in ("{}", '{"status": ["x"]}', "5", "[]")),
    ],
)
def test_a_damaged_file_is_found_before_training(
    tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str
) -> None:
    path = interrupted(tmp_path / "run", clicks, monkeypatch) / name
    path.write_text(content + "\n")
    with pytest.raises(DataError, match=f"`{path}` is broken"):
        runs.resume(tmp_path / "run", lambda _: pytest.fail("it trains"))
    assert path.read_text() == content + "\n"


@pytest.mark.parametrize("part", [{"wire": 5}, {"restarts": []}, {"recoveries": 1}, {"wire": {"refused": "no"}}])
def test_a_damaged_account_is_found_before_training(
    tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch, part: dict[str, Any]
) -> None:
    run = paceline.Run(interrupted(tmp_path / "run", clicks, monkeypatch))
    run.write_json("result.json", run.result | part)
    with pytest.raises(DataError, match=r"result\.json` is broken"):
        runs.resume(run.path, lambda _: pytest.fail("it trains"))


def test_an_account_without_some_counts_is_continued(
    tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = paceline.Run(interrupted(tmp_path / "run", clicks, monkeypatch))
    run.write_json("result.json", run.result | {"wire": {}, "restarts": {}})
    assert runs.resume(run.path).result["wire"]["refused"] == 0


def interrupted(run: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(InterruptedRunError):
            paceline.train(data=data, run=run, test_every=1_000)
    return run
