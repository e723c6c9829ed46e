"""What is written by hand where a library exists, and what does that gain? The figures of docs/decisions/0015 to
0017; and those of 0020, what the arguments of compiled loops cost.

    pip install pyzmq simpy scikit-learn          (grpcio comes with Ray)
    python benchmarks/decisions.py frames         TCP frames, ZeroMQ, gRPC: round trips per second on the loopback
    python benchmarks/decisions.py numbers        compiled parsers, pyarrow.csv, scikit-learn, float(): rows per second
    python benchmarks/decisions.py simulator      the simulator and a SimPy model: simulated steps per second
    python benchmarks/decisions.py arguments      12 arrays for a compiled loop, one by one or in named tuples

Peers are imported only by the sub-command that needs them, and a missing one is left out. Each figure is the median of
`--rounds` rounds, in which paceline and its peers take turns. Prints one table per sub-command.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from array import array
from collections import deque
from collections.abc import Callable
from concurrent import futures
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from embedded import machine

# name → function that returns its rate
Cases = dict[str, Callable[[], float]]


def available(name: str, case: Callable[[], float], cases: Cases) -> None:
    """Add a case, unless its library is missing."""
    try:
        case()  # loads libraries and compiled loops
    except ModuleNotFoundError as error:
        print(f"left out: {name} ({error})")
    else:
        cases[name] = case


# -- frames

TOKEN = bytes(32)
REPLY = np.zeros(6_000, np.uint8)
"""1,500 weights of 4 bytes: the pull of a small batch."""
SPIN_SECONDS = 0.0003


def serve_paceline(spin_seconds: float, ready: Any) -> None:
    from paceline.wire.frames import Frame, Kind
    from paceline.wire.server import Peer, Server

    class Echo:
        def opened(self, peer: Peer) -> None: ...

        def closed(self, peer: Peer) -> None: ...

        def tick(self) -> None: ...

        def received(self, peer: Peer, frame: Frame) -> None:
            peer.send(Kind.VALUES, 0, REPLY)

    server = Server("127.0.0.1", 0, TOKEN, None)
    ready.send(server.address)
    server.serve(Echo(), 0.5, spin_seconds)


def ask_paceline(spin_seconds: float, address: str) -> Callable[[], int]:
    from paceline.wire.connection import connect
    from paceline.wire.frames import Kind

    connection = connect(address, TOKEN, None)

    def ask() -> int:
        connection.send(Kind.STEP, 0, REPLY)
        return len(connection.receive(5.0, spin_seconds).body)

    return ask


def serve_zeromq(ready: Any) -> None:
    zmq = import_module("zmq")

    with zmq.Context() as context, context.socket(zmq.ROUTER) as server:
        port = server.bind_to_random_port("tcp://127.0.0.1")
        ready.send(f"tcp://127.0.0.1:{port}")
        while True:
            sender, _body = server.recv_multipart(copy=False)
            server.send_multipart([sender, REPLY], copy=False)


def ask_zeromq(address: str) -> Callable[[], int]:
    zmq = import_module("zmq")

    client = zmq.Context.instance().socket(zmq.DEALER)
    client.connect(address)

    def ask() -> int:
        client.send(REPLY, copy=False)
        return len(client.recv(copy=False).buffer)

    return ask


def serve_grpc(ready: Any) -> None:
    grpc = import_module("grpc")

    body = REPLY.tobytes()
    answer = grpc.unary_unary_rpc_method_handler(lambda _body, _context: body)
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", {"step": answer}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    ready.send(f"127.0.0.1:{port}")
    server.wait_for_termination()


def ask_grpc(address: str) -> Callable[[], int]:
    grpc = import_module("grpc")

    step, body = grpc.insecure_channel(address).unary_unary("/s/step"), REPLY.tobytes()
    return lambda: len(step(body))


def round_trips(serve: Callable[[Any], None], client: Callable[[str], Callable[[], int]], seconds: float) -> float:
    """Round trips per second of one client with a server in another process."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=serve, args=(there,), daemon=True)
    server.start()
    there.close()
    try:
        try:
            ask = client(here.recv())
        except EOFError:
            raise ModuleNotFoundError("its server did not start") from None
        for _ in range(200):
            assert ask() == len(REPLY)
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            for _ in range(100):
                ask()
            count += 100
        return count / (time.perf_counter() - began)
    finally:
        server.terminate()
        server.join()


def frames(rows: int) -> tuple[str, Cases]:
    """Round trips per second."""
    cases: Cases = {}
    peers: list[tuple[str, Callable[[Any], None], Callable[[str], Callable[[], int]]]] = [
        ("paceline", partial(serve_paceline, SPIN_SECONDS), partial(ask_paceline, SPIN_SECONDS)),
        ("paceline, without spinning", partial(serve_paceline, 0.0), partial(ask_paceline, 0.0)),
        ("ZeroMQ, DEALER and ROUTER", serve_zeromq, ask_zeromq),
        ("gRPC, one call per step", serve_grpc, ask_grpc),
    ]
    for name, serve, client in peers:
        available(name, partial(round_trips, serve, client, 2.0), cases)
    return "round trips per second, 6,000 bytes each way", cases


# -- numbers

FOLDER = tempfile.TemporaryDirectory()


def text_file(form: str, rows: int) -> Path:
    """A file of click rows in a text format."""
    import prepare

    path = Path(FOLDER.name, form)
    prepare.write(path, getattr(prepare, form), rows)
    return path


def parse_with_paceline(form: str, path: Path) -> int:
    """Keys, values and labels, strings hashed; as `prepare` does it, on one thread."""
    from paceline.data.sources.criteo import Criteo, LineLayout
    from paceline.data.sources.files import find_sources
    from paceline.data.sources.libsvm import Libsvm

    parser = Libsvm(None, 1) if form == "libsvm" else Criteo(LineLayout(ord("\t"), 0), 22, "log")
    (source,) = find_sources([str(path)])
    return sum(parser.parse(chunk, 1).batch.num_rows for chunk in parser.chunks(source))


def parse_with_arrow(form: str, path: Path) -> int:
    """Columns; of LIBSVM text keys and values, which works only if all rows have as many nonzeros."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    separator = " " if form == "libsvm" else "\t"
    table = csv.read_csv(
        path,
        csv.ReadOptions(autogenerate_column_names=True, use_threads=False),
        csv.ParseOptions(delimiter=separator),
        csv.ConvertOptions(column_types={f"f{j}": pa.string() for j in range(14, 40)} if form == "criteo" else None),
    )
    if form == "libsvm":
        for column in table.columns[1:]:
            pair = pc.split_pattern(column, ":", max_splits=1)
            pc.list_element(pair, 0).cast(pa.int64())
            pc.list_element(pair, 1).cast(pa.float32())
    return int(table.num_rows)


def parse_with_sklearn(path: Path) -> int:
    from sklearn.datasets import load_svmlight_file

    return len(load_svmlight_file(str(path), dtype=np.float32)[1])


def parse_with_float(path: Path) -> int:
    keys, values, labels = array("q"), array("f"), array("f")
    with path.open() as file:
        for line in file:
            label, *pairs = line.split()
            labels.append(float(label))
            for pair in pairs:
                key, _, value = pair.partition(":")
                keys.append(int(key))
                values.append(float(value))
    return len(labels)


def rows_per_second(parse: Callable[[Path], int], path: Path, rows: int) -> float:
    began = time.perf_counter()
    assert parse(path) == rows
    return rows / (time.perf_counter() - began)


def numbers(rows: int) -> tuple[str, Cases]:
    """Rows per second on one thread."""
    cases: Cases = {}
    for form, peers in {"libsvm": [parse_with_sklearn, parse_with_float], "criteo": []}.items():
        path = text_file(form, rows)
        parsers: dict[str, Callable[[Path], int]] = {
            "paceline": partial(parse_with_paceline, form),
            "pyarrow.csv": partial(parse_with_arrow, form),
        }
        parsers |= {peer.__name__.replace("parse_with_", ""): peer for peer in peers}
        for name, parse in parsers.items():
            available(f"{form}, {name}", partial(rows_per_second, parse, path, rows), cases)
    return f"rows per second of {rows:,} click rows with 39 nonzeros, one thread", cases


# -- the simulator

INPUT, COMPUTE, SERVICE, FRAME, BANDWIDTH, ROWS, IN_FLIGHT = 0.0002, 0.001, 0.0003, 60_000, 225e6, 1_000, 2
WORKERS, STEPS = 4, 2_000
# Where four workers and a shard run: each on a node of its own, or all on one node with two cores.
PLACES = {"five nodes": ((1, 2, 3, 4), 0, (1,) * 5), "one node": ((0,) * 4, 0, (2,))}


def with_paceline(place: str) -> float:
    """Rows per second that the run would train."""
    from paceline.diagnosis.simulator import UNBOUNDED, Demand, PaceRules, Topology, simulate

    nodes, shard, cores = PLACES[place]
    demand = Demand(0.0, INPUT, COMPUTE, 0.0, ROWS, (SERVICE,), (FRAME,), (FRAME,))
    topology = Topology(nodes, (shard,), tuple(range(len(cores))), cores, (BANDWIDTH,) * len(cores), 0.0)
    return simulate([[demand]] * WORKERS, topology, PaceRules(UNBOUNDED, IN_FLIGHT), STEPS)


def with_simpy(place: str) -> float:
    """The same with SimPy's resources: a core or a link serves one task after the other."""
    simpy = import_module("simpy")

    nodes, shard, counts = PLACES[place]
    env = simpy.Environment()
    cores = [simpy.Resource(env, count) for count in counts]
    up, down = ([simpy.Resource(env, 1) for _ in counts] for _ in range(2))
    inbox = simpy.Store(env)
    done: list[float] = []

    def use(resource: Any, seconds: float) -> Any:
        with resource.request() as turn:
            yield turn
            yield env.timeout(seconds)

    def carry(source: int, target: int, arrived: Callable[[], Any]) -> Any:
        if source != target:
            yield from use(up[source], FRAME / BANDWIDTH)
            yield from use(down[target], FRAME / BANDWIDTH)
        arrived()

    def worker(node: int) -> Any:
        flying: deque[Any] = deque()
        for step in range(STEPS + IN_FLIGHT):
            yield from use(cores[node], INPUT)
            if step >= IN_FLIGHT:
                yield flying.popleft()
                yield from use(cores[node], COMPUTE)
                done.append(env.now)
            reply = env.event()
            flying.append(reply)
            env.process(carry(node, shard, partial(inbox.put, (node, reply))))

    def serve() -> Any:
        while True:
            node, reply = yield inbox.get()
            yield from use(cores[shard], SERVICE)
            env.process(carry(shard, node, reply.succeed))

    for node in nodes:
        env.process(worker(node))
    env.process(serve())
    env.run()
    first, last = len(done) // 5, len(done) * 9 // 10
    return ROWS * (last - first) / (done[last] - done[first])


def steps_per_second(replay: Callable[[str], float], place: str) -> float:
    began = time.perf_counter()
    replay(place)
    return WORKERS * STEPS / (time.perf_counter() - began)


def simulator(rows: int) -> tuple[str, Cases]:
    """Simulated steps per second."""
    cases: Cases = {}
    for place in PLACES:
        for name, replay in {"paceline": with_paceline, "SimPy": with_simpy}.items():
            available(f"{place}, {name}", partial(steps_per_second, replay, place), cases)
            if f"{place}, {name}" in cases:
                print(f"{place}, {name}: the run trains {replay(place):,.0f} rows per second")
    return "simulated steps per second, 4 workers and a shard", cases


# -- arguments

CALLS, INNER_CALLS, ELEMENTS = 20_000, 2_000_000, 10_000


class Four(NamedTuple):
    a: Any
    b: Any
    c: Any
    d: Any


class Twelve(NamedTuple):
    x: Four
    y: Four
    z: Four


def nanoseconds(call: Callable[[], Any], calls: int, per_call: int = 1) -> float:
    """Of one of `calls` calls, each of which does something `per_call` times."""
    began = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return (time.perf_counter_ns() - began) / calls / per_call


def arguments(rows: int) -> tuple[str, Cases]:
    """Nanoseconds per call, for arguments that are the same arrays."""
    import numba

    from paceline.kernels.jit import OPTIONS

    compiled = numba.njit(**OPTIONS)

    @compiled
    def one_by_one(a, b, c, d, e, f, g, h, i, j, k, l, at):  # type: ignore[no-untyped-def]  # noqa: E741
        return a[at] + b[at] + c[at] + d[at] + e[at] + f[at] + g[at] + h[at] + i[at] + j[at] + k[at] + l[at]

    @compiled
    def in_three(x, y, z, at):  # type: ignore[no-untyped-def]
        first = x.a[at] + x.b[at] + x.c[at] + x.d[at] + y.a[at] + y.b[at]
        return first + y.c[at] + y.d[at] + z.a[at] + z.b[at] + z.c[at] + z.d[at]

    @compiled
    def in_one(given, at):  # type: ignore[no-untyped-def]
        return in_three(given.x, given.y, given.z, at)

    @compiled
    def repeat_one_by_one(times, a, b, c, d, e, f, g, h, i, j, k, l):  # type: ignore[no-untyped-def]  # noqa: E741
        total = 0.0
        for n in range(times):
            total += one_by_one(a, b, c, d, e, f, g, h, i, j, k, l, n & 63)
        return total

    @compiled
    def repeat_in_three(times, x, y, z):  # type: ignore[no-untyped-def]
        total = 0.0
        for n in range(times):
            total += in_three(x, y, z, n & 63)
        return total

    @compiled
    def loop_one_by_one(out, indices, weights, slopes):  # type: ignore[no-untyped-def]
        for n in range(indices.size):
            out[n] += weights[indices[n]] * slopes[n]

    @compiled
    def loop_in_one(given):  # type: ignore[no-untyped-def]
        for n in range(given.b.size):
            given.a[n] += given.c[given.b[n]] * given.d[n]

    @compiled
    def loop_unpacked(given):  # type: ignore[no-untyped-def]
        out, indices, weights, slopes = given
        for n in range(indices.size):
            out[n] += weights[indices[n]] * slopes[n]

    arrays = [np.full(64, number, np.float32) for number in range(12)]
    three = Four(*arrays[:4]), Four(*arrays[4:8]), Four(*arrays[8:])
    whole = Twelve(*three)
    chance = np.random.default_rng(0)
    indices = chance.integers(0, ELEMENTS, ELEMENTS).astype(np.uint32)
    out, weights, slopes = np.ones((3, ELEMENTS), np.float32)
    loop = Four(out, indices, weights, slopes)

    def made_per_call() -> float:
        found: float = in_three(Four(*arrays[:4]), Four(*arrays[4:8]), Four(*arrays[8:]), 0)
        return found

    cases = {
        "Python calls it: 12 arrays one by one": partial(nanoseconds, lambda: one_by_one(*arrays, 0), CALLS),
        "in three named tuples": partial(nanoseconds, lambda: in_three(*three, 0), CALLS),
        "in three named tuples, made for each call": partial(nanoseconds, made_per_call, CALLS),
        "in one named tuple of three": partial(nanoseconds, lambda: in_one(whole, 0), CALLS),
        "a compiled loop calls it: 12 arrays one by one": partial(
            nanoseconds, lambda: repeat_one_by_one(INNER_CALLS, *arrays), 1, INNER_CALLS
        ),
        "a compiled loop calls it: in three named tuples": partial(
            nanoseconds, lambda: repeat_in_three(INNER_CALLS, *three), 1, INNER_CALLS
        ),
        "a loop over 10,000 keys, per key: 4 arrays one by one": partial(
            nanoseconds, lambda: loop_one_by_one(*loop), 200, ELEMENTS
        ),
        "a loop over 10,000 keys, per key: in a named tuple": partial(
            nanoseconds, lambda: loop_in_one(loop), 200, ELEMENTS
        ),
        "a loop over 10,000 keys, per key: in a named tuple, unpacked before the loop": partial(
            nanoseconds, lambda: loop_unpacked(loop), 200, ELEMENTS
        ),
    }
    for case in cases.values():
        case()  # compiles
    return "nanoseconds per call", dict(cases)


def in_digits(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.2f}"


MEASUREMENTS = {"frames": frames, "numbers": numbers, "simulator": simulator, "arguments": arguments}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(MEASUREMENTS))
    parser.add_argument("--rows", type=int, default=100_000, help="rows of text to parse")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    title, cases = MEASUREMENTS[given.what](given.rows)
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(given.rounds):
        for name, case in cases.items():
            found[name].append(case())
    print(f"\n{datetime.now(UTC):%Y-%m-%d}, {machine()}. Median (least to most) of {given.rounds}.\n")
    print(f"| | {title} |\n|---|---|")
    for name, rates in found.items():
        print(
            f"| {name} | {in_digits(statistics.median(rates))} ({in_digits(min(rates))} to {in_digits(max(rates))}) |"
        )


if __name__ == "__main__":
    main()
