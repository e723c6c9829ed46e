"""How are weights read that rows have in a file of their own?

Such a file has one number per line, for one row after the other of the file that it belongs to. Rows that do not parse
have a weight too, which is skipped with them. Blank lines and comments, `# …`, are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from paceline.data.blocks.dataset import Split
from paceline.data.sources.files import Source, cut_at_lines
from paceline.data.sources.libsvm import Libsvm
from paceline.data.sources.parsed import WEIGHT_WORDS, Parsed, shown
from paceline.errors import ConfigError, DataError, counted

Weights = NDArray[np.float32]

NOTHING = np.zeros(0, np.float32)


class WeightFile:
    """The weights of the rows of one file, in order."""

    def __init__(self, file: Source, rows_of: Source) -> None:
        self._name = file.name
        self._rows_of = rows_of.name
        self._pieces = _read(file)
        self._left = NOTHING
        self._taken = 0

    def weigh(self, parsed: Parsed) -> Parsed:
        """The next rows of the file, with their weights."""
        bad = np.array([row.row for row in parsed.bad], np.int64)
        count = len(parsed.rows) + len(bad)
        found = self._take(count)
        if len(found) < count:
            self._taken += len(found)
            message = f"`{self._name}` has {counted(self._taken, 'weight')}, but `{self._rows_of}` has more rows"
            raise DataError(message, "there is one weight per row")
        self._taken += count
        places = np.arange(len(parsed.rows)) + np.searchsorted(bad, parsed.rows)
        return parsed._replace(batch=parsed.batch._replace(weights=found[places]))

    def end(self) -> None:
        """Raise if there are weights left after the last row."""
        if len(self._take(1)):
            message = f"`{self._name}` has more weights than `{self._rows_of}` has rows ({self._taken:,})"
            raise DataError(message, "there is one weight per row")

    def _take(self, count: int) -> Weights:
        """The next weights, or all that are left if these are fewer."""
        pieces, found = [self._left], len(self._left)
        while found < count and (piece := next(self._pieces, None)) is not None:
            pieces.append(piece)
            found += len(piece)
        together = np.concatenate(pieces)
        self._left = together[count:]
        return together[:count]


def _read(file: Source) -> Iterator[Weights]:
    """All weights of a file, some megabytes at a time. A number alone on a line is a row of LIBSVM without nonzeros."""
    lines, hint = 0, f"a line has one weight, {WEIGHT_WORDS}"
    reading = Libsvm(None, 1)
    for chunk in cut_at_lines(file):
        batch, rows, num_lines, bad, *_ = reading.parse(chunk, 1)
        wrong = np.flatnonzero((batch.labels < 0) | (np.diff(batch.offsets) > 0))
        if problems := [row.row for row in bad] + rows[wrong[:1]].tolist():
            row = min(problems)
            line = chunk.content.tobytes().split(b"\n", row)[row - 1].strip()
            raise DataError(f"`{file.name}`, row {lines + row}: {shown(line)} is not a weight", hint)
        lines += num_lines
        yield batch.labels


def pair_up(files: list[Source], rows: Mapping[Split, list[Source]]) -> dict[int, WeightFile]:
    """Which file of weights belongs to which file of rows, by the `id` of the latter.

    There is one for each training file, in order, and then either none or one for each validation and test file.
    """
    train, every = rows["train"], [source for sources in rows.values() for source in sources]
    if files and len(files) not in (len(train), len(every)):
        raise ConfigError(
            f"{counted(len(files), 'file')} of weights for {counted(len(train), 'training file')}",
            "name one for each training file, in their order, and then one for each validation and test file, or none",
        )
    return {id(source): WeightFile(file, source) for file, source in zip(files, every, strict=False)}
