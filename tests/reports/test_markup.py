"""Nothing that is told becomes part of the page."""

from __future__ import annotations

import string
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from paceline.reports.markup import element

HOSTILE = st.text(alphabet=st.sampled_from("<>&\"'/=! script" + string.ascii_letters), max_size=30)


class Reader(HTMLParser):
    """Keeps what a browser would see: elements with attributes, and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        self.text += data


@given(HOSTILE, HOSTILE)
def test_text_stays_text_and_attributes_stay_attributes(text: str, attribute: str) -> None:
    seen = Reader(element("p", text, element("b", text), title=attribute))
    assert seen.elements == [("p", [("title", attribute)]), ("b", [])]
    assert seen.text == text + text


def test_what_is_none_is_left_out() -> None:
    assert element("line", x1=0, stroke_width=2, class_=None) == '<line x1="0" stroke-width="2"></line>'
