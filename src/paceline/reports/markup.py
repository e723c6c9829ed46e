"""How does text get into a page without becoming part of it? Elements escape all that is not an element."""

from __future__ import annotations

from html import escape


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
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>{joined(content)}</{name}>")


def joined(content: tuple[object, ...] | list[object] | list[Markup]) -> Markup:
    """Pieces one after the other, escaped unless they are `Markup`."""
    return Markup("".join(piece if isinstance(piece, Markup) else escape(str(piece)) for piece in content))
