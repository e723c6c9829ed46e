"""How fast would a run be on other machines, or at another pace? A simulation of its steps.

Workers and shards share the cores of their nodes. Frames travel over the nodes' links, one after another in each
direction. A worker's step is that of a worker in a cluster: wait for a reply, compute, push and ask for the next batch,
read more rows. How long each part takes is drawn from what was recorded. In sync, a shard adds up gradients and answers
once the last worker's frame is there. An embedded run has no shards: its step is input and compute, with the gate
between them.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

UNBOUNDED = 1 << 60
WARM_UP_SHARE = 0.2
NO_WORK = 1e-12
# A waiting role spins for this long before it sleeps (decision 0007). On a crowded node it keeps others from a core for
# this share of the time that it would if it did not give way.
SPIN_SECONDS, SPIN_WEIGHT = 0.0003, 0.3
IDLE_SECONDS = 0.002
"""A role that idles at least this long is slower when it continues."""

Then = Callable[[], None]


class Demand(NamedTuple):
    """What one step of a worker takes: processor seconds, except `delay`, which is waiting for input.

    For each shard: its processor seconds (`service`), and the bytes there and back. Times are those after a while of
    idling. Without idling, work takes `awake` times as long (on shards `shard_awake` times), because caches stay warm
    and the processor's clock stays high. In sync, `after_gate` is the share of the service that follows the opening of
    the gate. `gate` is what passing the gate takes even if nobody is late, in an embedded run. Each frame takes
    `push_fixed` and `service_fixed` of `push` and `service`, whatever its size; None if that is not known. A step takes
    `step_fixed` of `input` and `compute`, whatever its size. `turn` is what a worker takes in addition,
    and what all shards together take, if roles take turns on the cores.
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
    after_gate: float = 0.0
    gate: float = 0.0
    push_fixed: float | None = None
    service_fixed: float | None = None
    step_fixed: float = 0.0
    turn: float = 0.0


class Topology(NamedTuple):
    """The node of each worker and shard, and the machine of each node, by number; the `cores` that each machine has for
    them, and the `bandwidth` of each node's link (bytes per second, each way). Usually a node is a machine. A role that
    waits spins for at most `spin` seconds, then it sleeps; waking it up takes `wake` seconds.
    """

    workers: tuple[int, ...]
    shards: tuple[int, ...]
    machines: tuple[int, ...]
    cores: tuple[float, ...]
    bandwidth: tuple[float, ...]
    latency: float
    spin: float = SPIN_SECONDS
    wake: float = 0.0

    def cores_of(self, node: int) -> float:
        """The cores that roles on a node share."""
        return self.cores[self.machines[node]]

    def takes_turns(self, node: int) -> bool:
        """Whether a node's machine has more roles than cores."""
        machine = self.machines[node]
        roles = [self.machines[each] for each in (*self.workers, *self.shards)]
        return roles.count(machine) > self.cores[machine]


class PaceRules(NamedTuple):
    """The pace: how many clocks ahead a worker may be, and how many frames it has in flight."""

    staleness: int
    in_flight: int


Demands = Sequence[Sequence[Demand]]


def simulate(demands: Demands, topology: Topology, rules: PaceRules, steps: int, seed: int = 0) -> float:
    """Rows per second if each worker does `steps` steps, each drawn from its list of demands.

    >>> busy = Demand(delay=0.0, input=1.0, compute=2.0, push=1.0, rows=8)
    >>> topology = Topology((0, 0), (), (0,), (2,), (math.inf,), 0.0)
    >>> round(simulate([[busy], [busy]], topology, PaceRules(UNBOUNDED, 1), steps=1000), 1)
    4.0
    """
    return _Simulation(demands, topology, rules, steps, seed).run()


def spinning(demands: Demands, topology: Topology, rules: PaceRules, steps: int) -> float:
    """Processor seconds per step that roles spend on spinning."""
    simulation = _Simulation(demands, topology, rules, steps, seed=0)
    simulation.run()
    return sum(cores.spun for cores in simulation.machines) / sum(worker.done for worker in simulation.workers)


class _Cores:
    """The cores of a node, shared evenly among the tasks on them."""

    def __init__(self, count: float) -> None:
        self.count = count
        self.left: dict[Then, float] = {}  # seconds of work, by what follows it
        self.updated = 0.0
        self.plan = 0  # the number of the last plan: events of earlier ones are void
        self.spinning = 0  # roles that spin while they wait
        self.spun = 0.0  # seconds, by all of them

    @property
    def speed(self) -> float:
        """Of each task. Spinning gives way to tasks, but not at once."""
        if len(self.left) + self.spinning <= self.count:
            return 1.0
        return min(1.0, self.count / (len(self.left) + SPIN_WEIGHT * self.spinning))

    def advance(self, now: float) -> None:
        """Advance all tasks by the time since the last call."""
        if (self.left or self.spinning) and now > self.updated:
            passed, done = now - self.updated, (now - self.updated) * self.speed
            self.spun += min(self.spinning * passed, self.count * passed - len(self.left) * done)
            for task in self.left:
                self.left[task] -= done
        self.updated = now


class _Worker:
    """One worker: its frames in flight, and its progress."""

    def __init__(self, number: int, node: int, demands: Sequence[Demand]) -> None:
        self.number = number
        self.node = node
        self.demands = demands
        self.flying: deque[_Frame] = deque()
        self.proceed: Then | None = None  # what to do when the oldest frame is answered, while waiting for it
        self.spin = 0  # the number of the current spin; 0 for none
        self.waits_since = 0.0
        self.idled = True  # since it computed last
        self.slow = True  # because it had idled before it computed
        self.done = 0


class _Shard:
    """One shard, or in an embedded run the gate alone: frames to serve, those held back, and the workers' clocks."""

    def __init__(self, number: int, node: int, num_workers: int) -> None:
        self.number = number
        self.node = node
        self.queue: deque[tuple[_Frame, bool]] = deque()  # and whether the gate has opened for it
        self.busy = False
        self.waking = False
        self.spin = 0
        self.waits_since = 0.0
        self.held: list[_Frame] = []
        self.clocks = [0] * num_workers


@dataclass(eq=False)
class _Frame:
    """A worker's request for a batch; it pushes an earlier one, or none yet. `missing` replies are still to come."""

    worker: _Worker
    demand: Demand
    pushes: bool = False
    missing: int = 0


class _Simulation:
    def __init__(self, demands: Demands, topology: Topology, rules: PaceRules, steps: int, seed: int) -> None:
        self.topology = topology
        self.rules = rules
        self.in_step = rules.staleness == 0
        self.steps = steps
        self.random = random.Random(seed)
        self.now = 0.0
        self.numbers = itertools.count(1)  # of events and spins
        self.events: list[tuple[float, int, Then]] = []
        self.machines = [_Cores(count) for count in topology.cores]
        self.cores = [self.machines[machine] for machine in topology.machines]
        self.takes_turns = [topology.takes_turns(node) for node in range(len(topology.machines))]
        self.up = [0.0] * len(topology.machines)
        self.down = [0.0] * len(topology.machines)
        nodes = enumerate(zip(topology.workers, demands, strict=True))
        self.workers = [_Worker(number, node, own) for number, (node, own) in nodes]
        self.shards = [_Shard(number, node, len(demands)) for number, node in enumerate(topology.shards)]
        self.gate = _Shard(0, 0, len(demands))
        self.rows_done = 0
        # (when, rows by then): counted from where the first worker has warmed up until the first one is done.
        self.counted_from = self.counted_to = (0.0, 0)

    def run(self) -> float:
        first = self.begin if self.shards else self.enter_gate
        for worker in self.workers:
            self.read(worker, partial(first, worker))
        while self.events:
            self.now, _, what = heapq.heappop(self.events)
            what()
        seconds = self.counted_to[0] - self.counted_from[0]
        return (self.counted_to[1] - self.counted_from[1]) / seconds if seconds > 0 else math.inf

    # -- time, processors and links

    def at(self, time: float, what: Then) -> None:
        heapq.heappush(self.events, (time, next(self.numbers), what))

    def work(self, node: int, seconds: float, then: Then) -> None:
        """Use a core of a node for `seconds`, or longer if tasks share the cores. `then` is a new object each time."""
        if seconds <= 0:
            self.at(self.now, then)
            return
        cores = self.cores[node]
        cores.advance(self.now)
        cores.left[then] = seconds
        self.plan(cores)

    def spin(self, role: _Worker | _Shard) -> None:
        """A role has nothing to do: it spins for a while, then sleeps."""
        role.spin, role.waits_since = next(self.numbers), self.now
        self.change_spinning(role.node, 1)
        self.at(self.now + self.topology.spin, partial(self.end_spin, role, role.spin))

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
            soonest = max(0.0, min(cores.left.values()))
            self.at(self.now + soonest / cores.speed, partial(self.tasks_done, cores, cores.plan))

    def tasks_done(self, cores: _Cores, plan: int) -> None:
        if plan != cores.plan:
            return
        cores.advance(self.now)
        # Late in a long simulation the clock itself is coarser than that.
        least = max(NO_WORK, 2 * math.ulp(self.now))
        done = [then for then, left in cores.left.items() if left <= least]
        for then in done:
            del cores.left[then]
        self.plan(cores)
        for then in done:
            then()

    def carry(self, source: int, target: int, size: float, then: Then) -> None:
        """Carry bytes from node to node, behind those that go the same way."""
        if source == target:
            self.at(self.now, then)
            return
        out, into = (size / self.topology.bandwidth[node] for node in (source, target))

        def begin() -> None:
            # The faster of the two links can carry other frames at the same time.
            self.down[target] = max(self.now, self.down[target]) + into
            self.at(max(self.now + out, self.down[target]) + self.topology.latency, then)

        start = max(self.now, self.up[source])
        self.up[source] = start + out
        if start > self.now:
            self.at(start, begin)
        else:
            begin()

    # -- workers

    def read(self, worker: _Worker, then: Callable[[Demand], None]) -> None:
        """Get the rows of another batch."""
        demand = self.random.choice(worker.demands)
        worker.idled = worker.idled or demand.delay >= IDLE_SECONDS
        seconds = demand.input * (1.0 if worker.slow or worker.idled else demand.awake)
        work = partial(self.work, worker.node, seconds, partial(then, demand))
        if demand.delay > 0:
            self.at(self.now + demand.delay, work)
        else:
            work()

    def begin(self, worker: _Worker, demand: Demand) -> None:
        """Ask for as many batches as may be in flight, then receive the first."""
        self.ask(worker, demand, pushes=False)
        is_full = len(worker.flying) == self.rules.in_flight
        self.read(worker, partial(self.receive if is_full else self.begin, worker))

    def ask(self, worker: _Worker, demand: Demand, pushes: bool) -> None:
        frame = _Frame(worker, demand, pushes, missing=len(self.shards))
        worker.flying.append(frame)
        for shard, size in zip(self.shards, demand.bytes_out, strict=True):
            self.carry(worker.node, shard.node, size, partial(self.arrive, shard, frame))

    def receive(self, worker: _Worker, ahead: Demand) -> None:
        """Wait for the oldest batch in flight; compute it, push it and ask for the one ahead."""
        frame = worker.flying[0]
        if frame.missing:
            worker.proceed = partial(self.receive, worker, ahead)
            self.spin(worker)
            return
        worker.flying.popleft()
        worker.slow, worker.idled = worker.idled, False
        turns = frame.demand.turn if self.takes_turns[worker.node] else 0.0
        seconds = turns + (frame.demand.compute + frame.demand.push) * (1.0 if worker.slow else frame.demand.awake)
        self.work(worker.node, seconds, partial(self.push, worker, frame.demand, ahead))

    def push(self, worker: _Worker, done: Demand, ahead: Demand) -> None:
        if self.count(worker, done):
            self.ask(worker, ahead, pushes=True)
            self.read(worker, partial(self.receive, worker))

    def count(self, worker: _Worker, demand: Demand) -> bool:
        """A step is done; whether there are more to do."""
        worker.done += 1
        self.rows_done += demand.rows
        if worker.done == math.ceil(WARM_UP_SHARE * self.steps) and not self.counted_from[1]:
            self.counted_from = (self.now, self.rows_done)
        if worker.done < self.steps:
            return True
        if not self.counted_to[1]:
            self.counted_to = (self.now, self.rows_done)
        for shard in self.shards or [self.gate]:
            shard.clocks[worker.number] = UNBOUNDED
            self.open_gate(shard)
        return False

    # -- shards

    def arrive(self, shard: _Shard, frame: _Frame, may_pass: bool = False) -> None:
        shard.queue.append((frame, may_pass))
        if not shard.busy and not shard.waking:
            shard.waking = True
            self.wake(shard, partial(self.serve, shard))

    def wake(self, role: _Worker | _Shard, then: Then) -> None:
        """Something has come for a role that waits: it continues at once if it spins, otherwise after waking up."""
        slept = not role.spin and self.topology.wake > 0
        self.end_spin(role, role.spin)
        if slept:
            self.at(self.now + self.topology.wake, then)
        else:
            then()

    def serve(self, shard: _Shard) -> None:
        shard.waking = False
        idled = not shard.busy and self.now - shard.waits_since >= IDLE_SECONDS
        if shard.busy and not shard.queue:
            self.spin(shard)
        shard.busy = bool(shard.queue)
        if shard.queue:
            frame, may_pass = shard.queue.popleft()
            after = frame.demand.after_gate if self.in_step else 0.0
            seconds = frame.demand.service[shard.number] * (1.0 if idled else frame.demand.shard_awake)
            seconds += frame.demand.turn / len(self.shards) if self.takes_turns[shard.node] else 0.0
            then = partial(self.answer if may_pass else self.served, shard, frame)
            self.work(shard.node, seconds * (after if may_pass else 1 - after), then)

    def answer(self, shard: _Shard, frame: _Frame) -> None:
        self.reply(shard, frame)
        self.serve(shard)

    def served(self, shard: _Shard, frame: _Frame) -> None:
        if frame.pushes and shard.clocks[frame.worker.number] < UNBOUNDED:
            shard.clocks[frame.worker.number] += 1
        if self.rules.staleness >= UNBOUNDED:
            self.reply(shard, frame)
        else:
            shard.held.append(frame)
            self.open_gate(shard)
        self.serve(shard)

    def open_gate(self, shard: _Shard) -> None:
        """Let all pass that are not too far ahead of the slowest."""
        latest = min(shard.clocks) + self.rules.staleness
        for frame in [frame for frame in shard.held if shard.clocks[frame.worker.number] <= latest]:
            shard.held.remove(frame)
            if self.in_step and frame.demand.after_gate > 0 and shard is not self.gate:
                self.arrive(shard, frame, may_pass=True)
            else:
                self.reply(shard, frame)

    def reply(self, shard: _Shard, frame: _Frame) -> None:
        worker, demand = frame.worker, frame.demand
        if shard is self.gate:
            compute = partial(self.work, worker.node, demand.compute + demand.push, partial(self.computed, frame))
            if demand.gate > 0:
                self.at(self.now + demand.gate, compute)
            else:
                compute()
        else:
            self.carry(shard.node, worker.node, demand.bytes_in[shard.number], partial(self.answered, frame))

    def answered(self, frame: _Frame) -> None:
        """A reply has arrived. If it is the last one that its worker waits for, the worker proceeds."""
        frame.missing -= 1
        worker, proceed = frame.worker, frame.worker.proceed
        if proceed is not None and worker.flying[0] is frame and not frame.missing:
            worker.proceed = None
            worker.idled = worker.idled or self.now - worker.waits_since >= IDLE_SECONDS
            self.wake(worker, proceed)

    # -- embedded

    def enter_gate(self, worker: _Worker, demand: Demand) -> None:
        self.gate.held.append(_Frame(worker, demand))
        self.open_gate(self.gate)

    def computed(self, frame: _Frame) -> None:
        if self.count(frame.worker, frame.demand):
            self.gate.clocks[frame.worker.number] += 1
            self.open_gate(self.gate)
            self.read(frame.worker, partial(self.enter_gate, frame.worker))
