"""What a run records about its model, data and machine while it trains."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.data.datasets import open_dataset
from paceline.data.sparse.dataset import SparseDataset
from paceline.errors import DataError
from paceline.models.registry import find
from paceline.parameters.layout import Group, TableLayout
from paceline.settings import OptimizerConfig, RunConfig
from paceline.telemetry import gather_facts
from paceline.telemetry.ceilings import save_ceilings
from paceline.telemetry.facts import Facts, read_facts
from paceline.telemetry.gather_facts import count_keys, facts_kept, facts_of
from paceline.telemetry.measure_ceilings import measure_ceilings
from tests.telemetry.test_measure_ceilings import SMALL, quiet

TABLE = TableLayout(5_000, (Group("weight", 1, OptimizerConfig()),))


def recorded(run: Path) -> Facts:
    facts = read_facts(run)
    assert facts is not None
    return facts


class TestCounting:
    def test_rows_without_common_keys(self, one_key_per_row: Path) -> None:
        config = RunConfig(data=str(one_key_per_row), batch_size=50, workers=2)
        assert count_keys(SparseDataset(one_key_per_row), config) == {50: 50.0, 200: 200.0}

    def test_common_keys_count_once(self, clicks: Path) -> None:
        dataset = SparseDataset(clicks)
        found = count_keys(dataset, RunConfig(data=str(clicks), batch_size=100))
        assert set(found) == {100, 400}
        nonzeros = dataset.split("train").nonzeros / 6_000
        assert nonzeros < found[100] < found[400] < 400 * nonzeros
        assert found[400] < 4 * found[100]

    @pytest.mark.parametrize(("batch_size", "counted"), [(1, {1, 4}), (3_000, {3_000}), (10**6, {6_000})])
    def test_sizes_that_the_data_has_rows_for(self, clicks: Path, batch_size: int, counted: set[int]) -> None:
        assert set(count_keys(SparseDataset(clicks), RunConfig(batch_size=batch_size))) == counted

    def test_against_numpy(self, clicks: Path) -> None:
        """A batch of all rows has all keys that occur."""
        dataset = SparseDataset(clicks)
        keys = np.concatenate([dataset.block("train", block).keys for block in range(6)])
        assert count_keys(dataset, RunConfig(batch_size=6_000)) == {6_000: len(np.unique(keys))}


class TestInARun:
    def test_a_keyed_model(self, clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
        ceilings = measure_ceilings(tmp_path, quiet, SMALL)
        save_ceilings(ceilings)
        run = paceline.train(data=clicks, run=tmp_path / "run", optimizer="ftrl", batch_size=100)
        facts = recorded(run.path)
        assert (facts.rows, facts.keys, facts.floats_per_key) == (6_000, 5_001, 2)
        assert facts.traits.keyed
        assert set(facts.keys_per_batch) == {100, 400}
        assert facts.ceilings == ceilings

    def test_a_model_of_images(self, drawings: Path, tmp_path: Path) -> None:
        facts = recorded(paceline.train(data=drawings, run=tmp_path / "run", model="softmax").path)
        assert (facts.rows, facts.keys, facts.keys_per_batch, facts.table_bytes) == (1_500, 0, {}, 0)
        assert (facts.traits.input, facts.traits.metrics[-1]) == ("images", "accuracy")

    def test_it_is_there_while_the_run_trains(self, clicks: Path, tmp_path: Path) -> None:
        """The counts follow a little later, so that the start is not slower."""
        config = RunConfig(data=str(clicks))
        dataset = open_dataset(clicks)
        (tmp_path / "run").mkdir()
        with facts_kept(tmp_path / "run", facts_of(find(config.model), ("loss",), dataset, TABLE), config, dataset):
            assert recorded(tmp_path / "run").rows == 6_000
            assert recorded(tmp_path / "run").keys_per_batch == {}
        assert recorded(tmp_path / "run").keys_per_batch

    def test_a_longer_run_has_the_counts_before_it_ends(
        self, clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(gather_facts, "DELAY_SECONDS", 0.01)
        config = RunConfig(data=str(clicks))
        dataset = open_dataset(clicks)
        (tmp_path / "run").mkdir()
        with facts_kept(tmp_path / "run", facts_of(find(config.model), ("loss",), dataset, TABLE), config, dataset):
            deadline = time.monotonic() + 60
            while not recorded(tmp_path / "run").keys_per_batch:
                assert time.monotonic() < deadline
                time.sleep(0.01)

    def test_rows_that_cannot_be_read_do_not_fail_the_run(
        self, clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: Any) -> dict[int, float]:
            raise DataError("a block is damaged")

        monkeypatch.setattr(gather_facts, "count_keys", fail)
        run = paceline.train(data=clicks, run=tmp_path / "run")
        assert run.result["status"] == "done"
        assert json.loads((run.path / "telemetry" / "run.json").read_text())["keys_per_batch"] == {}
