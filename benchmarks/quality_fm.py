"""How good are factorization machines, next to logistic regression and to PyTorch's on the same rows?

    python benchmarks/quality_fm.py DATA [--splits 5] [--rows 1000000] [--write]

DATA holds `criteo/criteo_80k.tsv.gz`. Each split draws a tenth of its rows for validation and a tenth for testing.
Every model has a grid of settings. In each split, a model is the one after the number of passes with the lowest loss on
the validation rows; of the settings, those with the lowest mean of these losses over all splits count. Test rows decide
nothing. The machine of PyTorch has the same formula over sparse embeddings, trained by AdaGrad. Clicks with
interactions (`paceline generate clicks --interactions`) are learned with default settings. Prints one JSON line per
model and split, and tables; `--write` keeps them under benchmarks/results/.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import log_loss, roc_auc_score
from torch.nn.functional import binary_cross_entropy_with_logits

import paceline
import torch
from embedded import machine
from paceline.data.blocks.dataset import Split
from paceline.data.datasets import open_dataset
from paceline.data.prepare import prepare
from paceline.data.prepare_settings import PrepareConfig
from paceline.data.sparse.batch import concatenate
from paceline.data.synthetic import generate_clicks

RESULTS = Path(__file__).parent / "results"
DIM = 8
PEER = "PyTorch's FM"
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
PASSES = 3
EVALUATIONS_PER_PASS = 2
RATES = (0.01, 0.02, 0.05)
MACHINE_RATES = ((0.01, 0.005), (0.02, 0.002), (0.02, 0.005), (0.02, 0.01), (0.05, 0.005))
PEER_RATES = ((0.02, 0.005), (0.02, 0.01), (0.05, 0.005))
TORCH_BATCH = 100
FEWER, FEATURES = 10, 100_000
ALLOWED = {"AUC below logistic regression": 0.001, "loss above logistic regression": 0.001, "AUC from PyTorch": 0.002}
GAIN = 0.02


class Found(NamedTuple):
    """The settings of a model, and its losses and AUC."""

    settings: dict[str, Any]
    validation_loss: float
    loss: float
    auc: float


Settings = dict[str, Any]


def trained(model: str, data: Path, seed: int, tried: Sequence[Settings]) -> list[Found]:
    """A model of paceline with each of these settings, as good as it was on the validation rows."""
    rows = json.loads((data / "manifest.json").read_text())["train"]["rows"]
    found = []
    for settings in tried:
        with tempfile.TemporaryDirectory() as folder:
            result = paceline.train(
                data=data, run=f"{folder}/run", model=model, workers=1, epochs=PASSES, checkpoint_every=0, seed=seed,
                test_every=rows // EVALUATIONS_PER_PASS, progress=False, **settings,
            ).result  # fmt: skip
        found.append(Found(settings, result["validation"]["loss"], result["test"]["loss"], result["test"]["auc"]))
    return found


def best(found: Iterable[Found]) -> Found:
    return min(found, key=lambda one: one.validation_loss)


# -- PyTorch


class Padded(NamedTuple):
    """Rows as PyTorch takes them: `keys` and `values` [rows, most nonzeros]. The key of padding has value 0."""

    keys: Any
    values: Any
    labels: Any


def padded(dataset: Any, split: str) -> Padded:
    rows = concatenate([dataset.block(split, index) for index in range(len(dataset.split(split).blocks))])
    sizes = np.diff(rows.offsets)
    keys = np.full((len(sizes), sizes.max()), dataset.features, np.int64)
    values = np.zeros(keys.shape, np.float32)
    inside = np.arange(keys.shape[1]) < sizes[:, None]
    keys[inside], values[inside] = rows.keys, rows.values
    return Padded(keys, values, rows.labels.astype(np.float32))


class Machine(torch.nn.Module):
    """b + Σ wᵢ xᵢ + Σᵢ<ⱼ ⟨vᵢ, vⱼ⟩ xᵢ xⱼ."""

    def __init__(self, keys: int) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(1))
        self.weights = torch.nn.Embedding(keys, 1, sparse=True)
        self.factors = torch.nn.Embedding(keys, DIM, sparse=True)
        torch.nn.init.zeros_(self.weights.weight)
        torch.nn.init.normal_(self.factors.weight, std=0.01)

    def forward(self, keys: Any, values: Any) -> Any:
        scaled = self.factors(keys) * values[..., None]
        both = scaled.sum(1)
        pairs = (both * both).sum(1) - (scaled * scaled).sum((1, 2))
        return self.bias + (self.weights(keys)[..., 0] * values).sum(1) + 0.5 * pairs


def peer_trained(data: Path, seed: int, tried: Sequence[Settings]) -> list[Found]:
    """PyTorch's machine with each of these settings, as good as it was on the validation rows."""
    dataset = open_dataset(str(data))
    splits = {split: padded(dataset, split) for split in SPLITS}
    used, numbers = np.unique(np.concatenate([one.keys.ravel() for one in splits.values()]), return_inverse=True)
    tensors, first = {}, 0
    for split, one in splits.items():
        keys = numbers[first : first + one.keys.size].reshape(one.keys.shape)
        first += one.keys.size
        tensors[split] = Padded(*map(torch.from_numpy, (keys, one.values, one.labels)))
    return [peer_passes(tensors, len(used), seed, settings) for settings in tried]


def peer_passes(splits: Mapping[Split, Padded], keys: int, seed: int, settings: Settings) -> Found:
    torch.manual_seed(seed)
    model, rows = Machine(keys), splits["train"]
    optimizer = torch.optim.Adagrad([
        {"params": [model.bias, model.weights.weight], "lr": settings["rate"]},
        {"params": [model.factors.weight], "lr": settings["factors"]},
    ])  # fmt: skip
    found = []
    segment = len(rows.labels) // EVALUATIONS_PER_PASS
    for order in (torch.randperm(len(rows.labels)) for _ in range(PASSES)):
        for start in range(0, segment * EVALUATIONS_PER_PASS, segment):
            for batch in order[start : start + segment].split(TORCH_BATCH):  # type: ignore[no-untyped-call]
                optimizer.zero_grad()
                scores = model(rows.keys[batch], rows.values[batch])
                binary_cross_entropy_with_logits(scores, rows.labels[batch]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            loss, _ = measured(model, splits["validation"])
            found.append(Found(settings, loss, *measured(model, splits["test"])))
    return best(found)


def measured(model: Machine, rows: Padded) -> tuple[float, float]:
    """Log loss and AUC."""
    with torch.no_grad():
        chances: NDArray[np.float64] = torch.sigmoid(model(rows.keys, rows.values).double()).numpy()
    return float(log_loss(rows.labels, chances)), float(roc_auc_score(rows.labels, chances))


# -- tables

MODELS: dict[str, tuple[Callable[[Path, int, Sequence[Settings]], list[Found]], list[Settings]]] = {
    "logistic regression": (partial(trained, "logistic"), [{"learning_rate": rate} for rate in RATES]),
    "FM": (
        partial(trained, "fm"),
        [
            {"dim": DIM, "learning_rate": rate, "settings": [f"factors.learning_rate={factors}"]}
            for rate, factors in MACHINE_RATES
        ],
    ),
    PEER: (peer_trained, [{"rate": rate, "factors": factors} for rate, factors in PEER_RATES]),
}


def criteo(source: Path, splits: int) -> str:
    """Each model with each of its settings on each split of Criteo; the table and what holds."""
    tried: dict[str, list[list[Found]]] = {name: [] for name in MODELS}
    for seed in range(splits):
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "data"
            prepare(PrepareConfig(sources=[str(source)], out=str(data), validation_fraction=0.1, test_fraction=0.1,
                                  integers="bucket", seed=seed), lambda _: None)  # fmt: skip
            for name, (train, grid) in MODELS.items():
                tried[name].append(train(data, seed, grid))
                for found in tried[name][-1]:
                    print(json.dumps({"split": seed, "model": name, **found._asdict()}), flush=True)
    table = "| split | model | settings | validation loss | test loss | AUC |\n|---|---|---|---|---|---|\n"
    measured = {name: chosen(found) for name, found in tried.items()}
    for seed, name in itertools.product(range(splits), MODELS):
        found = measured[name][seed]
        table += (
            f"| {seed} | {name} | {said(found.settings)} | {found.validation_loss:.4f} | {found.loss:.4f} "
            f"| {found.auc:.4f} |\n"
        )
    loss, auc = (
        {name: float(np.mean([one[at] for one in found])) for name, found in measured.items()} for at in (2, 3)
    )
    for name in MODELS:
        table += f"| mean | {name} | | | {loss[name]:.5f} | {auc[name]:.5f} |\n"
    differences = {
        "AUC below logistic regression": auc["logistic regression"] - auc["FM"],
        "loss above logistic regression": loss["FM"] / loss["logistic regression"] - 1,
        "AUC from PyTorch": abs(auc["FM"] - auc[PEER]),
    }
    table += "\n| FM, means | found | at most | holds |\n|---|---|---|---|\n"
    for name, away in differences.items():
        table += f"| {name} | {away:+.5f} | {ALLOWED[name]} | {'yes' if away <= ALLOWED[name] else '**no**'} |\n"
    return table


def chosen(tried: list[list[Found]]) -> list[Found]:
    """The models of all splits with the settings of the lowest mean loss on the validation rows."""
    return list(min(zip(*tried, strict=True), key=lambda found: sum(one.validation_loss for one in found)))


def said(settings: dict[str, Any]) -> str:
    plain = {name: value for name, value in settings.items() if name not in {"settings", "dim"}}
    return ", ".join([*(f"{name}={value}" for name, value in plain.items()), *settings.get("settings", [])])


def interactions(rows: int, seeds: int) -> str:
    """Both models on clicks with interactions; the table and what holds."""
    table = "| seed | logistic regression | FM | lower by | at least | holds |\n|---|---|---|---|---|---|\n"
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "data"
            generate_clicks(data, rows=rows, features=FEATURES, test_rows=rows // FEWER, seed=seed, interactions=True,
                            progress=lambda _: None)  # fmt: skip
            linear, with_pairs = (
                paceline.train(
                    data=data, run=f"{folder}/{model}", model=model, workers=1, progress=False
                ).result["test"]["loss"]
                for model in ("logistic", "fm")
            )  # fmt: skip
        gain = 1 - with_pairs / linear
        print(json.dumps({"seed": seed, "logistic": linear, "fm": with_pairs, "gain": gain}), flush=True)
        table += (
            f"| {seed} | {linear:.4f} | {with_pairs:.4f} | {gain:.1%} | {GAIN:.0%} "
            f"| {'yes' if gain >= GAIN else '**no**'} |\n"
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of clicks with interactions")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    tried = ", ".join(f"{len(grid)} of {name}" for name, (_, grid) in MODELS.items())
    text = (
        f"# Quality of factorization machines, {today}\n\n{machine()}. `python benchmarks/quality_fm.py DATA`.\n\n"
        f"## criteo_80k\n\n64,000 training rows, 8,000 for validation, 8,000 for testing; {DIM} factors; at most "
        f"{PASSES} passes, PyTorch in batches of {TORCH_BATCH}. Settings tried: {tried}. Those with the lowest mean "
        "loss on the validation rows of all splits count. The number of passes is that with the lowest loss on the "
        "validation rows of each split.\n\n"
        f"{criteo(arguments.data / 'criteo' / 'criteo_80k.tsv.gz', arguments.splits)}\n"
        f"## Clicks with interactions\n\n{arguments.rows:,} rows, {FEATURES:,} features, default settings; test log "
        f"loss.\n\n{interactions(arguments.rows, arguments.splits)}"
    )
    print(text)
    if arguments.write:
        (RESULTS / f"{today}-quality-fm.md").write_text(text)


if __name__ == "__main__":
    main()
