"""How does a run show in TensorBoard? As event files in its folder, with the extra `tensorboard`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from paceline.files import translated_disk_errors
from paceline.reports.phases import phase_shares, time_by_worker
from paceline.run_folder import RunFolder
from paceline.telemetry.recorder import Telemetry
from paceline.telemetry.records import WorkerChunk

FOLDER = "tensorboard"
METRICS = ("train_", "test_")


class Board:
    """Appends scalars against rows to an event file. What was added can be read when the call returns.

    Not thread-safe. With `after_rows`, TensorBoard ignores what an earlier file of the folder has beyond that many
    rows, because a resumed run trains them again.
    """

    def __init__(self, folder: Path, after_rows: int | None = None) -> None:
        # The usual `SummaryWriter` hands events to its own thread, where a full disk would go unnoticed.
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._folder = folder
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        with translated_disk_errors(folder):
            folder.mkdir(exist_ok=True)
            self._writer = RecordWriter((folder / f"events.out.tfevents.{time.time_ns()}").open("xb"))
            self._write(file_version="brain.Event:2")
            if after_rows is not None:
                start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
                self._write(step=after_rows + 1, session_log=start)

    def add_metrics(self, line: Mapping[str, Any]) -> None:
        """Add an evaluation, a line of `metrics.jsonl`, without what was not measured."""
        metrics = {name: value for name, value in line.items() if name.startswith(METRICS) and value is not None}
        self._add(int(line["rows"]), {name: value for name, value in metrics.items() if math.isfinite(value)})

    def add_phases(self, rows: int, shares: Mapping[str, float]) -> None:
        """Add the phases' shares of the workers' time, by phase."""
        self._add(rows, {f"phases/{name}": share for name, share in shares.items()})

    def close(self) -> None:
        with translated_disk_errors(self._folder):
            self._writer.close()

    def _add(self, rows: int, scalars: Mapping[str, float]) -> None:
        values = [self._summary.Value(tag=name, simple_value=float(value)) for name, value in scalars.items()]
        with translated_disk_errors(self._folder):
            self._write(step=rows, summary=self._summary(value=values))

    def _write(self, **event: Any) -> None:
        self._writer.write(self._event(wall_time=time.time(), **event).SerializeToString())
        self._writer.flush()


def open_board(run: RunFolder, before: int | None = None) -> Board | None:
    """A board in the run's folder that continues after its last evaluation, or the last one before `before` rows; None
    if the extra is not installed.
    """
    if find_spec("tensorboard") is None:
        return None
    folder = run.path / FOLDER
    metrics = [line for line in run.metrics if before is None or line["rows"] < before]
    if not folder.exists():
        return Board(folder)
    return Board(folder, after_rows=int(metrics[-1]["rows"]) if metrics else 0)


def on_board(run: RunFolder) -> Callable[[dict[str, Any]], None]:
    """A function that adds each evaluation to the run's board, with the phases of the workers' time since the last one.

    The first call opens the board. Without the extra nothing happens.
    """
    boards: list[Board | None] = []
    seen = 0

    def add(line: dict[str, Any]) -> None:
        nonlocal seen
        if not boards:
            boards.append(open_board(run, before=line["rows"]))
        board = boards[0]
        if board is None:
            return
        board.add_metrics(line)
        chunks = Telemetry(run.path).read(WorkerChunk)
        if shares := phase_shares(time_by_worker(chunks[seen:])):
            board.add_phases(int(line["rows"]), shares)
        seen = len(chunks)

    return add
