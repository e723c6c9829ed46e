"""How is LIBSVM text read?

A line is `label [qid:n] index:value index:value … [# comment]`. Blank lines and comment lines are skipped, `qid`
is ignored, zeros are kept. Indices count from 1 or from 0: `auto` looks at the first megabyte, and they count from 0
if a 0 is among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data.prepare_settings import PrepareConfig
from paceline.data.sources.files import Chunk, Source, cut_at_lines, first_lines
from paceline.data.sources.parsed import MOST_UNDECLARED, BadRow, Parsed, Room, input_key_dtype, most_features, shown
from paceline.kernels import problems
from paceline.kernels.libsvm import parse_libsvm
from paceline.kernels.text import Counts

Text = NDArray[np.uint8]


MOST_DIGITS = 18  # of an index, as `parse_libsvm` reads it


class Libsvm:
    """LIBSVM text. Index i is key i - `base`; without declared `features` keys are 32 bits wide."""

    label_column = "column 1"

    def __init__(self, features: int | None, base: int, notes: tuple[str, ...] = ()) -> None:
        self.features = features
        self.base = base
        self.notes = notes
        self.settings: dict[str, Any] = {"index_base": base}

    def chunks(self, source: Source) -> Iterator[Chunk[Text]]:
        return cut_at_lines(source)

    def parse(self, chunk: Chunk[Text], most_bad: int) -> Parsed:
        text = chunk.content
        room, close, counts = self._parse(text, most_bad)
        bad = [self._explain(text, *row) for row in room.bad[: counts.bad].tolist()]
        for nonzero, start, stop in close[: counts.close].tolist():
            number = float(text[start:stop].tobytes())
            if nonzero < 0:
                room.labels[-1 - nonzero] = number
            else:
                room.values[nonzero] = number
        return room.parsed(counts, bad)

    def _parse(self, text: Text, most_bad: int) -> tuple[Room, NDArray[np.int64], Counts]:
        # The shortest line is `1` and the shortest nonzero `1:1`, each followed by something.
        most_nonzeros = len(text) // 4
        room = Room.of(len(text) // 2, most_nonzeros, input_key_dtype(self.features), most_bad)
        close = np.empty((most_nonzeros, 3), np.int64)
        return room, close, parse_libsvm(text, self.base, most_features(self.features) + self.base, room, close)

    def _explain(self, text: Text, line: int, problem: int, line_start: int, start: int) -> BadRow:
        token = b"".join(text[start : start + 200].tobytes().split(maxsplit=1)[:1])
        column = f"column {start - line_start + 1}"
        if problem == problems.KEY_TOO_LARGE and len(token.partition(b":")[0]) > MOST_DIGITS:
            what = f"{shown(token)} is a key of more than {MOST_DIGITS} digits"
            return BadRow(line, column, what, f"the largest that can be read is {10**MOST_DIGITS - 1}")
        return BadRow(line, column, *explain(problem, shown(token), self.features, self.base))


def explain(problem: int, text: str, features: int | None, base: int) -> tuple[str, str]:
    """What is wrong with a row of indices and values, and what to do about it."""
    match problem:
        case problems.LABEL_NO_NUMBER | problems.LABEL_NOT_FINITE:
            return f"the label is {text}, not a finite number", "a row begins with its label"
        case problems.KEY_NO_NUMBER:
            return f"{text} is not `index:value`", "check the row and --format"
        case problems.KEY_BELOW_BASE:
            return f"{text} is a key below {base}", "`--index-base 0` reads keys that count from 0"
        case problems.KEY_TOO_LARGE if features is None:
            return f"{text} is a key above {MOST_UNDECLARED - 1 + base}", "declare --features to read larger ones"
        case problems.KEY_TOO_LARGE:
            highest = most_features(features) - 1 + base
            return f"{text} is a key above {highest}, the last of {features} features", "raise --features"
        case problems.NOT_FINITE:
            return f"{text} is not a finite number", "remove NaN and infinite values, or scale them down"
        case _:
            return f"{text} does not end with a number", "values are decimal numbers like 1, 0.5 or 1e-3"


def open_libsvm(source: Source, config: PrepareConfig) -> Libsvm:
    """LIBSVM text whose indices count from what was said, or else from what the file's first lines show."""
    if config.index_base != "auto":
        return Libsvm(config.features, int(config.index_base))
    base = find_base(source)
    return Libsvm(config.features, base, (f"keys count from {base}",))


def find_base(source: Source) -> int:
    """Where indices count from: 0 if one is 0 among a file's first lines, else 1."""
    lines = first_lines(source)
    room, _, counts = Libsvm(1 << 62, 0)._parse(lines, len(lines))
    return 0 if (room.keys[: counts.nonzeros] == 0).any() else 1
