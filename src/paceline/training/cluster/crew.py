"""How does a run train on a cluster? The coordinator's side: start the roles, run legs, recover, gather the parameters.

A lost worker is replaced while the others go on. A lost shard takes parameters with it: `LostShardError` then lets the
coordinator return to the last checkpoint.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.config import RunConfig
from paceline.data.datasets import AnyDataset
from paceline.data.images.dataset import ImageDataset
from paceline.data.rows import NO_LIMIT, ClockRows, QueueRows
from paceline.engines import StartingEngine
from paceline.errors import ConfigError, DataError, DivergedError, PacelineError, RunError
from paceline.machine import num_cores
from paceline.models.dense import DenseModel, build_model, evaluate_classes, num_values
from paceline.parameters.optimizers import width
from paceline.parameters.optimizers.dense import num_planes
from paceline.parameters.parts import Parts
from paceline.telemetry.records import AnyRecord
from paceline.training.checkpoint import Progress
from paceline.training.cluster.desk import Desk, Event, Loss, Role
from paceline.training.cluster.grants import ClockGrants, Grants, GrantSizes, QueueGrants
from paceline.training.cluster.messages import (
    Begin,
    Copied,
    Counted,
    Failed,
    Grant,
    Open,
    Reset,
    RoleSpec,
    Stop,
    Wait,
    encode,
)
from paceline.training.cluster.shard import NOW
from paceline.training.cluster.shard_link import ShardLink
from paceline.training.crew import AnyQuality, Due, Keep, Look, LostShardError, Snapshot, Tally
from paceline.training.embedded.crew import check_clock_size
from paceline.training.evaluate import Scorer, evaluate
from paceline.training.model_files import PLAIN_WEIGHTS
from paceline.training.pace import Pace
from paceline.wire.frames import WireError
from paceline.wire.handshake import new_token
from paceline.wire.server import Server
from paceline.wire.tls import Tls, make_tls

START_SECONDS = 28.0
SNAPSHOT_PAUSE_SECONDS = 2.0
BACK_SECONDS = 24.0
POLL_SECONDS = 0.05
COUNT_SECONDS = 0.5
MOST_RESTARTS = 10


class ClusterCrew:
    """The workers and shards of one run, as processes that an engine starts and restarts."""

    def __init__(self, config: RunConfig, dataset: AnyDataset, starting: StartingEngine) -> None:
        self.model: DenseModel | None = None
        if isinstance(dataset, ImageDataset):
            self.model = build_model(_as_here(config), dataset.shape, dataset.classes)
            self._parts = Parts(num_values(self.model), num_planes(config.optimizer), config.shards, in_ranges=True)
        else:
            check_clock_size(config, dataset)
            self._parts = Parts(dataset.features + 1, width(config.optimizer), config.shards, in_ranges=False)
        _check_shards(config, self._parts)
        engine = starting.get()
        self._config = config
        self._dataset = dataset
        self._engine = engine
        self._shards = [Role("shard", rank) for rank in range(config.shards)]
        self._workers = [Role("worker", rank) for rank in range(config.workers)]
        self._roles = [*self._shards, *self._workers]
        self._restarts = {"workers": 0, "shards": 0}
        self._recoveries: list[dict[str, Any]] = []
        self._progress = Progress()
        self._first_position = 0
        self._states: NDArray[np.float32] | None = None
        self._grants: Grants
        self._granting = threading.Lock()
        self._generation = 0
        self._leg = 0
        self._leg_is_on = False
        self._idle: set[int] = set()
        self._links: list[ShardLink] = []
        self._last_count = Counted(rows=0, losses=0.0, loss_rows=0, largest_lead=0, refused=0)
        self._next_snapshot = 0.0
        self._refused_by_shards = 0
        self._desk: Desk | None = None
        self._tls: Tls | None = None
        self._token = new_token()

    # -- start and end

    def restore(self, progress: Progress, states: NDArray[np.float32] | None) -> None:
        self._progress, self._states = progress, states
        if self._desk is None:
            self._first_position = progress.position

    def make_ready(self) -> None:
        if self._desk is None:
            self._start()
        self._hang_up()
        for worker in self._workers:
            self._say(worker, Wait())
        self._wait_for_roles()
        self._generation += 1
        self._grants = self._make_grants()
        with self._shards_may_die():
            self._links = [self._link(role) for role in self._shards]
            self._load_shards()
        self._states = None

    def _start(self) -> None:
        """Let the engine start all roles."""
        config, engine = self._config, self._engine
        self._tls = make_tls([engine.host]) if config.wire.tls else None
        server = Server(engine.host, config.wire.port, self._token, self._tls)
        self._desk = Desk(server, self._roles, self._take, engine.name_of)
        for number in range(len(self._roles)):
            self._begin(number)

    def _begin(self, number: int) -> None:
        """Let a process be the role of this number, when it is there."""
        assert self._desk is not None
        role, coordinator = self._roles[number], self._desk.server.address
        content = encode(
            RoleSpec(
                role=role.role,
                rank=role.rank,
                coordinator=coordinator,
                token=self._token,
                certificate=self._tls.certificate if self._tls else b"",
                key=self._tls.key if self._tls else b"",
                loopback=self._engine.loopback,
                features=self._dataset.features,
                num_values=self._parts.num_keys,
                num_trained=self.model.num_trained if self.model else 0,
                num_rows=self._dataset.split("train").rows,
                config=encode(self._config),
            )
        )
        self._engine.begin(number, content)

    def close(self) -> None:
        self._hang_up()
        desk, self._desk = self._desk, None
        if desk is not None:
            for role in self._roles:
                desk.say(role, Stop())
        self._engine.close()
        if desk is not None:
            desk.close()

    def _hang_up(self) -> None:
        for link in self._links:
            link.close()
        self._links = []

    def _make_grants(self) -> Grants:
        config, at = self._config, self._progress
        num_rows = self._dataset.split("train").rows
        limits = {
            "position": at.position,
            "clock": at.clock,
            "last": config.epochs * num_rows if config.epochs else NO_LIMIT,
            "last_clock": config.steps or NO_LIMIT,
        }
        sizes = GrantSizes(config.workers, config.batch_size)
        rows = (num_rows, config.workers, config.batch_size)
        if Pace.of(config.pace).fold == "mean":
            return ClockGrants(ClockRows(*rows, **limits), sizes, config.workers)
        return QueueGrants(QueueRows(*rows, **limits), sizes, config.batch_size, at.handed, config.workers)

    def _load_shards(self) -> None:
        """Give every shard its part of the states that the run goes on from."""
        handed = self._progress.handed
        if self._states is None and self.model is not None:
            self._states = np.zeros((self._parts.num_keys, self._parts.width), np.float32)
            self._states[:, 0] = self.model.initial(self._config.seed)
        nothing = [self._progress.clock if Pace.of(self._config.pace).fold == "mean" else 0] * len(self._workers)
        for shard, link in enumerate(self._links):
            applied = handed.applied[shard] if handed.applied else nothing
            rows = handed.rows[shard] if handed.rows else self._progress.position
            link.ask(Reset(generation=self._generation, applied=applied, rows=rows))
            if self._states is not None:
                link.load(self._states[self._parts.of(shard)])

    def _link(self, role: Role) -> ShardLink:
        return ShardLink(role.address, self._token, self._tls, self._parts.size(role.rank), self._parts.width,
                         lambda: role.peer is None)  # fmt: skip

    # -- legs

    def run_leg(self, until: int, look: Look, keep: Keep) -> Tally:
        self._begin_leg(until)
        snapshot: threading.Thread | None = None
        last_count = 0.0
        try:
            while len(self._idle) < len(self._workers):
                self._see_to_events(POLL_SECONDS)
                if time.monotonic() - last_count >= COUNT_SECONDS:
                    last_count = time.monotonic()
                    self._last_count = self._links[0].count_soon() or self._last_count
                due = look(self._tally(self._last_count))
                if due is Due.STOP:
                    self._grants.feed.pause()
                elif due is Due.SNAPSHOT and self._may_copy(snapshot):
                    snapshot = self._start_snapshot(keep)
        finally:
            self._leg_is_on = False
            if snapshot is not None:
                snapshot.join()
        return self._end_leg()

    def _begin_leg(self, until: int) -> None:
        """Tell shards first, then hand out rows, then let workers go."""
        self._wait_for_roles()
        self._leg += 1
        self._idle.clear()
        start = self._grants.begin_leg()
        with self._shards_may_die():
            for link in self._links:
                link.ask(Open(bases=start.bases, done=start.done))
        self._last_count = msgspec.structs.replace(self._last_count, losses=0.0, loss_rows=0)
        self._grants.feed.open(until)
        self._leg_is_on = True
        for worker in self._workers:
            self._let_go(worker)

    def _end_leg(self) -> Tally:
        """Every row that was handed out must be in every shard, once."""
        with self._shards_may_die():
            counts = [link.count() for link in self._links]
        position = self._grants.feed.position
        for shard, count in enumerate(counts):
            if count.rows != position:
                raise RunError(
                    f"shard {shard} has counted {count.rows:,} rows where {position:,} were handed out",
                    "this is a bug in paceline: please report it with the run's folder",
                )
        self._last_count = counts[0]
        self._refused_by_shards = sum(count.refused for count in counts)
        largest_lead = max(count.largest_lead for count in counts)
        return self._tally(counts[0])._replace(largest_lead=largest_lead)

    def _tally(self, count: Counted) -> Tally:
        feed = self._grants.feed
        return Tally(feed.position, feed.clock, count.losses, count.loss_rows, count.largest_lead)

    def _let_go(self, worker: Role) -> None:
        shards = [shard.address for shard in self._shards]
        sharing = sum(other.node == worker.node for other in self._workers)
        place = {"incarnation": worker.incarnation, "generation": self._generation, "leg": self._leg}
        self._say(worker, Begin(**place, shards=shards, sharing=sharing))

    def _say(self, role: Role, message: Begin | Wait) -> None:
        assert self._desk is not None
        self._desk.say(role, message)

    def _take(self, rank: int, leg: int, batch: int) -> Grant | None:
        """The desk's thread asks: rows for a worker."""
        with self._granting:
            if not self._leg_is_on or leg != self._leg:
                return None
            bounds = self._grants.take(rank, batch)
        return Grant(leg=leg, first=batch, bounds=b"" if bounds is None else bounds.tobytes())

    # -- what happens to roles

    def _wait_for_roles(self) -> None:
        """Wait until all roles are ready, as long as is reasonable."""
        began = time.monotonic()
        while not all(role.ready for role in self._roles):
            self._see_to_events(POLL_SECONDS)
            for role in self._roles:
                waited = time.monotonic() - began
                failure = self._engine.failure_of(self._roles.index(role)) if role.incarnation < 0 else ""
                if failure or (role.incarnation < 0 and waited > START_SECONDS):
                    raise RunError(
                        f"{role.name} did not start in {waited:.0f} s: {failure or self._why(role)}",
                        "see that the cluster has room, and the same paceline on every node",
                    )

    def _see_to_events(self, seconds: float) -> None:
        """Act on what has happened; wait so long for something to."""
        assert self._desk is not None
        try:
            event = self._desk.events.get(timeout=seconds)
            while True:
                self._see_to(event)
                event = self._desk.events.get_nowait()
        except queue.Empty:
            pass
        for role in self._roles:
            if role.lost and time.monotonic() - role.away_since > BACK_SECONDS:
                raise RunError(
                    f"{role.name} was lost ({role.lost.because}) and did not come back in {BACK_SECONDS:g} s: "
                    f"{self._why(role)}",
                    "`paceline resume` goes on from the last checkpoint when the cluster has room again",
                )

    def _see_to(self, event: Event) -> None:
        role = event.role
        match event.what:
            case "failed":
                raise _error_of(role, event.detail, started=self._generation > 0)
            case "lost":
                self._lost(role, event.detail)
            case "ready":
                role.ready = True
                self._book_recovery(role)
                if role.role == "worker" and event.detail != self._dataset.fingerprint:
                    raise DataError(
                        f"{role.name} sees other data at `{self._config.data}` than the coordinator",
                        "every node must see the same folder under the same path",
                    )
                if role.role == "worker" and self._leg_is_on and role.rank not in self._idle:
                    self._let_go(role)
            case "idle" if event.detail == self._leg:
                self._idle.add(role.rank)

    def _lost(self, role: Role, loss: Loss) -> None:
        """A role is gone. The engine starts a process that has ended again; one that is silent must be ended first."""
        role.ready, role.lost, role.away_since = False, loss, time.monotonic()
        self._restarts[f"{role.role}s"] += 1
        if sum(self._restarts.values()) > MOST_RESTARTS + len(self._roles):
            raise RunError(
                f"{role.name} was lost ({loss.because}), after too many others", "see the nodes' logs and memory"
            )
        number = self._roles.index(role)
        if loss.silent:
            self._engine.end(number, role.pid)
        self._begin(number)
        # Without links nothing has been loaded yet that could be lost. What a worker of a dense model has half pushed
        # cannot be taken back, nor can it be given again what it had pulled.
        if self._links and (role.role == "shard" or self.model is not None):
            raise LostShardError(f"{role.name} was lost: {loss.because}")

    def _book_recovery(self, role: Role) -> None:
        """A role is ready; if it was lost before, note how long that took."""
        if role.lost is None:
            return
        loss, role.lost = role.lost, None
        self._recoveries.append(
            {"role": role.role, "rank": role.rank, "node": role.node, "cause": loss.because,
             "seconds": time.monotonic() - loss.since}
        )  # fmt: skip

    def _why(self, role: Role) -> str:
        return self._engine.why_not_running(self._roles.index(role)) or role.doing

    @contextmanager
    def _shards_may_die(self) -> Iterator[None]:
        """A broken connection to a shard means that it is lost, unless something else explains it."""
        try:
            yield
        except WireError as error:
            deadline = time.monotonic() + BACK_SECONDS / 2
            while time.monotonic() < deadline:
                self._see_to_events(POLL_SECONDS)
            raise RunError(f"a shard cannot be reached: {error.message}", error.hint) from None

    # -- parameters

    def snapshot(self) -> Snapshot:
        with self._shards_may_die():
            return self._snapshot(self._misses_a_shard)

    def _misses_a_shard(self) -> bool:
        return any(role.peer is None for role in self._shards)

    def _may_copy(self, last: threading.Thread | None) -> bool:
        """One snapshot at a time, and a pause after one that failed."""
        return (last is None or not last.is_alive()) and time.monotonic() >= self._next_snapshot

    def _start_snapshot(self, keep: Keep) -> threading.Thread:
        """Copy all shards while workers go on, and keep the copy."""

        def give_up() -> bool:
            return (not self._leg_is_on and len(self._idle) < len(self._workers)) or self._misses_a_shard()

        def work() -> None:
            try:
                keep(self._snapshot(give_up))
            except WireError:
                # The desk knows if that shard is lost; the next checkpoint will do.
                self._next_snapshot = time.monotonic() + SNAPSHOT_PAUSE_SECONDS
            except Exception as error:  # noqa: BLE001 (a checkpoint that cannot be made must not go unnoticed)
                assert self._desk is not None
                hint = error.hint if isinstance(error, PacelineError) else ""
                message = error.message if isinstance(error, PacelineError) else f"{type(error).__name__}: {error}"
                failed = Failed(kind="run", message=f"the checkpoint failed: {message}", hint=hint)
                self._desk.events.put(Event("failed", self._shards[0], failed))

        thread = threading.Thread(target=work, name="paceline-snapshot", daemon=True)
        thread.start()
        return thread

    def _snapshot(self, give_up: Callable[[], bool]) -> Snapshot:
        """One consistent cut. In sync all shards copy at the same clock; else each at once, and what some shard lacks
        is handed out again after a return to this cut.
        """
        with ExitStack() as stack:
            states = self._room_for_states()
            links = [stack.enter_context(self._link(role)) for role in self._shards]
            parts = [(link, states[self._parts.of(shard)]) for shard, link in enumerate(links)]
            in_step = Pace.of(self._config.pace).fold == "mean"
            # A shard of a dense model takes no pushes from its copy on until it is fetched, and workers push to one
            # shard after the other: out of step, a push to one that is held may be what another's copy waits for.
            one_by_one = self.model is not None and not in_step
            feed = self._grants.feed
            copies: list[Copied] = []
            for some in [[part] for part in parts] if one_by_one else [parts]:
                # In sync no worker can pass this clock before all shards know.
                with self._granting if in_step else nullcontext():
                    position, clock = feed.position, feed.clock
                    for link, _ in some:
                        link.order_copy(clock if in_step else NOW)
                copies += [link.copied(give_up) for link, _ in some]
                if one_by_one:
                    _fetch(some)
            with self._granting:
                handed = self._grants.handed([copy.applied for copy in copies], [copy.rows for copy in copies])
                if not in_step:
                    position, clock = feed.position, feed.clock
            if not one_by_one:
                _fetch(parts)
        lead = self._last_count.largest_lead
        return Snapshot(Tally(position, clock, copies[0].losses, copies[0].loss_rows, lead), states, handed)

    def _room_for_states(self) -> NDArray[np.float32]:
        """For all shards' states [keys, width]; a dense model's lie plane by plane."""
        num_keys, planes = self._parts.num_keys, self._parts.width
        if self.model is not None:
            return np.empty((planes, num_keys), np.float32).T
        return np.empty((num_keys, planes), np.float32)

    def weights(self, rows: int) -> NDArray[np.float32]:
        weights = np.empty((self._parts.num_keys, 1), np.float32)
        with self._shards_may_die():
            for shard, link in enumerate(self._links):
                link.fetch("weights", weights[self._parts.of(shard)], rows)
        return weights[:, 0]

    def evaluate(self, rows: int, stop: Callable[[], bool]) -> AnyQuality | None:
        weights, dataset = self.weights(rows), self._dataset
        if isinstance(dataset, ImageDataset):
            assert self.model is not None
            return evaluate_classes(self.model, weights, dataset, "test", stop)
        scorer = Scorer(PLAIN_WEIGHTS, weights, dataset.features, dataset.features)
        return evaluate(scorer, dataset, "test", min(self._config.workers, num_cores()), stop)

    # -- what it says of itself

    def roles(self) -> list[dict[str, Any]]:
        return [
            {"role": "coordinator", "rank": 0, **self._engine.own_place(), "incarnation": 0},
            *(
                {
                    "role": role.role,
                    "rank": role.rank,
                    "node": role.node,
                    "address": role.address,
                    "pid": role.pid,
                    "incarnation": max(0, role.incarnation),
                }
                for role in self._roles
            ),
        ]

    def waits(self) -> list[str]:
        return [f"{role.role} {role.rank} {role.doing or 'is gone'}" for role in self._roles]

    def records(self) -> list[AnyRecord]:
        return self._desk.take_records() if self._desk else []

    def account(self) -> dict[str, Any]:
        sent = sum(worker.num_bytes[0] for worker in self._workers)
        received = sum(worker.num_bytes[1] for worker in self._workers)
        rows = self._grants.feed.position - self._first_position if self._generation else 0
        return {
            "wire": {
                "bytes_sent": sent,
                "bytes_received": received,
                "bytes_per_row": (sent + received) / rows if rows else 0.0,
                "refused": self._refused_by_shards + (self._desk.server.refused if self._desk else 0),
            },
            "restarts": dict(self._restarts),
            "recoveries": list(self._recoveries),
            "peak_memory_bytes": sum(role.peak_memory_bytes for role in self._roles),
        }


def _as_here(config: RunConfig) -> RunConfig:
    """The settings with which the coordinator tests a model: it need not have a GPU because its workers do."""
    if config.device == "cpu":
        return config
    from paceline.torch.model import has_gpu

    return config if has_gpu() else msgspec.structs.replace(config, device="cpu")


def _fetch(parts: list[tuple[ShardLink, NDArray[np.float32]]]) -> None:
    """Fill parts of the states with what shards have copied."""
    for link, part in parts:
        link.fetch("copy", part)


def _check_shards(config: RunConfig, parts: Parts) -> None:
    if config.shards > parts.num_keys:
        raise ConfigError(
            f"`shards` is {config.shards}, but there are only {parts.num_keys} keys to share out", "--shards 1"
        )


def _error_of(role: Role, failed: Failed, started: bool) -> PacelineError:
    """What a role reported, with its name. What was asked is only found wrong before the run has begun."""
    message = f"{role.name}: {failed.message}"
    if failed.kind == "diverged":
        return DivergedError(failed.message, failed.hint)
    if started or failed.kind == "run":
        return RunError(message, failed.hint)
    return {"data": DataError, "config": ConfigError}[failed.kind](message, failed.hint)
