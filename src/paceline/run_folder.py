"""What does a run leave behind? A folder, which reports, comparisons, diagnosis and `resume` read."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from paceline.config import load_config, read_recipe, to_toml
from paceline.errors import BAD_TEXT, ConfigError, DataError
from paceline.files import append, free_path, read_file, refuse_existing, replace_file, translated_disk_errors
from paceline.models.loss_entries import LOSSES
from paceline.models.registry import find_of_old_run
from paceline.settings import RunConfig, Start
from paceline.telemetry.facts import Facts, Traits, read_facts
from paceline.telemetry.records import Duration, Real, Whole

TRAIN = "train"
START = "start.json"
REMOVE = "remove it, or its run, and run again"


class JobResult(msgspec.Struct, kw_only=True):
    """What every `result.json` has, and the types of what it may have, as far as pages and tables depend on them."""

    status: str
    engine: str
    job: str = TRAIN
    rows: Whole = 0
    seconds: Real = 0.0
    trace: Real = 0.0
    elements_per_second: Real = 0.0
    flop_per_second: Real = 0.0
    blocks_made: Whole = 0
    tiles: Whole = 0
    peak_memory_bytes: Whole = 0
    algorithm: str = ""
    bytes_moved: Whole = 0
    bytes_lower_bound: Whole = 0
    bytes_naive: Whole = 0


class TrainResult(JobResult, kw_only=True):
    """The same for a run of `train`."""

    model: str
    pace: str | int
    workers: Whole
    batch_size: Whole
    rows: Whole
    steps: Whole
    train_seconds: Real
    rows_per_second: Real
    test: dict[str, float | None]
    validation: dict[str, float | None] = {}
    train: dict[str, float | None] = {}
    max_staleness: Whole
    wire: dict[str, Real]
    startup_seconds: Real
    restarts: dict[str, Whole]
    recoveries: list[dict[str, Any]]


class Evaluation(msgspec.Struct):
    """What every line of `metrics.jsonl` has, besides the metrics."""

    rows: Whole
    steps: Whole
    seconds: Duration


class OperationTime(msgspec.Struct):
    """An operation of a step in `diagnosis.json`."""

    name: str
    nanoseconds_per_row: Real


class SavedDiagnosis(msgspec.Struct):
    """What `diagnosis.json` has, as far as pages and tables depend on it."""

    bottleneck: str
    sentence: str
    phases: dict[str, Real]
    evidence: list[Any]
    recommendation: str
    nodes: list[dict[str, Any]]
    operations: list[OperationTime] = []


class RunFolder:
    """The folder of a run. `result` and `metrics` read its files each time, so that a running run can be watched."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not (self.path / "config.toml").is_file():
            problem = "is not a run folder: it has no config.toml" if self.path.exists() else "does not exist"
            raise DataError(f"`{self.path}` {problem}", "give a folder that `paceline train` made")

    @staticmethod
    def create(config: RunConfig) -> RunFolder:
        """A new folder for a run: the one asked for, or the next free name under `runs/`."""
        pace = config.pace if isinstance(config.pace, str) else f"pace{config.pace}"
        run = RunFolder.make(config.run, f"{config.model.replace(':', '-')}-{pace}", to_toml(config))
        if config.start_from:
            run.write_json(START, msgspec.to_builtins(config.start))
        return run

    @staticmethod
    def make(run: str, name: str, settings: bytes) -> RunFolder:
        """A new folder with a `config.toml`: `run`, or if that is empty, the next free name under `runs/`."""
        path = Path(run) if run else free_path(Path("runs", f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"))
        refuse_existing(path)
        with translated_disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        replace_file(path / "config.toml", settings)
        return RunFolder(path)

    @property
    def job(self) -> str:
        """The kind of job: `train` unless config.toml names another one."""
        with suppress(ConfigError):
            return str(read_recipe(self.path / "config.toml").get("job", TRAIN))
        return TRAIN

    @property
    def settings(self) -> dict[str, Any]:
        """The settings in config.toml, unchecked, with sections as prefixes."""
        return flat(read_recipe(self.path / "config.toml"))

    @property
    def config(self) -> RunConfig:
        if self.job != TRAIN:
            message = f"`{self.path}` is a run of `{self.job}`, not of `train`"
            raise DataError(message, "`paceline report` and `paceline diagnose` work on it")
        config = load_config(self.path / "config.toml")
        return msgspec.structs.replace(config, start=self._read_start()) if config.start_from else config

    @property
    def result(self) -> dict[str, Any]:
        """The summary of a run that has ended; empty before that."""
        return self._read_json("result.json", TrainResult if self.job == TRAIN else JobResult)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One entry per evaluation, in order."""
        path = self.path / "metrics.jsonl"
        lines = read_file(path, REMOVE).splitlines(keepends=True) if path.is_file() else []
        try:
            # A kill or a full disk may have cut off the last line.
            found = [json.loads(line) for line in lines if line.endswith(b"\n")]
            msgspec.convert(found, list[Evaluation])
            return msgspec.convert(found, list[dict[str, int | float | None]])
        except BAD_TEXT as error:
            raise DataError(f"`{path}` is broken: {error}", "remove the line, or the run, and run again") from None

    @property
    def saved_diagnosis(self) -> dict[str, Any]:
        """The content of `diagnosis.json`; empty if there is none."""
        return self._read_json("diagnosis.json", SavedDiagnosis)

    @property
    def facts(self) -> Facts:
        """What the run trains, on which data and machine.

        A run folder without `telemetry/run.json` is older than that file. Then only what the registry says about its
        model is known, and nothing about its data and its machine.
        """
        return read_facts(self.path) or Facts(traits=_traits_of_old_run(self.config.model))

    def _read_start(self) -> Start:
        path = self.path / START
        try:
            return msgspec.json.decode(read_file(path, REMOVE), type=Start)
        except BAD_TEXT as error:
            raise DataError(f"`{path}` is broken: {error}", REMOVE) from None

    def add_metrics(self, *lines: dict[str, Any]) -> None:
        """Append evaluations: all of these, or, if the disk is full, none."""
        append(self.path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())

    def cut_metrics(self, rows: int) -> None:
        """Remove the evaluations after `rows` rows: the run trains again from there."""
        kept = "".join(json.dumps(line) + "\n" for line in self.metrics if line["rows"] <= rows)
        replace_file(self.path / "metrics.jsonl", kept.encode())

    def write_json(self, name: str, content: Any) -> None:
        """Replace a JSON file of the folder."""
        replace_file(self.path / name, json.dumps(content, indent=2).encode() + b"\n")

    def _read_json(self, name: str, kind: type[msgspec.Struct]) -> dict[str, Any]:
        """A JSON file of the folder, with everything that `kind` requires; empty if there is none."""
        path = self.path / name
        if not path.is_file():
            return {}
        try:
            found: dict[str, Any] = json.loads(read_file(path, REMOVE))
            msgspec.convert(found, kind)
            return found
        except BAD_TEXT as error:
            raise DataError(f"`{path}` is broken: {error}", REMOVE) from None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"


def flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A tree of settings or results with sections as prefixes.

    >>> flat({"pace": "sync", "wire": {"pull": "all"}})
    {'pace': 'sync', 'wire.pull': 'all'}
    """
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
    return found


def _traits_of_old_run(model: str) -> Traits:
    """Those of a run that did not record them: models then had one loss, which is the first of their entry now."""
    entry = find_of_old_run(model)
    return Traits.of(entry, LOSSES[entry.losses[0]].task.metrics)
