"""Made-up clicks: the same bytes for the same seed, a few hot keys as in Criteo's data, and something to learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.data.limits import SKEW_NAMES, SkewName
from paceline.data.sparse.dataset import SparseDataset
from paceline.data.synthetic import generate_clicks
from paceline.errors import ConfigError
from tests.conftest import Command

CRITEO_FEATURES = 33_762_578
HOTTEST = (10, 100, 1_000, 10_000)


def make(path: Path, **settings: Any) -> SparseDataset:
    defaults = {"rows": 3_000, "features": CRITEO_FEATURES, "test_rows": 500, "seed": 0}
    return generate_clicks(path, progress=lambda _: None, **{**defaults, **settings})


def percent_of_hottest(dataset: SparseDataset) -> list[float]:
    """How many percent of all nonzeros the hottest keys have."""
    blocks = range(len(dataset.split("train").blocks))
    keys = np.concatenate([dataset.block("train", block).keys for block in blocks])
    counts = np.sort(np.unique(keys, return_counts=True)[1])[::-1]
    return [100 * float(counts[:hottest].sum()) / len(keys) for hottest in HOTTEST]


@pytest.mark.parametrize(
    ("settings", "fingerprint"),
    [({}, "856b26e5bf5a8f4f"), ({"features": 5_000, "seed": 3}, "85d9a125c77eee60")],
)
def test_default_clicks_keep_their_bits(tmp_path: Path, settings: dict[str, Any], fingerprint: str) -> None:
    """The fingerprints were recorded before clicks had a skew."""
    dataset = make(tmp_path / "data", **settings)
    assert dataset.fingerprint == fingerprint
    assert "skew" not in dataset.manifest.source


@pytest.mark.parametrize(("skew", "percent"), [("criteo", (25, 64, 77, 89)), ("log-uniform", (26, 51, 69, 82))])
def test_hottest_keys_have_their_share_of_all_nonzeros(
    tmp_path: Path, skew: SkewName, percent: tuple[float, ...]
) -> None:
    dataset = make(tmp_path / "data", rows=200_000, skew=skew)
    assert dataset.split("train").nonzeros == 39 * 200_000
    assert percent_of_hottest(dataset) == pytest.approx(percent, abs=1)


def test_interactions_change_labels_and_fields_are_columns(tmp_path: Path) -> None:
    plain, pairs = make(tmp_path / "plain"), make(tmp_path / "pairs", interactions=True, fields=True)
    assert pairs.manifest.source["interactions"] is True
    assert pairs.manifest.fields[:2] == ("I1", "I2")
    assert pairs.manifest.fields[-1] == "C26"
    ours, theirs = pairs.block("train", 0), plain.block("train", 0)
    np.testing.assert_array_equal(ours.keys, theirs.keys)
    assert 0.05 < np.mean(ours.labels != theirs.labels) < 0.5
    assert ours.fields is not None
    np.testing.assert_array_equal(ours.fields.reshape(-1, 39), np.arange(39)[None, :].repeat(3_000, 0))


def test_the_smallest_number_of_features_can_be_skewed_too(tmp_path: Path) -> None:
    dataset = make(tmp_path / "data", features=91, skew="criteo")
    assert dataset.manifest.source["skew"] == "criteo"
    assert dataset.split("train").nonzeros == 39 * 3_000


@pytest.mark.parametrize("skew", SKEW_NAMES)
def test_models_learn_from_them(tmp_path: Path, skew: SkewName) -> None:
    dataset = make(tmp_path / "data", rows=30_000, features=50_000, test_rows=5_000, skew=skew)
    run = paceline.train(data=tmp_path / "data", workers=1, epochs=2, run=tmp_path / "run")
    share = dataset.split("test").positives / 5_000
    constant = -share * np.log(share) - (1 - share) * np.log(1 - share)
    assert run.result["test"]["loss"] < 0.9 * constant


def test_an_unknown_skew_is_refused(tmp_path: Path, command: Command) -> None:
    with pytest.raises(ConfigError, match="`skew` is `zipf`; it must be log-uniform or criteo"):
        make(tmp_path / "data", skew="zipf")
    done = command("generate", "clicks", "--rows", 100, "--skew", "zipf", "--out", tmp_path / "data")
    assert done.code == 2
    assert "'zipf' is not one of 'log-uniform', 'criteo'" in done.err
