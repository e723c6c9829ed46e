"""What pages share."""

from __future__ import annotations

from paceline.reports.layout import document, prose, table
from paceline.reports.markup import element


def test_backquotes_become_code_and_nothing_else_does() -> None:
    assert element("p", *prose("try `--pace async` & <b>")) == "<p>try <code>--pace async</code> &amp; &lt;b&gt;</p>"
    assert element("p", *prose("an odd ` one")) == "<p>an odd ` one</p>"


def test_a_page_forbids_scripts_and_takes_any_name() -> None:
    page = document("a\udcff<b", element("p", "text"))
    assert b"default-src 'none'" in page
    assert b"<title>a?&lt;b</title>" in page


def test_cells_are_escaped() -> None:
    assert "<td>&lt;i&gt;</td>" in table(("a",), [("<i>",)])
