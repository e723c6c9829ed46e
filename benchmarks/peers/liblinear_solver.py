"""How fast is LIBLINEAR's logistic regression on the same rows?  (called as described in rows.py)

The setting has the `solver` (0: trust region Newton, 7: dual coordinate descent) and the cost `C`. It is a batch
solver: each point of the curve is a separate fit, with the next smaller tolerance. A pass is an iteration of the dual
solver, or in the Newton method a gradient or a product with the Hessian. The first step is when the rows are ready and
the solver starts.
"""

from __future__ import annotations

import re
import time
from importlib.metadata import version
from typing import Any

import numpy as np
import scipy.sparse
from liblinear.liblinear import PRINT_STRING_FUN, parameter, problem
from liblinear.liblinearutil import train as fit

from rows import Rows, answer, asked, load, log_loss, scores

# solver → where it stops; LIBLINEAR's own default comes last
TOLERANCES = {0: [0.9, 0.5, 0.2, 0.05, 0.01], 7: [1000.0, 100.0, 10.0, 1.0, 0.1]}


def num_passes(said: str, solver: int) -> int:
    """How often a fit went over the rows, by what it said."""
    if solver == 7:
        return int(re.findall(r"#iter = (\d+)", said)[-1])
    steps = [int(count) for count in re.findall(r"\bCG\s+(\d+)", said)]
    return 1 + len(steps) + sum(steps)


def fit_to(rows: Any, setting: dict[str, Any], tolerance: float) -> tuple[Any, float, int]:
    """A model, the seconds and the passes it took."""
    said: list[bytes] = []
    how = parameter(f"-s {setting['solver']} -c {setting['C']} -e {tolerance} -B 1")
    how.print_func = PRINT_STRING_FUN(said.append)
    began = time.perf_counter()
    model = fit(rows, how)
    seconds = time.perf_counter() - began
    return model, seconds, num_passes(b"".join(said).decode(), setting["solver"])


def test_loss(model: Any, test: Rows, features: int) -> float:
    """The log loss on the test rows; keys that were in no training row weigh nothing."""
    learned = np.ctypeslib.as_array(model.w, shape=(model.nr_feature + 1,))
    weights = np.zeros(features)
    weights[: model.nr_feature] = learned[:-1]
    sign = 1.0 if model.label[0] == 1 else -1.0
    return log_loss(sign * scores(test, weights, learned[-1]), test.labels)


def main() -> None:
    folder, setting = asked()
    train, test = load(folder / "train"), load(folder / "test")
    num_rows, nonzeros = train.keys.shape
    starts = np.arange(num_rows + 1, dtype=np.int64) * nonzeros
    matrix = scipy.sparse.csr_matrix(
        (train.values.ravel().astype(np.float64), train.keys.ravel(), starts), shape=(num_rows, setting["features"])
    )
    rows = problem(train.labels.astype(np.float64), matrix, bias=1)
    del train
    first_step_at, began, curve = time.time(), time.perf_counter(), []
    tolerances = TOLERANCES[setting["solver"]]
    for tolerance in tolerances[-1:] if setting["tune"] else tolerances:
        model, seconds, passes = fit_to(rows, setting, tolerance)
        curve.append([passes * num_rows, seconds, test_loss(model, test, setting["features"])])
        if time.perf_counter() - began > setting["most_seconds"]:
            break
    rate = max(count / seconds for count, seconds, _ in curve)
    answer(rows_per_second=rate, first_step_at=first_step_at, curve=curve, version=version("liblinear-official"))


if __name__ == "__main__":
    main()
