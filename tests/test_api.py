"""A run in Python: its diagnosis, its page, and what a notebook shows."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from paceline.api import Run
from paceline.errors import DataError
from tests.diagnosis.conftest import quick as quick
from tests.diagnosis.folders import make_planted
from tests.reports.conftest import HOSTILE
from tests.reports.folders import DIAGNOSIS, make_half_run


def planted(path: Path, plant: str, data: str = "data/nowhere") -> Run:
    return Run(make_planted(path, plant, data=data).path)


def half(path: Path) -> Run:
    return Run(make_half_run(path).path)


class OneTag(HTMLParser):
    """Notes all tags, and what stands outside of them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.outside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.outside += data


@pytest.mark.usefixtures("quick")
class TestRun:
    def test_diagnosis_is_found_once_and_kept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run = planted(tmp_path / "run", "network")
        found = run.diagnosis
        assert found["bottleneck"] == "network"
        assert json.loads((run.path / "diagnosis.json").read_text()) == found
        monkeypatch.setattr("paceline.api.write_diagnosis", lambda _: pytest.fail("it was there already"))
        assert run.diagnosis == found

    def test_diagnose_finds_it_again(self, tmp_path: Path) -> None:
        run = planted(tmp_path / "run", "network")
        run.write_json("diagnosis.json", DIAGNOSIS | {"bottleneck": "something else"})
        assert run.diagnosis["bottleneck"] == "something else"
        assert run.diagnose()["bottleneck"] == run.diagnosis["bottleneck"] == "network"

    def test_too_little_to_tell(self, tmp_path: Path) -> None:
        run = half(tmp_path / "half")
        with pytest.raises(DataError):
            _ = run.diagnosis
        assert not (run.path / "diagnosis.json").exists()

    def test_a_report_is_where_it_says(self, tmp_path: Path) -> None:
        run = planted(tmp_path / "run", "network")
        assert run.report() == run.path / "report.html"
        assert "Network-bound" in run.report().read_text("utf-8")
        out = tmp_path / "else.html"
        assert run.report(str(out)) == out
        assert out.read_text("utf-8") == run.report().read_text("utf-8")

    def test_a_half_run_has_a_report_too(self, tmp_path: Path) -> None:
        assert "No verdict" in half(tmp_path / "half").report().read_text("utf-8")

    def test_in_a_notebook_it_is_a_frame_and_nothing_else(self, tmp_path: Path) -> None:
        run = planted(tmp_path / HOSTILE, "network", data="</iframe><script>alert(1)</script>")
        shown = run._repr_html_()
        files = sorted(run.path.rglob("*"))
        found = OneTag(shown)
        ((tag, attributes),) = found.tags
        assert (tag, found.outside.strip()) == ("iframe", "")
        assert set(attributes) == {"srcdoc", "style"}
        # Between the quotes there is no character that could end the value or begin a tag.
        inside = re.fullmatch(r'<iframe srcdoc="([^"<>]*)" style="[^"<>]*"></iframe>', shown)
        assert inside
        assert html.unescape(inside[1]) == run.report(tmp_path / "page.html").read_text("utf-8")
        assert sorted(run.path.rglob("*")) == files
