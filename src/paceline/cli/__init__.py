"""The command `paceline`. Commands parse, call and print; they never compute."""

from __future__ import annotations

import errno
import re
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click

from paceline.cli.commands import CONTEXT, CommandGroup
from paceline.cli.progress import print_notice
from paceline.errors import OUT_OF_MEMORY, PacelineError, PacelineWarning, printable
from paceline.training.interrupts import remember_interrupts

# The module of each command, imported when it is needed.
SECTIONS = {
    "Start here": ["paceline.cli.demo:demo"],
    "Data": ["paceline.cli.data:generate", "paceline.cli.data:prepare", "paceline.cli.inside:info"],
    "Train": ["paceline.cli.train:train", "paceline.cli.train:resume", "paceline.cli.train:sweep"],
    "Use a model": [
        "paceline.cli.use:evaluate",
        "paceline.cli.use:predict",
        "paceline.cli.inside:top",
        "paceline.cli.use:export",
    ],
    "Understand a run": [
        f"paceline.cli.explain:{name}" for name in ("diagnose", "plan", "doctor", "report", "compare")
    ],
    "Matrices": ["paceline.cli.matrices:trace", "paceline.cli.matrices:matmul"],
}

# For what paceline does not foresee: output that cannot be written, files that cannot be read.
HINTS = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space") | dict.fromkeys(
    (errno.EROFS, errno.EACCES, errno.EPERM), "choose another folder, or change its permissions"
)


@click.group("paceline", cls=CommandGroup, sections=SECTIONS, context_settings=CONTEXT)
@click.version_option(package_name="paceline", prog_name="paceline")
def cli() -> None:
    """Train models by SGD at any pace, on one machine or on a cluster.

    `paceline COMMAND --help` shows the options of a command.
    """


def main() -> None:
    """Run the command, print errors as one line and a hint, and exit with their code."""
    remember_interrupts()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", PacelineWarning)
            warnings.showwarning = notices_instead_of(warnings.showwarning)
            cli.main(prog_name="paceline", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "")
        sys.exit(2)
    except click.ClickException as error:
        fail(*split_suggestion(error), code=2)
    except PacelineError as error:
        fail(error.message, error.hint, error.exit_code)
    except (click.exceptions.Abort, KeyboardInterrupt):
        fail("interrupted", "run the same command again", 130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        where = f"`{error.filename}`: " if error.filename is not None else ""
        fail(f"{where}{error.strerror or error}", HINTS.get(error.errno or 0, "check the path and the disk"), 1)
    except MemoryError as error:
        fail(f"out of memory{': ' if str(error) else ''}{error}", OUT_OF_MEMORY, 1)


def notices_instead_of(show: Callable[..., None]) -> Callable[..., None]:
    """Shows warnings as before, except for paceline's own: each is a notice, once."""
    told: set[str] = set()

    def show_or_tell(message: Warning | str, category: type[Warning], *where: Any) -> None:
        if category is not PacelineWarning:
            show(message, category, *where)
        elif str(message) not in told:
            told.add(str(message))
            print_notice(str(message))

    return show_or_tell


def split_suggestion(error: click.ClickException) -> tuple[str, str]:
    """What is wrong, and click's suggestion as our hint; without one, where to look."""
    message, _, hint = error.format_message().partition("\n")
    if suggestion := re.search(r" \(?((Did you mean|Possible options).*?)\)?$", message):
        return message[: suggestion.start()], suggestion[1]
    context = getattr(error, "ctx", None)
    return message, hint or f"see `{context.command_path if context else 'paceline'} --help`"


def fail(message: str, hint: str, code: int) -> None:
    """Say what is wrong and exit."""
    # Where nothing can be printed, the code still tells.
    with suppress(OSError):
        click.echo(f"error: {printable(message)}" + (f"\nhint: {printable(hint)}" if hint else ""), err=True)
    sys.exit(code)
