"""How fast is scikit-learn's SGDClassifier on the same rows?  (called as described in rows.py)

The setting has `rate` and `shuffle`. One thread, rows as CSR in memory. A call of `partial_fit` reads every weight a
few times. So each point of the curve in the first pass is a separate model, trained in one call over that many rows;
afterwards there is one call per pass.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import scipy.sparse
import sklearn
from sklearn.linear_model import SGDClassifier

from rows import Rows, answer, asked, load, log_loss, steady_rate, tenths


def matrix(rows: Rows, features: int) -> Any:
    """The rows as scikit-learn's loop wants them: CSR of float64, 32-bit keys."""
    num_rows, nonzeros = rows.keys.shape
    starts = np.arange(num_rows + 1, dtype=np.int32) * nonzeros
    keys, values = rows.keys.ravel().astype(np.int32), rows.values.ravel().astype(np.float64)
    return scipy.sparse.csr_matrix((values, keys, starts), shape=(num_rows, features))


def new_model(setting: dict[str, Any]) -> SGDClassifier:
    return SGDClassifier(
        loss="log_loss", penalty=None, alpha=0, learning_rate="constant", eta0=setting["rate"],
        shuffle=setting["shuffle"], random_state=0,
    )  # fmt: skip


def seconds_of_fit(model: SGDClassifier, rows: Any, labels: Any) -> float:
    began = time.perf_counter()
    model.partial_fit(rows, labels, classes=[0, 1])
    return time.perf_counter() - began


def main() -> None:
    folder, setting = asked()
    train, test = load(folder / "train"), load(folder / "test")
    rows, test_rows = matrix(train, setting["features"]), matrix(test, setting["features"])
    labels, num_rows = train.labels, len(train.labels)
    del train
    seconds_of_fit(new_model(setting), rows[:1], labels[:1])
    first_step_at, curve = time.time(), []
    for count in tenths(num_rows, setting):
        model, part = new_model(setting), rows[:count]
        seconds = seconds_of_fit(model, part, labels[:count])
        curve.append([count, seconds, log_loss(model.decision_function(test_rows), test.labels)])
    for number in range(2, setting["passes"] + 1):
        seconds = curve[-1][1] + seconds_of_fit(model, rows, labels)
        curve.append([number * num_rows, seconds, log_loss(model.decision_function(test_rows), test.labels)])
    rate = steady_rate([point for point in curve if point[0] >= num_rows])
    answer(rows_per_second=rate, first_step_at=first_step_at, curve=curve, version=sklearn.__version__)


if __name__ == "__main__":
    main()
