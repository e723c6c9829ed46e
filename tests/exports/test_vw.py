"""The text that Vowpal Wabbit would write: its lines, and what VW would compute from them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import paceline
from paceline.errors import UsageError
from paceline.exports.vw import bits_for
from tests.exports.models import make_rows, predicted, train


def read(path: Path) -> tuple[dict[str, str], dict[int, float]]:
    """What a script for VW's files finds: the head, and the weights by number."""
    head, weights = path.read_text().split("\n:0\n")
    named = dict(line.split(":", 1) for line in head.splitlines() if ":" in line)
    pairs = [line.split(":") for line in weights.splitlines()]
    assert [int(number) for number, _ in pairs] == sorted(int(number) for number, _ in pairs)
    return named, {int(number): float(weight) for number, weight in pairs}


@pytest.mark.parametrize(
    ("labels", "loss", "options"),
    [
        ("two-classes", "logistic", "--loss_function logistic --link logistic"),
        ("counts", "poisson", "--loss_function poisson --link poisson"),
        ("numbers", "huber", "--loss_function squared"),
    ],
)
def test_the_weights_and_the_constant_make_the_scores(tmp_path: Path, labels: str, loss: str, options: str) -> None:
    run = train(tmp_path, labels, loss=loss)
    head, weights = read(paceline.export(run, to="vw", out=tmp_path / "model.txt"))
    assert head["bits"] == "18"
    assert options in head["options"]
    assert re.search(r"--bit_precision 18 .* --max_prediction [0-9e+]+$", head["options"])
    model, rows = paceline.load(run.path), make_rows(seed=8)._replace(fields=None)
    pairs = zip(rows.keys.reshape(rows.num_rows, -1), rows.values.reshape(rows.num_rows, -1), strict=True)
    scores = np.array(
        [weights[116060] + sum(weights.get(int(k), 0) * v for k, v in zip(*row, strict=True)) for row in pairs]
    )
    links = {"logistic": 1 / (1 + np.exp(-scores)), "poisson": np.exp(scores), "huber": scores}
    np.testing.assert_allclose(links[loss], predicted(model, rows), rtol=1e-3, atol=1e-4)


def test_the_constant_has_a_number_that_no_feature_has() -> None:
    assert [bits_for(features) for features in (1, 116_060, 116_061, 1 << 20)] == [18, 18, 21, 21]
    for features in (1, 10**5, 10**6, 10**7):
        assert 11_650_396 % (1 << bits_for(features)) >= features
    assert bits_for(30_000_000) == 25


@pytest.mark.parametrize(("labels", "model"), [("classes", "linear"), ("two-classes", "fm")])
def test_other_models_are_refused(tmp_path: Path, labels: str, model: str) -> None:
    with pytest.raises(UsageError, match="`vw` is for linear models with one score per row"):
        paceline.export(train(tmp_path, labels, model=model), to="vw", out=tmp_path / "model.txt")
