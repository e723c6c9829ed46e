"""How does a run show in TensorBoard? As event files in its folder, with the extra `tensorboard`."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from paceline.files import append, translated_disk_errors
from paceline.reports.phases import phase_shares, time_by_worker
from paceline.run_folder import RunFolder
from paceline.telemetry.recorder import Telemetry
from paceline.telemetry.records import WorkerChunk

FOLDER = "tensorboard"
BOARD_METRICS = ("train_", "validation_", "test_")


class Board:
    """Appends scalars against rows to one event file. What was added can be read when the call returns.

    Not thread-safe. What a full disk refuses is written with a later call. With `after_rows`, TensorBoard ignores what
    an earlier file of the folder has beyond that many rows, because a resumed run trains them again.
    """

    def __init__(self, folder: Path, after_rows: int | None) -> None:
        # The usual `SummaryWriter` hands events to its own thread, where a full disk would go unnoticed.
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._path = folder / f"events.out.tfevents.{time.time_ns()}"
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._unwritten = io.BytesIO()
        self._writer = RecordWriter(self._unwritten)
        self._keep(file_version="brain.Event:2")
        if after_rows is not None:
            self._keep(step=after_rows + 1, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))

    def add(self, rows: int, scalars: Mapping[str, float]) -> None:
        values = [self._summary.Value(tag=name, simple_value=float(value)) for name, value in scalars.items()]
        self._keep(step=rows, summary=self._summary(value=values))
        with translated_disk_errors(self._path):
            self._path.parent.mkdir(exist_ok=True)
        append(self._path, self._unwritten.getvalue())
        self._unwritten.seek(0)
        self._unwritten.truncate()

    def _keep(self, **event: Any) -> None:
        self._writer.write(self._event(wall_time=time.time(), **event).SerializeToString())


def on_board(run: RunFolder) -> Callable[[dict[str, Any]], None]:
    """A function that adds each evaluation, a line of `metrics.jsonl`, to the run's board, with the phases of the
    workers' time since the last one.

    The first call opens the board, which continues after the last evaluation before that one. Without the extra,
    nothing happens.
    """
    board: Board | None = None
    seen = 0

    def add(line: dict[str, Any]) -> None:
        nonlocal board, seen
        rows, folder = int(line["rows"]), run.path / FOLDER
        if board is None:
            before = max((int(earlier["rows"]) for earlier in run.metrics if earlier["rows"] < rows), default=0)
            board = Board(folder, before if folder.exists() else None)
        measured = {name: value for name, value in line.items() if name.startswith(BOARD_METRICS) and value is not None}
        chunks = Telemetry(run.path).read(WorkerChunk)
        shares = phase_shares(time_by_worker(chunks[seen:]))
        seen = len(chunks)
        scalars = {name: value for name, value in measured.items() if math.isfinite(value)}
        board.add(rows, scalars | {f"phases/{name}": share for name, share in shares.items()})

    return add if find_spec("tensorboard") else lambda _: None
