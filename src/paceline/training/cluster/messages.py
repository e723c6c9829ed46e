"""What do the roles of a run say to each other, besides the frames of a step?

How a role reports to the coordinator is common to all processes: see `processes/messages.py`.
"""

from __future__ import annotations

from typing import Literal

from paceline.processes.messages import Message, ProcessSpec

# -- from a role to the coordinator


class Take(Message):
    """A worker asks for its rows in a segment, from batch `batch` on (a worker's batches are counted from 1)."""

    segment: int
    batch: int


class Idle(Message):
    """A worker has no rows left in this segment, and all its pushes are in."""

    segment: int


# -- from the coordinator to a role


class Begin(Message):
    """A worker may train: its `incarnation`, the `generation` of the parameters, and where the shards are. `sharing` is
    how many workers its node has.
    """

    incarnation: int
    generation: int
    segment: int
    shards: list[str]
    sharing: int = 1


class Lease(Message):
    """Rows for a worker: for batches from `first` on, (start, stop, rows handed out before), int64, as bytes.

    No bounds: there are no more rows in this segment.
    """

    segment: int
    first: int
    bounds: bytes


class Wait(Message):
    """Stop what you are doing, and wait for the next `Begin`: parameters were lost."""


class Stop(Message):
    """The run is over."""


# -- to a shard, and its answers


class Join(Message):
    """A worker connects to a shard. `gradient`: where it will find gradients, if both see the same memory."""

    rank: int
    incarnation: int
    generation: int
    gradient: str = ""


class Joined(Message):
    """Where a shard stands with a worker: the last batch of it that is in the parameters. `values`: where they are, if
    both see the same memory.
    """

    applied: int
    values: str = ""


class Reset(Message):
    """Forget all parameters and workers. `applied` and `rows` are those of the states that will be loaded."""

    generation: int
    applied: list[int]
    rows: int


class Open(Message):
    """A segment begins: each worker continues after batch `done[rank]`, and its clocks count from `bases[rank]`."""

    bases: list[int]
    done: list[int]


class Copy(Message):
    """Keep the states as they are now, or in sync when clock `at` is complete, until they are fetched: `Finished` once
    the shard knows, then `Copied`.
    """

    at: int


class Copied(Message):
    """The copy is made; what it contains."""

    applied: list[int]
    rows: int
    losses: float
    loss_rows: int


class FetchPart(Message):
    """Send `count` parameters of one kind (`of`: `table` or `dense`) from index `start` on: their `values` after `rows`
    rows, the states of the `copy`, or the `states` as they are.
    """

    what: Literal["values", "copy", "states"]
    of: str
    start: int
    count: int
    rows: int = 0


class Fetched(Message):
    """All of the copy has been fetched."""


class Note(Message):
    """A worker leaves a note for the others."""

    name: str
    content: bytes


class Read(Message):
    """A worker asks for a note."""

    name: str


class Noted(Message):
    """A note, if it is there."""

    content: bytes | None


class Count(Message):
    """How far are you?"""


class Counted(Message):
    """What a shard has counted in this segment, over the whole run (`rows`), and connections that it refused."""

    rows: int
    losses: float
    loss_rows: int
    largest_lead: int
    refused: int


class Go(Message):
    """To a worker that has announced a push: send it now, or continue without it if it is not `wanted`."""

    wanted: bool


class Finished(Message):
    """What was asked has been done."""


class RoleSpec(ProcessSpec, frozen=True, kw_only=True):
    """What the process of a role is given: an encoded `RunConfig` and the encoded `Layout` of its parameters. Shards
    that draw initial values are given the `hot_keys` of the data, too.

    The first two are encoded on their own because another version, which says so only once it has read this, may not
    know them.
    """

    config: bytes
    layout: bytes
    hot_keys: tuple[int, ...] = ()


ToRole = Begin | Lease | Wait | Stop
ToShard = Join | Reset | Open | Copy | FetchPart | Fetched | Note | Read | Count
FromShard = Joined | Copied | Counted | Go | Noted | Finished
