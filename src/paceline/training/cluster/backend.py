"""How does a run train on a cluster? The coordinator's side: start the roles, run segments, recover, gather parameters.

A lost worker is replaced while the others continue, if the shards can repeat their last answers to its successor. They
can for models with a table. A lost shard takes parameters with it: `LostShardError` then lets the coordinator return to
the last checkpoint.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from typing import Any

import msgspec

from paceline.data.blocks.dataset import Split
from paceline.data.rows import ClockRows, QueueRows
from paceline.engines import ClusterEngine, PendingEngine
from paceline.errors import DataError, RunError
from paceline.machine import num_cores
from paceline.models.metrics import Quality
from paceline.models.model import Parameters
from paceline.models.registry import Entry
from paceline.processes.control import ControlServer, Event
from paceline.processes.messages import Failed, Ready, encode
from paceline.processes.roles import Loss, Role
from paceline.processes.supervisor import Limits, Supervisor
from paceline.settings import RunConfig
from paceline.telemetry.records import AnyRecord
from paceline.training.backend import Due, Keep, Look, LostShardError, Snapshot, Tally
from paceline.training.checkpoint import Progress, States
from paceline.training.checks import check_updates
from paceline.training.cluster import messages as m
from paceline.training.cluster.copies import NOW
from paceline.training.cluster.dealt import ByKind, DealtParameters
from paceline.training.cluster.leases import ClockLeases, LeaseSizes, QueueLeases, RowLeases
from paceline.training.cluster.shard_link import ShardLink
from paceline.training.evaluate import evaluate
from paceline.training.feeds import make_feed
from paceline.training.pace import Pace
from paceline.wire.frames import WireError
from paceline.wire.handshake import new_token
from paceline.wire.server import Server
from paceline.wire.tls import make_tls

SNAPSHOT_PAUSE_SECONDS = 2.0
BACK_SECONDS = 24.0
LIMITS = Limits(start_seconds=28.0, back_seconds=BACK_SECONDS)
COUNT_SECONDS = 0.5


class ClusterBackend:
    """The workers and shards of one run, as processes that an engine starts and restarts."""

    def __init__(self, config: RunConfig, dataset: Any, entry: Entry, engine: PendingEngine) -> None:
        self._config = config
        self._dataset = dataset
        self._pace = Pace.of(config.pace)
        self._num_rows = dataset.split("train").rows
        rows_per_update = self._pace.rows_per_update(config.workers, config.batch_size)
        self.model = entry.build(config if entry.keyed else _as_here(config), dataset, rows_per_update)
        self._dealt = DealtParameters(self.model, dataset, config.shards)
        check_updates(config, dataset, self.model.layout)
        # Whether shards answer a lost worker's successor again what it had asked.
        self._replays = self.model.layout.table is not None
        self._shards = [Role("shard", rank) for rank in range(config.shards)]
        self._workers = [Role("worker", rank) for rank in range(config.workers)]
        self._progress = Progress()
        self._first_position = 0
        self._states: ByKind | None = None
        self._leases: RowLeases
        self._leasing = threading.Lock()
        self._generation = 0
        self._segment = 0
        self._segment_is_on = False
        self._idle: set[int] = set()
        self._links: list[ShardLink] = []
        self._last_count = m.Counted(rows=0, losses=0.0, loss_rows=0, largest_lead=0, refused=0)
        self._next_snapshot = 0.0
        self._refused_by_shards = 0
        self._token = new_token()
        self._tls = make_tls() if config.wire.tls else None
        self._supervisor = self._start(engine.get())

    # -- start and end

    def restore(self, progress: Progress, states: States | None) -> None:
        self._progress, self._states = progress, self._dealt.begin(states)
        if self._generation == 0:
            self._first_position = progress.position

    def make_ready(self) -> None:
        self._hang_up()
        for worker in self._workers:
            self._supervisor.control.say(worker, m.Wait())
        self._supervisor.wait_until_ready(self._handle_events)
        self._supervisor.started = True
        self._generation += 1
        self._leases = self._make_leases()
        with self._shards_may_die():
            self._links = [self._link(role) for role in self._shards]
            self._load_shards()
        self._states = None

    def _start(self, engine: ClusterEngine) -> Supervisor:
        """Let the engine start all roles."""
        config = self._config
        server = Server(engine.host, config.wire.port, self._token, self._tls, mac=config.wire.mac)
        roles = [*self._shards, *self._workers]
        control = ControlServer(server, roles, engine.name_of, kinds=[m.Idle], answers={m.Take: self._take})
        settings, layout, table = encode(config), encode(self.model.layout), self.model.layout.table
        hot_keys = tuple(self._dataset.manifest.hot_keys) if table is not None and table.is_drawn else ()

        def spec(role: str, **place: Any) -> m.RoleSpec:
            return m.RoleSpec(
                role=role, token=self._token, tls=self._tls, mac=config.wire.mac, config=settings, layout=layout,
                hot_keys=hot_keys if role == "shard" else (), **place,
            )  # fmt: skip

        return Supervisor(engine, control, spec, LIMITS, self._return_to_checkpoint)

    def close(self) -> None:
        self._hang_up()
        self._supervisor.close(m.Stop())

    def _hang_up(self) -> None:
        while self._links:
            self._links.pop().close()

    def _make_leases(self) -> RowLeases:
        config, at, num_rows = self._config, self._progress, self._num_rows
        sizes = LeaseSizes(config.workers, config.batch_size)
        if self._pace.fold == "mean":
            return ClockLeases(make_feed(ClockRows, config, num_rows, at), sizes, config.workers)
        queue = make_feed(QueueRows, config, num_rows, at)
        return QueueLeases(queue, sizes, config.batch_size, at.handed, config.workers)

    def _load_shards(self) -> None:
        """Give every shard its part of the states that the run continues from; tables begin by themselves."""
        handed, states = self._progress.handed, self._states or self._dealt.begin(None)
        nothing = [self._progress.clock if self._pace.fold == "mean" else 0] * len(self._workers)
        for shard, link in enumerate(self._links):
            applied = handed.applied[shard] if handed.applied else nothing
            rows = handed.rows[shard] if handed.rows else self._progress.position
            link.ask(m.Reset(generation=self._generation, applied=applied, rows=rows))
            self._dealt.load(shard, link, states)

    def _link(self, role: Role) -> ShardLink:
        return ShardLink(role.address, self._token, self._tls, lambda: role.peer is None, self._config.wire.mac)

    # -- segments

    def run_segment(self, until: int, look: Look, keep: Keep) -> Tally:
        self._begin_segment(until)
        snapshot: threading.Thread | None = None
        last_count = 0.0
        try:
            while len(self._idle) < len(self._workers):
                self._handle_events()
                if time.monotonic() - last_count >= COUNT_SECONDS:
                    last_count = time.monotonic()
                    self._last_count = self._links[0].count_soon() or self._last_count
                due = look(self._tally(self._last_count))
                if due is Due.STOP:
                    self._leases.feed.pause()
                # One at a time, and a pause after one that failed.
                is_busy = time.monotonic() < self._next_snapshot or (snapshot is not None and snapshot.is_alive())
                if due is Due.SNAPSHOT and not is_busy:
                    snapshot = self._start_snapshot(keep)
        finally:
            self._segment_is_on = False
            if snapshot is not None:
                snapshot.join()
        return self._end_segment()

    def _begin_segment(self, until: int) -> None:
        """Tell shards first, then hand out rows, then let workers go."""
        self._supervisor.wait_until_ready(self._handle_events)
        self._segment += 1
        self._idle.clear()
        start = self._leases.begin_segment()
        with self._shards_may_die():
            for link in self._links:
                link.ask(m.Open(bases=start.bases, done=start.done))
        self._last_count = msgspec.structs.replace(self._last_count, losses=0.0, loss_rows=0)
        self._leases.feed.open(until)
        self._segment_is_on = True
        for worker in self._workers:
            self._let_go(worker)

    def _end_segment(self) -> Tally:
        """Every row that was handed out must be in every shard, once."""
        with self._shards_may_die():
            counts = [link.ask(m.Count()) for link in self._links]
        position = self._leases.feed.position
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

    def _tally(self, count: m.Counted) -> Tally:
        feed = self._leases.feed
        return Tally(feed.position, feed.clock, count.losses, count.loss_rows, count.largest_lead)

    def _let_go(self, worker: Role) -> None:
        shards = [shard.address for shard in self._shards]
        sharing = sum(other.node == worker.node for other in self._workers)
        begin = m.Begin(
            incarnation=worker.incarnation, generation=self._generation, segment=self._segment, shards=shards,
            sharing=sharing,
        )  # fmt: skip
        self._supervisor.control.say(worker, begin)

    def _take(self, worker: Role, take: m.Take) -> m.Lease | None:
        """The control server's thread asks: rows for a worker."""
        with self._leasing:
            if not self._segment_is_on or take.segment != self._segment:
                return None
            bounds = self._leases.take(worker.rank, take.batch)
        return m.Lease(segment=take.segment, first=take.batch, bounds=b"" if bounds is None else bounds.tobytes())

    # -- what happens to roles

    def _handle_events(self) -> None:
        """Act on what has happened to roles; wait a moment for something to happen."""
        for role, what in self._supervisor.events():
            match what:
                case Loss() if role.role == "shard" or not self._replays:
                    self._return_to_checkpoint(role, what)
                case Ready() if role.role == "worker":
                    self._welcome(role, what)
                case m.Idle(segment=segment) if segment == self._segment:
                    self._idle.add(role.rank)
        for role, loss in self._supervisor.overdue():
            raise RunError(
                f"{role.name} was lost ({loss.because}) and did not come back: {self._supervisor.why_away(role)}",
                "`paceline resume` continues from the last checkpoint when the cluster has room again",
            )

    def _welcome(self, worker: Role, ready: Ready) -> None:
        if ready.data != self._dataset.fingerprint:
            raise DataError(
                f"{worker.name} sees other data at `{self._config.data}` than the coordinator",
                "every node must see the same folder under the same path",
            )
        if self._segment_is_on and worker.rank not in self._idle:
            self._let_go(worker)

    def _return_to_checkpoint(self, role: Role, loss: Loss) -> None:
        # Without links nothing has been loaded yet that could be lost.
        if self._links:
            raise LostShardError(f"{role.name} was lost: {loss.because}")

    @contextmanager
    def _shards_may_die(self) -> Iterator[None]:
        """A broken connection to a shard means that it is lost, unless something else explains it."""
        try:
            yield
        except WireError as error:
            deadline = time.monotonic() + BACK_SECONDS / 2
            while time.monotonic() < deadline:
                self._handle_events()
            raise RunError(f"a shard cannot be reached: {error.message}", error.hint) from None

    # -- parameters

    def snapshot(self, keep: Keep) -> None:
        with self._shards_may_die():
            snapshot = self._snapshot(self._misses_a_shard)
        keep(snapshot)

    def _misses_a_shard(self) -> bool:
        return any(role.peer is None for role in self._shards)

    def _start_snapshot(self, keep: Keep) -> threading.Thread:
        """Copy all shards while workers continue, and keep the copy."""

        def give_up() -> bool:
            return (not self._segment_is_on and len(self._idle) < len(self._workers)) or self._misses_a_shard()

        def work() -> None:
            try:
                keep(self._snapshot(give_up))
            except WireError:
                # If that shard is lost, the control server knows; the next checkpoint will do.
                self._next_snapshot = time.monotonic() + SNAPSHOT_PAUSE_SECONDS
            except Exception as error:  # noqa: BLE001 (a checkpoint that cannot be made must not go unnoticed)
                why = Failed.of(error)
                failed = Failed(kind="run", message=f"the checkpoint failed: {why.message}", hint=why.hint)
                self._supervisor.control.events.put(Event(self._shards[0], failed))

        thread = threading.Thread(target=work, name="paceline-snapshot", daemon=True)
        thread.start()
        return thread

    def _snapshot(self, give_up: Callable[[], bool]) -> Snapshot:
        """One consistent cut. In sync all shards copy at the same clock; otherwise each copies at once, and what some
        shard lacks is handed out again after a return to this cut.
        """
        with ExitStack() as stack:
            states = self._dealt.room_for_states()
            links = [stack.enter_context(closing(self._link(role))) for role in self._shards]
            in_step = self._pace.fold == "mean"
            # A shard that keeps no copy takes no pushes until its states are fetched, and workers push to one shard
            # after the other: out of step, a push to one that is held may be what another's copy waits for.
            one_by_one = not self._replays and not in_step
            feed, shards = self._leases.feed, list(enumerate(links))
            copies: list[m.Copied] = []
            for some in [[one] for one in shards] if one_by_one else [shards]:
                # In sync no worker can pass this clock before all shards know.
                with self._leasing if in_step else nullcontext():
                    position, clock = feed.position, feed.clock
                    for _, link in some:
                        link.order_copy(clock if in_step else NOW)
                copies += [link.copied(give_up) for _, link in some]
                if one_by_one:
                    self._dealt.fetch_copies(some, states)
            with self._leasing:
                handed = self._leases.handed([copy.applied for copy in copies], [copy.rows for copy in copies])
                if not in_step:
                    position, clock = feed.position, feed.clock
            if not one_by_one:
                self._dealt.fetch_copies(shards, states)
        tally = Tally(position, clock, copies[0].losses, copies[0].loss_rows, self._last_count.largest_lead)
        return Snapshot(tally, self._dealt.as_states(states), handed)

    def _values(self, rows: int) -> ByKind:
        with self._shards_may_die():
            return self._dealt.fetch_values(self._links, rows)

    def evaluate(self, split: Split, rows: int, stop: Callable[[], bool]) -> Quality | None:
        parameters = self._dealt.as_parameters(self._values(rows), in_input_order=False)
        return evaluate(self.model, parameters, self._dataset, split, min(self._config.workers, num_cores()), stop)

    def parameters(self, rows: int) -> Parameters:
        return self._dealt.as_parameters(self._values(rows), in_input_order=True)

    # -- what it says of itself

    def failing(self) -> str:
        return self._supervisor.cluster_lost

    def roles(self) -> list[dict[str, Any]]:
        return self._supervisor.places()

    def waits(self) -> list[str]:
        return [f"{role.role} {role.rank} {role.doing or 'is lost'}" for role in self._supervisor.roles]

    def records(self) -> list[AnyRecord]:
        return self._supervisor.control.take_records()

    def gpu_facts(self) -> None:
        return None

    def account(self) -> dict[str, Any]:
        sent, received = map(sum, zip(*(worker.num_bytes for worker in self._workers), strict=True))
        rows = self._leases.feed.position - self._first_position if self._generation else 0
        return {
            "wire": {
                "bytes_sent": sent,
                "bytes_received": received,
                "bytes_per_row": (sent + received) / rows if rows else 0.0,
                "refused": self._refused_by_shards + self._supervisor.control.server.refused,
            },
            "restarts": dict(self._supervisor.restarts),
            "recoveries": list(self._supervisor.recoveries),
            "peak_memory_bytes": sum(role.peak_memory_bytes for role in self._supervisor.roles),
        }


def _as_here(config: RunConfig) -> RunConfig:
    """The settings with which the coordinator tests a module: its workers may have a GPU that it does not have."""
    if config.device == "cpu":
        return config
    from paceline.torch.model import has_gpu

    return config if has_gpu() else msgspec.structs.replace(config, device="cpu")
