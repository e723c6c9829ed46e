"""What do the pages share? One document that fetches nothing and runs nothing, its sections and tables."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib import resources

from paceline.reports.markup import Markup, element
from paceline.version import VERSION

# No script can run and nothing can be fetched, whatever names a run folder contains.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


# The class of the element that holds a page.
BODY = "paceline-page"


def document(title: str, *body: Markup) -> bytes:
    """A complete page, ready to be written."""
    head = [
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", title),
        element("style", style_sheet(), Markup("body { margin: 0; }")),
    ]
    page = element("html", element("head", *head), element("body", _framed(body)), lang="en")
    # File names may contain bytes that are not text.
    return f"<!DOCTYPE html>\n{page}\n".encode("utf-8", "replace")


def fragment(*body: Markup) -> str:
    """The same as a part of another page: its style applies to nothing else, and it is as high as it needs to be."""
    page = element("style", style_sheet()) + _framed(body)
    return page.encode("utf-8", "replace").decode("utf-8")


def style_sheet() -> Markup:
    """The style of pages. All of it is nested in the class `BODY`."""
    return Markup(resources.files("paceline.reports").joinpath("page.css").read_text("utf-8"))


def _framed(body: Sequence[Markup]) -> Markup:
    made_by = f"Made by paceline {VERSION} with Python {platform.python_version()}."
    return element("main", *body, element("footer", made_by), class_=BODY)


def section(title: str, *content: Markup) -> Markup:
    """A part of the page with a heading."""
    return element("section", element("h2", title), *content)


def note(*text: object) -> Markup:
    """A side note."""
    return element("p", *text, class_="faint")


def prose(text: str) -> list[object]:
    """Text in which parts between backquotes are code."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        return [text]
    return [element("code", piece) if place % 2 else piece for place, piece in enumerate(pieces)]


def missing(text: str) -> Markup:
    """What is missing, and why."""
    return element("p", text, class_="missing")


def charts(figures: Sequence[Markup]) -> Markup:
    """Figures, side by side if there is room."""
    return element("div", *figures, class_="charts")


def table(columns: Sequence[Markup | str], rows: Sequence[Sequence[Markup | str]]) -> Markup:
    """A table; cells that are `Markup` are complete elements."""

    def line(name: str, cells: Sequence[Markup | str]) -> Markup:
        return element("tr", *(cell if isinstance(cell, Markup) else element(name, cell) for cell in cells))

    head, lines = line("th", columns), [line("td", row) for row in rows]
    return element("div", element("table", element("thead", head), element("tbody", *lines)), class_="wide")


def facts(pairs: Sequence[tuple[str, str]]) -> Markup:
    """Numbers at a glance: names and values."""
    return element("dl", *(element("div", element("dt", k), element("dd", v)) for k, v in pairs), class_="facts")


def folded(title: str, *content: object) -> Markup:
    """A part of the page that is closed until the reader opens it."""
    return element("details", element("summary", title), *content)


def command_line(text: str) -> Markup:
    """A command to copy: a click selects all of it."""
    return element("pre", text, class_="command", title="click, then copy")
