"""Write docs/reference.md from the help of the commands, and check that no link in the docs is broken.

With --check, write nothing and fail if the reference is out of date.
"""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import click

from paceline.cli import cli
from paceline.parameters.optimizers import OPTIMIZERS, formula_of

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference.md"
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)")


def reference() -> str:
    """The --help of every command, under the headings of `paceline --help`, and the settings of optimizers."""
    top = context_of(cli, None)
    parts = ["# Commands\n\nWritten by `make docs` from `paceline COMMAND --help`.\n", help_text(top)]
    for heading, commands in cli.sections.items():
        parts.append(f"## {heading}\n")
        for command in commands:
            context = context_of(command, top)
            below = command.commands.values() if isinstance(command, click.Group) else []
            contexts = [context, *(context_of(child, context) for child in below)]
            parts += [f"### `{one.command_path}`\n\n{help_text(one)}" for one in contexts]
    return "\n".join([*parts, *settings_of_optimizers()])


def settings_of_optimizers() -> list[str]:
    """A table of the settings that each optimizer declares."""
    lines = ["| optimizer | setting | default | range | meaning |", "|---|---|---|---|---|"]
    for optimizer in OPTIMIZERS:
        for name, (default, meaning, least, below, dense_only) in formula_of(optimizer).settings.items():
            allowed = f"at least {least:g}" + (f" and below {below:g}" if math.isfinite(below) else "")
            only = " Dense models only." if dense_only else ""
            lines.append(f"| {optimizer} | `{name}` | {default:g} | {allowed} | {meaning}{only} |")
    decaying = " and ".join(f"`{name}`" for name in OPTIMIZERS if formula_of(name).decays)
    return [
        "## Settings of optimizers\n",
        "Set one with `--set optimizer.NAME=VALUE`, or in a recipe below `[optimizer]`.\n",
        *lines,
        f"\nWith `decay_rows` N, the rate of {decaying} falls: after R rows it is `learning_rate` · (1 + R / N) ^",
        "−`decay_power`, where `decay_power` is 0.5 by default.\n",
    ]


def context_of(command: click.Command, parent: click.Context | None) -> click.Context:
    """What a command knows when it prints its help."""
    return command.make_context(command.name, [], parent, resilient_parsing=True)


def help_text(context: click.Context) -> str:
    """A command's help as a block of Markdown."""
    return f"```text\n{context.get_help().strip()}\n```\n"


def broken_links() -> list[str]:
    """Links in Markdown files to files that do not exist."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")]
    return [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in LINK.findall(page.read_text("utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]


def main() -> None:
    current = REFERENCE.read_text("utf-8") if REFERENCE.exists() else ""
    if "--check" not in sys.argv:
        REFERENCE.write_text(reference(), "utf-8")
    elif current != reference():
        sys.exit("docs/reference.md is out of date: run `make docs`")
    if broken := broken_links():
        sys.exit("broken links:\n" + "\n".join(broken))


if __name__ == "__main__":
    main()
