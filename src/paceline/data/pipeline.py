"""How are chunks read by one thread, parsed by several, and handed out in their order?"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

from paceline.machine import num_cores

MOST_THREADS = 32  # each has a chunk and its rows in memory
AHEAD = 6  # chunks in flight beyond one per thread, for when the calling thread is busy

T = TypeVar("T")
U = TypeVar("U")


def parse_in_order(chunks: Iterator[T], parse: Callable[[T], U]) -> Iterator[U]:
    """What `parse` makes of each chunk, in order; the first exception of either is raised in order.

    `chunks` is consumed by a thread of its own, a bounded number ahead. Closing the iterator ends all threads, once
    they have finished their current chunk.

    >>> list(parse_in_order(iter([1, 2, 3]), lambda number: number * number))
    [1, 4, 9]
    """
    num_threads = min(MOST_THREADS, num_cores())
    futures: SimpleQueue[Future[U] | None] = SimpleQueue()
    room = threading.Semaphore(num_threads + AHEAD)
    closed = threading.Event()
    parsers = ThreadPoolExecutor(num_threads, thread_name_prefix="paceline-parse")

    def read() -> None:
        try:
            for chunk in chunks:
                futures.put(parsers.submit(parse, chunk))
                room.acquire()
                if closed.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - raised where the results are consumed, in order
            failed: Future[U] = Future()
            failed.set_exception(error)
            futures.put(failed)
        futures.put(None)

    reader = threading.Thread(target=read, name="paceline-read", daemon=True)
    reader.start()
    try:
        while (future := futures.get()) is not None:
            yield future.result()
            room.release()
    finally:
        closed.set()
        room.release()
        reader.join()
        if isinstance(chunks, Generator):
            chunks.close()
        parsers.shutdown(wait=True, cancel_futures=True)
