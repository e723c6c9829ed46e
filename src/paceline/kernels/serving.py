"""How does a shard answer a hundred thousand steps per second? In a compiled loop that needs no Python.

The loop serves the connections that were lent to it: it receives STEP frames of workers, checks them, applies the
pushes, asks the gate who may continue, and sends VALUES frames. It knows one kind of frame: values are float32, keys go
as they are. Whatever else comes, it leaves where it is and returns: another kind of frame, one that fails a check or
does not fit, a connection that has ended. Python then serves that frame in its own way (`KeyedSteps.step`), with the
same numbers, and decides what an error is. So nothing may be changed before a frame has passed all checks, except that
an old pull is forgotten whose place keys that do not exist have taken.

`training/cluster/compiled_serving.py` makes the arrays and lends the connections.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.clocks import (
    APPLIED,
    ARRIVED,
    ASKED,
    LEAVING,
    NUM_PUSHED,
    PRESENT,
    PUSHED,
    QUEUE,
    REQUESTS,
    SERVICE,
    SPUN,
    WAITING,
    WORKED,
    ClockArrays,
    book,
    let_through,
)
from paceline.kernels.exchange import copy_below
from paceline.kernels.fold import add_in
from paceline.kernels.jit import compiled, give_way, nanoseconds, processor_nanoseconds
from paceline.kernels.keys import Keys
from paceline.kernels.sockets import READABLE, WRITABLE, found, move_to_front, poll, receive, send, wait_for
from paceline.kernels.tables import TableArrays, apply_gradient, columns, gather

HEADER_BYTES, STEP_BYTES, REPLY_BYTES = 16, 40, 32
# What stands before the values of a reply, in the units of its arrays.
HEAD_FLOATS = (HEADER_BYTES + REPLY_BYTES) // 4
FIRST_BYTES = 64 << 10
"""How much is asked for when a frame begins, as in `wire/streams.py`."""
TURN_BYTES = 4 << 20
"""How much of one frame is received before others get a turn."""
PUSH, PULL, LEAVE = 1, 2, 4
MILLISECOND = 1_000_000

# Numbers of a pull: its batch, its keys, whether it was answered, and how long the shard had it, in nanoseconds.
BATCH, COUNT, ANSWERED, QUEUED, HELD, WORKED_FOR = range(6)
# Numbers of a connection: bytes received of the next frames; the first batch whose reply is not sent, how many are not,
# and how many bytes of the first one are; bytes received and sent in all.
FILLED, UNSENT, NUM_UNSENT, OFFSET, RECEIVED, SENT = range(6)
NUMBERS = 8

# Numbers of the loop: how many ranks are in the sum of this clock, how many distinct keys it has, and whether there are
# replies to workers whose connections were not lent.
NUM_FOLDED, NUM_DISTINCT, NUM_LEFT = range(3)

# Why the loop returns, if it is not for the worker of a rank.
LOOK_AROUND, COPY_DUE = -1, -2
# What came of a frame.
TAKEN, INCOMPLETE, REFUSED, FOLDED = range(4)


class PullArrays(NamedTuple):
    """The last pulls of each worker, `kept` of them: batch b of rank r is at r · kept + b mod kept.

    `numbers` says what a pull is, `keys` has its keys, and `replies` the whole frame that answers it, as float32, as
    int64 (`words`) and as bytes: all of the same memory. In sync, `sums` keeps a worker's push until all are there,
    `rows`, `losses` and `trained` what it says of them.
    """

    kept: int
    numbers: NDArray[np.int64]
    keys: Keys
    replies: NDArray[np.float32]
    words: NDArray[np.int64]
    bytes: NDArray[np.uint8]
    sums: NDArray[np.float32]
    rows: NDArray[np.int64]
    losses: NDArray[np.float64]
    trained: NDArray[np.int64]


class ConnectionArrays(NamedTuple):
    """The connections to workers, by rank. `polled` has one more descriptor: what Python waits for.

    What was received lies in `bytes`, and is seen through arrays of other types of the same memory. `progress` are
    numbers of the loop, `ranks` is scratch.
    """

    polled: NDArray[np.int32]
    numbers: NDArray[np.int64]
    bytes: NDArray[np.uint8]
    words: NDArray[np.int64]
    halves: NDArray[np.uint32]
    floats: NDArray[np.float32]
    doubles: NDArray[np.float64]
    keys: Keys
    progress: NDArray[np.int64]
    ranks: NDArray[np.int64]


class ServedSteps(NamedTuple):
    """What steps are about: a table of `num_keys` keys, the clocks, pulls, and the memory for folding.

    A STEP frame begins with `step_start`, and a VALUES frame with `reply_start`. `folds`: updates are the mean of all
    workers. `copy_at` is the clock after which Python makes a copy; negative for none.
    """

    table: TableArrays
    num_keys: int
    clocks: ClockArrays
    pulls: PullArrays
    fold: Any
    step_start: int
    reply_start: int
    folds: bool
    copy_at: int


@compiled
def serve(steps: ServedSteps, connections: ConnectionArrays, until: int, spin: int) -> int:
    """Serve until the moment `until`; before it goes to sleep, the loop spins for `spin` nanoseconds.

    Returns the rank of the worker whose connection needs Python; or `COPY_DUE`; or `LOOK_AROUND` when the time is over,
    when Python's descriptor is readable, or when there is a reply to a worker whose connection is not lent.
    """
    num_workers = connections.numbers.shape[0]
    polled, progress = connections.polled, connections.progress
    # What was folded before may have changed since.
    progress[:] = 0
    answer_released(steps, connections)
    woke = nanoseconds()
    for rank in range(num_workers):
        if polled[rank, 0] >= 0 and connections.numbers[rank, FILLED] > 0:
            result = take_frames(steps, connections, rank, woke)
            if result == REFUSED:
                return rank
            if result == FOLDED:
                return COPY_DUE
    while progress[NUM_LEFT] == 0:
        if poll(polled, 0) == 0 and wait(polled, until, spin, steps.clocks.totals) < 0:
            return LOOK_AROUND
        woke = nanoseconds()
        for rank in range(num_workers):
            events = found(polled, rank)
            if events & WRITABLE and not send_replies(steps.pulls, connections, rank):
                return rank
            if events & ~WRITABLE:
                result = receive_frames(steps, connections, rank, woke)
                if result == REFUSED:
                    return rank
                if result == FOLDED:
                    return COPY_DUE
        if found(polled, num_workers) or woke >= until:
            return LOOK_AROUND
    return LOOK_AROUND


@compiled
def wait(polled: NDArray[np.int32], until: int, spin: int, totals: NDArray[np.int64]) -> int:
    """Wait for an event until a moment: spin, then sleep. Negative if a signal came."""
    began = processor_nanoseconds()
    spin_until = min(nanoseconds() + spin, until)
    count = 0
    while count == 0 and nanoseconds() < spin_until:
        give_way()
        count = poll(polled, 0)
    totals[SPUN] += processor_nanoseconds() - began
    if count == 0:
        count = poll(polled, max(0, (until - nanoseconds() + MILLISECOND - 1) // MILLISECOND))
    return count


@compiled
def receive_frames(steps: ServedSteps, connections: ConnectionArrays, rank: int, woke: int) -> int:
    """Receive what a worker has sent, and take the frames that are whole."""
    numbers, buffer = connections.numbers[rank], connections.bytes[rank]
    came = 0
    while True:
        filled = numbers[FILLED]
        stop = max(frame_end(steps, connections, rank), FIRST_BYTES if filled < HEADER_BYTES else 0)
        count = receive(connections.polled[rank, 0], buffer, filled, stop)
        if count <= 0:
            return REFUSED if came == 0 else INCOMPLETE
        came += count
        numbers[FILLED] += count
        numbers[RECEIVED] += count
        result = take_frames(steps, connections, rank, woke)
        if result != INCOMPLETE or filled + count < stop or came >= TURN_BYTES:
            return result


@compiled
def take_frames(steps: ServedSteps, connections: ConnectionArrays, rank: int, woke: int) -> int:
    """Take the frames that are whole, up to one that is not, or that this loop does not take."""
    numbers = connections.numbers[rank]
    while True:
        end = frame_end(steps, connections, rank)
        if end < 0:
            return REFUSED
        if end == 0 or numbers[FILLED] < end:
            return INCOMPLETE
        result = take_step(steps, connections, rank, end, woke)
        if result == REFUSED:
            return REFUSED
        move_to_front(connections.bytes[rank], end, numbers[FILLED])
        numbers[FILLED] -= end
        if result == FOLDED:
            return FOLDED


@compiled
def frame_end(steps: ServedSteps, connections: ConnectionArrays, rank: int) -> int:
    """Where the first frame ends; 0 while its header is not there, -1 if it is not a step for which there is room."""
    if connections.numbers[rank, FILLED] < HEADER_BYTES:
        return 0
    length = connections.words[rank, 1]
    if np.int64(connections.halves[rank, 0]) != steps.step_start:
        return -1
    if length < STEP_BYTES or length > connections.bytes.shape[1] - HEADER_BYTES:
        return -1
    return HEADER_BYTES + length


@compiled
def take_step(steps: ServedSteps, connections: ConnectionArrays, rank: int, end: int, woke: int) -> int:
    """Apply the push of the frame that ends at `end`, keep its pull, and answer all that may continue."""
    began = nanoseconds()
    clocks, pulls = steps.clocks, steps.pulls
    worker, received = clocks.workers[rank], connections.halves[rank]
    flags, batch = np.int64(received[1]), connections.words[rank, 2]
    rows, num_pushed = np.int64(received[10]), np.int64(received[11])
    num_keys, coding = np.int64(received[12]), received[13]
    pushed_at = HEADER_BYTES + STEP_BYTES
    key_bytes = pulls.keys.itemsize
    # Keys begin at a multiple of 8 bytes.
    keys_at = pushed_at + (4 * num_pushed + 7) // 8 * 8
    if coding != 0 or keys_at + key_bytes * num_keys != end or num_keys > pulls.keys.shape[1]:
        return REFUSED
    pushed_batch = batch - clocks.in_flight
    has_push = flags & PUSH != 0 and pushed_batch > worker[APPLIED]
    if batch != worker[ASKED] + 1 or worker[WAITING] or not flags & (PULL | LEAVE):
        return REFUSED
    if flags & PUSH == 0 and pushed_batch > worker[APPLIED]:
        return REFUSED
    if has_push and not fits(steps, rank, pushed_batch, num_pushed):
        return REFUSED
    # The reply that this pull replaces must have gone.
    unsent = connections.numbers[rank]
    if unsent[NUM_UNSENT] > 0 and unsent[UNSENT] + pulls.kept <= batch:
        return REFUSED
    slot = slot_of(pulls, rank, batch)
    first_key = keys_at // key_bytes
    keys = connections.keys[rank][first_key : first_key + num_keys]
    pull = pulls.numbers[slot]
    if not copy_below(keys, steps.num_keys, pulls.keys[slot][:num_keys]):
        # Nobody may take these for the keys of the pull that was here before.
        pull[BATCH], pull[COUNT], pull[ANSWERED] = 0, 0, 0
        return REFUSED
    pull[BATCH], pull[COUNT], pull[ANSWERED] = batch, num_keys, 0
    worker[ASKED], worker[ARRIVED], worker[WAITING] = batch, woke, 1
    is_complete = False
    if has_push:
        worker[APPLIED] = pushed_batch
        first = pushed_at // 4
        sums = connections.floats[rank][first : first + num_pushed]
        losses = connections.doubles[rank, 4]
        if steps.folds:
            pulls.rows[rank], pulls.losses[rank], pulls.trained[rank] = rows, losses, connections.words[rank, 3]
            is_complete = keep_push(steps, connections, rank, sums)
        else:
            apply_push(steps, slot_of(pulls, rank, pushed_batch), sums, rows)
            book(clocks, rows, losses)
    if flags & LEAVE:
        worker[LEAVING], worker[PRESENT] = 1, 0
    worker[WORKED] = nanoseconds()
    pull[QUEUED], pull[HELD], pull[WORKED_FOR] = began - woke, 0, worker[WORKED] - began
    if is_complete and worker[APPLIED] == steps.copy_at:
        return FOLDED
    answer_released(steps, connections)
    return TAKEN


@compiled
def fits(steps: ServedSteps, rank: int, batch: int, num_pushed: int) -> bool:
    """Whether a worker has pulled this batch, for that many values, and there is room for its push."""
    pulls = steps.pulls
    pull = pulls.numbers[slot_of(pulls, rank, batch)]
    if pull[BATCH] != batch or num_pushed != pull[COUNT] * np.int64(columns(steps.fold.columns)):
        return False
    if not steps.folds:
        return True
    num_keys = pull[COUNT]
    for other in range(steps.clocks.workers.shape[0]):
        if steps.clocks.workers[other, PUSHED]:
            num_keys += pulls.numbers[slot_of(pulls, other, steps.clocks.workers[other, APPLIED]), COUNT]
    return num_keys <= steps.fold.distinct.size


@compiled
def apply_push(steps: ServedSteps, slot: int, sums: NDArray[np.float32], rows: int) -> None:
    """Update the keys of a pull by a gradient."""
    if rows > 0:
        keys = steps.pulls.keys[slot][: steps.pulls.numbers[slot, COUNT]]
        table = steps.table
        apply_gradient(table.groups, table.bias_groups, table.numbers, table.bias, keys, sums, rows)


@compiled
def keep_push(steps: ServedSteps, connections: ConnectionArrays, rank: int, sums: NDArray[np.float32]) -> bool:
    """Keep a worker's gradient, and add up those of the lowest ranks; whether it was the last one of its clock.

    Ranks are added up in their order as soon as they are there, so little is left to do when the last one comes.
    """
    clocks, pulls, fold, progress = steps.clocks, steps.pulls, steps.fold, connections.progress
    num_workers = clocks.workers.shape[0]
    kept = pulls.sums[rank]
    for i in range(sums.size):
        kept[i] = sums[i]
    clocks.workers[rank, PUSHED] = 1
    clocks.totals[NUM_PUSHED] += 1
    while progress[NUM_FOLDED] < num_workers and clocks.workers[progress[NUM_FOLDED], PUSHED]:
        if progress[NUM_FOLDED] == 0:
            begin_fold(fold)
            progress[NUM_DISTINCT] = 0
        other = progress[NUM_FOLDED]
        slot = slot_of(pulls, other, clocks.workers[other, APPLIED])
        progress[NUM_DISTINCT] = add_in(
            fold.columns, pulls.keys[slot], pulls.sums[other], 0, pulls.numbers[slot, COUNT], fold.slots, fold.direct,
            fold.turn[0], fold.distinct, fold.totals, progress[NUM_DISTINCT],
        )  # fmt: skip
        progress[NUM_FOLDED] += 1
    if clocks.totals[NUM_PUSHED] < num_workers:
        return False
    table, num_rows = steps.table, 0
    for other in range(num_workers):
        num_rows += pulls.rows[other]
    if num_rows > 0:
        keys = fold.distinct[: progress[NUM_DISTINCT]]
        apply_gradient(table.groups, table.bias_groups, table.numbers, table.bias, keys, fold.totals, num_rows)
    for other in range(num_workers):
        book(clocks, pulls.rows[other], pulls.losses[other])
        clocks.workers[other, PUSHED] = 0
    clocks.totals[NUM_PUSHED] = 0
    progress[NUM_FOLDED] = 0
    return True


@compiled
def begin_fold(fold: Any) -> None:
    """Mark what the tables of a fold hold as old."""
    if fold.turn[0] == 255:
        fold.slots[:] = 0
        fold.direct[:] = 0
        fold.turn[0] = 0
    fold.turn[0] += 1


@compiled
def answer_released(steps: ServedSteps, connections: ConnectionArrays) -> None:
    """Answer all workers that wait and may continue."""
    clocks, pulls, table = steps.clocks, steps.pulls, steps.table
    dim = np.int64(columns(steps.fold.columns))
    for i in range(let_through(clocks, connections.ranks)):
        began = nanoseconds()
        rank = connections.ranks[i]
        worker, numbers = clocks.workers[rank], connections.numbers[rank]
        batch = worker[ASKED]
        slot = slot_of(pulls, rank, batch)
        pull, count = pulls.numbers[slot], pulls.numbers[slot, COUNT]
        worker[WAITING], pull[ANSWERED] = 0, 1
        values = pulls.replies[slot][HEAD_FLOATS : HEAD_FLOATS + count * dim]
        gather(table.groups, table.bias_groups, table.numbers, table.bias, pulls.keys[slot][:count], values)
        pull[HELD] = began - worker[WORKED]
        pull[WORKED_FOR] += nanoseconds() - began
        clocks.totals[REQUESTS] += 1
        clocks.totals[QUEUE] += pull[QUEUED]
        clocks.totals[SERVICE] += pull[WORKED_FOR]
        words = pulls.words[slot]
        words[0], words[1], words[2] = steps.reply_start, REPLY_BYTES + 4 * count * dim, batch
        words[3], words[4], words[5] = pull[QUEUED], pull[HELD], pull[WORKED_FOR]
        if numbers[NUM_UNSENT] == 0:
            numbers[UNSENT], numbers[OFFSET] = batch, 0
        numbers[NUM_UNSENT] += 1
        if connections.polled[rank, 0] < 0:
            connections.progress[NUM_LEFT] += 1
        elif numbers[NUM_UNSENT] == 1:
            # If it fails, waiting for the socket will tell.
            send_replies(pulls, connections, rank)


@compiled
def send_replies(pulls: PullArrays, connections: ConnectionArrays, rank: int) -> bool:
    """Send what the socket takes of a worker's replies; False if it takes nothing."""
    numbers, before = connections.numbers[rank], connections.numbers[rank, SENT]
    while numbers[NUM_UNSENT] > 0:
        slot = slot_of(pulls, rank, numbers[UNSENT])
        stop = HEADER_BYTES + pulls.words[slot, 1]
        count = send(connections.polled[rank, 0], pulls.bytes[slot], numbers[OFFSET], stop)
        if count < 0:
            break
        numbers[SENT] += count
        numbers[OFFSET] += count
        if numbers[OFFSET] < stop:
            break
        numbers[UNSENT] += 1
        numbers[NUM_UNSENT] -= 1
        numbers[OFFSET] = 0
    wait_for(connections.polled, rank, READABLE | (WRITABLE if numbers[NUM_UNSENT] > 0 else 0))
    return numbers[SENT] > before


@compiled
def slot_of(pulls: PullArrays, rank: int, batch: int) -> int:
    """Where the pull of a batch is kept, or was."""
    return rank * pulls.kept + batch % pulls.kept
