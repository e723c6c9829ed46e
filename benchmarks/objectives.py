"""Does a linear model reach the lowest training objective under every loss? scikit-learn's solvers say how low it is.

    pip install statsmodels                       (three of the data sets come with it; without it they are left out)
    python benchmarks/objectives.py DATA [--only PART_OF_A_NAME] [--write]

Every case is a loss and a public data set with its own labels: diabetes, digits and breast cancer of scikit-learn,
engel, randhie and anes96 of statsmodels, and `libsvm/a9a` of DATA. paceline gets the columns as they are, the solver
standardised ones, which have the same optimum. A line separates the classes of breast cancer and of digits, so these
cases have an L2 penalty, which is a part of the objective; there both get standardised columns. The objective of both
on the training rows is computed here, in float64. What this version of paceline or this machine does not have is left
out.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from sklearn import datasets, linear_model, svm

import paceline
from embedded import machine
from paceline.data.limits import LabelKind, Scale
from paceline.data.prepare import prepare
from paceline.data.prepare_settings import PrepareConfig

RESULTS = Path(__file__).parent / "results"
TRAINED_ROWS = 20_000_000
WITHIN = 0.01
QUANTILE = 0.9
# The learning rate that counts, and the default, which shows how far a run gets without any setting but epochs.
RATES = (0.2, 0.05)
L2 = 0.01


class Rows(NamedTuple):
    """Columns and labels, and what `--labels` calls these."""

    values: Any
    labels: Any
    kind: LabelKind


class Found(NamedTuple):
    """What a solver found: the scores of the training rows, the weights, and the settings of the loss that it chose."""

    scores: Any
    weights: Any
    settings: dict[str, float]


class Case(NamedTuple):
    """A loss, the mean of which `objective` computes from scores and labels, and what minimises it.

    `l2` / 2 · |weights|² is added to the mean; `solve` must have the same penalty.
    """

    loss: str
    data: str
    solve: Callable[[Any, Any], Found]
    objective: Callable[..., float]
    l2: float = 0.0

    def total(self, scores: Any, labels: Any, weights: Any, settings: dict[str, float]) -> float:
        penalty = self.l2 / 2 * float(np.sum(np.square(weights, dtype=np.float64))) if self.l2 else 0.0
        return self.objective(scores, labels, **settings) + penalty


def table_of(name: str, data: Path) -> Rows:
    """A data set by name."""
    if name == "a9a":
        values, labels = datasets.load_svmlight_file(str(data / "libsvm" / "a9a"), n_features=123)
        return Rows(values, labels, "two-classes")
    if name in OF_STATSMODELS:
        module, label, left, kind = OF_STATSMODELS[name]
        columns = getattr(import_module("statsmodels.api").datasets, module).load_pandas().data
        return Rows(columns.drop(columns=[label, *left]).to_numpy(float), columns[label].to_numpy(), kind)
    load, kind = OF_SCIKIT_LEARN[name]
    found = load()
    # Pixels that hardly ever differ say nothing, and standardised they would be huge.
    return Rows(found.data[:, found.data.std(axis=0) > 1e-9], found.target, kind)


# name → module of statsmodels, column of the labels, columns that are left out, kind of labels
OF_STATSMODELS: dict[str, tuple[str, str, list[str], LabelKind]] = {
    "engel": ("engel", "foodexp", [], "numbers"),
    "randhie": ("randhie", "mdvis", [], "numbers"),
    "anes96, vote": ("anes96", "vote", [], "two-classes"),
    "anes96, party": ("anes96", "PID", ["vote"], "classes"),
}
OF_SCIKIT_LEARN: dict[str, tuple[Callable[[], Any], LabelKind]] = {
    "diabetes": (partial(datasets.load_diabetes, scaled=False), "numbers"),
    "digits as numbers": (datasets.load_digits, "numbers"),
    "digits": (datasets.load_digits, "classes"),
    "breast cancer": (datasets.load_breast_cancer, "two-classes"),
}


def standardised(values: Any) -> Any:
    dense = values.toarray() if scipy.sparse.issparse(values) else values
    return (dense - dense.mean(axis=0)) / np.maximum(dense.std(axis=0), 1e-9)


def by(solver: Any, scores: str = "predict") -> Callable[[Any, Any], Found]:
    """A solver on standardised columns, which changes no unregularised optimum but lets all of them converge."""

    def solve(values: Any, labels: Any) -> Found:
        wide = standardised(values)
        fitted = solver.fit(wide, labels)
        settings = {"delta": fitted.epsilon * fitted.scale_} if hasattr(fitted, "scale_") else {}
        return Found(getattr(fitted, scores)(wide), fitted.coef_, settings)

    return solve


def poisson(values: Any, labels: Any) -> Found:
    found = by(linear_model.PoissonRegressor(alpha=0, max_iter=10_000, tol=1e-8))(values, labels)
    return found._replace(scores=np.log(found.scores))


def squared(z: Any, y: Any) -> float:
    return float(np.mean((z - y) ** 2))


def hinge(z: Any, y: Any) -> float:
    return float(np.mean(np.maximum(0, 1 - _signs(y) * z)))


def squared_hinge(z: Any, y: Any) -> float:
    return float(np.mean(np.maximum(0, 1 - _signs(y) * z) ** 2))


def poisson_loss(z: Any, y: Any) -> float:
    """Half the deviance. The terms of labels alone keep it positive, so that a percent means something."""
    logs = np.where(y > 0, y * np.log(np.maximum(y, 1e-300)), 0)
    return float(np.mean(np.exp(z) - y * z - y + logs))


def pinball(z: Any, y: Any) -> float:
    return float(np.mean(np.maximum(QUANTILE * (y - z), (QUANTILE - 1) * (y - z))))


def huber(z: Any, y: Any, delta: float = 1.0) -> float:
    away = np.abs(z - y)
    return float(np.mean(np.where(away <= delta, away**2 / 2, delta * (away - delta / 2))))


def softmax(z: Any, y: Any) -> float:
    shifted = z - z.max(axis=1, keepdims=True)
    return float(np.mean(np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(y)), y.astype(int)]))


def _signs(y: Any) -> Any:
    return np.where(y > 0, 1.0, -1.0)


def cases() -> Iterator[Case]:
    many = 100_000
    for data in ("diabetes", "engel", "randhie"):
        yield Case("squared", data, by(linear_model.LinearRegression()), squared)
    # LinearSVC's C is 1 / (l2 · rows).
    for data, c, l2 in (("anes96, vote", 1000, 0.0), ("a9a", 1, 0.0), ("breast cancer", 1 / (L2 * 569), L2)):
        plain = svm.LinearSVC(loss="hinge", C=c, max_iter=many, random_state=0)
        yield Case("hinge", data, by(plain, "decision_function"), hinge, l2)
        smooth = svm.LinearSVC(loss="squared_hinge", C=c if l2 else 1000, max_iter=many, dual=False)
        yield Case("squared-hinge", data, by(smooth, "decision_function"), squared_hinge, l2)
    for data in ("diabetes", "randhie", "digits as numbers"):
        yield Case("poisson", data, poisson, poisson_loss)
    for data in ("diabetes", "engel", "randhie", "digits as numbers"):
        lines = linear_model.QuantileRegressor(quantile=QUANTILE, alpha=0)
        yield Case("quantile", data, by(lines), pinball)
        yield Case("huber", data, by(linear_model.HuberRegressor(alpha=0, max_iter=many)), huber)
    for data, c, l2 in (("anes96, party", 1e6, 0.0), ("digits", 1 / (L2 * 1797), L2)):
        several = linear_model.LogisticRegression(C=c, max_iter=many)
        yield Case("softmax", data, by(several, "decision_function"), softmax, l2)


def write_csv(path: Path, rows: Rows) -> None:
    """The columns and the label as a CSV file, with all digits."""
    dense = rows.values.toarray() if scipy.sparse.issparse(rows.values) else rows.values
    with path.open("w") as file:
        file.write(",".join([f"c{j}" for j in range(dense.shape[1])] + ["label"]) + "\n")
        for line, label in zip(dense.tolist(), rows.labels.tolist(), strict=True):
            file.write(",".join(map(repr, [*line, label])) + "\n")


def measure(case: Case, data: Path) -> dict[str, Any]:
    """The objectives of one case: ours at each learning rate, and the solver's."""
    rows = table_of(case.data, data)
    line: dict[str, Any] = {"loss": case.loss, "data": case.data, "l2": case.l2, "rows": len(rows.labels)}
    if case.l2:
        rows = rows._replace(values=standardised(rows.values))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = case.solve(rows.values, rows.labels)
    least = case.total(theirs.scores, rows.labels, theirs.weights, theirs.settings)
    settings = [f"loss.{name}={value}" for name, value in theirs.settings.items()]
    if case.loss == "quantile":
        settings.append(f"loss.quantile={QUANTILE}")
    found: dict[float, float] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_csv(folder / "rows.csv", rows)
        out, source = str(folder / "data"), str(folder / "rows.csv")
        scale: Scale = "none" if case.l2 else "auto"
        prepare(PrepareConfig(sources=[source], out=out, labels=rows.kind, scale=scale), lambda _: None)
        for rate in RATES:
            try:
                run = paceline.train(
                    data=folder / "data", run=folder / str(rate), model="linear", loss=case.loss, workers=1, seed=1,
                    l2=case.l2, epochs=TRAINED_ROWS // len(rows.labels), checkpoint_every=0, learning_rate=rate,
                    settings=settings, progress=False,
                )  # fmt: skip
            except paceline.PacelineError as error:
                return line | {"left out": str(error).splitlines()[0]}
            model = paceline.load(run.path)
            scores = model.decision_function(scipy.sparse.csr_matrix(rows.values, dtype=np.float32))
            found[rate] = case.total(scores.astype(np.float64), rows.labels, model.weights, theirs.settings)
    return line | {
        "objective": found,
        "solver": least,
        "above": {rate: objective / least - 1 for rate, objective in found.items()},
        "holds": found[RATES[0]] <= (1 + WITHIN) * least,
    }


def report(data: Path, only: str = "") -> str:
    """Measure all cases; prints one line each, and returns the table."""
    wanted = [case for case in cases() if only in f"{case.loss} {case.data}"]
    said = (
        "Mean loss on the training rows, plus L2 / 2 · |weights|². paceline: single rows with AdaGrad, "
        f"{TRAINED_ROWS:,} in all, at two learning rates: that of {RATES[0]} counts, and {RATES[1]} is the default. "
        "scikit-learn: its solver for the same objective.\n\n"
    )
    missing = sorted({case.data for case in wanted if case.data in OF_STATSMODELS})
    if missing and not find_spec("statsmodels"):
        wanted = [case for case in wanted if case.data not in OF_STATSMODELS]
        left_out = f"Left out: {'; '.join(missing)}. They come with statsmodels: pip install statsmodels"
        print(left_out, flush=True)
        said += f"{left_out}\n\n"
    columns = ["loss", "data", "rows", "L2", "scikit-learn", *(f"paceline, {rate}" for rate in RATES)]
    columns += [*(f"above, {rate}" for rate in RATES), "at most 1 %"]
    said += f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|\n"
    for case in wanted:
        line = measure(case, data)
        print(json.dumps(line), flush=True)
        said += f"| {case.loss} | {case.data} | {line['rows']:,} | {case.l2:g} | {_figures(line)} |\n"
    return said


def _figures(line: dict[str, Any]) -> str:
    if "left out" in line:
        return f"left out: {line['left out']} {'| ' * (2 * len(RATES) + 1)}"
    objectives = " | ".join(f"{line['objective'][rate]:.5g}" for rate in RATES)
    above = " | ".join(f"{line['above'][rate]:+.2%}" for rate in RATES)
    return f"{line['solver']:.5g} | {objectives} | {above} | {'yes' if line['holds'] else '**no**'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    said = f"# Training objectives, {today}\n\n{machine()}. `python benchmarks/objectives.py DATA`.\n\n"
    said += report(arguments.data, arguments.only)
    print(said)
    if arguments.write:
        (RESULTS / f"{today}-objectives.md").write_text(said)


if __name__ == "__main__":
    main()
