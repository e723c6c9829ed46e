"""How do records get into a run's folder, and out of it again?"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from paceline.files import translated_disk_errors
from paceline.telemetry.meter import period_at
from paceline.telemetry.records import KINDS, AnyRecord, ConnectionProbe, NodeProbe, Record, StepSample, WorkerChunk

FOLDER = "telemetry"
R = TypeVar("R", bound=Record)

# Of steps and connections a part tells as much: there are many where a cluster is large, and not all are kept then.
THINNED = (StepSample, ConnectionProbe)
BYTES_A_DOUBLING = 800_000
FEWEST_BYTES_AT_ONCE = 8_000


def room_at(seconds: float) -> float:
    """How many bytes a kind of which not all records are kept may have after so long: as many more with each doubling.

    >>> [round(room_at(seconds) / 1e6) for seconds in (10, 3600)]
    [4, 10]
    """
    return BYTES_A_DOUBLING * (1 + math.log2(1 + seconds))


class Journal:
    """Appends records to the files of a run's folder, about once a second at first, then the rarer the longer it lasts.

    A run that goes on after an interruption goes on in time too.
    """

    def __init__(self, run: Path) -> None:
        self._folder = run / FOLDER
        self._encoder = msgspec.json.Encoder()
        self._names = {kind: name for name, kind in KINDS.items()}
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
        """Append some records, whose times are those of `time.perf_counter`."""
        lines: dict[type[Record], list[bytes]] = {}
        for record in records:
            record.time -= self._began
            lines.setdefault(type(record), []).append(self._encoder.encode(record) + b"\n")
        self._turn += 1
        room = room_at(time.perf_counter() - self._began)
        with translated_disk_errors(self._folder):
            self._folder.mkdir(exist_ok=True)
            for kind, encoded in lines.items():
                with (self._folder / f"{self._names[kind]}.jsonl").open("ab") as file:
                    kept = self._thin(encoded, room - file.tell()) if kind in THINNED else encoded
                    file.write(b"".join(kept))

    def _thin(self, lines: list[bytes], room: float) -> list[bytes]:
        """Every so manieth line, from another one on each time, where there is no room for all."""
        stride = math.ceil(sum(map(len, lines)) / max(room, FEWEST_BYTES_AT_ONCE))
        return lines[self._turn % stride :: stride]

    def _end_cut_lines(self) -> None:
        """Where a kill has cut a line short, what comes next begins a new one."""
        for path in self._folder.glob("*.jsonl"):
            with translated_disk_errors(path):
                if not path.read_bytes().endswith(b"\n"):
                    with path.open("ab") as file:
                        file.write(b"\n")


class Telemetry:
    """The records of a run, by kind, in the order in which they came."""

    def __init__(self, run: Path) -> None:
        self._folder = run / FOLDER

    def read(self, kind: type[R]) -> list[R]:
        """All records of a kind; what a kill or a full disk cut short is left out."""
        name = next(name for name, known in KINDS.items() if known is kind)
        path = self._folder / f"{name}.jsonl"
        if not path.exists():
            return []
        decoder = msgspec.json.Decoder(kind)
        found = []
        for line in path.read_bytes().splitlines():
            try:
                found.append(decoder.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
        return found
