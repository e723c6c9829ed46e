"""How many steps per second does one shard answer? The figures of docs/decisions/0022.

    python benchmarks/frames.py [--keys 64 750 1500 12000] [--workers 1 2 4 8] [--seconds 2] [--rounds 3]

A shard serves workers at pace async that do nothing but push and pull, by a compiled loop, with two batches in flight
as in a run. Frames of each size go through the compiled serving loop and through Python, in turns. AdaGrad over
33,762,578 keys; the keys of a frame are drawn as those of clicks are: the lower a key, the more often. All on this
machine: workers and the shard need a core each. Prints one table of frames per second, medians.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import threading
import time
from typing import Any

import numpy as np

from embedded import FEATURES, machine
from paceline.kernels.jit import compiled
from paceline.kernels.sockets import receive, send
from paceline.parameters.layout import Group, Layout, TableLayout
from paceline.processes.messages import decode, encode
from paceline.settings import OptimizerConfig, RunConfig
from paceline.training.cluster import messages as m
from paceline.training.cluster.role import SPIN_SECONDS, TICK_SECONDS, make_shard
from paceline.training.cluster.steps import PULL, PUSH, Ask, step_parts
from paceline.wire.coding import KeyWriter
from paceline.wire.connection import connect
from paceline.wire.frames import Kind, frame_buffers, views_of
from paceline.wire.server import Server

TOKEN = bytes(32)
IN_FLIGHT = 2
BATCH_AT = 16
REPLY_HEAD = 48


@compiled
def exchange(descriptor: int, frames: Any, reply: Any, first: int, count: int) -> int:
    """Ask for `count` batches from `first` on, two of them in flight; how many were answered."""
    sent = answered = 0
    while answered < count:
        while sent < count and sent - answered < IN_FLIGHT:
            frame = frames[sent % frames.shape[0]]
            for i in range(8):
                frame[BATCH_AT + i] = (first + sent >> 8 * i) & 255
            done = 0
            while done < frame.size:
                done += max(0, send(descriptor, frame, done, frame.size))
            sent += 1
        done = 0
        while done < reply.size:
            got = receive(descriptor, reply, done, reply.size)
            if got == 0:
                return answered
            done += max(0, got)
        answered += 1
    return answered


def step_frames(num_keys: int, flags: int, num_frames: int, seed: int) -> Any:
    """STEP frames [frames, bytes], which push ones."""
    chance = np.random.default_rng(seed)
    pushed = np.full(num_keys if flags & PUSH else 0, 1e-6, np.float32)
    frames = []
    for _ in range(num_frames):
        keys = np.unique((FEATURES * chance.random(4 * num_keys) ** 6).astype(np.uint32))
        ask = Ask(flags, 0, 0, 0.5, 100, pushed, chance.permutation(keys)[:num_keys].copy())
        parts = step_parts(ask, "float32", KeyWriter(False))
        frames.append(np.frombuffer(b"".join(views_of(frame_buffers(Kind.STEP, flags, parts, "")[0])), np.uint8))
    return np.stack(frames)


def work(address: str, rank: int, num_keys: int, seconds: float, ready: Any) -> None:
    """One worker's process: tell when it is ready, wait for a go, and tell how many frames it exchanged."""
    with connect(address, TOKEN, None) as connection:
        connection.send(Kind.MESSAGE, 0, encode(m.Join(rank=rank, incarnation=0, generation=1)))
        decode(connection.receive(5), m.FromShard)
        far, reply = connection.stream.socket, np.zeros(REPLY_HEAD + 4 * num_keys, np.uint8)
        far.setblocking(True)
        exchange(far.fileno(), step_frames(num_keys, PULL, 2, rank), reply, 1, 2)
        frames, first = step_frames(num_keys, PULL | PUSH, 32, rank), 3
        ready.send(None)
        ready.recv()
        began, count = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - began) < seconds:
            count += exchange(far.fileno(), frames, reply, first + count, 200)
        ready.send(count / elapsed)


def frames_per_second(num_keys: int, num_workers: int, seconds: float, *, in_loop: bool) -> float:
    optimizer = OptimizerConfig()
    config = RunConfig(data="x", pace="async", workers=num_workers, engine="ray", optimizer=optimizer)
    layout = Layout(TableLayout(FEATURES, (Group("weight", 1, optimizer),)), None)
    server = Server("127.0.0.1", 0, TOKEN, None)
    spec = m.RoleSpec(role="shard", rank=0, coordinator="", token=TOKEN, loopback=True, config=b"", layout=b"")
    service = make_shard(spec, config, layout, server)
    zeros = [0] * num_workers
    service.clocks.reset(m.Reset(generation=1, applied=zeros, rows=0))
    service.clocks.open(m.Open(bases=zeros, done=zeros))
    loop = service.loop if in_loop else None
    if loop is not None:
        loop.warm_up()
    for store in service.stores.values():
        store.warm_up()
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(num_workers)]
    workers = [
        context.Process(target=work, args=(server.address, rank, num_keys, seconds, there), daemon=True)
        for rank, (_, there) in enumerate(pipes)
    ]
    serving = threading.Thread(target=server.serve, args=(service, TICK_SECONDS, SPIN_SECONDS, loop))
    serving.start()
    for worker in workers:
        worker.start()
    for here, _ in pipes:
        here.recv()
    for here, _ in pipes:
        here.send(None)
    total = sum(here.recv() for here, _ in pipes)
    server.stop()
    serving.join()
    server.close()
    for worker in workers:
        worker.join()
    return float(total)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[64, 750, 1500, 12_000])
    parser.add_argument("--workers", type=int, nargs="+", default=[1])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(f"{machine()}. Frames per second of one shard, medians of {args.rounds} rounds.\n")
    print("| keys per frame | workers | Python | compiled | ratio |\n|---|---|---|---|---|")
    for num_keys in args.keys:
        for num_workers in args.workers:
            found: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(args.rounds):
                for in_loop, rates in found.items():
                    rates.append(frames_per_second(num_keys, num_workers, args.seconds, in_loop=in_loop))
            python, fast = (statistics.median(rates) for rates in found.values())
            print(f"| {num_keys:,} | {num_workers} | {python:,.0f} | {fast:,.0f} | {fast / python:.1f} |", flush=True)


if __name__ == "__main__":
    main()
