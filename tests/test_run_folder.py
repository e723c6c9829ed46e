"""A run folder says what it was, also one that is older than some of its files."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from paceline.config import to_toml
from paceline.errors import DataError
from paceline.models.registry import find
from paceline.run_folder import RunFolder
from paceline.telemetry.facts import Facts, Traits, write_facts
from tests.reports.folders import make_half_run, make_run


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return make_half_run(tmp_path / "run")


def test_files_that_are_missing_are_empty(run: RunFolder) -> None:
    assert (run.result, run.saved_diagnosis, run.metrics) == ({}, {}, [])


def test_a_broken_file_is_named(run: RunFolder) -> None:
    (run.path / "diagnosis.json").write_text("{broken")
    with pytest.raises(DataError, match=r"diagnosis\.json` is broken"):
        _ = run.saved_diagnosis


def test_facts_are_those_that_were_recorded(run: RunFolder) -> None:
    traits = Traits(input="rows", keyed=True, metrics=("rmse",), headline="rmse")
    facts = Facts(traits=traits, rows=7, keys=3, floats_per_key=2, keys_per_batch={100: 2.5})
    write_facts(run.path, facts)
    assert run.facts == facts
    assert run.facts.table_bytes == 24


@pytest.mark.parametrize("model", ["logistic", "softmax"])
def test_without_recorded_facts_the_model_is_known_by_its_name(tmp_path: Path, model: str) -> None:
    run = make_run(tmp_path / "run")
    (run.path / "config.toml").write_bytes(to_toml(msgspec.structs.replace(run.config, model=model, shards=1)))
    facts = run.facts
    assert facts == Facts(traits=Traits.of(find(model)))
    assert facts.ceilings is None


def test_an_old_run_of_a_module_opens_without_the_module(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run.path / "config.toml").write_bytes(to_toml(msgspec.structs.replace(run.config, model="not.there:build")))
    assert (run.facts.traits.input, run.facts.traits.headline) == ("images", "accuracy")


def test_broken_facts_are_named(run: RunFolder) -> None:
    (run.path / "telemetry" / "run.json").write_text('{"rows": "many"}')
    with pytest.raises(DataError, match=r"run\.json` is broken"):
        _ = run.facts
