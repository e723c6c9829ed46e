"""What the page and the chart of `make peers` say, from made-up measurements."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from peer_rows import text_lines
from peers_page import BEGINNING, END, About, Record, chart, in_readme, ratio, seconds_to, table, victories

ROOT = Path(__file__).parent.parent.parent
OURS: Record = {
    "case": "paceline, async",
    "rows_per_second": 4_000_000.0,
    "startup_seconds": 1.0,
    "curve": [[100_000, 0.1, 0.6], [200_000, 0.2, 0.5]],
    "peak_memory_bytes": 500_000_000,
}
SLOWER: Record = {
    **OURS,
    "case": "a peer & co",
    "against": "paceline, async",
    "rows_per_second": 1_000_000.0,
    "paceline_rows_per_second": 3_000_000.0,
    "startup_seconds": 2.0,
    "curve": [[100_000, 0.4, 0.6]],
    "peak_memory_bytes": 300_000_000,
}
FASTER: Record = {**SLOWER, "case": "a fast peer", "rows_per_second": 6_000_000.0, "peak_memory_bytes": 900_000_000}
MISSING: Record = {"case": "a rare peer", "against": "paceline, async", "left_out": "could not be installed: no wheel"}
RECORDS = [OURS, SLOWER, FASTER, MISSING]


def cells(case: str) -> list[str]:
    lines = [line for line in table(RECORDS, target=0.5).splitlines() if line.startswith(f"| {case} |")]
    assert len(lines) == 1
    return [cell.strip() for cell in lines[0].strip("|").split("|")]


def test_the_ratio_is_to_paceline_measured_beside_the_peer() -> None:
    assert ratio(SLOWER) == 3.0
    assert ratio(FASTER) == 0.5
    assert ratio(OURS) is None
    assert cells("a peer & co")[1:3] == ["1,000,000", "3.0× faster"]


def test_a_peer_that_wins_is_said_to() -> None:
    assert cells("a fast peer")[1:3] == ["**6,000,000**", "0.50×: the peer is faster"]
    assert cells("a peer & co")[5] == "**300**"
    assert cells("a fast peer")[5] == "900"
    assert "**" not in "".join(cells("paceline, async"))
    assert victories(RECORDS, target=0.5) == [
        "a peer & co beats paceline, async in: peak memory (MB).",
        "a fast peer beats paceline, async in: rows/s.",
    ]


def test_a_loss_that_is_not_reached_is_never() -> None:
    assert seconds_to(SLOWER["curve"], 0.5) is None
    assert cells("a peer & co")[3] == "never"
    assert cells("paceline, async")[3] == "0.20"


def test_reaching_a_loss_that_paceline_does_not_is_a_win() -> None:
    peer = {**SLOWER, "curve": [[100_000, 9.0, 0.4]]}
    assert any("seconds to log loss 0.45" in line for line in victories([OURS, peer], target=0.45))


def test_a_peer_that_is_not_installed_is_named_with_the_reason() -> None:
    assert cells("a rare peer")[1] == "could not be installed: no wheel"
    lines = table(RECORDS, target=0.5).splitlines()
    assert len({line.count("|") for line in lines}) == 1


def test_the_chart_has_a_bar_for_whatever_was_measured() -> None:
    root = ElementTree.fromstring(chart(RECORDS, "Rows per second"))
    bars = [element for element in root.iter() if element.tag.endswith("rect")]
    assert [bar.get("class") for bar in bars] == ["ours", "peer", "peer"]
    lengths = [float(bar.get("width", "0")) for bar in bars]
    assert lengths[2] > lengths[0] > lengths[1] > 0
    words = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert "a peer & co" in words
    assert "4 M" in words


@pytest.mark.parametrize(("label", "libsvm", "wabbit"), [(1.0, "1", "1"), (0.0, "0", "-1")])
def test_rows_as_text(label: float, libsvm: str, wabbit: str) -> None:
    keys, values = np.array([[0, 41]]), np.array([[0.25, 1.0]], np.float32)
    lines = list(text_lines(keys, values, np.array([label], np.float32)))
    assert lines == [(f"{libsvm} 1:0.25 42:1\n", f"{wabbit} | 0:0.25 41\n")]


def test_the_table_goes_between_the_marks_of_a_readme() -> None:
    about = About("2 cores", 1_000_000, 33_762_578, 3, 3)
    once = in_readme(f"above\n{BEGINNING}\nold\n{END}\nbelow\n", RECORDS, about, 0.5, "today")
    assert once.startswith(f"above\n{BEGINNING}\n1,000,000 click rows")
    assert once.endswith(f"today-peers.svg)\n{END}\nbelow\n")
    assert "old" not in once
    assert table(RECORDS, 0.5) in once
    assert in_readme(once, RECORDS, about, 0.5, "today") == once


def test_the_readme_shows_the_page_that_it_names() -> None:
    shown = (ROOT / "README.md").read_text().partition(BEGINNING)[2].partition(END)[0]
    page = (ROOT / re.findall(r"\((benchmarks/results/[^)]*\.md)\)", shown)[0]).read_text()
    lines = [line for line in shown.splitlines() if line.startswith("|")]
    assert len(lines) > 10
    assert "\n".join(lines) in page
