"""What do the roles of a cluster say to each other, beside the frames of a step?

All are small typed structures in MessagePack; what does not decode as one of those expected closes the connection.
"""

from __future__ import annotations

from typing import Any

import msgspec

from paceline.telemetry.records import AnyRecord
from paceline.wire.frames import BadFrameError, Frame, Kind


class Message(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag=True):
    """One message."""


# -- from a role to the coordinator


class Hello(Message):
    """A role begins: who and where it is, and what it runs on."""

    role: str
    rank: int
    pid: int
    node: str
    paceline: str
    python: str


class Ready(Message):
    """A role can begin: a shard's `address`, a worker's `data` as it sees it (a fingerprint)."""

    address: str = ""
    data: str = ""


class Beat(Message):
    """A role is alive. `doing` names what it does or waits for; bytes are those on connections to other roles."""

    doing: str
    bytes_sent: int
    bytes_received: int
    memory_bytes: int


class Report(Message):
    """What a role has recorded of itself and its node; times are of its own clock, which shows `now`."""

    now: float
    records: list[AnyRecord]


class Take(Message):
    """A worker asks for its rows in leg `leg`, from batch `batch` on (batches of a worker are counted from 1)."""

    leg: int
    batch: int


class Idle(Message):
    """A worker has no rows left in this leg, and all its pushes are in."""

    leg: int


class Failed(Message):
    """A role gives up. `kind` is one of `data`, `config`, `diverged`, `run`."""

    kind: str
    message: str
    hint: str


# -- from the coordinator to a role


class Begin(Message):
    """A worker may train: its `incarnation`, the `generation` of the parameters, and where the shards are. `sharing` is
    how many workers its node has.
    """

    incarnation: int
    generation: int
    leg: int
    shards: list[str]
    sharing: int = 1


class Grant(Message):
    """Rows for a worker: for batches from `first` on, (start, stop, rows handed out before), int64, as bytes.

    No bounds: there are no more rows in this leg.
    """

    leg: int
    first: int
    bounds: bytes


class Wait(Message):
    """Leave what you do, and wait for the next `Begin`: parameters were lost."""


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
    """Where a shard stands with a worker: the last batch of it that is in the parameters. `weights`: where they are, if
    both see the same memory.
    """

    applied: int
    weights: str = ""


class Reset(Message):
    """Forget all parameters and workers. `applied` and `rows` are those of the states that will be loaded."""

    generation: int
    applied: list[int]
    rows: int


class Open(Message):
    """A leg begins: each worker continues after batch `done[rank]`, and its clocks count from `bases[rank]`."""

    bases: list[int]
    done: list[int]


class Copy(Message):
    """Keep the states as they are now, or in sync when clock `at` is complete, until they are fetched."""

    at: int


class Copied(Message):
    """The copy is made; what it contains."""

    applied: list[int]
    rows: int
    losses: float
    loss_rows: int


class Fetch(Message):
    """Send `count` keys from index `start` on: their `weights` after `rows` rows, states of the `copy`, or, of a
    dense model, `states` as they are.
    """

    what: str
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
    """What a shard has counted in this leg, over the whole run (`rows`), and connections that it refused."""

    rows: int
    losses: float
    loss_rows: int
    largest_lead: int
    refused: int


class Go(Message):
    """To a worker of a dense model: push now, or, where it is not `wanted`, go on without."""

    wanted: bool


class Done(Message):
    """What was asked has been done."""


class RoleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """All that a role's process is given. `config` is a `RunConfig`, encoded: another version may not read it.

    `features` is how many keys a sparse model has, `num_values` and `num_trained` are a dense one's;
    `num_rows` is how many an epoch has.
    """

    role: str
    rank: int
    coordinator: str
    token: bytes
    certificate: bytes
    key: bytes
    loopback: bool
    features: int
    num_values: int
    num_trained: int
    num_rows: int
    config: bytes

    def __repr__(self) -> str:
        return f"RoleSpec({self.role} {self.rank})"  # and neither the token nor the key


ToCoordinator = Hello | Ready | Beat | Report | Take | Idle | Failed
ToRole = Begin | Grant | Wait | Stop
ToShard = Join | Reset | Open | Copy | Fetch | Fetched | Note | Read | Count
FromShard = Joined | Copied | Counted | Go | Noted | Done


def encode(message: msgspec.Struct) -> bytes:
    """The bytes of a message."""
    return msgspec.msgpack.encode(message)


def decode(frame: Frame, kinds: Any) -> Any:
    """The message in a frame, which is one of `kinds`, a union of those above."""
    if frame.kind != Kind.MESSAGE:
        raise BadFrameError(f"a {frame.kind.name} frame where a message was expected")
    try:
        return msgspec.msgpack.decode(frame.body.data, type=kinds)
    except msgspec.DecodeError as error:
        raise BadFrameError(f"a message does not read: {error}") from None
