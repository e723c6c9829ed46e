"""What comes out of a chunk: rows, and what is wrong with those that were left out?"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.data.labels import RULES
from paceline.data.limits import LabelKind
from paceline.data.sources.files import Chunk, Source
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.name_collector import FoundTexts, NameCollector
from paceline.errors import printable
from paceline.kernels.keys import key_dtype
from paceline.kernels.names import NameRoom
from paceline.kernels.text import Counts

LONGEST_TEXT = 40
WEIGHT_WORDS = "a finite number of at least 0"
MOST_UNDECLARED = (1 << 32) - 1  # features where none are declared: keys and the bias's fit into 32 bits


class BadRow(NamedTuple):
    """A row that does not parse: its number within the chunk (from 1), where in it, what, and what to do."""

    row: int
    column: str
    problem: str
    hint: str


class Parsed(NamedTuple):
    """The rows of a chunk, and how its rows are numbered: `num_numbered` of them, from 1.

    Labels are the numbers in the source, float32; if these are `names` of classes, positions among them. `rows` are the
    numbers of the batch's rows, `bad` the rows left out, in order. `texts` are those of keys that may be new. `ids`
    tell rows apart, if a column was named for it.
    """

    batch: Batch
    rows: NDArray[np.int64]
    num_numbered: int
    bad: list[BadRow]
    names: Sequence[str] = ()
    texts: Sequence[FoundTexts] = ()
    ids: Any = None

    def with_labels(self, kind: LabelKind, column: str, most_bad: int) -> Parsed:
        """The same rows with labels as a dataset stores them. Rows with other labels become bad rows.

        Labels that are names stay as they are.
        """
        if self.names:
            return self
        rule, numbers = RULES[kind], self.batch.labels
        good = rule.accepts(numbers)
        if good.all():
            return self._replace(batch=self.batch._replace(labels=rule.store(numbers)))
        wrong = np.flatnonzero(~good)[:most_bad].tolist()
        problem = f"the label is `{{:g}}`; labels are {rule.words}"
        bad = [BadRow(int(self.rows[i]), column, problem.format(numbers[i]), rule.hint) for i in wrong]
        kept = self._keep(good, bad, most_bad)
        return kept._replace(batch=kept.batch._replace(labels=rule.store(kept.batch.labels)))

    def with_names(self) -> Parsed:
        """The same rows with names of classes: labels, which are whole numbers, become positions among `names`."""
        numbers, first, places = np.unique(self.batch.labels, return_index=True, return_inverse=True)
        order = np.argsort(first)
        names = [str(number) for number in numbers[order].tolist()]
        return self._replace(batch=self.batch._replace(labels=np.argsort(order)[places]), names=names)

    def with_classes(self, numbers: NDArray[np.int64], kind: LabelKind, why: BadRow, most_bad: int) -> Parsed:
        """The same rows with the numbers of classes as labels, where class i of `names` has number `numbers[i]`.

        Rows whose class has none (-1) become bad rows for the reason `why`, in which the first `{}` is the class.
        """
        found = numbers[self.batch.labels.astype(np.int64)]
        good = found >= 0
        wrong = np.flatnonzero(~good)[:most_bad]
        names = [printable(self.names[int(self.batch.labels[i])]) for i in wrong]
        bad = [
            why._replace(row=int(self.rows[i]), problem=why.problem.replace("{}", name, 1))
            for i, name in zip(wrong, names, strict=True)
        ]
        kept = self._keep(good, bad, most_bad)
        return kept._replace(batch=kept.batch._replace(labels=found[good].astype(RULES[kind].dtype)))

    def _keep(self, good: NDArray[np.bool_], bad: list[BadRow], most_bad: int) -> Parsed:
        """The rows where `good` holds, and some more bad rows."""
        if good.all():
            return self
        return self._replace(batch=self.batch.select(good), rows=self.rows[good], bad=sorted(self.bad + bad)[:most_bad])


class Format(Protocol):
    """How one input format is read. `chunks` runs in one thread, `parse` in several at once.

    `features` is the number of keys, or None if only the rows can tell; `settings` are the choices needed to prepare
    the same data again. `label_column` is where labels are, as messages call it. `notes` tell the user what was found
    in the input. `weighted` says that rows have weights. `fields` are the names of the fields of nonzeros, none if they
    have no fields, or None if the rows tell the fields by their numbers. `numeric` are the names of the first keys, and
    `names` collects those of hashed keys, unless there are none or nobody wants them.
    """

    label_column: str
    notes: tuple[str, ...]
    weighted: bool
    numeric: tuple[str, ...]
    names: NameCollector | None

    @property
    def features(self) -> int | None: ...

    @property
    def settings(self) -> dict[str, Any]: ...

    @property
    def fields(self) -> tuple[str, ...] | None: ...

    def chunks(self, source: Source) -> Iterator[Chunk[Any]]: ...

    def parse(self, chunk: Chunk[Any], most_bad: int) -> Parsed:
        """The rows of a chunk, up to the `most_bad`-th bad row if there are that many."""


class Room(NamedTuple):
    """Arrays to parse a chunk into. A thread uses the same ones for chunk after chunk; fresh memory costs time.

    `weights` and `fields` are there if the format has them, and `names` if the texts of keys are collected.
    """

    labels: NDArray[np.float32]
    lines: NDArray[np.int64]
    offsets: NDArray[np.int64]
    keys: NDArray[Any]
    values: NDArray[np.float32]
    bad: NDArray[np.int64]
    weights: NDArray[np.float32] | None = None
    fields: NDArray[np.uint16] | None = None
    names: NameRoom | None = None

    @staticmethod
    def of(
        rows: int, nonzeros: int, key_dtype: type, most_bad: int, *, weights: bool = False, fields: bool = False
    ) -> Room:
        """Room for at most this many rows, nonzeros and bad rows, until this thread asks again."""
        room: Room | None = getattr(_rooms, "room", None)
        num_bad = max(1, min(most_bad, rows + 1))
        needed = (("labels", rows), ("keys", nonzeros), ("bad", num_bad))
        kind = np.dtype(key_dtype), weights, fields
        if room is None or room.kind != kind or any(len(getattr(room, n)) < size for n, size in needed):
            rows, nonzeros = rows + rows // 4, nonzeros + nonzeros // 4
            room = _rooms.room = Room(
                np.empty(rows, np.float32),
                np.empty(rows, np.int64),
                np.empty(rows + 1, np.int64),
                np.empty(nonzeros, key_dtype),
                np.empty(nonzeros, np.float32),
                np.empty((num_bad, 4), np.int64),
                np.empty(rows, np.float32) if weights else None,
                np.empty(nonzeros, np.uint16) if fields else None,
            )
        return room._replace(bad=room.bad[:num_bad])

    @property
    def kind(self) -> tuple[np.dtype[Any], bool, bool]:
        """The type of the keys, and whether there are weights and fields."""
        return self.keys.dtype, self.weights is not None, self.fields is not None

    def parsed(self, counts: Counts, bad: list[BadRow], before: int = 0) -> Parsed:
        """A copy of the rows that were written, keys distinct within each; `before` lines of the chunk come first."""
        rows, nonzeros = counts.rows, counts.nonzeros
        batch = Batch(
            self.labels[:rows],
            self.offsets[: rows + 1],
            self.keys[:nonzeros],
            self.values[:nonzeros],
            None if self.weights is None else self.weights[:rows],
            None if self.fields is None else self.fields[:nonzeros],
        )
        return Parsed(batch.distinct().copy(), self.lines[:rows] + before, counts.lines + before, bad)


_rooms = threading.local()


def input_key_dtype(features: int | None) -> type:
    """The integers that keys of an input are read into: those of the blocks, 32 bits unless more are declared."""
    return key_dtype(most_features(features))


def most_features(features: int | None) -> int:
    """The declared number of features, or the most there can be."""
    return MOST_UNDECLARED if features is None else features


def shown(text: bytes) -> str:
    """A piece of input, made fit for a message.

    >>> shown(b"caf\\xe9\\t" + b"x" * 100)
    '`caf\\\\xe9\\\\txxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…`'
    """
    cut = text[:LONGEST_TEXT].decode(errors="backslashreplace")
    return f"`{printable(cut)}{'…' if len(text) > LONGEST_TEXT else ''}`"
