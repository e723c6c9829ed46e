"""How fast would a run be on other machines, or at another pace? A simulation of its steps.

Workers and shards share the cores of their nodes. Frames travel over the nodes' links, one after another in each
direction. A worker's step is that of a worker in a cluster: wait for a reply, compute, push and ask for the next batch,
read more rows. How long each part takes is drawn from what was recorded. An embedded run has no shards: its step is
input and compute, with the gate between them.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

UNBOUNDED = 1 << 60
WARM_UP_SHARE = 0.2
NO_WORK = 1e-12
# A waiting role spins for this long before it sleeps (decision 0007). On a crowded node it keeps others from a core.
SPIN_SECONDS = 0.0003
IDLE_SECONDS = 0.002
"""A role that idles at least this long is slower when it continues."""

Then = Callable[[], None]


class Demand(NamedTuple):
    """What one step of a worker takes: processor seconds, except `delay`, which is waiting for input.

    For each shard: its processor seconds (`service`), and the bytes there and back. Times are those after a while of
    idling. Without idling, work takes `awake` times as long (on shards `shard_awake` times), because caches stay warm
    and the processor's clock stays high.
    """

    delay: float
    input: float
    compute: float
    push: float
    rows: int
    service: tuple[float, ...] = ()
    bytes_out: tuple[float, ...] = ()
    bytes_in: tuple[float, ...] = ()
    awake: float = 1.0
    shard_awake: float = 1.0


class Topology(NamedTuple):
    """The node of each worker and shard, and the machine of each node, by number; the `cores` that each machine has for
    them, and the `bandwidth` of each node's link (bytes per second, each way). Usually a node is a machine.
    """

    workers: tuple[int, ...]
    shards: tuple[int, ...]
    machines: tuple[int, ...]
    cores: tuple[float, ...]
    bandwidth: tuple[float, ...]
    latency: float

    def cores_of(self, node: int) -> float:
        """The cores that roles on a node share."""
        return self.cores[self.machines[node]]


class PaceRules(NamedTuple):
    """The pace: how many clocks ahead a worker may be, and how many frames it has in flight."""

    staleness: int
    in_flight: int


class _Frame(NamedTuple):
    """A worker's request number `number`, for a batch of that demand; it pushes an earlier one, or none yet."""

    worker: int
    number: int
    pushes: bool
    demand: Demand


Demands = Sequence[Sequence[Demand]]


def simulate(demands: Demands, topology: Topology, rules: PaceRules, steps: int, seed: int = 0) -> float:
    """Rows per second if each worker does `steps` steps, each drawn from its list of demands.

    >>> busy = Demand(delay=0.0, input=1.0, compute=2.0, push=1.0, rows=8)
    >>> topology = Topology((0, 0), (), (0,), (2,), (math.inf,), 0.0)
    >>> round(simulate([[busy], [busy]], topology, PaceRules(UNBOUNDED, 1), steps=1000), 1)
    4.0
    """
    return _Simulation(demands, topology, rules, steps, seed).run()


class _Cores:
    """The cores of a node, shared evenly among the tasks on them."""

    def __init__(self, count: float) -> None:
        self.count = count
        self.left: dict[int, float] = {}  # seconds of work, by task
        self.then: dict[int, Then] = {}
        self.updated = 0.0
        self.plan = 0  # the number of the last plan: events of earlier ones are void
        self.spinning = 0  # roles that spin while they wait

    @property
    def speed(self) -> float:
        return min(1.0, self.count / (len(self.left) + self.spinning))

    def advance(self, now: float) -> None:
        """Advance all tasks by the time since the last call."""
        if self.left and now > self.updated:
            done = (now - self.updated) * self.speed
            for task in self.left:
                self.left[task] -= done
        self.updated = now


class _Worker:
    """One worker: its frames in flight, the replies still missing, and its progress."""

    def __init__(self, node: int, demands: Sequence[Demand]) -> None:
        self.node = node
        self.demands = demands
        self.flying: deque[_Frame] = deque()
        self.missing: dict[int, int] = {}  # replies still to come, by frame
        self.go_on: Then | None = None  # what to do when the oldest frame is answered, while waiting for it
        self.spin = 0  # the number of the current spin; 0 for none
        self.waits_since = 0.0
        self.idled = True  # since it computed last
        self.slow = True  # because it had idled before it computed
        self.asked = 0
        self.done = 0


class _Shard:
    """One shard, or in an embedded run the gate alone: frames to serve, those held back, and the workers' clocks."""

    def __init__(self, node: int, num_workers: int) -> None:
        self.node = node
        self.queue: deque[_Frame] = deque()
        self.busy = False
        self.spin = 0
        self.waits_since = 0.0
        self.held: dict[int, _Frame] = {}
        self.clocks = [0] * num_workers


class _Simulation:
    def __init__(self, demands: Demands, topology: Topology, rules: PaceRules, steps: int, seed: int) -> None:
        self.topology = topology
        self.rules = rules
        self.steps = steps
        self.random = random.Random(seed)
        self.now = 0.0
        self.num_events = 0
        self.events: list[tuple[float, int, Then]] = []
        machines = [_Cores(count) for count in topology.cores]
        self.cores = [machines[machine] for machine in topology.machines]
        self.up = [0.0] * len(topology.machines)
        self.down = [0.0] * len(topology.machines)
        self.workers = [_Worker(node, found) for node, found in zip(topology.workers, demands, strict=True)]
        self.shards = [_Shard(node, len(self.workers)) for node in topology.shards]
        self.spins = 0
        self.gate = _Shard(0, len(self.workers))
        self.rows_done = 0
        # (when, rows by then): counted from where the first worker has warmed up until the first one is done.
        self.counted_from = (0.0, 0)
        self.counted_to = (0.0, 0)

    def run(self) -> float:
        for number in range(len(self.workers)):
            self.read(number, partial(self.begin, number))
        while self.events:
            self.now, _, what = heapq.heappop(self.events)
            what()
        seconds = self.counted_to[0] - self.counted_from[0]
        return (self.counted_to[1] - self.counted_from[1]) / seconds if seconds > 0 else math.inf

    # -- time, processors and links

    def at(self, time: float, what: Then) -> None:
        self.num_events += 1
        heapq.heappush(self.events, (time, self.num_events, what))

    def work(self, node: int, seconds: float, then: Then) -> None:
        """Use a core of a node for `seconds`, or longer if tasks share the cores."""
        if seconds <= 0:
            self.at(self.now, then)
            return
        cores = self.cores[node]
        cores.advance(self.now)
        self.num_events += 1
        cores.left[self.num_events] = seconds
        cores.then[self.num_events] = then
        self.plan(cores)

    def spin(self, role: _Worker | _Shard) -> None:
        """A role has nothing to do: it spins for a while, then sleeps."""
        self.spins += 1
        role.spin = self.spins
        self.change_spinning(role.node, 1)
        spin = role.spin
        self.at(self.now + SPIN_SECONDS, lambda: self.end_spin(role, spin))

    def end_spin(self, role: _Worker | _Shard, spin: int) -> None:
        if spin and role.spin == spin:
            role.spin = 0
            self.change_spinning(role.node, -1)

    def change_spinning(self, node: int, more: int) -> None:
        cores = self.cores[node]
        cores.advance(self.now)
        cores.spinning += more
        self.plan(cores)

    def plan(self, cores: _Cores) -> None:
        """Schedule the end of the node's next task."""
        cores.plan += 1
        if cores.left:
            soonest, plan = min(cores.left.values()), cores.plan
            self.at(self.now + max(0.0, soonest) / cores.speed, lambda: self.tasks_done(cores, plan))

    def tasks_done(self, cores: _Cores, plan: int) -> None:
        if plan != cores.plan:
            return
        cores.advance(self.now)
        # Late in a long simulation the clock itself is coarser than that.
        least = max(NO_WORK, 2 * math.ulp(self.now))
        done = [task for task, left in cores.left.items() if left <= least]
        for task in done:
            del cores.left[task]
        self.plan(cores)
        for task in done:
            cores.then.pop(task)()

    def carry(self, source: int, target: int, size: float, then: Then) -> None:
        """Carry bytes from node to node, behind those that go the same way."""
        if source == target:
            self.at(self.now, then)
            return
        seconds = [size / self.topology.bandwidth[node] for node in (source, target)]

        def begin() -> None:
            # A link that is faster than the other has room for more frames meanwhile.
            self.down[target] = max(self.now, self.down[target]) + seconds[1]
            self.at(max(self.now + seconds[0], self.down[target]) + self.topology.latency, then)

        start = max(self.now, self.up[source])
        self.up[source] = start + seconds[0]
        if start > self.now:
            self.at(start, begin)
        else:
            begin()

    # -- workers

    def read(self, number: int, then: Callable[[Demand], None]) -> None:
        """Get the rows of another batch."""
        worker = self.workers[number]
        demand = worker.demands[self.random.randrange(len(worker.demands))]

        worker.idled = worker.idled or demand.delay >= IDLE_SECONDS
        seconds = demand.input * (1.0 if worker.slow or worker.idled else demand.awake)

        def work() -> None:
            self.work(worker.node, seconds, lambda: then(demand))

        if demand.delay > 0:
            self.at(self.now + demand.delay, work)
        else:
            work()

    def begin(self, number: int, demand: Demand) -> None:
        """Ask for as many batches as may be in flight, then go on with the first."""
        if not self.shards:
            self.enter_gate(number, demand)
            return
        self.ask(number, demand, pushes=False)
        if len(self.workers[number].flying) < self.rules.in_flight:
            self.read(number, lambda more: self.begin(number, more))
        else:
            self.read(number, lambda more: self.receive(number, more))

    def ask(self, number: int, demand: Demand, pushes: bool) -> None:
        worker = self.workers[number]
        worker.asked += 1
        frame = _Frame(number, worker.asked, pushes, demand)
        worker.flying.append(frame)
        worker.missing[frame.number] = len(self.shards)
        for index, shard in enumerate(self.shards):
            self.carry(worker.node, shard.node, demand.bytes_out[index], partial(self.arrive, index, frame))

    def receive(self, number: int, ahead: Demand) -> None:
        """Wait for the oldest batch in flight; compute it, push it and ask for the one ahead."""
        worker = self.workers[number]
        frame = worker.flying[0]
        if worker.missing[frame.number]:
            worker.go_on = lambda: self.receive(number, ahead)
            worker.waits_since = self.now
            self.spin(worker)
            return
        worker.flying.popleft()
        del worker.missing[frame.number]
        worker.slow, worker.idled = worker.idled, False
        seconds = (frame.demand.compute + frame.demand.push) * (1.0 if worker.slow else frame.demand.awake)
        self.work(worker.node, seconds, lambda: self.push(number, frame.demand, ahead))

    def push(self, number: int, done: Demand, ahead: Demand) -> None:
        if self.count(number, done):
            self.ask(number, ahead, pushes=True)
            self.read(number, lambda more: self.receive(number, more))

    def count(self, number: int, demand: Demand) -> bool:
        """A step is done; whether the worker goes on."""
        worker = self.workers[number]
        worker.done += 1
        self.rows_done += demand.rows
        if worker.done == math.ceil(WARM_UP_SHARE * self.steps) and not self.counted_from[1]:
            self.counted_from = (self.now, self.rows_done)
        if worker.done == self.steps and not self.counted_to[1]:
            self.counted_to = (self.now, self.rows_done)
        if worker.done < self.steps:
            return True
        for shard in self.shards or [self.gate]:
            shard.clocks[number] = UNBOUNDED
            self.open_gate(shard)
        return False

    # -- shards

    def arrive(self, index: int, frame: _Frame) -> None:
        self.shards[index].queue.append(frame)
        if not self.shards[index].busy:
            self.serve(index)

    def serve(self, index: int) -> None:
        shard = self.shards[index]
        if shard.queue and not shard.busy:
            self.end_spin(shard, shard.spin)
        elif shard.busy and not shard.queue:
            shard.waits_since = self.now
            self.spin(shard)
        idled = not shard.busy and self.now - shard.waits_since >= IDLE_SECONDS
        shard.busy = bool(shard.queue)
        if shard.queue:
            frame = shard.queue.popleft()
            seconds = frame.demand.service[index] * (1.0 if idled else frame.demand.shard_awake)
            self.work(shard.node, seconds, lambda: self.served(index, frame))

    def served(self, index: int, frame: _Frame) -> None:
        shard = self.shards[index]
        if frame.pushes and shard.clocks[frame.worker] < UNBOUNDED:
            shard.clocks[frame.worker] += 1
        if self.rules.staleness >= UNBOUNDED:
            self.reply(shard, frame)
        else:
            shard.held[frame.worker] = frame
            self.open_gate(shard)
        self.serve(index)

    def open_gate(self, shard: _Shard) -> None:
        """Let go all that are not too far ahead of the slowest."""
        slowest = min(shard.clocks)
        ready = [frame for frame in shard.held.values() if shard.clocks[frame.worker] - slowest <= self.rules.staleness]
        for frame in ready:
            del shard.held[frame.worker]
            self.reply(shard, frame)

    def reply(self, shard: _Shard, frame: _Frame) -> None:
        if shard is self.gate:
            self.compute(frame)
            return
        worker = self.workers[frame.worker]

        def arrived() -> None:
            worker.missing[frame.number] -= 1
            go_on = worker.go_on
            if go_on is not None and worker.flying[0] is frame and not worker.missing[frame.number]:
                worker.go_on = None
                worker.idled = worker.idled or self.now - worker.waits_since >= IDLE_SECONDS
                self.end_spin(worker, worker.spin)
                go_on()

        index = self.shards.index(shard)
        self.carry(shard.node, worker.node, frame.demand.bytes_in[index], arrived)

    # -- embedded

    def enter_gate(self, number: int, demand: Demand) -> None:
        self.gate.held[number] = _Frame(number, 0, False, demand)
        self.open_gate(self.gate)

    def compute(self, frame: _Frame) -> None:
        demand = frame.demand
        self.work(self.workers[frame.worker].node, demand.compute + demand.push, lambda: self.computed(frame))

    def computed(self, frame: _Frame) -> None:
        if self.count(frame.worker, frame.demand):
            self.gate.clocks[frame.worker] += 1
            self.open_gate(self.gate)
            self.read(frame.worker, lambda demand: self.enter_gate(frame.worker, demand))
