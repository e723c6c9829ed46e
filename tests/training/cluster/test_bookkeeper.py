"""The shard of workers that add up among themselves: copies of steps that all have told of, and states."""

from __future__ import annotations

from paceline.processes.messages import decode
from paceline.training.cluster import messages as m
from paceline.training.cluster.steps import LEAVE, PULL, PUSH
from tests.training.cluster.shards import FakePeer, order_copy, tell
from tests.training.cluster.test_piece_steps import VALUES, Client, copied_values, make, weights


def test_a_copy_is_of_a_step_that_all_have_told_of() -> None:
    service = make("sync", exchange="allreduce")
    first, second = Client(service, 0), Client(service, 1)
    for client in (first, second):
        client.announce(1, PULL)
        assert client.heard() == [True]
    asker = FakePeer()
    order_copy(service, 1, asker)
    first.announce(2, PUSH | PULL, rows=3)
    assert first.heard() == [m.Go(wanted=True)]
    first.push(5.0)
    assert first.heard() == [True]
    assert asker.sent == []
    second.announce(2, PUSH | PULL, rows=4)
    assert second.heard() == [m.Go(wanted=False), True]
    copied = decode(asker.sent[0], m.FromShard)
    assert (copied.applied, copied.rows) == ([1, 1], 7)
    # The next states are not brought before these have been fetched.
    first.announce(3, PUSH | LEAVE)
    assert first.heard() == []
    assert copied_values(service, asker) == [5.0] * VALUES
    assert first.heard() == [m.Go(wanted=True)]


def test_states_are_brought_at_the_end_of_a_segment() -> None:
    service = make("sync", exchange="allreduce")
    first, second = Client(service, 0), Client(service, 1)
    for client in (first, second):
        client.announce(1, PULL)
        client.heard()
    second.announce(2, PUSH | LEAVE)
    first.announce(2, PUSH | LEAVE)
    assert first.heard() == [m.Go(wanted=True)]
    first.push(2.0)
    assert weights(service) == [2.0] * VALUES
    copied = tell(service, m.Copy(at=1))
    assert copied.applied == [1, 1]
