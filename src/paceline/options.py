"""Which keywords do the functions of `paceline.api` take, and of which types? The flags of the commands, mostly."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

from paceline.data.limits import IndexBase, Integers, LabelKind, Scale
from paceline.errors import ConfigError

StrPath = str | PathLike[str]


class ColumnOptions(TypedDict, total=False):
    """How rows in memory are read, and which of them are held out."""

    labels: LabelKind
    drop: Sequence[str]
    categorical: Sequence[str]
    numeric: Sequence[str]
    timestamp: Sequence[str]
    cross: Sequence[Sequence[str]]
    bins: Mapping[str, int | Sequence[float]] | str
    hash_bits: int
    scale: Scale
    fields: bool
    skip_bad_rows: int
    validation_fraction: float
    test_fraction: float


class RowOptions(ColumnOptions, total=False):
    """What can be said about rows in memory.

    `label` and `weight` are a column's name, or one value per row. `validation` and `test` are rows of the same kind,
    held out. `labels` says of which kind labels are, if they do not tell: "two-classes", "classes" or "numbers".

    `drop`, `categorical`, `numeric` and `timestamp` name columns, `cross` lists tuples of names, and `bins` has the
    number of bins, or the edges between them, by column: `{"age": 10, "price": [1, 5]}`. These and the others are as
    for `paceline prepare`.
    """

    label: Any
    weight: Any
    validation: Any
    test: Any


class PrepareOptions(RowOptions, total=False):
    """The flags of `paceline prepare` as keywords of `prepare`. The first ones are as for rows in memory; for files,
    `label` and `weight` are columns, and `validation` and `test` are files.
    """

    format: str
    features: int
    index_base: IndexBase
    seed: int
    integers: Integers
    weights: StrPath | Sequence[StrPath]
    names: bool
    size: int
    classes: int


class RunOptions(TypedDict, total=False):
    """The flags of `paceline train`, except for those that `train` names."""

    model: str
    loss: str
    class_weight: Literal["balanced"]
    pace: str | int
    workers: int
    shards: int
    batch_size: int
    dim: int
    optimizer: str
    learning_rate: float
    momentum: float
    l1: float
    l2: float
    epochs: int
    train_rows: int
    steps: int
    seconds: float
    test_every: int
    early_stopping: int
    checkpoint_every: float
    engine: str
    address: str
    exchange: str
    device: str
    seed: int
    shuffle: bool
    run: StrPath
    track: str


class TrainOptions(RunOptions, ColumnOptions, total=False):
    """The flags of `paceline train` as keywords of `train`, and, for rows in memory, how they are read
    (`RowOptions`). Other settings of a run are `settings`: `settings=["wire.tls=true"]`.
    """


class RawOptions(TypedDict, total=False):
    """What can be said about raw rows to be scored, as for the command `predict`."""

    id: str
    format: str
    skip_bad_rows: int


def keys_of(*options: type[Any]) -> tuple[str, ...]:
    """The keywords that these options are, in their order.

    >>> keys_of(RawOptions)
    ('id', 'format', 'skip_bad_rows')
    """
    return tuple(key for kind in options for key in kind.__annotations__)


def refuse_other_keywords(given: Iterable[str], known: Sequence[str], call: str) -> None:
    """Raise for the first keyword that a call does not take."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(known)}"
            raise ConfigError(f"unknown setting `{name}` in the call of `{call}`", hint)
