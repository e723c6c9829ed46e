"""How does text get into a page without becoming part of it? Elements escape all that is not an element."""

from __future__ import annotations

from html import escape

# Control characters, which pages may not contain, as Python writes them; line ends and tabs stay.
CONTROLS = {code: repr(chr(code))[1:-1] for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}


# Elements that have no content, and no end.
VOID = ("input", "meta", "br")


class Markup(str):
    """Text that is HTML or SVG already."""

    __slots__ = ()


def element(name: str, *content: object, **attributes: object) -> Markup:
    """An element with `content`, escaped unless it is `Markup`, and `attributes`, always escaped.

    Attributes that are None are left out; `class_` is written `class`, `stroke_width` is written `stroke-width`.

    >>> element("p", "1 < 2", element("b", "!"), class_="note")
    '<p class="note">1 &lt; 2<b>!</b></p>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{joined(content)}</{name}>")


def joined(content: tuple[object, ...] | list[object] | list[Markup]) -> Markup:
    """Pieces one after the other, escaped unless they are `Markup`."""
    return Markup("".join(piece if isinstance(piece, Markup) else _escaped(piece) for piece in content))


def _escaped(value: object) -> str:
    return escape(str(value).translate(CONTROLS))
