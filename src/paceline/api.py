"""What does `paceline.train` return? A run: its folder, and what limited it, in Python and in notebooks."""

from __future__ import annotations

import html
import tempfile
from pathlib import Path
from typing import Any

from paceline.diagnosis.explain import ensure_diagnosis, write_diagnosis
from paceline.reports.page import write_report
from paceline.run_folder import RunFolder


class Run(RunFolder):
    """A run folder that can explain itself."""

    @property
    def diagnosis(self) -> dict[str, Any]:
        """What limited the run: the content of `diagnosis.json`, which is written first if it is missing.

        Raises `DataError` if too little was recorded.
        """
        return self.saved_diagnosis or self.diagnose()

    def diagnose(self) -> dict[str, Any]:
        """Find out what limited the run, and write `diagnosis.json`."""
        return write_diagnosis(self)

    def report(self, out: Path | str | None = None) -> Path:
        """Write the run's page, `report.html` in its folder unless `out` names another file; returns its path."""
        page = Path(out) if out else self.path / "report.html"
        ensure_diagnosis(self)
        write_report(self, page)
        return page

    def _repr_html_(self) -> str:
        """For notebooks: the page in a frame, so that its style does not leak."""
        with tempfile.TemporaryDirectory() as folder:
            page = self.report(Path(folder) / "report.html").read_text("utf-8")
        return f'<iframe srcdoc="{html.escape(page)}" style="width:100%;height:40em;border:0"></iframe>'
