"""How fast are the links between a cluster's nodes? For `doctor`: a process on each node answers, this one measures."""

from __future__ import annotations

import queue
import select
import socket
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import msgspec

from paceline.engines import ClusterEngine, ProcessRequest, open_engine
from paceline.errors import RunError
from paceline.telemetry.ceilings import LinkCeiling
from paceline.wire.admission import Admission
from paceline.wire.connection import Connection, connect
from paceline.wire.frames import Kind, WireError
from paceline.wire.handshake import new_token
from paceline.wire.streams import stream_of

ENTRY = "paceline.engines.links:answer"
ANSWER_SECONDS = 60.0
SILENCE_SECONDS = 10.0
CHUNK = bytes(1 << 20)
PING = bytes(64)
PINGS = 200
LAST = 1
"""The flag of the last chunk, which is acknowledged."""


def measure_links(address: str, say: Callable[[str], None], seconds: float = 0.9) -> list[LinkCeiling]:
    """Measure the links to all nodes of a Ray cluster that can run processes, one after the other."""
    say("links to the cluster's nodes")
    admitted: queue.SimpleQueue[tuple[socket.socket, str, Any]] = queue.SimpleQueue()
    token = new_token()
    with ExitStack() as stack:
        engine = stack.enter_context(open_engine("ray", address, [ProcessRequest(ENTRY, per_node=True)])).get()
        count = engine.num_processes
        admission = Admission(engine.host, 0, token, None, lambda *client: admitted.put(client))
        stack.callback(admission.close)
        for number in range(count):
            engine.begin(number, msgspec.msgpack.encode((admission.address, token)))
        connections: list[Connection] = []
        deadline = time.monotonic() + ANSWER_SECONDS
        while len(connections) < count:
            if time.monotonic() > deadline:
                raise RunError(
                    f"{len(connections)} of {count} nodes answered within {ANSWER_SECONDS:g} s",
                    "check that every node has the same version of paceline and can reach this machine",
                )
            if select.select([admission.listener], [], [], 0.1)[0]:
                admission.accept()
            with suppress(queue.Empty):
                connected, peer, _ = admitted.get_nowait()
                connections.append(stack.enter_context(Connection(stream_of(connected, peer))))
        links = [_measure(engine, connection, seconds) for connection in connections]
    # Of several processes on a node one is enough.
    return sorted({link.node: link for link in links}.values(), key=lambda link: link.node)


def _measure(engine: ClusterEngine, connection: Connection, seconds: float) -> LinkCeiling:
    """The other side has said the name of its node; nothing else is under way."""
    node = bytes(connection.receive(SILENCE_SECONDS).body).decode(errors="replace")
    trips = []
    for _ in range(PINGS):
        began = time.perf_counter()
        connection.send(Kind.MESSAGE, 0, PING)
        connection.receive(SILENCE_SECONDS)
        trips.append(time.perf_counter() - began)
    began = now = time.perf_counter()
    count = 0
    while now - began < seconds:
        connection.send(Kind.CHUNK, 0, CHUNK)
        count += 1
        now = time.perf_counter()
    connection.send(Kind.CHUNK, LAST, b"")
    connection.receive(SILENCE_SECONDS)
    rate = count * len(CHUNK) / (time.perf_counter() - began)
    return LinkCeiling(node=engine.name_of(node), bytes_per_second=rate, round_trip_seconds=statistics.median(trips))


def answer(content: bytes, node: str, _host: str) -> None:
    """What a node's process does: connect, swallow chunks, send messages back, until the other side has enough."""
    address, token = msgspec.msgpack.decode(content, type=tuple[str, bytes])
    with suppress(WireError), connect(address, token, None) as connection:
        connection.send(Kind.MESSAGE, 0, node.encode())
        while True:
            frame = connection.receive(ANSWER_SECONDS)
            if frame.kind is Kind.MESSAGE:
                connection.send(Kind.MESSAGE, 0, bytes(frame.body))
            elif frame.flags == LAST:
                connection.send(Kind.MESSAGE, 0, PING)
