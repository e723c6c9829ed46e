"""What a shard answers, and refuses, whatever it keeps."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from paceline.processes.messages import encode
from paceline.training.cluster import messages as m
from paceline.training.cluster.steps import read_chunk
from paceline.wire.frames import BadFrameError, Kind
from tests.training.cluster.shards import FakePeer, frame_of, tell
from tests.training.cluster.test_piece_steps import VALUES, make


def test_what_can_be_fetched_has_a_name() -> None:
    service, asker = make("sync"), FakePeer()
    asked: dict[str, Any] = msgspec.msgpack.decode(
        encode(m.FetchPart(what="states", of="dense", start=0, count=VALUES))
    )
    service.received(asker, frame_of(Kind.MESSAGE, 0, msgspec.msgpack.encode(asked)))  # type: ignore[arg-type]
    assert len(read_chunk(asker.sent[0])[1]) == VALUES * service.dense.width
    for wrong in ({"what": "everything"}, {"of": "nothing"}, {"start": -1}, {"count": VALUES + 1}):
        with pytest.raises(BadFrameError):
            service.received(asker, frame_of(Kind.MESSAGE, 0, msgspec.msgpack.encode(asked | wrong)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "message",
    [
        m.Reset(generation=1, applied=[0], rows=0),
        m.Open(bases=[0, 0, 0], done=[0, 0, 0]),
        m.Open(bases=[0, 0], done=[0, -1]),
        m.FetchPart(what="copy", of="dense", start=0, count=1),
    ],
)
def test_what_does_not_fit_the_run_is_refused(message: Any) -> None:
    with pytest.raises(BadFrameError):
        tell(make("sync", workers=2), message)


def test_notes_last_for_a_generation() -> None:
    service = make("sync", exchange="allreduce")
    assert tell(service, m.Read(name="a")).content is None
    tell(service, m.Note(name="a", content=b"b"))
    assert tell(service, m.Read(name="a")).content == b"b"
    tell(service, m.Reset(generation=2, applied=[0, 0], rows=0))
    assert tell(service, m.Read(name="a")).content is None


def test_notes_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.training.cluster.shard.MOST_NOTES_BYTES", 100_000)
    service = make("sync", exchange="allreduce")
    for _ in range(20):
        tell(service, m.Note(name="the same", content=bytes(10_000)))
    with pytest.raises(BadFrameError, match=r"1 notes and one more of 95,000 bytes; all may take 100,000"):
        tell(service, m.Note(name="large", content=bytes(95_000)))
    for number in range(300):
        tell(service, m.Note(name=f"{number:03}", content=b""))
    with pytest.raises(BadFrameError, match=r"301 notes and one more of 20,000 bytes"):
        tell(service, m.Note(name="many", content=bytes(20_000)))
    assert tell(service, m.Read(name="the same")).content == bytes(10_000)
    tell(service, m.Reset(generation=2, applied=[0, 0], rows=0))
    tell(service, m.Note(name="large", content=bytes(95_000)))
