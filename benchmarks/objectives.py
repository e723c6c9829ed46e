"""Does a linear model reach the lowest training objective under every loss? scikit-learn's solvers say how low it is.

    python benchmarks/objectives.py DATA [--only PART_OF_A_NAME] [--write]

Every case is a loss and a public data set: those that scikit-learn carries, and `libsvm/a9a` of DATA. paceline gets the
columns as they are, the solver standardised ones, which have the same optimum. The mean loss of both on the training
rows is computed here, in float64. Solvers are not regularised, or as good as not. A loss that this version
of paceline does not have is left out.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from sklearn import datasets, linear_model, svm

import paceline
from embedded import machine
from paceline.data.limits import LabelKind
from paceline.data.prepare import prepare
from paceline.data.prepare_settings import PrepareConfig

RESULTS = Path(__file__).parent / "results"
TRAINED_ROWS = 20_000_000
WITHIN = 0.01
QUANTILE = 0.9
RATE = 0.5


class Rows(NamedTuple):
    """Columns and labels, and what `--labels` calls these."""

    values: Any
    labels: Any
    kind: LabelKind


class Case(NamedTuple):
    """A loss, the mean of which `objective` computes from scores and labels; `solve` is the solver's scores.

    `settings` are those of paceline's loss; they may depend on what the solver found.
    """

    loss: str
    data: str
    solve: Callable[[Any, Any], tuple[Any, dict[str, float]]]
    objective: Callable[..., float]


def table_of(name: str, data: Path) -> Rows:
    """A data set by name."""
    if name.startswith("a9a"):
        values, labels = datasets.load_svmlight_file(str(data / "libsvm" / "a9a"), n_features=123)
        return Rows(values, labels, "numbers" if name.endswith("numbers") else "two-classes")
    diabetes, digits = datasets.load_diabetes(scaled=False), datasets.load_digits()
    pixels = digits.data[:, digits.data.std(axis=0) > 0.5]
    thirds = np.searchsorted(np.quantile(diabetes.target, [1 / 3, 2 / 3]), diabetes.target)
    return {
        "diabetes": Rows(diabetes.data, diabetes.target, "numbers"),
        "digits": Rows(pixels, digits.target.astype(float), "numbers"),
        "diabetes above 140": Rows(diabetes.data, (diabetes.target > 140) * 1, "two-classes"),
        "diabetes in thirds": Rows(diabetes.data, thirds, "classes"),
        "digits modulo 3": Rows(pixels, digits.target % 3, "classes"),
    }[name]


def by(solver: Any, scores: str = "predict") -> Callable[[Any, Any], tuple[Any, dict[str, float]]]:
    """A solver on standardised columns, which changes no unregularised optimum but lets all of them converge."""

    def solve(values: Any, labels: Any) -> tuple[Any, dict[str, float]]:
        dense = values.toarray() if scipy.sparse.issparse(values) else values
        wide = (dense - dense.mean(axis=0)) / np.maximum(dense.std(axis=0), 1e-9)
        fitted = solver.fit(wide, labels)
        found = getattr(fitted, scores)(wide)
        settings = {"delta": fitted.epsilon * fitted.scale_} if hasattr(fitted, "scale_") else {}
        return found, settings

    return solve


def poisson(values: Any, labels: Any) -> tuple[Any, dict[str, float]]:
    means, settings = by(linear_model.PoissonRegressor(alpha=0, max_iter=10_000, tol=1e-8))(values, labels)
    return np.log(means), settings


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
    for data in ("diabetes", "a9a as numbers"):
        yield Case("squared", data, by(linear_model.LinearRegression()), squared)
    for data, c in (("diabetes above 140", 1000), ("a9a", 1)):
        plain = svm.LinearSVC(loss="hinge", C=c, max_iter=many, random_state=0)
        yield Case("hinge", data, by(plain, "decision_function"), hinge)
        smooth = svm.LinearSVC(loss="squared_hinge", C=1000, max_iter=many, dual=False)
        yield Case("squared-hinge", data, by(smooth, "decision_function"), squared_hinge)
    for data in ("diabetes", "digits"):
        yield Case("poisson", data, poisson, poisson_loss)
        lines = linear_model.QuantileRegressor(quantile=QUANTILE, alpha=0)
        yield Case("quantile", data, by(lines), pinball)
        yield Case("huber", data, by(linear_model.HuberRegressor(alpha=0, max_iter=many)), huber)
    for data in ("diabetes in thirds", "digits modulo 3"):
        several = linear_model.LogisticRegression(C=1e6, max_iter=many)
        yield Case("softmax", data, by(several, "decision_function"), softmax)


def write_csv(path: Path, rows: Rows) -> None:
    """The columns and the label as a CSV file, with all digits."""
    dense = rows.values.toarray() if scipy.sparse.issparse(rows.values) else rows.values
    with path.open("w") as file:
        file.write(",".join([f"c{j}" for j in range(dense.shape[1])] + ["label"]) + "\n")
        for line, label in zip(dense.tolist(), rows.labels.tolist(), strict=True):
            file.write(",".join(map(repr, [*line, label])) + "\n")


def measure(case: Case, data: Path) -> dict[str, Any]:
    """Both objectives of one case."""
    rows = table_of(case.data, data)
    line: dict[str, Any] = {"loss": case.loss, "data": case.data, "rows": len(rows.labels)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs, settings = case.solve(rows.values, rows.labels)
    flags: dict[str, Any] = {"settings": [f"loss.{name}={value}" for name, value in settings.items()]}
    if case.loss == "quantile":
        flags["settings"].append(f"loss.quantile={QUANTILE}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_csv(folder / "rows.csv", rows)
        out, source = str(folder / "data"), str(folder / "rows.csv")
        prepare(PrepareConfig(sources=[source], out=out, labels=rows.kind), lambda _: None)
        try:
            run = paceline.train(
                data=folder / "data", run=folder / "run", model="linear", loss=case.loss, workers=1, seed=1,
                epochs=TRAINED_ROWS // len(rows.labels), checkpoint_every=0, learning_rate=RATE, **flags,
            )  # fmt: skip
        except paceline.PacelineError as error:
            return line | {"left out": str(error).splitlines()[0]}
        model = paceline.load(run.path)
        values = scipy.sparse.csr_matrix(rows.values, dtype=np.float32)
        ours = model.decision_function(values).astype(np.float64)
    found, least = case.objective(ours, rows.labels, **settings), case.objective(theirs, rows.labels, **settings)
    return line | {
        "objective": found,
        "solver": least,
        "above": found / least - 1,
        "holds": found <= (1 + WITHIN) * least,
    }


def report(data: Path, only: str = "") -> str:
    """Measure all cases; prints one line each, and returns the table."""
    table = (
        f"Mean loss on the training rows, after {TRAINED_ROWS:,} rows of AdaGrad at rate {RATE}, and of scikit-learn's "
        "solver for the same objective.\n\n"
        "| loss | data | rows | paceline | scikit-learn | above | at most 1 % |\n|---|---|---|---|---|---|---|\n"
    )
    for case in cases():
        if only in f"{case.loss} {case.data}":
            line = measure(case, data)
            print(json.dumps(line), flush=True)
            table += f"| {case.loss} | {case.data} | {line['rows']:,} | {_figures(line)} |\n"
    return table


def _figures(line: dict[str, Any]) -> str:
    if "left out" in line:
        return f"left out: {line['left out']} | | |"
    holds = "yes" if line["holds"] else "**no**"
    return f"{line['objective']:.5g} | {line['solver']:.5g} | {line['above']:+.2%} | {holds}"


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
