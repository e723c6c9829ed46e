"""The embedded engine: threads of this process, which share its memory."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any

POLL_SECONDS = 0.05


class LocalEngine:
    """Threads that are kept from one `run` to the next."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="paceline-worker")

    def run(self, work: Callable[[int], None], poll: Callable[[], None], give_up: Callable[[], None]) -> None:
        """Call `work(thread)` on every thread and wait for all; raise the first failure.

        Meanwhile `poll` is called regularly on the caller's thread. If a thread fails or `poll` raises, `give_up` is
        called so that the others end too.
        """
        futures: list[Future[None]] = [self._threads.submit(work, thread) for thread in range(self.num_threads)]
        try:
            while True:
                done, running = wait(futures, timeout=POLL_SECONDS, return_when=FIRST_EXCEPTION)
                for future in sorted(done, key=futures.index):
                    future.result()
                if not running:
                    return
                poll()
        except BaseException:
            give_up()
            wait(futures)
            raise

    def own_place(self) -> dict[str, Any]:
        """`node`, `address` and `pid` of this process."""
        return {"node": platform.node(), "address": "", "pid": os.getpid()}

    def close(self) -> None:
        """End the threads. Not while `run` runs."""
        self._threads.shutdown()
