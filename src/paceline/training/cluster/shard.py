"""What does a shard of a cluster do? It keeps its part of the parameters, and serves workers and the coordinator.

One thread serves all connections, one frame after the other, so applies are serialised. How far each worker is and who
may continue is in `clocks.py`. What workers and shards exchange in a step is in `keyed_steps.py`, `piece_steps.py` or
`bookkeeper.py`. This file has the rest: connections, and requests of the coordinator.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from paceline.parameters.parts import DENSE, TABLE
from paceline.parameters.store import AnyStore, CompiledStore
from paceline.processes.messages import decode
from paceline.training.cluster import messages as m
from paceline.training.cluster.clocks import WorkerClock, WorkerClocks, say
from paceline.training.cluster.compiled_serving import CompiledServing
from paceline.training.cluster.copies import Copies
from paceline.training.cluster.steps import chunk_parts, held_part, read_chunk
from paceline.wire.frames import BadFrameError, Frame, Kind
from paceline.wire.server import Peer, Server

NOTICE_SECONDS = 1.0
MOST_NOTES_BYTES = 256 << 20
# What a note takes besides its name and its content.
NOTE_BYTES = 256
# The kinds of parameters, by the flags of a CHUNK frame.
KINDS = (TABLE, DENSE)

TakeChunk = Callable[[WorkerClock, Peer, Frame], None]


class StepExchange(Protocol):
    """What workers and a shard exchange in a step."""

    def join(self, worker: WorkerClock, join: m.Join) -> m.Joined:
        """What a worker that has joined is told."""

    def step(self, peer: Peer, frame: Frame) -> None:
        """A STEP frame."""

    def may_copy(self, at: int) -> bool:
        """Whether the states are those that a copy at a clock, or `NOW`, is to have."""

    def open(self) -> None:
        """A segment, or a generation of the parameters, begins."""


class ShardService:
    """Serves the connections of one shard."""

    def __init__(self, server: Server, clocks: WorkerClocks, stores: Mapping[str, CompiledStore], copies: Copies,
                 exchange: StepExchange, take_chunk: TakeChunk | None = None,
                 loop: CompiledServing | None = None) -> None:  # fmt: skip
        """`take_chunk` takes CHUNK frames of workers, if they send gradients or states in pieces; `loop` serves what
        needs no Python.
        """
        self.doing = "waits for workers"
        self.clocks = clocks
        self.stores = stores
        self.exchange = exchange
        self.take_chunk = take_chunk
        self.loop = loop
        self._server = server
        self._copies = copies
        self._step = exchange.step
        # Left by workers for each other, so that the members of a process group find each other.
        self._notes: dict[str, bytes] = {}
        self._notes_bytes = 0

    def sockets(self) -> dict[str, socket.socket]:
        """The connections to workers that stand now, by name."""
        peers = [(worker.rank, worker.peer) for worker in self.clocks.workers]
        return {f"worker {rank}": peer.stream.socket for rank, peer in peers if peer is not None}

    # -- connections

    def closed(self, peer: Peer) -> None:
        if isinstance(peer.tag, WorkerClock) and peer.tag.peer is peer:
            peer.tag.peer = None
        self._copies.closed(peer)

    def received(self, peer: Peer, frame: Frame) -> None:
        if frame.kind == Kind.STEP:
            self._step(peer, frame)
        elif frame.kind != Kind.CHUNK:
            self._told(peer, decode(frame, m.ToShard))
        elif not isinstance(peer.tag, WorkerClock):
            load_chunk(self.stores, frame)
            say(peer, m.Finished())
        elif self.take_chunk is not None:
            self.take_chunk(peer.tag, peer, frame)
        else:
            raise BadFrameError(f"worker {peer.tag.rank} sends a piece, but workers exchange values by key")

    def tick(self) -> None:
        """Tell workers whose replies have been held back for a while which workers they wait for."""
        self._copies.expire()
        clocks, saving = self.clocks, self._copies.held
        held = [worker for worker in clocks.workers if worker.waiting]
        slowest = clocks.slowest_ranks() if held and not saving else []
        now = time.perf_counter_ns()
        self.doing = "serves"
        for worker in held:
            if now - worker.arrived < NOTICE_SECONDS * 1e9:
                continue
            self.doing = f"holds back the reply to {_names([w.rank for w in held])}, waiting for {_names(slowest)}"
            if worker.peer is not None:
                worker.peer.send(Kind.HELD, 0, held_part(slowest))
        if saving:
            self.doing = "hands out its states for a checkpoint"

    # -- what workers and the coordinator ask

    def _told(self, peer: Peer, message: m.ToShard) -> None:
        match message:
            case m.Join():
                worker = self.clocks.join(peer, message)
                say(peer, self.exchange.join(worker, message))
            case m.Reset():
                self._reset(message)
                say(peer, m.Finished())
            case m.Open():
                # Batches may get new numbers, and replies to earlier ones wait under their numbers.
                self._server.take_all_back()
                self.clocks.open(message)
                self.exchange.open()
                say(peer, m.Finished())
            case m.Copy(at=at):
                self._copies.order(at, peer)
                say(peer, m.Finished())
                if self.exchange.may_copy(at):
                    self._copies.make_at(at)
            case m.FetchPart():
                self._fetch(peer, message)
            case m.Fetched():
                self._copies.release()
                say(peer, m.Finished())
            case m.Count():
                clocks = self.clocks
                counted = m.Counted(
                    rows=clocks.rows, losses=clocks.losses, loss_rows=clocks.loss_rows,
                    largest_lead=clocks.largest_lead, refused=clocks.refused + self._server.refused,
                )  # fmt: skip
                say(peer, counted)
            case m.Note(name=name, content=content):
                self._keep_note(name, content)
                say(peer, m.Finished())
            case m.Read(name=name):
                say(peer, m.Noted(content=self._notes.get(name)))

    def _keep_note(self, name: str, content: bytes) -> None:
        grown = NOTE_BYTES + len(name) if name not in self._notes else -len(self._notes[name])
        if (total := self._notes_bytes + grown + len(content)) > MOST_NOTES_BYTES:
            raise BadFrameError(
                f"{len(self._notes):,} notes and one more of {len(content):,} bytes; all may take {MOST_NOTES_BYTES:,}"
            )
        self._notes[name], self._notes_bytes = content, total

    def _reset(self, reset: m.Reset) -> None:
        self.clocks.reset(reset)
        for store in self.stores.values():
            store.begin()
        self._copies.reset()
        self._notes, self._notes_bytes = {}, 0
        self.exchange.open()

    def _fetch(self, peer: Peer, fetch: m.FetchPart) -> None:
        store, stop = self.stores.get(fetch.of), fetch.start + fetch.count
        if store is None or not 0 <= fetch.start <= stop <= store.size:
            raise BadFrameError(f"{fetch.of} {fetch.start} to {stop} of {store.size if store else 0}")
        match fetch.what:
            case "values":
                found = store.read(fetch.start, fetch.count, fetch.rows)
            case "copy":
                found = self._copies.part(peer, fetch.of, fetch.start, stop)
            case "states":
                found = store.part(fetch.start, stop)
        peer.send(Kind.CHUNK, 0, *chunk_parts(fetch.start, found))


def load_chunk(stores: Mapping[str, AnyStore], frame: Frame) -> int:
    """Put the states of a CHUNK frame in place; how many they are."""
    store = stores.get(KINDS[frame.flags]) if frame.flags < len(KINDS) else None
    start, numbers = read_chunk(frame)
    if store is None or len(numbers) % store.width or start + len(numbers) // store.width > store.size:
        raise BadFrameError(f"{len(numbers)} numbers of states from key {start} on")
    states = numbers.reshape(-1, store.width)
    store.load(start, states)
    return len(states)


def _names(ranks: list[int]) -> str:
    """Workers by rank, the first few."""
    named = ", ".join(map(str, ranks[:4])) + (", …" if len(ranks) > 4 else "")
    return f"worker{'s' if len(ranks) > 1 else ''} {named}"
