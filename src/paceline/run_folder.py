"""What does a run leave behind? The folder that reports, comparisons and `resume` read, and its Python face `Run`."""

from __future__ import annotations

import html
import json
import tempfile
import time
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

from paceline.config import RunConfig, read_config, to_toml
from paceline.errors import DataError
from paceline.files import refuse_existing, replace_file, translated_disk_errors

TRAIN = "train"


class Run:
    """A run's folder. `result` and `metrics` are read from it each time, so a running run can be watched."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not (self.path / "config.toml").is_file():
            raise DataError(f"`{self.path}` is no run folder: it has no config.toml", "give a folder that `train` made")

    @staticmethod
    def create(config: RunConfig) -> Run:
        """A new folder for a run, by the name asked for or the next free one under `runs/`."""
        pace = config.pace if isinstance(config.pace, str) else f"pace{config.pace}"
        return Run.make(config.run, f"{config.model.replace(':', '-')}-{pace}", to_toml(config))

    @staticmethod
    def make(run: str, name: str, settings: bytes) -> Run:
        """A new folder with a `config.toml`: `run`, or where that is empty the next free one of that name."""
        path = Path(run) if run else _free_name(Path("runs"), name)
        refuse_existing(path)
        with translated_disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        replace_file(path / "config.toml", settings)
        return Run(path)

    @property
    def job(self) -> str:
        """What was run: `train`, or the name of another kind of job, as its config.toml says."""
        with suppress(OSError, ValueError):
            return str(tomllib.loads((self.path / "config.toml").read_text("utf-8")).get("job", TRAIN))
        return TRAIN

    @property
    def config(self) -> RunConfig:
        if self.job != TRAIN:
            raise DataError(
                f"`{self.path}` is a run of `{self.job}`, and no training",
                "`paceline report` and `paceline diagnose` show what there is",
            )
        return read_config(self.path / "config.toml", {})

    @property
    def result(self) -> dict[str, Any]:
        """The summary of a run that has ended; empty before that."""
        path = self.path / "result.json"
        return _read_json(path) if path.exists() else {}

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One entry an evaluation, in order."""
        path = self.path / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        # A line without its end was cut short by a kill or a full disk.
        return [json.loads(line) for line in lines if line.endswith("\n")]

    @property
    def diagnosis(self) -> dict[str, Any]:
        """What limited the run, as `diagnosis.json` has it; found now where that is not there yet.

        `DataError` where too little was recorded.
        """
        path = self.path / "diagnosis.json"
        return _read_json(path) if path.exists() else self.diagnose()

    def diagnose(self) -> dict[str, Any]:
        """Find out what limited the run, and write `diagnosis.json`. Jobs other than training have written theirs."""
        if self.job != TRAIN:
            path = self.path / "diagnosis.json"
            if not path.exists():
                raise DataError(f"`{self.path}` has no diagnosis: its {self.job} did not end", "run it to its end")
            return _read_json(path)
        from paceline.diagnosis import diagnose

        found = diagnose(self)
        self.write_json("diagnosis.json", found)
        return found

    def report(self, out: Path | str | None = None) -> Path:
        """Write the run's page, `report.html` in its folder unless another name is given; where it is."""
        from paceline.reports.page import write_report
        from paceline.reports.verdict import diagnosis_of

        page = Path(out) if out else self.path / "report.html"
        write_report(self, diagnosis_of(self), page)
        return page

    def _repr_html_(self) -> str:
        """For notebooks: the page in a frame of its own, so that its style stays its own."""
        with tempfile.TemporaryDirectory() as folder:
            page = self.report(Path(folder) / "report.html").read_text("utf-8")
        return f'<iframe srcdoc="{html.escape(page)}" style="width:100%;height:40em;border:0"></iframe>'

    def add_metrics(self, line: dict[str, Any]) -> None:
        """Append one evaluation."""
        path = self.path / "metrics.jsonl"
        with translated_disk_errors(path), path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def cut_metrics(self, rows: int) -> None:
        """Forget evaluations after `rows` rows: the run goes on from one that has seen those before."""
        kept = "".join(json.dumps(line) + "\n" for line in self.metrics if line["rows"] <= rows)
        replace_file(self.path / "metrics.jsonl", kept.encode())

    def write_json(self, name: str, content: Any) -> None:
        """Replace a JSON file of the folder."""
        replace_file(self.path / name, json.dumps(content, indent=2).encode() + b"\n")

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except ValueError as error:
        raise DataError(f"`{path}` is broken: {error}", "remove it, or its run, and run again") from None


def _free_name(parent: Path, name: str) -> Path:
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    path, number = parent / name, 1
    while path.exists():
        number += 1
        path = parent / f"{name}-{number}"
    return path
