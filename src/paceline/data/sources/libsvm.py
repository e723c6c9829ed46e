"""How is LIBSVM text read, and libffm's?

A line is `label [qid:n] index:value index:value … [# comment]`. Blank lines and comment lines are skipped, `qid`
is ignored, zeros are kept. Indices count from 1 or from 0: `auto` looks at the first megabyte, and they count from 0
if a 0 is among them.

Rows have weights if the label of the first row is followed by one, `label:weight`; then rows without one have the
weight 1. In libffm's text, nonzeros are `field:index:value`, and fields are numbers from 0 to 65535.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data.prepare_settings import PrepareConfig
from paceline.data.sources.files import Chunk, Source, cut_at_lines, first_lines
from paceline.data.sources.parsed import (
    MOST_UNDECLARED,
    WEIGHT_WORDS,
    BadRow,
    Parsed,
    Room,
    input_key_dtype,
    most_features,
    shown,
)
from paceline.data.sparse.name_collector import NameCollector
from paceline.kernels import problems
from paceline.kernels.libsvm import parse_libsvm
from paceline.kernels.optional import MOST_FIELDS
from paceline.kernels.text import Counts

Text = NDArray[np.uint8]

MOST_LOOKED_AT = 1000
TWO_LABELS = (b"0", b"1", b"+1", b"-1")
MOST_DIGITS = 18  # of an index, as `parse_libsvm` reads it


class Libsvm:
    """LIBSVM text. Index i is key i - `base`; without declared `features` keys are 32 bits wide.

    `weighted`: labels may be followed by weights. `fields`: nothing, or None if nonzeros begin with their fields. Rows
    that are not `labelled` begin with a nonzero.
    """

    label_column = "column 1"
    numeric: tuple[str, ...] = ()
    names: NameCollector | None = None

    def __init__(
        self, features: int | None, base: int, notes: tuple[str, ...] = (), *, weighted: bool = False,
        fields: tuple[()] | None = (), labelled: bool = True,
    ) -> None:  # fmt: skip
        self.features = features
        self.base = base
        self.notes = notes
        self.weighted = weighted
        self.fields = fields
        self._labelled = labelled
        self.settings: dict[str, Any] = {"index_base": base, **({"weighted": True} if weighted else {})}

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
        room = Room.of(
            len(text) // 2, most_nonzeros, input_key_dtype(self.features), most_bad,
            weights=self.weighted, fields=self.fields is None,
        )  # fmt: skip
        close = np.empty((most_nonzeros, 3), np.int64)
        limit = most_features(self.features) + self.base
        return room, close, parse_libsvm(text, self.base, limit, room, close, self._labelled)

    def _explain(self, text: Text, line: int, problem: int, line_start: int, start: int) -> BadRow:
        token = b"".join(text[start : start + 200].tobytes().split(maxsplit=1)[:1])
        column = f"column {start - line_start + 1}"
        if problem == problems.KEY_TOO_LARGE and len(token.partition(b":")[0]) > MOST_DIGITS:
            what = f"{shown(token)} is a key of more than {MOST_DIGITS} digits"
            return BadRow(line, column, what, f"the largest that can be read is {10**MOST_DIGITS - 1}")
        if problem == problems.KEY_NO_NUMBER and self.fields is None:
            return BadRow(line, column, f"{shown(token)} is not `field:index:value`", "check the row and --format")
        return BadRow(line, column, *explain(problem, shown(token), self.features, self.base))


def explain(problem: int, text: str, features: int | None, base: int) -> tuple[str, str]:
    """What is wrong with a row of indices and values, and what to do about it."""
    match problem:
        case problems.LABEL_NO_NUMBER | problems.LABEL_NOT_FINITE:
            hint = "a row begins with its label; for weights, `label:weight`, the first row needs one too"
            return f"the label is {text}, not a finite number", hint
        case problems.WEIGHT_NO_NUMBER | problems.WEIGHT_NOT_FINITE | problems.WEIGHT_NEGATIVE:
            return f"{text} has a weight that is not {WEIGHT_WORDS}", "a row begins with `label:weight`"
        case problems.FIELD_TOO_LARGE:
            return f"{text} has a field above {MOST_FIELDS - 1}", "number the fields from 0"
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
    """LIBSVM text as the file's first lines show it, unless it was said where indices count from."""
    return _open(source, config, ())


def open_libffm(source: Source, config: PrepareConfig) -> Libsvm:
    """The same with a field for each nonzero, as libffm reads it."""
    return _open(source, config, None)


def _open(source: Source, config: PrepareConfig, fields: tuple[()] | None) -> Libsvm:
    lines = first_lines(source)
    labelled = config.labelled or has_labels(lines, config, fields)
    weighted = labelled and _has_weights(lines)
    notes: tuple[str, ...] = ()
    if config.index_base != "auto":
        base = int(config.index_base)
    else:
        base = find_base(lines, weighted=weighted, fields=fields, labelled=labelled)
        notes = (f"keys count from {base}",)
    notes += ("labels are followed by weights",) if weighted else ()
    return Libsvm(config.features, base, notes, weighted=weighted, fields=fields, labelled=labelled)


def find_base(
    lines: Text, *, weighted: bool = False, fields: tuple[()] | None = (), labelled: bool = True
) -> int:  # fmt: skip
    """Where indices count from: 0 if one is 0 among a file's first lines, else 1."""
    reading = Libsvm(1 << 62, 0, weighted=weighted, fields=fields, labelled=labelled)
    room, _, counts = reading._parse(lines, len(lines))
    return 0 if (room.keys[: counts.nonzeros] == 0).any() else 1


def _has_weights(lines: Text) -> bool:
    """Whether the label of the first row is followed by a weight."""
    return b":" in next(_first_words(lines), b"")


def has_labels(lines: Text, config: PrepareConfig, fields: tuple[()] | None) -> bool:
    """Whether rows that need no label have one.

    `1:0.5` at the beginning of a row is a label with its weight if labels had weights in the training data, unless some
    of the first rows begin with what cannot be a label. Otherwise it is a nonzero.
    """
    words = [*islice(_first_words(lines), MOST_LOOKED_AT)]
    if fields is None and words and words[0].count(b":") == 2:
        return False
    if not words or b":" not in words[0]:
        return True
    return config.weighted and (
        config.labels != "two-classes" or all(word.partition(b":")[0] in TWO_LABELS for word in words)
    )


def _first_words(lines: Text) -> Iterator[bytes]:
    """What each row begins with."""
    for line in lines.tobytes().split(b"\n"):
        words = line.partition(b"#")[0].split(maxsplit=1)
        if words:
            yield words[0]
