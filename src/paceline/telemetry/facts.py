"""What must be known about a run besides what happened in it? One small file, `telemetry/run.json`.

With it a run folder explains itself: diagnosing it needs neither the dataset, nor what `paceline doctor` measured on
the machine that trained, nor the user's model module.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from paceline.errors import BAD_TEXT, DataError
from paceline.files import read_file, replace_file, translated_disk_errors
from paceline.telemetry.ceilings import Ceilings, GpuCeiling
from paceline.telemetry.recorder import FOLDER

FILE = "run.json"
BYTES_PER_FLOAT = 4
# Advice on larger batches compares a run's batches with batches of this many times the rows.
TIMES_LARGER = 4


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """What the model declares about itself.

    `input` is "rows" or "images". With `keyed` parameters, only a batch's keys travel; otherwise all parameters travel
    in each step. `metrics` are what evaluations measure, in the order in which tables show them. `compiled` says
    whether a loop of whole steps is compiled; None in runs that did not record it.
    """

    input: str
    keyed: bool
    metrics: tuple[str, ...]
    compiled: bool | None = None

    @property
    def compiled_steps(self) -> bool:
        """Whether threads take steps without Python, so that they do not hold each other up."""
        return self.keyed if self.compiled is None else self.compiled

    @staticmethod
    def of(entry: Any, metrics: tuple[str, ...]) -> Traits:
        """Those of an entry of the registry, and the metrics of its task."""
        return Traits(input=entry.input, keyed=entry.keyed, metrics=metrics, compiled=entry.compiled)


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a run over sparse rows declares about its GPU.

    `streamed` says whether rows are copied to it while it trains. Training on a row moves about `bytes_per_row` in its
    memory, or as many as `fewer_bytes` says if these flags were added. A launch has at most `most_rows` rows, whatever
    the batch size.
    """

    ceiling: GpuCeiling
    streamed: bool
    bytes_per_row: float
    fewer_bytes: dict[str, float] = {}
    most_rows: int = 0


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a run trains, on which data and on which machine. 0, empty or None means "not recorded".

    `rows` are the training rows. The model has `keys` keys, including the bias, with `floats_per_key` numbers each.
    `keys_per_batch` is the mean number of distinct keys in a batch, by its number of rows. `ceilings` are what
    `paceline doctor` had measured on the machine that trained. `cores` are those that the run could use there. `gpu` is
    there if one trains on sparse rows.
    """

    traits: Traits
    rows: int = 0
    keys: int = 0
    floats_per_key: int = 0
    nonzeros_per_row: float = 0.0
    keys_per_batch: dict[int, float] = {}
    ceilings: Ceilings | None = None
    cores: int = 0
    gpu: GpuFacts | None = None

    @property
    def table_bytes(self) -> int:
        """The size of the table in which a batch's keys are looked up."""
        return BYTES_PER_FLOAT * self.floats_per_key * self.keys


def write_facts(run: Path, facts: Facts) -> None:
    """Write a run's facts, replacing earlier ones."""
    path = run / FOLDER / FILE
    with translated_disk_errors(path):
        path.parent.mkdir(exist_ok=True)
    replace_file(path, msgspec.json.format(msgspec.json.encode(facts), indent=2) + b"\n", durable=False)


def read_facts(run: Path) -> Facts | None:
    """A run's facts; None for a run that has none."""
    path = run / FOLDER / FILE
    if not path.is_file():
        return None
    hint = "remove it; the diagnosis then knows less about the run"
    try:
        return msgspec.json.decode(read_file(path, hint), type=Facts)
    except BAD_TEXT as error:
        raise DataError(f"`{path}` is broken: {error}", hint) from None
