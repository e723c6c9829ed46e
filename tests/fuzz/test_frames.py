"""Valid handshakes, frames and messages, damaged at random: the reader refuses them and continues to serve others.

Takes a second per test; `make fuzz MINUTES=60` tries other seeds for longer. What fails is named by seed and case, and
`damaged(good, seed, case)` makes it again.
"""

from __future__ import annotations

import contextlib
import hmac
import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.matrices.cluster.blocks import Blocks, BlockService
from paceline.matrices.cluster.messages import Do, Fetch, Peers, ProductTask, ToWorker
from paceline.matrices.cluster.placement import Rectangle
from paceline.matrices.plan import Plan
from paceline.matrices.product_file import Heading
from paceline.matrices.sources import fingerprint, open_matrix
from paceline.parameters.layout import DenseLayout, Group, Layout, TableLayout
from paceline.processes.control import ControlServer
from paceline.processes.messages import Beat, Failed, Ready, Report, decode, encode
from paceline.processes.roles import Role
from paceline.settings import OptimizerConfig, RunConfig, WireConfig
from paceline.telemetry.records import NodeProbe
from paceline.training.cluster import messages as m
from paceline.training.cluster.steps import (
    LEAVE,
    PULL,
    PUSH,
    Ask,
    Times,
    chunk_parts,
    held_part,
    read_chunk,
    read_held,
    read_reply,
    step_parts,
    values_head,
)
from paceline.wire.coding import KeyWriter
from paceline.wire.connection import connect
from paceline.wire.frames import HEADER, Frame, Kind, ResetError, SilentPeerError, WireError, frame_buffers, views_of
from paceline.wire.handshake import MAGIC
from paceline.wire.server import Server
from paceline.wire.streams import split_address
from tests.fuzz.chance import SEED
from tests.processes.fakes import News, Ping, Pong, hello_of
from tests.training.cluster.shards import FakePeer, TestedShard, open_shard
from tests.training.cluster.test_compiled_serving import Served, shard, tell
from tests.wire.serving import SECONDS, TOKEN, Echo, bare_pair, is_served, serving

FEWEST = 50
KEYS = 400
EDGES = [0, 1, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]


def damaged(good: bytes, seed: int, case: int) -> bytes:
    """`good` with a few changes, the same ones whenever seed and case are."""
    chance = random.Random(f"{seed} {case}")
    data = bytearray(good)
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        at, size = chance.randrange(len(data) + 1), chance.choice([1, 2, 4, 8])
        match chance.randrange(7):
            case 0 if data:
                data[at % len(data)] ^= 1 << chance.randrange(8)
            case 1:
                data[at : at + 1] = chance.randbytes(1)
            case 2:
                data[at : at + size] = (chance.choice(EDGES) % (1 << 8 * size)).to_bytes(size, chance.choice(ORDERS))
            case 3:
                del data[at : at + chance.choice([1, 4, len(data)])]
            case 4:
                data[at:at] = chance.randbytes(chance.choice([1, 4, 100]))
            case 5:
                data[at:at] = data[: chance.randrange(len(data) + 1)]
            case _:
                # MessagePack: text, lists and maps that are longer than what follows.
                data[at : at + 1] = chance.choice([b"\xdb", b"\xdd", b"\xdf", b"\xff", b"\xc1", b"\x91" * 2000])
    return bytes(data)


ORDERS: list[Any] = ["little", "big"]


def cases(seconds: float) -> Iterator[int]:
    """Numbers, until the time is over; a few in any case, of which the first may wait for compiled loops."""
    end, case = time.monotonic() + (seconds or 1), 0
    while case < FEWEST or time.monotonic() < end:
        yield case
        case += 1


@contextlib.contextmanager
def only_refused(case: int, data: bytes) -> Iterator[None]:
    """A `WireError` is what a server expects of a service; any other error is a failure."""
    try:
        yield
    except WireError:
        pass
    except Exception as error:
        raise AssertionError(f"seed {SEED}, case {case}: {data[:400]!r}") from error


def bytes_of(kind: Kind, flags: int, *parts: Any) -> bytes:
    return b"".join(views_of(frame_buffers(kind, flags, parts, "peer")[0]))


# -- a server, over sockets


def read_exactly(there: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length and (piece := there.recv(length - len(data))):
        data += piece
    return data


@pytest.mark.parametrize("mac", [False, True])
@pytest.mark.parametrize("what", ["handshake", "frames"])
def test_a_server_outlives_what_strangers_and_broken_peers_send(what: str, mac: bool, fuzz_seconds: float) -> None:
    echo = Echo()
    frames = bytes_of(Kind.MESSAGE, 0, encode(News(text="snow"))) + bytes_of(Kind.STEP, 3, bytes(100))
    with serving(echo, mac=mac) as server, connect(server.address, TOKEN, None, mac=mac) as other:
        address = split_address(server.address)
        for case in cases(fuzz_seconds):
            with socket.create_connection(address, SECONDS) as wild, contextlib.suppress(OSError):
                nonces = read_exactly(wild, len(MAGIC) + 32)[len(MAGIC) :] + bytes(32)
                answer = bytes(32) + hmac.digest(TOKEN, (b"client mac" if mac else b"client") + nonces, "sha256")
                if what == "handshake":
                    wild.sendall(damaged(answer, SEED, case) + frames)
                else:
                    wild.sendall(answer + damaged(frames, SEED, case))
                wild.shutdown(socket.SHUT_WR)
                while wild.recv(1 << 16):
                    pass
            assert is_served(other), f"seed {SEED}, case {case}"
        assert len(server.peers) < 10
        if mac:
            assert echo.num_received == case + 1, "something without a MAC was received"


def test_a_client_refuses_damaged_frames(fuzz_seconds: float) -> None:
    good = bytes_of(Kind.VALUES, 0, values_head(3, Times(1, 2, 3)), np.arange(5, dtype=np.float32))
    good += bytes_of(Kind.HELD, 0, held_part([1, 2])) + bytes_of(Kind.CHUNK, 0, *chunk_parts(4, np.ones(3, np.float32)))
    good += bytes_of(Kind.MESSAGE, 0, encode(m.Joined(applied=3, values="/proc/1/fd/3 x")))
    readers = {Kind.VALUES: read_reply, Kind.HELD: read_held, Kind.CHUNK: read_chunk,
               Kind.MESSAGE: lambda frame: decode(frame, m.FromShard)}  # fmt: skip
    for case in cases(fuzz_seconds):
        data = damaged(good, SEED, case)
        with bare_pair() as (connection, far), only_refused(case, data):
            far.sendall(data)
            far.close()
            while True:
                frame = connection.receive(SECONDS)
                readers.get(frame.kind, lambda _: None)(frame)


# -- those who read messages, without sockets


def send_to(service: Any, peer: Any, data: bytes) -> None:
    """Give a service the frame that `data` is, as far as its header is one."""
    if len(data) >= HEADER.size and data[3] in set(Kind):
        flags = struct.unpack_from("<I", data, 4)[0]
        # As a connection's buffer: aligned, and writable.
        body = np.empty(len(data) - HEADER.size, np.uint8)
        body[:] = np.frombuffer(data, np.uint8, offset=HEADER.size)
        service.received(peer, Frame(Kind(data[3]), flags, body))


def test_the_control_server_refuses_damaged_messages(fuzz_seconds: float) -> None:
    role = Role("worker", 0)
    probe = NodeProbe(time=1.0, node="", seconds=1, cores=[0.5], memory_bytes=1, memory_total_bytes=2)
    good = [hello_of(role), Ready(address="here:1", data="abc"), Failed(kind="data", message="no", hint="see"),
            Beat(doing="counts", bytes_sent=3, bytes_received=4, memory_bytes=100), Report(now=1.5, records=[probe]),
            News(text="snow"), Ping(number=1), m.Take(segment=1, batch=2)]  # fmt: skip
    server = Server("127.0.0.1", 0, TOKEN, None)
    control = ControlServer(
        server, [role], lambda node: f"node-{node}", kinds=[News, m.Take], answers={Ping: lambda *_: Pong(number=2)}
    )
    try:
        for case in cases(fuzz_seconds):
            peer = FakePeer()
            send_to(control, peer, bytes_of(Kind.MESSAGE, 0, encode(good[0])))
            data = damaged(bytes_of(Kind.MESSAGE, 0, encode(good[case % len(good)])), SEED, case)
            with only_refused(case, data):
                send_to(control, peer, data)
            control.closed(peer)  # type: ignore[arg-type]
            control.tick()
            control.take_records()
            while control.events:
                control.events.get()
    finally:
        control.close()


def keyed_shard(**wire: Any) -> TestedShard:
    optimizer = OptimizerConfig(name="sgd", learning_rate=0.01)
    config = RunConfig(data="x", pace="async", workers=2, engine="ray", wire=WireConfig(**wire), optimizer=optimizer)
    return open_shard(config, Layout(TableLayout(20, (Group("weight", 1, optimizer),)), None))


def dense_shard() -> TestedShard:
    optimizer = OptimizerConfig(name="sgd", learning_rate=0.01)
    config = RunConfig(data="x", pace="async", workers=2, engine="ray", model="softmax", optimizer=optimizer)
    return open_shard(config, Layout(None, DenseLayout(40, 40, optimizer)))


def conversation(name: str, values: str = "float32", deltas: bool = False) -> list[bytes]:
    """What a worker and the coordinator say to a shard."""
    keys, sums, writer = np.array([2, 5, 19], np.uint32), np.ones(3, np.float32), KeyWriter(deltas)
    nothing = np.empty(0, np.float32)
    steps = [Ask(PULL, 1, 0, 0.0, 1, nothing, keys), Ask(PULL, 2, 0, 0.0, 1, nothing, keys),
             Ask(PULL | PUSH, 3, 1, 0.5, 1, sums, keys), Ask(PUSH | LEAVE, 4, 1, 0.5, 1, sums, keys[:0])]  # fmt: skip
    if name == "dense":
        steps = [Ask(PULL, 1, 0, 0.0, 1, nothing, keys[:0]), Ask(PULL | PUSH, 2, 1, 0.5, 1, nothing, keys[:0])]
    told = [m.Count(), m.Read(name="x"), m.Note(name="x", content=b"abc"), m.Copy(at=-1),
            m.FetchPart(what="copy", of=name, start=1, count=3), m.FetchPart(what="values", of=name, start=0, count=9),
            m.FetchPart(what="states", of=name, start=0, count=9), m.Fetched(), m.Open(bases=[0, 0], done=[1, 1]),
            m.Reset(generation=1, applied=[0, 0], rows=3)]  # fmt: skip
    states = np.ones((4, 1), np.float32)
    join = m.Join(rank=0, incarnation=0, generation=1, gradient="/proc/1/fd/2 " + "0" * 32)
    return [
        bytes_of(Kind.MESSAGE, 0, encode(join)),
        *(bytes_of(Kind.STEP, ask.flags, *step_parts(ask, values, writer)) for ask in steps),
        bytes_of(Kind.CHUNK, 1, *chunk_parts(0, np.ones(40, np.float32))),
        *(bytes_of(Kind.MESSAGE, 0, encode(message)) for message in told),
        bytes_of(Kind.CHUNK, 0 if name == "table" else 1, *chunk_parts(2, states)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("table", {}),
        ("table", {"values": "float16", "key_deltas": True}),
        ("table", {"values": "bfloat16", "pull": "all"}),
        ("dense", {}),
    ],
)
def test_a_shard_refuses_damaged_frames(name: str, wire: dict[str, Any], fuzz_seconds: float) -> None:
    good = conversation(name, wire.get("values", "float32"), wire.get("key_deltas", False))
    for case in cases(fuzz_seconds):
        service = keyed_shard(**wire) if name == "table" else dense_shard()
        peer, other = FakePeer(), FakePeer()
        chance = random.Random(f"{SEED} {case} order")
        at = chance.randrange(len(good))
        for number, frame in enumerate(good):
            # Before and after the damaged one, the others mostly are as they should be.
            data = damaged(frame, SEED, case) if number == at or chance.random() < 0.1 else frame
            with only_refused(case, data):
                send_to(service, peer if chance.random() < 0.9 else other, data)
            service.tick()
        service.closed(peer)  # type: ignore[arg-type]


def test_the_serving_loop_outlives_damaged_frames(fuzz_seconds: float) -> None:
    """Over sockets: what passes the checks of the compiled loop is served there, and all else by Python."""
    good = b"".join(conversation("table")[1:5])
    with shard(optimizer="sgd", features=20) as served:
        generation = 1
        for case in cases(fuzz_seconds):
            with connect(served.server.address, TOKEN, None) as wild, contextlib.suppress(OSError, WireError):
                wild.send(Kind.MESSAGE, 0, encode(m.Join(rank=0, incarnation=0, generation=generation)))
                wild.receive(SECONDS)
                far = wild.stream.socket
                far.settimeout(SECONDS)
                far.sendall(damaged(good, SEED, case))
                far.shutdown(socket.SHUT_WR)
                while far.recv(1 << 16):
                    pass
            generation += 1
            # The first frames of each generation need Python no more: there is room for them.
            assert tell(served, m.Reset(generation=generation, applied=[0], rows=0)) == m.Finished(), f"case {case}"


class ConfusedWorker:
    """A worker that now and then sends something else than its next step, and now and then reads nothing."""

    def __init__(self, served: Served, chance: random.Random, rank: int, generation: int) -> None:
        self.served, self.chance, self.rank, self.generation = served, chance, rank, generation
        self.in_flight = served.service.clocks.arrays.in_flight
        self.counts: dict[int, int] = {}
        self.connect()

    def connect(self) -> None:
        self.connection = connect(self.served.server.address, TOKEN, None)
        self.batch = 0
        self.join(self.rank)
        with contextlib.suppress(WireError):
            joined = decode(self.connection.receive(SECONDS), m.FromShard)
            self.batch = joined.applied if isinstance(joined, m.Joined) else 0

    def join(self, rank: int) -> None:
        join = m.Join(rank=rank, incarnation=0, generation=self.generation)
        self.send(bytes_of(Kind.MESSAGE, 0, encode(join)))

    def send(self, data: bytes) -> None:
        far = self.connection.stream.socket
        far.settimeout(SECONDS)
        far.sendall(data)
        far.setblocking(False)

    def step(self) -> None:
        chance = self.chance
        self.batch += chance.choice([0, -1, 2, 3]) if chance.random() < 0.03 else 1
        num_keys = chance.choice([0, 1, 3, 3, 3, 50, 300])
        keys = np.array([chance.randrange(KEYS) for _ in range(num_keys)], np.uint32)
        if num_keys and chance.random() < 0.02:
            keys[chance.randrange(num_keys)] = chance.choice([KEYS, 2**31, 2**32 - 1])
        done = self.batch - self.in_flight
        pushed = self.counts.get(done, 0) + (chance.random() < 0.02)
        flags = PULL | (PUSH if done > 0 else 0)
        if chance.random() < 0.03:
            flags = chance.choice([PUSH | LEAVE, PUSH, 0, PULL, flags | 1 << 20])
        ask = Ask(flags, self.batch, 0, 0.5, chance.choice([0, 1, 2**32 - 1]), np.ones(pushed, np.float32), keys)
        data = bytes_of(Kind.STEP, flags, *step_parts(ask, "float32", KeyWriter(False)))
        self.counts[self.batch] = num_keys
        if chance.random() < 0.02:
            # What comes next must not be read as the rest of it: it may not be numbers.
            self.send(data[: chance.randrange(len(data))])
            raise ResetError("a connection that is closed in the middle of a frame")
        self.send(data)

    def order(self) -> None:
        """What only the coordinator should say."""
        done = [self.chance.randrange(4) for _ in range(2)]
        orders = [m.Open(bases=done, done=done), m.Count(), m.Copy(at=self.chance.choice([-1, 2, 3, 2**63])),
                  m.Fetched(), m.FetchPart(what="copy", of="table", start=0, count=9),
                  m.Reset(generation=self.generation, applied=done, rows=1)]  # fmt: skip
        self.send(bytes_of(Kind.MESSAGE, 0, encode(self.chance.choice(orders))))

    def read(self) -> None:
        self.connection.receive(0.001)

    def act(self) -> None:
        """Do anything; a connection that was closed is made again."""
        chance = self.chance.random()
        try:
            if chance < 0.02:
                self.order()
            elif chance < 0.03:
                self.join(self.chance.randrange(3))
            else:
                self.step()
                self.read()
        except SilentPeerError:
            pass
        except (OSError, WireError):
            self.connection.close()
            self.connect()


@pytest.mark.parametrize("pace", ["sync", "async", 2])
def test_the_serving_loop_outlives_confused_workers(pace: Any, fuzz_seconds: float) -> None:
    with shard(pace=pace, workers=2, features=KEYS - 1) as served:
        for case in cases(fuzz_seconds):
            generation = case + 2
            assert tell(served, m.Reset(generation=generation, applied=[0, 0], rows=0)) == m.Finished(), f"case {case}"
            chance = random.Random(f"{SEED} {case}")
            workers = [ConfusedWorker(served, chance, rank, generation) for rank in range(2)]
            for _ in range(40):
                chance.choice(workers).act()
            for worker in workers:
                worker.connection.close()
            assert np.isfinite(served.table).all(), f"seed {SEED}, case {case}"


def test_roles_refuse_damaged_orders(fuzz_seconds: float) -> None:
    good = [(m.ToRole, m.Begin(incarnation=1, generation=2, segment=3, shards=["here:1"])), (m.ToRole, m.Wait()),
            (m.ToRole, m.Lease(segment=1, first=2, bounds=bytes(24))), (m.ToRole, m.Stop()),
            (ToWorker, Do(task=1, sharing=2)), (ToWorker, Peers(addresses=["here:1", ""]))]  # fmt: skip
    for case in cases(fuzz_seconds):
        kinds, message = good[case % len(good)]
        data = damaged(encode(message), SEED, case)
        with only_refused(case, data):
            decode(Frame(Kind.MESSAGE, 0, np.frombuffer(data, np.uint8)), kinds)


def test_blocks_of_matrices_are_not_served_to_damaged_messages(tmp_path: Path, fuzz_seconds: float) -> None:
    path = str(tmp_path / "a.npy")
    np.save(path, np.ones((40, 40), np.float32))
    seen, whole = fingerprint(open_matrix(path)), Rectangle(0, 4, 0, 4)
    heading = Heading(seen, seen, (40, 40), "float32", Plan(10, 10, 10))
    service = BlockService(Blocks(0, TOKEN, ProductTask(path, path, "c.npy", heading, [whole], [whole])))
    good = bytes_of(Kind.MESSAGE, 0, encode(Fetch(side=1, outer=3, inner=0, start=0, stop=10)))
    peer = FakePeer()
    send_to(service, peer, good)
    assert peer.sent[0].body.nbytes == 400
    for case in cases(fuzz_seconds):
        data = damaged(good, SEED, case)
        with only_refused(case, data):
            send_to(service, FakePeer(), data)
