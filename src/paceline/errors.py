"""Errors that a person can act on: one line says what is wrong, one line says what to do.

Every error that paceline raises on purpose is a `PacelineError`. The command line prints it as

    error: <what is wrong, with its value, and what was expected>
    hint: <what to do>

and exits with the error's `exit_code`. Errors of libraries are translated where the library is called.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class PacelineError(Exception):
    """Something paceline can explain. `hint` is what to do about it, or empty."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = printable(message)
        super().__init__(self.message)
        self.hint = printable(hint)

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class PacelineWarning(UserWarning):
    """Something that the user should know, and that is not an error. Commands print it once, as a note."""


def warn(message: str) -> None:
    """Warn the user of the package: the place of the warning is the first line outside of it."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals["__name__"].partition(".")[0] == "paceline":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, PacelineWarning, stacklevel=level)


class UsageError(PacelineError):
    """The request is wrong: flags, configuration or input data. Nothing was started or left behind."""

    exit_code = 2


class ConfigError(UsageError):
    """A setting, or a combination of settings, that cannot be run."""


class DataError(UsageError):
    """Input that does not have the expected format: a file, a row, a block, a checkpoint."""


class RunError(PacelineError):
    """A run that began and failed."""


class DivergedError(RunError):
    """The loss is no longer a number, or far above that of a constant prediction."""


class InterruptedRunError(RunError):
    """The user stopped the command. If it had begun to train, a checkpoint was saved."""

    exit_code = 130


@contextmanager
def nothing_written() -> Iterator[None]:
    """Turn Ctrl-C into an error that tells the user that nothing was written."""
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedRunError("interrupted", "nothing was written; run it again") from None


BAD_TEXT = (ValueError, RecursionError)
"""What parsers of JSON, TOML and MessagePack raise: RecursionError if the text is nested too deeply."""
OUT_OF_MEMORY = "use a machine with more memory, fewer --workers, or a smaller --batch-size or --memory"


def printable(text: str) -> str:
    """Text without line ends and control characters: names from a file could otherwise take over the terminal.

    >>> printable("a column \\x1b[2Jnamed\\n")
    'a column \\\\x1b[2Jnamed\\\\n'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def as_value(value: object) -> str:
    """A setting's value as messages show it: text in backquotes, and numbers as people write them.

    >>> as_value("abc"), as_value(60.0), as_value(True), as_value({"tls": True})
    ('`abc`', '60', 'true', 'a section')
    """
    if isinstance(value, bool | dict):
        return str(value).lower() if isinstance(value, bool) else "a section"
    return f"`{value}`" if isinstance(value, str) else str(value).removesuffix(".0")


def one_of(names: Sequence[str]) -> str:
    """Names as a sentence lists them.

    >>> one_of(("sgd", "ftrl", "adam")), one_of(("cpu",))
    ('sgd, ftrl or adam', 'cpu')
    """
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def counted(number: int, what: str) -> str:
    """A number of things.

    >>> counted(1, "bad row"), counted(2000, "bad row")
    ('1 bad row', '2,000 bad rows')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def in_short(error: Exception) -> str:
    """An error of a library or of user code in one line.

    >>> in_short(ValueError("no such thing\\nas seen"))
    'ValueError: no such thing'
    """
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
