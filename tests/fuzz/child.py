"""Try damaged inputs in this process, one after the other:

    python -m tests.fuzz.child FORMAT FIRST_SEED COUNT SECONDS FOLDER

Prints a line with seed and damage before each case and one with its outcome after it, so that the parent knows
which case a crash belongs to.
"""

from __future__ import annotations

import faulthandler
import json
import resource
import shutil
import sys
import time
import traceback
from contextlib import redirect_stdout
from pathlib import Path

MOST_BYTES = 8 << 30  # of addresses: a damaged size must not fill the machine's memory
MOST_SECONDS = 60  # for one case


def main(name: str, first: int, count: int, seconds: float, folder: Path) -> None:
    from paceline.errors import PacelineError
    from tests.fuzz.formats import FORMATS, damage

    format_ = FORMATS[name]
    valid, damaged, scratch = folder / "valid", folder / "damaged", folder / "scratch"
    if not valid.exists():
        valid.mkdir(parents=True)
        format_.make(valid)
        scratch.mkdir()
        format_.use(valid, scratch)  # what is not damaged must work, and compiles the loops
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    began = time.monotonic()
    for seed in range(first, first + count):
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        what = damage(format_, valid, damaged, seed)
        say("case", seed=seed, what=what)
        faulthandler.dump_traceback_later(MOST_SECONDS, exit=True)
        try:
            format_.use(damaged, scratch)
            say("done")
        except PacelineError as error:
            # Its hint may have more lines than one, its message may not.
            say("refused" if len(error.message.splitlines()) == 1 else "failed", why=error.message)
        except MemoryError as error:
            say("refused", why=f"MemoryError: {error}")
        except BaseException:  # noqa: BLE001 (that is what is looked for)
            say("failed", why=traceback.format_exc())
        faulthandler.cancel_dump_traceback_later()
        if time.monotonic() - began > seconds:
            break
    say("end")


def say(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, **facts}), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    # What cases print is not what `say` prints.
    with Path("/dev/null").open("w") as nowhere, redirect_stdout(nowhere):
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), Path(sys.argv[5]))
