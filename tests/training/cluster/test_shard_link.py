"""The coordinator asks a shard; one that does not answer is waited for only as long as it may be there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from paceline.training.cluster.messages import Count
from paceline.training.cluster.shard_link import ShardLink
from paceline.wire.frames import Frame, LostConnectionError
from paceline.wire.handshake import new_token
from paceline.wire.server import Peer, Server

TOKEN = new_token()


class Deaf:
    """Takes everything and never answers."""

    def __init__(self) -> None:
        self.clients: set[Peer] = set()
        self.asked = threading.Event()

    def received(self, peer: Peer, _: Frame) -> None:
        self.clients.add(peer)
        self.asked.set()

    def closed(self, _: Peer) -> None:
        pass

    def tick(self) -> None:
        pass


@pytest.fixture
def deaf() -> Iterator[tuple[Server, Deaf]]:
    server, service = Server("127.0.0.1", 0, TOKEN, None), Deaf()
    thread = threading.Thread(target=server.serve, args=(service, 0.1))
    thread.start()
    yield server, service
    server.call_soon(server.stop)
    thread.join()
    server.close()


def test_nobody_waits_for_a_lost_shard(deaf: tuple[Server, Deaf]) -> None:
    server, service = deaf
    link = ShardLink(server.address, TOKEN, None, is_lost=service.asked.is_set)
    with closing(link), pytest.raises(LostConnectionError, match="is lost"):
        link.ask(Count())
    assert len(service.clients) == 1, "a lost shard was asked again"
