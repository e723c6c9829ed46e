"""Plans: ranges are read as meant, wrong ones are refused, and predictions follow from what was recorded."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.defaults import MOST_WORKERS
from paceline.diagnosis.evidence import gather_evidence
from paceline.diagnosis.plan import MOST_CHOICES, Choice, bandwidths, choices, counts, plan_of, predict
from paceline.errors import ConfigError
from paceline.reports.terminal import print_plan
from tests.diagnosis.folders import make_embedded, make_planted, record_facts


class TestRanges:
    @given(st.integers(1, MOST_WORKERS), st.integers(1, MOST_WORKERS))
    def test_counts(self, one: int, other: int) -> None:
        first, last = sorted((one, other))
        found = counts(f"{first}..{last}", "workers")
        assert found == sorted(set(found))
        assert (found[0], found[-1]) == (first, last)
        assert all(count & (count - 1) == 0 for count in found[1:-1])
        assert all(after <= 2 * before for before, after in pairwise(found))

    @pytest.mark.parametrize(
        "text", ["", "0", "0..4", "4..2", "..4", "4..", "-1", "1-4", "two", "1..2..3", "1.5", "1024..1025"]
    )
    def test_wrong_counts(self, text: str) -> None:
        with pytest.raises(ConfigError) as caught:
            counts(text, "shards")
        assert f"`{text}`" in caught.value.message
        assert caught.value.hint.startswith("--shards ")

    @given(st.floats(0.1, 100), st.floats(1, 100))
    def test_bandwidths(self, first: float, times: float) -> None:
        found = bandwidths(f"{first:f}Mbit..{first * times:f}Mbit")
        assert found[0] == pytest.approx(first * 1e6 / 8, abs=1)
        assert found[-1] == pytest.approx(first * times * 1e6 / 8, abs=1)
        assert all(before < after <= 2 * before * (1 + 1e-9) for before, after in pairwise(found))

    @pytest.mark.parametrize(("text", "bits"), [("10Gbit", 1e10), ("1.5 gbit", 1.5e9), ("800kbit/s", 8e5), ("9bit", 9)])
    def test_units(self, text: str, bits: float) -> None:
        assert bandwidths(text) == [bits / 8]

    @pytest.mark.parametrize(
        "text", ["10", "10GB", "fast", "0Gbit", "-1Gbit", "Gbit", "1Gbit..", "..1Gbit", "2Gbit..1Gbit", "1e3bit"]
    )
    def test_wrong_bandwidths(self, text: str) -> None:
        with pytest.raises(ConfigError) as caught:
            bandwidths(text)
        assert f"`{text}`" in caught.value.message
        assert "--bandwidth 1Gbit" in caught.value.hint


class TestChoices:
    def test_all_combinations_at_three_paces(self, tmp_path: Path) -> None:
        evidence = gather_evidence(make_embedded(tmp_path / "run", pace=4))
        found = choices(evidence, [1, 2], [1], [None])
        assert found == [Choice(pace, workers, 1, None) for pace in ("sync", "async", 4) for workers in (1, 2)]

    def test_an_embedded_run_knows_no_network(self, tmp_path: Path) -> None:
        evidence = gather_evidence(make_embedded(tmp_path / "run"))
        for shards, speed in (([2], None), ([1], 1e9)):
            with pytest.raises(ConfigError, match="a run with `--engine local` has no shards") as caught:
                choices(evidence, [1], shards, [speed])
            assert "--engine ray" in caught.value.hint

    def test_too_many(self, tmp_path: Path) -> None:
        evidence = gather_evidence(make_planted(tmp_path / "run", "network"))
        speeds = [float(speed) for speed in range(1, MOST_CHOICES // 2 + 2)]
        assert len(choices(evidence, [1], [1], speeds[:-1])) == MOST_CHOICES
        with pytest.raises(ConfigError, match="402 combinations are asked for; the limit is 400"):
            choices(evidence, [1], [1], speeds)

    def test_more_shards_than_keys(self, tmp_path: Path, one_key_per_row: Path) -> None:
        """997 features and the bias."""
        run = make_planted(tmp_path / "run", "network")
        record_facts(run, one_key_per_row)
        evidence = gather_evidence(run)
        assert choices(evidence, [1], [998], [None])
        with pytest.raises(ConfigError, match="999 shards are asked for, but there are only 998 keys") as caught:
            choices(evidence, [1], [1, 999], [None])
        assert caught.value.hint == "--shards 1..998"

    def test_an_old_run_folder_allows_any_number_of_shards(self, tmp_path: Path) -> None:
        evidence = gather_evidence(make_planted(tmp_path / "run", "network"))
        assert choices(evidence, [1], [1000], [None])


@pytest.mark.usefixtures("quick")
class TestPredictions:
    def test_embedded_workers_up_to_the_cores(self, tmp_path: Path) -> None:
        """From two workers on four cores, at 100,000 rows per second each."""
        evidence = gather_evidence(make_embedded(tmp_path / "run", cores=4))
        for workers, rows in ((1, 1e5), (2, 2e5), (4, 4e5), (8, 4e5)):
            found = predict(evidence, Choice("async", workers, 1, None))
            assert found.interval.low <= rows * 1.02
            assert found.interval.high >= rows * 0.98
            assert found.interval.is_known == (workers == 2)
            assert found.limit == "worker-compute"
            assert found.machines == 1

    def test_as_it_was_it_is_predicted_as_it_was(self, tmp_path: Path) -> None:
        evidence = gather_evidence(make_planted(tmp_path / "run", "network", num_workers=3))
        found = predict(evidence, Choice("async", 3, 1, None))
        assert found.rows_per_second == pytest.approx(evidence.rows_per_second, rel=0.05)
        assert found.limit == "network"
        assert found.machines == 4
        (told,) = plan_of(evidence, [found])["predictions"]
        assert told["rows_per_second_per_machine"] == pytest.approx(found.rows_per_second / 4)
        assert told["best"]

    def test_faster_links_help_until_something_else_limits(self, tmp_path: Path) -> None:
        evidence = gather_evidence(make_planted(tmp_path / "run", "network", num_workers=3))
        found = [predict(evidence, Choice("async", 3, 1, speed)) for speed in (1e8, 2e8, 1e12)]
        assert found[1].rows_per_second == pytest.approx(2 * found[0].rows_per_second, rel=0.05)
        # A worker's own work, 1.3 ms and what receiving takes.
        assert found[2].rows_per_second == pytest.approx(3 * 100 / 1.3e-3, rel=0.1)
        assert [one.limit for one in found] == ["network", "network", "worker-compute"]

    def test_more_shards_share_the_work(self, tmp_path: Path) -> None:
        evidence = gather_evidence(make_planted(tmp_path / "run", "shard-compute", num_workers=3))
        one, two = (predict(evidence, Choice("async", 3, shards, None)) for shards in (1, 2))
        # How much of a shard's work depends on the number of keys is not known.
        assert two.interval.low == pytest.approx(one.rows_per_second, rel=0.05)
        assert two.interval.high == pytest.approx(2 * one.rows_per_second, rel=0.05)
        assert (one.limit, one.machines, two.machines) == ("shard-compute", 4, 5)

    def test_predictions_from_an_inconclusive_run_are_marked(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for unexplained in (0.0, 0.5):
            run = make_planted(tmp_path / f"{unexplained}", "worker-compute", unexplained=unexplained)
            evidence = gather_evidence(run)
            found = plan_of(evidence, [predict(evidence, Choice("async", count, 1, None)) for count in (1, 2)])
            assert [one["reliable"] for one in found["predictions"]] == [not unexplained] * 2
            print_plan(found)
            told = capsys.readouterr().out
            assert told.count("  unreliable") == (2 if unexplained else 0)
            assert ("do not rely on these predictions: the replay is off by" in told) == bool(unexplained)

    def test_sync_is_not_faster_than_async(self, tmp_path: Path) -> None:
        evidence = gather_evidence(make_planted(tmp_path / "run", "straggler"))
        for workers in (1, 3, 12):
            sync, free = (predict(evidence, Choice(pace, workers, 1, None)) for pace in ("sync", "async"))
            assert sync.rows_per_second <= 1.03 * free.rows_per_second
