"""Shards without connections: what they are told and what they send, frame by frame."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.parameters.layout import Layout
from paceline.processes.messages import decode, encode
from paceline.settings import RunConfig
from paceline.training.cluster import messages as m
from paceline.training.cluster.messages import RoleSpec
from paceline.training.cluster.role import make_shard
from paceline.training.cluster.shard import ShardService
from paceline.wire.frames import Frame, Kind


class FakePeer:
    """The server's end of a connection, without one: keeps what was sent."""

    def __init__(self) -> None:
        self.address = "fake:1"
        self.arrived = 0
        self.tag: Any = None
        self.open = True
        self.sent: list[Frame] = []

    def send(self, kind: Kind, flags: int, *parts: Any) -> None:
        if self.open:
            content = b"".join(part.tobytes() if isinstance(part, np.ndarray) else bytes(part) for part in parts)
            self.sent.append(Frame(kind, flags, np.frombuffer(bytearray(content), np.uint8)))

    def close(self) -> None:
        self.open = False


class FakeServer:
    """A server that calls at once."""

    refused = 0

    def call_soon(self, call: Any) -> None:
        call()

    def take_all_back(self) -> None:
        """Nothing is lent."""


class TestedShard(ShardService):
    """A shard that is open for a segment, with its stores at hand."""

    __test__ = False

    def __init__(self, shard: ShardService) -> None:
        super().__init__(shard._server, shard.clocks, shard.stores, shard._copies, shard.exchange, shard.take_chunk)
        self.table: Any = shard.stores.get("table")
        self.dense: Any = shard.stores.get("dense")


def frame_of(kind: Kind, flags: int, *parts: Any) -> Frame:
    peer = FakePeer()
    peer.send(kind, flags, *parts)
    return peer.sent[0]


def spec_of(shard: int = 0, loopback: bool = False) -> RoleSpec:
    return RoleSpec(
        role="shard", rank=shard, coordinator="", token=b"", loopback=loopback, config=b"", layout=b""
    )  # fmt: skip


def open_shard(config: RunConfig, layout: Layout, shard: int = 0, loopback: bool = False) -> TestedShard:
    service = TestedShard(make_shard(spec_of(shard, loopback), config, layout, FakeServer()))  # type: ignore[arg-type]
    tell(service, m.Reset(generation=1, applied=[0] * config.workers, rows=0))
    tell(service, m.Open(bases=[0] * config.workers, done=[0] * config.workers))
    return service


def order_copy(service: ShardService, at: int, asker: FakePeer) -> None:
    """Order a copy, which is acknowledged at once."""
    service.received(asker, frame_of(Kind.MESSAGE, 0, encode(m.Copy(at=at))))  # type: ignore[arg-type]
    assert decode(asker.sent.pop(0), m.FromShard) == m.Finished()


def tell(service: ShardService, message: Any, peer: FakePeer | None = None) -> Any:
    peer = peer or FakePeer()
    service.received(peer, frame_of(Kind.MESSAGE, 0, encode(message)))  # type: ignore[arg-type]
    return decode(peer.sent[-1], m.FromShard) if peer.sent else None
