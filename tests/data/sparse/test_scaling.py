"""Values far from 1 are stored near 1, and come back as the source has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import SparseDataset, sparse_writer
from paceline.data.sparse.key_order import KeyOrder
from paceline.data.sparse.scaling import Scaler, Scaling, choose_scaling
from tests.data.inputs import rows_of, rows_of_batch

ROWS = 400


def columns(seed: int = 0) -> dict[int, Any]:
    """Key → its value in each row; 0 where a row does not have it."""
    rng = np.random.default_rng(seed)
    draw = rng.normal(size=ROWS)
    return {
        0: np.ones(ROWS),
        1: 40_000 + 15_000 * draw,  # an income: a centre
        2: 2_000 + draw,  # a year: a centre
        3: (rng.random(ROWS) < 0.3) * 500.0,  # sparse: only a scale
        4: np.full(ROWS, 0.001),  # constant: only a scale
        5: rng.random(ROWS) < 0.5,  # 0 and 1: nothing
        6: 7.0 + 0.1 * draw,  # near 1, but far from 0 for its deviation: a centre
        7: 1.5 + draw,  # nothing
        8: np.where(np.arange(ROWS) % 20, 90.0 + draw, 0.0),  # a twentieth of the rows have none: a centre
    }


def batch_of(found: dict[int, Any], dtype: Any = np.uint32) -> Batch:
    table = np.stack([found[key] for key in found], axis=1).astype(np.float32)
    row, column = np.nonzero(table)
    keys = np.array(list(found), dtype)[column]
    offsets = np.concatenate([[0], np.cumsum((table != 0).sum(1))]).astype(np.int64)
    return Batch((np.arange(ROWS) % 2).astype(np.uint8), offsets, keys, table[row, column])


def chosen(batch: Batch) -> Scaling:
    return choose_scaling(
        KeyOrder(np.arange(9, dtype=np.uint64)[::-1].copy()), [batch.slice(0, 200), batch.slice(200, ROWS)]
    )


def test_only_keys_far_from_1_are_scaled() -> None:
    scaling = chosen(batch_of(columns()))
    found = {
        key: (scale, centre) for key, scale, centre in zip(scaling.keys, scaling.scales, scaling.centres, strict=True)
    }
    assert {key for key in found if found[key][1]} == {1, 2, 6, 8}
    assert found[3] == (512, 0)
    assert found[4] == (2.0**-10, 0)
    assert found[1][0] == 16_384
    assert found[1][1] == pytest.approx(40_000, abs=4_096)
    assert set(found) == {1, 2, 3, 4, 6, 8}


def test_stored_values_are_near_1_and_come_back() -> None:
    rows = batch_of(columns())
    scaler = Scaler(chosen(rows))
    stored = scaler.apply(rows)
    assert np.sqrt(np.mean(stored.values.astype(np.float64) ** 2)) < 2
    lengths = np.bincount(stored.keys, minlength=9)
    assert lengths[[1, 2, 6, 8]].tolist() == [ROWS] * 4  # a centred key is in every row
    assert lengths[3] == np.count_nonzero(columns()[3])
    back = scaler.undo(stored)
    assert back.offsets.tolist() == rows.offsets.tolist()
    assert [sorted(row) for _, row in rows_of_batch(back)] == [sorted(row) for _, row in rows_of_batch(rows)]
    for (_, ours), (_, theirs) in zip(rows_of_batch(back), rows_of_batch(rows), strict=True):
        assert {key: ours[key] for key in ours if key != 1} == {key: theirs[key] for key in theirs if key != 1}
        assert ours[1] == pytest.approx(theirs[1], rel=1e-6)  # some incomes are below half of the centre


def test_weights_for_the_values_of_the_source_give_the_same_scores() -> None:
    rows = batch_of(columns())
    scaling = chosen(rows)
    weights = np.random.default_rng(1).normal(size=9).astype(np.float32)
    theirs, bias = scaling.weights_of_source(weights, np.full(1, 0.25, np.float32))
    both, biases = scaling.weights_of_source(np.stack([weights, 2 * weights], 1), np.array([0.25, 0.5], np.float32))
    assert np.array_equal(both, np.stack([theirs, 2 * theirs], 1))  # a column per class
    assert biases.tolist() == [bias[0], 2 * bias[0]]
    stored = Scaler(scaling).apply(rows)

    def scores(rows: Batch, weights: Any, bias: Any) -> Any:
        return np.add.reduceat(rows.values.astype(np.float64) * weights[rows.keys], rows.offsets[:-1]) + bias

    assert scores(rows, theirs, bias) == pytest.approx(scores(stored, weights, 0.25), abs=2e-2)
    # The year is 2,000 deviations away from 0, which costs digits of a weight in float32.
    assert np.abs(scores(rows, theirs, bias) - scores(stored, weights, 0.25)).mean() < 1e-3


def test_wide_keys_fields_and_weights_come_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.data.sparse.scaling.MOST_CELLS", 100)  # in several pieces
    rows = batch_of(columns(), np.uint64)
    rows = rows._replace(fields=(rows.keys + 1).astype(np.uint16), weights=np.arange(ROWS, dtype=np.float32))
    scaling = chosen(rows)
    assert scaling.fields == tuple(key + 1 for key in scaling.keys)
    stored = Scaler(scaling).apply(rows)
    assert np.array_equal(stored.fields, stored.keys + 1)  # type: ignore[arg-type]
    assert stored.weights is not None
    assert stored.weights.tolist() == list(range(ROWS))
    assert Scaler(scaling).undo(stored).offsets.tolist() == rows.offsets.tolist()


def test_a_dataset_reads_scaled_rows_and_those_of_the_source(tmp_path: Path) -> None:
    batch = batch_of(columns())
    with sparse_writer(tmp_path / "d", features=9, source={}, scale="auto") as writer:
        writer.add("train", batch.copy())
        writer.add("test", batch.slice(0, 50).copy())
        dataset = writer.finish()
    assert set(dataset.manifest.scaling.keys) == {1, 2, 3, 4, 6, 8}
    assert np.abs(dataset.block("test", 0).values).max() < 10
    assert dataset.manifest.hot_counts == [ROWS] * 7 + sorted(
        (np.count_nonzero(columns()[key]) for key in (3, 5)), reverse=True
    )
    assert [set(row) for _, row in rows_of(SparseDataset(tmp_path / "d"), "test")] == [
        set(row) for _, row in rows_of_batch(batch.slice(0, 50))
    ]
    with sparse_writer(tmp_path / "plain", features=9, source={}) as writer:
        writer.add("train", batch.copy())
        plain = writer.finish()
    assert not plain.manifest.scaling.keys
    assert plain.fingerprint != dataset.fingerprint
    other = Scaling((1, 3), (1024.0, 2.0), (1000.0, 0.0))
    plain.rescale(other)
    assert plain.block("train", 0).values == pytest.approx(
        Scaler(other, plain.key_order).apply(SparseDataset(tmp_path / "plain").block("train", 0)).values
    )
    dataset.rescale(dataset.manifest.scaling)
    assert np.abs(dataset.block("test", 0).values).max() < 10


def test_values_that_a_scale_would_make_infinite_stay_finite() -> None:
    rows = Batch.from_lists([1], [[0]], [[1e38]])
    assert np.isfinite(Scaler(Scaling((0,), (2.0**-100,), (0.0,))).apply(rows).values).all()


@pytest.mark.parametrize(
    "text",
    [
        b'{"keys":[1,1],"scales":[2,2],"centres":[0,0]}',
        b'{"keys":[1],"scales":[2,2],"centres":[0]}',
        b'{"keys":[1],"scales":[3],"centres":[0]}',
        b'{"keys":[1],"scales":[0],"centres":[0]}',
        b'{"keys":[1],"scales":[2],"centres":[1e300]}',
        b'{"keys":[-1],"scales":[2],"centres":[0]}',
        b'{"keys":[1],"scales":[2],"centres":[0],"fields":[1,2]}',
        b'{"keys":[1],"scales":[2],"centres":[0],"fields":[65536]}',
        b'{"keys":[1],"scales":[2],"centres":[0],"fields":[-1]}',
    ],
)
def test_a_damaged_scaling_is_refused(text: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=Scaling)
