"""What can be done with paceline in Python? What its commands do, with data in memory, too."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Unpack

from paceline import predictions, raw_predictions, run
from paceline.config import read_config
from paceline.data.blocks.dataset import Split
from paceline.data.blocks.manifests import holds_dataset
from paceline.data.limits import LabelKind
from paceline.data.memory.given import is_in_memory, names_of_files
from paceline.data.prepare import prepare as prepare_files
from paceline.data.prepare_settings import Prepared
from paceline.diagnosis.evidence import gather_evidence
from paceline.diagnosis.explain import ensure_diagnosis, write_diagnosis
from paceline.diagnosis.plan import bandwidths, choices, counts, plan_of
from paceline.diagnosis.plan import predict as predict_speed
from paceline.errors import RunError, UsageError, in_short
from paceline.exports.export import export_model
from paceline.given_data import dataset_for, dataset_like, prepare_config, with_files, without_rows, write_rows
from paceline.inside.info import info_of
from paceline.inside.top import top_features
from paceline.matrices.settings import TraceSettings
from paceline.models.trained import TrainedModel, load_model
from paceline.options import (
    PrepareOptions,
    RawOptions,
    RowOptions,
    StrPath,
    TrainOptions,
    keys_of,
    refuse_other_keywords,
)
from paceline.prediction_files import refuse_raw_settings, refuse_split
from paceline.reports.compare import Comparison, write_comparison
from paceline.reports.compare import compare as compare_runs
from paceline.reports.page import report_fragment, write_report
from paceline.reports.progress_bar import prepare_meter
from paceline.reports.training_bar import training_bar
from paceline.run_folder import RunFolder
from paceline.settings import RunConfig
from paceline.sweeps.points import read_sweep
from paceline.sweeps.run import Runner, run_sweep
from paceline.sweeps.table import Sweep
from paceline.training.cluster.placement import engine_for
from paceline.training.coordinator import Status, Watch

Callback = Callable[[Status], object]
"""Called with a run's `Status` a few times per second: `rows`, `seconds`, `share` of the run that is done,
`train_loss`, and `quality`, the newest metrics of the test rows. An exception ends the run."""


# What `train` takes: flags, rows, the other arguments, and all settings of a recipe.
OF_TRAIN = (*keys_of(TrainOptions, RowOptions), "data", "start_from", "settings", "progress", "callbacks",
            *RunConfig.__struct_fields__)  # fmt: skip


class Run(RunFolder):
    """A run folder that can explain itself."""

    @property
    def diagnosis(self) -> dict[str, Any]:
        """What limited the run: the content of `diagnosis.json`, which is written first if it is missing.

        Raises `DataError` if too little was recorded.
        """
        return self.saved_diagnosis or self.diagnose()

    def diagnose(self) -> dict[str, Any]:
        """Find out what limited the run, and write `diagnosis.json`."""
        return write_diagnosis(self)

    def report(self, out: Path | str | None = None) -> Path:
        """Write the run's page, `report.html` in its folder unless `out` names another file; returns its path."""
        page = Path(out) if out else self.path / "report.html"
        ensure_diagnosis(self)
        write_report(self, page)
        return page

    def _repr_html_(self) -> str:
        """For notebooks: the whole page, whose style applies to nothing else."""
        ensure_diagnosis(self)
        return report_fragment(self, uuid.uuid4().hex[:8])


def prepare(
    data: Any, out: StrPath, *, progress: bool = True, **settings: Unpack[PrepareOptions]
) -> Prepared[Any]:  # fmt: skip
    """Make a dataset from files or from rows in memory; returns it, with the number of rows and notes.

    `data` is a file, a folder, a glob, a URL, or a list of them, or whatever `train` takes. `settings` are the flags of
    `paceline prepare` as keywords (`PrepareOptions`). `progress=False` shows no bar.

    >>> made = paceline.prepare((X, y), "data/mine", validation_fraction=0.1)
    >>> made.rows
    1000
    """
    refuse_other_keywords(settings, keys_of(PrepareOptions), "prepare")
    sources = names_of_files(data)
    if sources is None:
        return write_rows(data, out, settings, progress=progress)
    config = prepare_config(sources, out, with_files(settings))
    with prepare_meter() if progress else nullcontext(lambda _: None) as show:
        return prepare_files(config, show)


def train(
    recipe: StrPath | None = None, *, data: Any = None, label: Any = None, weight: Any = None, validation: Any = None,
    test: Any = None, start_from: StrPath | RunFolder | TrainedModel | None = None, settings: Iterable[str] = (),
    progress: bool = True, callbacks: Sequence[Callback] = (), **flags: Unpack[TrainOptions],
) -> Run:  # fmt: skip
    """Train with the command's flags as keywords (`batch_size=1000` for `--batch-size 1000`, see `TrainOptions`);
    returns the `Run`.

    `data` is the folder of a dataset, or rows in memory: a SciPy sparse matrix, a NumPy array, a pandas or Polars
    frame, an Arrow table or stream, one of these with its labels as `(X, y)` or `(X, y, weights)`, or an iterable of
    such batches. `label` and `weight` are a column's name, or one value per row; `validation` and `test` are rows like
    `data`. Columns of text, and those in `categorical`, become one feature per value. What else `RowOptions` has says
    how rows in memory are read.

    `start_from` (`--from` of the command) is a run, or its folder, or its model as `load` returns it: training goes on
    with that model and the state of its optimizer, and with the settings of that run where no others are given. Of the
    folder, only `config.toml` and `model/` are needed.

    `settings` are `--set` arguments. `callbacks` are called with the run's `Status` while it trains; `progress=False`
    shows no bar. Raises a `PacelineError` where the command would print one.

    >>> run = paceline.train(data=(X, y), epochs=5, test_fraction=0.2, progress=False)
    >>> run.result["rows"]
    4020
    >>> later = paceline.train(data=(X, y), start_from=run, epochs=1, progress=False)
    >>> later.result["rows_before"]
    4020
    """
    began = time.time()
    given = {"label": label, "weight": weight, "validation": validation, "test": test}
    refuse_other_keywords([name for name in flags if "." not in name], OF_TRAIN, "train")
    options, of_run = without_rows({**flags, **given})
    path, settings = Path(recipe) if recipe else None, tuple(settings)
    if start_from is not None:
        of_run["start_from"] = str(_folder_of(start_from))
    if data is not None:
        # Rows are read later: first come wrong settings.
        of_run["data"] = "memory" if is_in_memory(data) else str(data)
    config = read_config(path, of_run, settings)
    if data is None:
        data = config.data
    with dataset_for(config, data, options, progress=progress) as folder:
        if is_in_memory(data):
            # Epochs, workers and evaluations depend on how many rows there are.
            config = read_config(path, {**of_run, "data": folder}, settings)
        with engine_for(config) as engine, watching(f"train, pace {config.pace}", progress, callbacks) as watch:
            return Run(run.train(config, engine, watch, began, print_notice).path)


def _folder_of(run: StrPath | RunFolder | TrainedModel) -> Path:
    """The folder of a run, or of the run that a model is from."""
    if isinstance(run, TrainedModel):
        return run.run
    return run.path if isinstance(run, RunFolder) else Path(run)


def resume(
    path: StrPath, *, data: Any = None, address: str | None = None, model: str = "", progress: bool = True,
    callbacks: Sequence[Callback] = (), **rows: Unpack[RowOptions],
) -> Run:  # fmt: skip
    """Continue a stopped run from its newest checkpoint.

    A run on rows in memory needs the same rows again. `address` is that of a cluster, if it has changed; `model` must
    name the code of a model of your own, which is imported and run.

    >>> run = paceline.resume("runs/stopped", data=(X, y), progress=False)
    """
    refuse_other_keywords(rows, keys_of(RowOptions), "resume")
    with ExitStack() as stack:
        folder = None
        if data is not None:
            config = RunFolder(Path(path)).config
            folder = stack.enter_context(dataset_for(config, data, without_rows(rows)[0], progress=progress))
        watch = stack.enter_context(watching("resume", progress, callbacks))
        return Run(run.resume(Path(path), watch, time.time(), print_notice, address, folder, model).path)


def load(path: StrPath, *, allow_code: bool = False) -> TrainedModel:
    """The trained model of a run folder: `predict_proba`, `predict`, `tensors`; `weights` and `bias` if it is linear.

    A model of your own needs its code, which is imported and run only with `allow_code`: a run folder that somebody
    else made can name any module.

    >>> model = paceline.load(run.path)
    """
    return load_model(Path(path), allow_code=allow_code)


def evaluate(
    path: StrPath | RunFolder, data: Any, *, split: Split | None = None, model: str = "", label: Any = None,
    weight: Any = None, labels: LabelKind | None = None, device: str = "cpu",
) -> dict[str, Any]:  # fmt: skip
    """The number of rows, and the metrics of a run's model on them.

    `data` is the folder of a dataset, or rows in memory, which are read as those that the model was trained on;
    `label`, `weight` and `labels` are as for `train`. With `device="cuda"`, rows are scored on a GPU.

    >>> paceline.evaluate(run, (X, y))["rows"]
    1000
    """
    folder = _folder_of(path)
    options, _ = without_rows({"label": label, "weight": weight, "labels": labels})
    if is_in_memory(data):
        refuse_split(split)
        split = "train"
    with dataset_like(folder, data, options, model, device) as prepared:
        rows, quality = predictions.evaluate_model(folder, prepared, split, model, device)
    return {"rows": rows, **quality}


def predict(
    path: StrPath | RunFolder, data: Any, out: StrPath, *, split: Split | None = None, model: str = "",
    device: str = "cpu", **settings: Unpack[RawOptions],
) -> int:  # fmt: skip
    """Write what a run's model predicts to a .parquet or .csv file; returns how many rows.

    `data` is the folder of a dataset, raw rows in a file (or a list of files), or rows in memory, as for `train`. Rows
    need no labels. If two classes have names, `probability` is that of `load(run).classes[1]`. `id` names
    a column of a table to write instead of the numbers of rows. `format` and `skip_bad_rows` are for files. With
    `device="cuda"`, rows are scored on a GPU.

    >>> paceline.predict(run, X, "scores.csv")
    1000
    """
    refuse_other_keywords(settings, keys_of(RawOptions), "predict")
    folder, names = _folder_of(path), names_of_files(data)
    if names is not None and len(names) == 1 and holds_dataset(names[0]):
        refuse_raw_settings(settings, "a dataset has been prepared")
        return predictions.write_predictions(folder, names[0], str(out), split, model, device).rows
    refuse_split(split)
    if names is not None:
        return raw_predictions.write_raw_predictions(folder, names, str(out), settings, model, device).rows
    refuse_raw_settings({name: value for name, value in settings.items() if name != "id"}, "the data is in memory")
    id_column = settings.get("id", "")
    return raw_predictions.write_predictions_for(folder, data, str(out), id_column, model, device)


def export(run: StrPath | RunFolder, *, to: str, out: StrPath, model: str = "") -> Path:
    """Write a run's model in the form of another tool: `onnx`, `mlflow`, `text` or `vw`; returns the new path.

    >>> paceline.export("runs/first", to="text", out="weights.tsv").name
    'weights.tsv'
    """
    return export_model(_folder_of(run), to, Path(out), model)


def top(path: StrPath | RunFolder, count: int = 20, *, model: str = "") -> dict[str, Any]:
    """The features with the largest weights in a run's model, by name, with how many training rows have them.

    Returns what `paceline top --json` prints. `TrainedModel.top` does without the dataset.

    >>> paceline.top(run, 3)["features"][0]["weight"] != 0
    True
    """
    return top_features(_folder_of(path), count, model)


def info(path: StrPath) -> dict[str, Any]:
    """What is in a dataset, how good the best constant prediction is, and what will hurt: `warnings`.

    Returns what `paceline info --json` prints.

    >>> paceline.info("data/made")["kind"]
    'rows'
    """
    return info_of(str(path))


def sweep(
    recipe: StrPath | Mapping[str, Any], *, data: Any = None, out: StrPath | None = None,
    settings: Sequence[str] = (), progress: bool = True, **rows: Unpack[RowOptions],
) -> Sweep:  # fmt: skip
    """Train with every combination of settings of a recipe: a file, or the same as a dictionary.

    Each run has a folder under `out`, which also gets tables and a page that compares them. Called again after it was
    stopped, it goes on. A run that fails does not stop the others: its `Outcome` has the `error`. The outcomes are a
    list, which a notebook shows as that page.

    >>> recipe = {"sweep": {"optimizer.learning_rate": [0.01, 0.1]}}
    >>> found = paceline.sweep(recipe, data=(X, y), out="runs/rates", progress=False)
    >>> [outcome.point.name for outcome in found]
    ['optimizer.learning_rate=0.01', 'optimizer.learning_rate=0.1']
    """
    source = recipe if isinstance(recipe, Mapping) else Path(recipe)
    name = source.stem if isinstance(source, Path) else "sweep"
    refuse_other_keywords(rows, keys_of(RowOptions), "sweep")
    options = without_rows(rows)[0]
    with ExitStack() as stack:
        flags: dict[str, Any] = {}
        if data is not None:
            config = next(p.config for p in read_sweep(source, {"data": "memory"}, settings))
            assert isinstance(config, RunConfig)
            flags["data"] = stack.enter_context(dataset_for(config, data, options, progress=progress))

        def start(config: RunConfig | TraceSettings) -> RunFolder:
            if isinstance(config, RunConfig):
                with engine_for(config) as engine, watching("train", progress, ()) as watch:
                    return run.train(config, engine, watch, time.time(), print_notice)
            from paceline.matrices.jobs import run_trace

            return run_trace(config, lambda _share, _text: None, print_notice)

        def carry_on(folder: RunFolder, config: RunConfig) -> RunFolder:
            with watching("resume", progress, ()) as watch:
                return run.resume(
                    folder.path, watch, time.time(), print_notice, config.address, config.data, config.model
                )

        tell = print_notice if progress else lambda _: None
        points = read_sweep(source, flags, settings)
        folder = Path(out) if out else Path("runs") / name
        return Sweep(run_sweep(points, folder, Runner(start, carry_on, tell))[0], folder)


def compare(*runs: StrPath | RunFolder, out: StrPath | None = None) -> Comparison:
    """What differs between runs: settings, speed, quality and verdicts. A notebook shows it as a page.

    `out` names a file to write the page to.

    >>> paceline.compare(first, second).settings[-1].name
    'optimizer.learning_rate'
    """
    folders = [one if isinstance(one, RunFolder) else RunFolder(Path(one)) for one in runs]
    for folder in folders:
        ensure_diagnosis(folder)
    comparison = compare_runs(folders)
    if out:
        write_comparison(comparison, Path(out))
    return comparison


def plan(
    path: StrPath | RunFolder, *, workers: str | int = "1..8", shards: str | int = 1, bandwidth: str | None = None
) -> dict[str, Any]:
    """Predict the speed of a run with other numbers of workers and shards, other links and other paces.

    `workers` and `shards` are a number or a range, "1..16"; `bandwidth` is one, too, "1Gbit..25Gbit". Returns what
    `paceline plan --json` prints.

    >>> planned = paceline.plan(run, workers="1..4")
    """
    speeds: list[float | None] = [None] if bandwidth is None else [*bandwidths(bandwidth)]
    asked = counts(str(workers), "workers"), counts(str(shards), "shards"), speeds
    evidence = gather_evidence(path if isinstance(path, RunFolder) else RunFolder(Path(path)))
    return plan_of(evidence, [predict_speed(evidence, choice) for choice in choices(evidence, *asked)])


@contextmanager
def watching(title: str, progress: bool, callbacks: Sequence[Callback]) -> Iterator[Watch]:
    """A function that shows a run's status and calls the user's callbacks."""
    if callable(callbacks):
        raise UsageError("`callbacks` is a function", "give a list: callbacks=[...]")
    with ExitStack() as stack:
        shown: list[Callback] = [stack.enter_context(training_bar(title))] if progress else []

        def watch(at: Status) -> None:
            for show in shown:
                show(at)
            for callback in callbacks:
                try:
                    callback(at)
                except OSError as error:
                    # Those of a bar are ignored, since a full disk must not end a run.
                    raise RunError(f"a callback failed: {in_short(error)}", "") from error

        yield watch


def print_notice(text: str) -> None:
    """Print something that the user should know, but that is not an error."""
    print(f"note: {text}", file=sys.stderr)
