"""`paceline` and `python -m paceline`: the command, in a process of its own."""

from __future__ import annotations

import atexit
import gc
import os
import sys


def main() -> None:
    """Run the command and end the process at once.

    Python would first take all libraries apart. That costs 0.2 s, and a thread of Ray may crash and spoil the code.
    """
    # Imports create many objects that stay. Looking through them for garbage at the usual rate takes 5 % of the start.
    gc.set_threshold(10_000)
    from paceline import cli

    try:
        cli.main()
        code = 0
    except SystemExit as asked:
        code = asked.code if isinstance(asked.code, int) else int(asked.code is not None)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            # Of a run whose log finds no room, only the log is lost.
            code = code or int(stream is sys.stdout)
    os._exit(code)


if __name__ == "__main__":
    main()
