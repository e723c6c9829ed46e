"""How does a run show in MLflow? With its settings, curves, result, page and model, as it goes along.

Whatever happens to MLflow, the training goes on. What only the end of a run needs is imported there.
"""

from __future__ import annotations

import importlib.util
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from paceline.errors import InterruptedRunError, PacelineError, in_short
from paceline.imports import import_from
from paceline.run_folder import RunFolder, flat

NOTE = "mlflow.json"
"""Which run of MLflow a run folder is, so that a resumed run is the same one."""
FILES = ("config.toml", "metrics.jsonl", "result.json", "diagnosis.json")
# A server that is down must not hold up a run for minutes, as it would by default.
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}
MOST_PARAMS, LONGEST_PARAM = 100, 500


class TrackedRun(msgspec.Struct):
    """A run of MLflow."""

    uri: str
    run_id: str


class Tracking:
    """Logs one run to MLflow, if `track` says so. As a context, it tells MLflow at the end how the run ended."""

    def __init__(self, track: str, notice: Callable[[str], None]) -> None:
        self._is_asked = bool(track)
        self._mlflow: Any = import_from("paceline.exports.mlflow_model:import_mlflow")() if track else None
        self._goes_on = False
        self._notice = notice
        self._client: Any = None
        self._folder: RunFolder
        self._run_id = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        stopped = kind is not None and issubclass(kind, InterruptedRunError | KeyboardInterrupt)
        status = "FINISHED" if kind is None else "KILLED" if stopped else "FAILED"
        self._going_on(lambda: self._end(status))

    def begin(self, run: RunFolder) -> None:
        """Begin a run of MLflow, or continue that of a run which was stopped."""
        if self._is_asked:
            self._folder = run
            self._goes_on = True
            self._going_on(self._begin)

    def evaluated(self, line: Mapping[str, Any]) -> None:
        """Add an evaluation, a line of `metrics.jsonl`."""
        self._going_on(lambda: self._log_metrics(line, int(line["rows"])))

    def _going_on(self, what: Callable[[], None]) -> None:
        """Do something with MLflow, which may fail in any way: then the user is told, and nothing more is logged."""
        if not self._goes_on:
            return
        try:
            what()
        except Exception as error:  # noqa: BLE001 (a server or a library must not end a run)
            self._goes_on = False
            self._notice(f"MLflow failed ({in_short(error)}); the run goes on without it")

    def _begin(self) -> None:
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        uri = _tracking_uri(self._mlflow)
        client = self._client = self._mlflow.MlflowClient(tracking_uri=uri)
        note = self._folder.path / NOTE
        before = msgspec.json.decode(note.read_bytes(), type=TrackedRun) if note.is_file() else None
        if before is not None and before.uri == uri:
            self._run_id = before.run_id
            client.update_run(self._run_id, status="RUNNING")
        else:
            made = client.create_run(_experiment(client), run_name=self._folder.path.name)
            self._run_id = made.info.run_id
            self._folder.write_json(NOTE, {"uri": uri, "run_id": self._run_id})
            self._log_params()
        self._notice(f"MLflow has this run as {self._run_id} at {uri}")

    def _log_params(self) -> None:
        named = [(name, str(value)[:LONGEST_PARAM]) for name, value in self._folder.settings.items()]
        params = [self._mlflow.entities.Param(*one) for one in named]
        for start in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(self._run_id, params=params[start : start + MOST_PARAMS])

    def _log_metrics(self, values: Mapping[str, Any], rows: int) -> None:
        """Log what is a number, after this number of rows."""
        now, found = int(time.time() * 1000), []
        for name, value in values.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                found.append(self._mlflow.entities.Metric(name, float(value), now, rows))
        self._client.log_batch(self._run_id, metrics=found)

    def _end(self, status: str) -> None:
        """Log the result and the files of the run, and say how it ended."""
        try:
            result = self._folder.result
            self._log_metrics(flat(result), int(result.get("rows", 0)))
            with tempfile.TemporaryDirectory() as scratch:
                # Writes `diagnosis.json`, too.
                self._log_page(Path(scratch))
                for name in FILES:
                    if (self._folder.path / name).is_file():
                        self._client.log_artifact(self._run_id, str(self._folder.path / name))
                if status == "FINISHED":
                    self._log_model(Path(scratch))
        finally:
            self._client.set_terminated(self._run_id, status)

    def _log_page(self, scratch: Path) -> None:
        from paceline.diagnosis.explain import ensure_diagnosis
        from paceline.reports.page import write_report

        # A run may have been stopped before there was anything to show.
        with suppress(PacelineError):
            ensure_diagnosis(self._folder)
            write_report(self._folder, scratch / "report.html")
            self._client.log_artifact(self._run_id, str(scratch / "report.html"))

    def _log_model(self, scratch: Path) -> None:
        from paceline.exports.mlflow_model import write_mlflow
        from paceline.models.trained import load_model

        run = self._folder.path
        write_mlflow(load_model(run, allow_code=True), run, scratch / "model")
        self._client.log_artifacts(self._run_id, str(scratch / "model"), "model")


def _tracking_uri(mlflow: Any) -> str:
    """Where MLflow logs to: what its environment variables say, else its default, if that is possible here.

    By default that is a database, which `mlflow-skinny` lacks; then it is the folder `mlruns`.
    """
    if mlflow.is_tracking_uri_set() or importlib.util.find_spec("sqlalchemy") is not None:
        return str(mlflow.get_tracking_uri())
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return Path("mlruns").resolve().as_uri()


def _experiment(client: Any) -> str:
    """The experiment that MLflow's environment variables name, else its default one."""
    if found := os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return found
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
    found = client.get_experiment_by_name(name)
    return str(found.experiment_id if found is not None else client.create_experiment(name))
