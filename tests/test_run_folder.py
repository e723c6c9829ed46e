"""A run folder says what it was, also one that is older than some of its files."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from paceline.config import to_toml
from paceline.diagnosis.explain import diagnose, ensure_diagnosis
from paceline.errors import ConfigError, DataError
from paceline.models.loss_entries import LOSSES
from paceline.models.registry import find
from paceline.reports.compare import compare
from paceline.reports.page import write_report
from paceline.run_folder import RunFolder
from paceline.telemetry.facts import Facts, Traits, write_facts
from paceline.telemetry.recorder import Telemetry
from paceline.telemetry.records import StepSample
from tests.reports.folders import make_half_run, make_run


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return make_half_run(tmp_path / "run")


def test_files_that_are_missing_are_empty(run: RunFolder) -> None:
    assert (run.result, run.saved_diagnosis, run.metrics) == ({}, {}, [])


@pytest.mark.parametrize("content", ["{broken", "[1]", "[" * 100_000, '{"a": ' * 100_000, '{"a": ' + "9" * 5_000 + "}"])
def test_a_broken_file_is_named(run: RunFolder, content: str) -> None:
    (run.path / "diagnosis.json").write_text(content)
    with pytest.raises(DataError, match=r"diagnosis\.json` is broken"):
        _ = run.saved_diagnosis


def test_devices_are_not_read(run: RunFolder) -> None:
    """Reading /dev/zero never ends."""
    before = run.facts
    (run.path / "telemetry").mkdir(exist_ok=True)
    for name in ("result.json", "diagnosis.json", "metrics.jsonl", "telemetry/run.json", "telemetry/steps.jsonl"):
        (run.path / name).unlink(missing_ok=True)
        (run.path / name).symlink_to("/dev/zero")
    assert (run.result, run.saved_diagnosis, run.metrics) == ({}, {}, [])
    assert Telemetry(run.path).read(StepSample) == []
    assert run.facts.traits == before.traits


def test_values_of_other_types_are_one_line(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run.path / "result.json").write_text('{"status": "done", "rows": 1}')
    with pytest.raises(DataError, match=r"result\.json` is broken: Object missing required field `engine`"):
        write_report(run, tmp_path / "report.html")
    run.write_json("result.json", {**make_run(tmp_path / "other").result, "workers": "four"})
    with pytest.raises(DataError, match=r"result\.json` is broken: Expected `int`, got `str` - at `\$\.workers`"):
        compare([run, run])


@pytest.mark.parametrize("line", ['{"rows": 1, "steps": 1}', '{"rows": 1, "steps": 1, "seconds": 0, "test_loss": "x"}'])
def test_a_broken_evaluation_is_named(tmp_path: Path, line: str) -> None:
    run = make_run(tmp_path / "run")
    (run.path / "metrics.jsonl").write_text(f"{line}\n")
    with pytest.raises(DataError, match=r"metrics\.jsonl` is broken"):
        write_report(run, tmp_path / "report.html")


def test_a_bug_is_not_called_a_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run")
    monkeypatch.setattr("paceline.diagnosis.explain.judge", lambda _: [][0])
    for explain in (diagnose, ensure_diagnosis):
        with pytest.raises(IndexError):
            explain(run)


def test_facts_are_those_that_were_recorded(run: RunFolder) -> None:
    traits = Traits(input="rows", keyed=True, metrics=("rmse",))
    facts = Facts(traits=traits, rows=7, keys=3, floats_per_key=2, keys_per_batch={100: 2.5})
    write_facts(run.path, facts)
    assert run.facts == facts
    assert run.facts.table_bytes == 24


def test_facts_are_not_written_through_a_link(run: RunFolder, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("precious")
    (run.path / "telemetry" / ".run.json.new").symlink_to(mine)
    write_facts(run.path, run.facts)
    assert mine.read_text() == "precious"
    assert not (run.path / "telemetry" / "run.json").is_symlink()


@pytest.mark.parametrize("model", ["logistic", "softmax"])
def test_without_recorded_facts_the_model_is_known_by_its_name(tmp_path: Path, model: str) -> None:
    run = make_run(tmp_path / "run")
    (run.path / "config.toml").write_bytes(to_toml(msgspec.structs.replace(run.config, model=model, shards=1)))
    facts = run.facts
    entry = find(model)
    assert facts == Facts(traits=Traits.of(entry, LOSSES[entry.losses[0]].task.metrics))
    assert facts.ceilings is None


def test_an_old_run_of_a_module_opens_without_the_module(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run.path / "config.toml").write_bytes(to_toml(msgspec.structs.replace(run.config, model="not.there:build")))
    assert (run.facts.traits.input, run.facts.traits.metrics[-1]) == ("images", "accuracy")


def test_broken_facts_are_named(run: RunFolder) -> None:
    (run.path / "telemetry" / "run.json").write_text('{"rows": 1}')
    with pytest.raises(DataError, match=r"run\.json` is broken"):
        _ = run.facts


@pytest.mark.parametrize("name", ["metrics.jsonl", "result.json", "telemetry/run.json", "telemetry/steps.jsonl"])
def test_a_file_larger_than_any_run_writes_is_refused(run: RunFolder, name: str) -> None:
    (run.path / name).touch()
    os.truncate(run.path / name, 30 << 30)
    with pytest.raises(DataError, match=r"has 32\.2 GB; the limit is 512 MiB"):
        _ = run.metrics, run.result, run.facts, Telemetry(run.path).read(StepSample)


def test_settings_larger_than_any_run_has_are_refused(run: RunFolder) -> None:
    os.truncate(run.path / "config.toml", 30 << 30)
    with pytest.raises(ConfigError, match=r"config\.toml` has more than 1 MiB"):
        _ = run.config
