"""How do records get into a run's folder, and out of it again?"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from paceline.errors import BAD_TEXT, PacelineError
from paceline.files import append, open_regular, read_file, translated_disk_errors
from paceline.telemetry.meter import period_at
from paceline.telemetry.records import FILES, AnyRecord, ConnectionProbe, NodeProbe, Record, StepSample, WorkerChunk

FOLDER = "telemetry"
R = TypeVar("R", bound=Record)

# A part of these says as much as all: a large cluster has many, and then not all are kept.
THINNED = (StepSample, ConnectionProbe)
BYTES_PER_DOUBLING = 800_000
FEWEST_BYTES_AT_ONCE = 8_000


def room_at(seconds: float) -> float:
    """How many bytes a thinned kind of record may take after `seconds`: the same amount more with each doubling.

    >>> [round(room_at(seconds) / 1e6) for seconds in (10, 3600)]
    [4, 10]
    """
    return BYTES_PER_DOUBLING * (1 + math.log2(1 + seconds))


class Journal:
    """Appends records to the files of a run's folder, about once per second at first, then less and less often.

    A resumed run continues the times of its earlier part.
    """

    def __init__(self, run: Path, notice: Callable[[str], None] = print) -> None:
        """`notice` is told, once, that records were lost because the disk is full."""
        self._notice: Callable[[str], None] | None = notice
        self._folder = run / FOLDER
        self._encoder = msgspec.json.Encoder()
        earlier = [*Telemetry(run).read(NodeProbe), *Telemetry(run).read(WorkerChunk)]
        self._began = time.perf_counter() - max((record.time for record in earlier), default=0.0)
        self._next = 0.0
        self._turn = 0
        self._end_cut_lines()

    def due(self) -> bool:
        """Whether it is time to write again."""
        now = time.perf_counter()
        if now < self._next:
            return False
        self._next = now + period_at(now - self._began)
        return True

    def add(self, records: Sequence[AnyRecord]) -> None:
        """Append records, whose times are those of `time.perf_counter`. What a full disk refuses is lost."""
        lines: dict[type[Record], list[bytes]] = {}
        for record in records:
            record.time -= self._began
            lines.setdefault(type(record), []).append(self._encoder.encode(record) + b"\n")
        self._turn += 1
        room = room_at(time.perf_counter() - self._began)
        try:
            with translated_disk_errors(self._folder):
                self._folder.mkdir(exist_ok=True)
            for kind, encoded in lines.items():
                path = self._folder / f"{FILES[kind]}.jsonl"
                size = path.stat().st_size if path.exists() else 0
                append(path, b"".join(self._thin(encoded, room - size) if kind in THINNED else encoded))
        except PacelineError as error:
            if self._notice is not None:
                self._notice(f"{error.message}; the run continues without this telemetry")
                self._notice = None

    def _thin(self, lines: list[bytes], room: float) -> list[bytes]:
        """Every n-th line if there is no room for all, beginning with a different line each time."""
        stride = math.ceil(sum(map(len, lines)) / max(room, FEWEST_BYTES_AT_ONCE))
        return lines[self._turn % stride :: stride]

    def _end_cut_lines(self) -> None:
        """End lines that a kill has cut off, so that the next record begins a new line."""
        for path in self._folder.glob("*.jsonl"):
            with translated_disk_errors(path), open(path, "r+b", opener=open_regular) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 1))
                if file.read(1) not in (b"", b"\n"):
                    file.write(b"\n")


class Telemetry:
    """The records of a run, by kind, in the order in which they were written."""

    def __init__(self, run: Path) -> None:
        self._folder = run / FOLDER

    def read(self, kind: type[R]) -> list[R]:
        """All records of a kind, without lines that a kill or a full disk has cut off."""
        path = self._folder / f"{FILES[kind]}.jsonl"
        if not path.is_file():
            return []
        decoder = msgspec.json.Decoder(kind)
        found = []
        for line in read_file(path, "remove it; the diagnosis then knows less about the run").splitlines():
            with suppress(*BAD_TEXT):
                found.append(decoder.decode(line))
        return found
