"""Write docs/reference.md from the commands' own help, and check that every link in the docs leads somewhere.

With --check, write nothing and fail if the reference is out of date.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from paceline.cli import cli

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference.md"
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)")


def reference() -> str:
    """Every command's --help, as one page."""
    parts = ["# Commands\n\nMade by `make docs` from `paceline COMMAND --help`.\n"]

    def add(command: click.Command, path: str) -> None:
        context = click.Context(command, info_name=path, terminal_width=100, max_content_width=100)
        parts.append(f"## `{path}`\n\n```text\n{command.get_help(context).strip()}\n```\n")
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                add(command.commands[name], f"{path} {name}")

    add(cli, "paceline")
    return "\n".join(parts)


def broken_links() -> list[str]:
    """Links in Markdown files to files that are not there."""
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
        sys.exit("links that lead nowhere:\n" + "\n".join(broken))


if __name__ == "__main__":
    main()
