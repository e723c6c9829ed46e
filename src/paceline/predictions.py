"""What does a trained model predict for a dataset?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paceline.data.blocks.dataset import Split
from paceline.data.datasets import AnyDataset, open_dataset
from paceline.data.labels import Labels
from paceline.errors import DataError, UsageError
from paceline.machine import num_cores
from paceline.models.inputs import INPUTS
from paceline.models.model import Parameters
from paceline.models.trained import TrainedModel, load_model
from paceline.prediction_files import Written, check_target, write_tables
from paceline.run_folder import RunFolder
from paceline.training.evaluate import evaluate, scores_by_block
from paceline.training.scorers import Scoring, scoring_on


def evaluate_model(
    run: str | Path, data: str | Path, split: Split | None, code: str = "", device: str = "cpu"
) -> tuple[int, dict[str, Any]]:
    """The number of rows, and the model's metrics on them. `code` is PACKAGE:FUNCTION, if the model needs it."""
    model, bring, dataset, chosen = _open(run, data, split, code, device)
    task = model.model.output.task
    if dataset.labels.kind not in task.labels:
        raise DataError(
            f"{task.needs_labels('the model')}; `{dataset.folder}` has `{dataset.labels.kind}`",
            "`paceline predict` does not look at labels",
        )
    if known := _classes_known(model, dataset.labels):
        dataset.number_classes_as(known, "classes" if len(known) != 2 else None)
    parameters, most = model.parameters_for(dataset), model.model.output.num_classes
    if most and dataset.labels.classes > most:
        raise DataError(
            f"the model is for {most} classes; `{dataset.folder}` has {dataset.labels.classes}",
            "`paceline predict` does not look at labels",
        )
    quality = evaluate(*bring(parameters), dataset, chosen, num_cores(), stop=lambda: False)
    assert quality is not None
    return dataset.split(chosen).rows, {n: v if np.isfinite(v) else None for n, v in quality.items()}


def _classes_known(model: TrainedModel, labels: Labels) -> list[str]:
    """The names of the classes that a model knows, if these or those of the data are other than their numbers."""
    if model.class_names or not labels.are_named:
        return model.class_names
    return model.info.class_names or [str(number) for number in range(model.model.output.num_classes or 2)]


def write_predictions(
    run: str | Path, data: str | Path, out: str | Path, split: Split | None, code: str = "", device: str = "cpu"
) -> Written:
    """Write `row`, `label` and what the model predicts for every row to a .parquet or .csv file."""
    check_target(out)
    model, bring, dataset, chosen = _open(run, data, split, code, device)
    rows = write_tables(out, _tables(model, bring(model.parameters_for(dataset)), dataset, chosen))
    return Written(rows, 0, tuple(filter(None, [model.meaning])))


def _tables(model: TrainedModel, scoring: Scoring, dataset: AnyDataset, split: Split) -> Iterator[pa.Table]:
    first = 0
    for block, scores in scores_by_block(*scoring, dataset, split, num_cores()):
        rows = np.arange(first, first + block.num_rows)
        yield pa.table({"row": rows, "label": dataset.labels.shown(block.labels), **model.model.output.predict(scores)})
        first += block.num_rows


def _open(
    run: str | Path, data: str | Path, split: Split | None, code: str, device: str
) -> tuple[TrainedModel, Callable[[Parameters], Scoring], AnyDataset, Split]:
    """The model of a run, what brings parameters to the device, a dataset, and the split to use: the one asked for, or
    else test rows if there are any.

    `DataError` if the model is for other data: images or rows of features.
    """
    model = load_model(RunFolder(run).path, code)
    bring = scoring_on(device, model)
    dataset = open_dataset(data)
    found, wanted = dataset.kind.name, model.entry.input
    if found != wanted:
        message = f"the model is for {INPUTS[wanted]}; `{dataset.folder}` has {INPUTS[found]}"
        raise DataError(message, f"give a dataset of {INPUTS[wanted]}")
    chosen: Split = split or ("test" if dataset.split("test").rows else "train")
    if not dataset.split(chosen).rows:
        raise UsageError(f"`{dataset.folder}` has no {chosen} rows", "leave --split out")
    return model, bring, dataset, chosen
