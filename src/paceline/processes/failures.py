"""How does an error travel from a process to the user, who reads it where the command was started?"""

from __future__ import annotations

import os
import traceback

from paceline.errors import ConfigError, DataError, DivergedError, PacelineError, RunError
from paceline.processes.messages import Failed

KINDS: dict[str, type[PacelineError]] = {"data": DataError, "config": ConfigError, "diverged": DivergedError}


def failure_of(error: Exception) -> Failed:
    """What a process tells the coordinator about an error."""
    if isinstance(error, PacelineError):
        kind = next((kind for kind, type_ in KINDS.items() if isinstance(error, type_)), "run")
        return Failed(kind=kind, message=error.message, hint=error.hint)
    where = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}, line {where.lineno})"
    return Failed(kind="run", message=text, hint="")


def error_of(name: str, failed: Failed, started: bool) -> PacelineError:
    """What the role `name` reported, as an error. Wrong input counts as such only until the run has started."""
    kind = KINDS.get(failed.kind, RunError)
    if kind is DivergedError:
        return kind(failed.message, failed.hint)
    return (RunError if started else kind)(f"{name}: {failed.message}", failed.hint)
