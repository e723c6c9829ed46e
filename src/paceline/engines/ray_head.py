"""Does Ray's head still answer?

Ray itself notices only after a minute that its head is lost, and then ends the process. The run asks more often, so
that it can save what it has.
"""

from __future__ import annotations

import socket
import threading

ANSWER_SECONDS = 3.0
PAUSE_SECONDS = 2.0
# In a row. A head that refuses connections is lost after 8 s, one that is silent after 20 s.
MOST_UNANSWERED = 4
HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
HTTP2_SETTINGS = 4


def greet(address: str) -> bool:
    """Whether what listens at HOST:PORT speaks as Ray's head does. `OSError` if nothing listens or answers there."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS) as connection:
        connection.sendall(HTTP2_GREETING)
        answer = connection.recv(9)
    return len(answer) >= 4 and answer[3] == HTTP2_SETTINGS


class HeadWatch:
    """Greets the head every two seconds, on its own thread. A head that is `lost` stays lost."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.lost = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="paceline-head", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        unanswered = 0
        while not self.lost and not self._closed.wait(PAUSE_SECONDS):
            unanswered = 0 if self._answers() else unanswered + 1
            self.lost = unanswered >= MOST_UNANSWERED

    def _answers(self) -> bool:
        try:
            return greet(self.address)
        except OSError:
            return False
