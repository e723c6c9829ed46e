"""What would a user type next? Commands that repeat a run with something changed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from paceline.run_folder import TRAIN, RunFolder

# How a folder that holds rows in memory while they are trained on is called.
OF_MEMORY = "memory"
FLAG, NUMBER = re.compile("--[a-z][a-z0-9-]*"), re.compile("0|[1-9][0-9]*")
OF_TRACE = ("size", "blocks", "seed", "engine")


def flags_in(advice: str) -> str:
    """The flags of a piece of advice, which are between backquotes.

    >>> flags_in("`--shards 2`, each new one on its own machine")
    '--shards 2'
    """
    found = re.search("`(--[^`]+)`", advice)
    return found[1] if found else ""


def is_from_memory(data: str) -> bool:
    """Whether a run was trained on rows in memory, which no command can name.

    >>> is_from_memory("/tmp/paceline-x1y2z3/memory"), is_from_memory("data/memory")
    (True, False)
    """
    return Path(data).name == OF_MEMORY and Path(data).parent.name.startswith("paceline-")


def data_name(data: str) -> str:
    """What people call a dataset: the name of its folder."""
    return "rows in memory" if is_from_memory(data) else data.rstrip("/").rpartition("/")[2] or data


def verb_of(run: RunFolder) -> str:
    """What the command that repeats a run does."""
    return "train" if run.job == TRAIN else "run"


def repeat(run: RunFolder, flags: str = "", into: str = "") -> str:
    """The command that runs again with the settings of `run`, changed by `flags`, in the new folder `into`.

    Flags may be from a file of the run. They are quoted, so that a shell sees nothing but flags in them.
    """
    settings = run.settings
    if run.job != TRAIN:
        told = " ".join(f"--{name} {shlex.quote(str(settings[name]))}" for name in OF_TRACE if name in settings)
        return f"paceline {shlex.quote(run.job)} {told}"
    if is_from_memory(str(settings.get("data", ""))):
        keywords = ["data=…", f"recipe={str(run.path / 'config.toml')!r}", *_keywords(flags)]
        return f"paceline.train({', '.join(keywords)})"
    new = into or f"{run.path}-next"
    recipe = shlex.quote(str(run.path / "config.toml"))
    told = shlex.join(_words(flags))
    return " ".join(part for part in ("paceline train", recipe, told, f"--run {shlex.quote(new)}") if part)


def _words(flags: str) -> list[str]:
    """The words of flags; none if they cannot be flags.

    >>> _words("--shards 2 --set wire.pull=all"), _words("--workers 2; reboot"), _words("--workers '2")
    (['--shards', '2', '--set', 'wire.pull=all'], ['--workers', '2;', 'reboot'], [])
    """
    try:
        return shlex.split(flags)
    except ValueError:
        return []


def _keywords(flags: str) -> list[Any]:
    """Flags as keywords of `paceline.train`."""
    words = _words(flags)
    pairs = [(name, value) for name, value in zip(words[::2], words[1::2], strict=False) if FLAG.fullmatch(name)]
    settings = [value for name, value in pairs if name == "--set"]
    told = [f"{_keyword(name)}={value if NUMBER.fullmatch(value) else repr(value)}" for name, value in pairs
            if name != "--set"]  # fmt: skip
    return [*told, *([f"settings={settings!r}"] if settings else [])]


def _keyword(flag: str) -> str:
    """The keyword for a flag.

    >>> _keyword("--batch-size"), _keyword("--from")
    ('batch_size', 'start_from')
    """
    name = flag[2:].replace("-", "_")
    # `from` is a word of Python.
    return "start_from" if name == "from" else name
