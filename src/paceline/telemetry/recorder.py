"""How do records get into a run's folder, and out of it again?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from paceline.files import translated_disk_errors
from paceline.telemetry.meter import period_at
from paceline.telemetry.records import KINDS, AnyRecord, NodeProbe, Record

FOLDER = "telemetry"
R = TypeVar("R", bound=Record)


class Journal:
    """Appends records to the files of a run's folder, about once a second at first, then the rarer the longer it lasts.

    A run that goes on after an interruption goes on in time too.
    """

    def __init__(self, run: Path) -> None:
        self._folder = run / FOLDER
        self._encoder = msgspec.json.Encoder()
        self._names = {kind: name for name, kind in KINDS.items()}
        before = max((record.time for record in Telemetry(run).read(NodeProbe)), default=0.0)
        self._began = time.perf_counter() - before
        self._next = 0.0

    def due(self) -> bool:
        """Whether it is time to write again."""
        now = time.perf_counter()
        if now < self._next:
            return False
        self._next = now + period_at(now - self._began)
        return True

    def add(self, records: Sequence[AnyRecord]) -> None:
        """Append some records, whose times are those of `time.perf_counter`."""
        lines: dict[str, list[bytes]] = {}
        for record in records:
            record.time -= self._began
            lines.setdefault(self._names[type(record)], []).append(self._encoder.encode(record))
        with translated_disk_errors(self._folder):
            self._folder.mkdir(exist_ok=True)
            for name, encoded in lines.items():
                with (self._folder / f"{name}.jsonl").open("ab") as file:
                    file.write(b"\n".join(encoded) + b"\n")


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
            except msgspec.DecodeError:
                continue
        return found
