"""The embedded engine: workers are threads of this process, and memory is shared."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any

POLL_SECONDS = 0.05


class LocalEngine:
    """Threads that workers run on, kept from segment to segment."""

    def __init__(self, num_workers: int, num_threads: int) -> None:
        self.num_workers = num_workers
        self.num_threads = num_threads
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="paceline-worker")

    def run(self, work: Callable[[int], None], poll: Callable[[], None], give_up: Callable[[], None]) -> None:
        """Call `work(thread)` on every thread and wait for all; raise the first failure.

        `poll` is called on the caller's thread every so often meanwhile. When one fails, or `poll` raises,
        `give_up` is called so that the others end too.
        """
        futures: list[Future[None]] = [self._threads.submit(work, thread) for thread in range(self.num_threads)]
        try:
            while True:
                done, running = wait(futures, timeout=POLL_SECONDS, return_when=FIRST_EXCEPTION)
                if not running or any(future.exception() for future in done):
                    break
                poll()
        except BaseException:
            give_up()
            wait(futures)
            raise
        failed = [future for future in futures if future.done() and future.exception()]
        if failed:
            give_up()
            wait(futures)
            failed[0].result()

    def roles(self) -> list[dict[str, Any]]:
        """Who runs where, as `roles.json` has it."""
        names = [("coordinator", 0), ("shard", 0), *(("worker", rank) for rank in range(self.num_workers))]
        return [
            {"role": role, "rank": rank, "node": platform.node(), "address": "", "pid": os.getpid(), "incarnation": 0}
            for role, rank in names
        ]

    def close(self) -> None:
        """End the threads; none is at work."""
        self._threads.shutdown()
