"""How is code found by its name, `module:function`? Ours is imported when it is needed, a user's with explanations."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb
from typing import Any

from paceline.errors import ConfigError, PacelineError, in_short


def import_from(name: str) -> Any:
    """What `module:name` names."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def import_function(name: str) -> Any:
    """A user's function by its name, `PACKAGE.MODULE:FUNCTION`."""
    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path:
        # As with `python -m`: modules in the current folder can be imported.
        sys.path.insert(0, os.getcwd())
    hint = "install its package, or run the command in its folder; on a cluster every node needs it"
    with explained(f"`{name}` cannot be imported", hint):
        imported = importlib.import_module(module)
    if not hasattr(imported, function):
        raise ConfigError(f"`{module}` has no `{function}`", "--model PACKAGE.MODULE:FUNCTION")
    return getattr(imported, function)


@contextmanager
def explained(what: str, hint: str) -> Iterator[None]:
    """Say what went wrong in a user's code, which may raise anything."""
    try:
        yield
    except PacelineError:
        raise
    except Exception as error:  # noqa: BLE001
        raise ConfigError(f"{what}: {in_short(error)}{_where(error)}", hint) from None


def _where(error: Exception) -> str:
    """The last line of a user's own code that an error came through, in brackets."""
    ours = (str(Path(__file__).parent), "<", *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
    frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
