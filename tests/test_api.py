"""A run in Python: its diagnosis, its page, and what a notebook shows."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import paceline
from paceline.api import Run
from paceline.errors import DataError
from tests.diagnosis.conftest import quick as quick
from tests.diagnosis.folders import make_planted
from tests.reports.conftest import HOSTILE
from tests.reports.folders import DIAGNOSIS, make_half_run
from tests.reports.test_markup import Reader


def planted(path: Path, plant: str, data: str = "data/nowhere") -> Run:
    return Run(make_planted(path, plant, data=data).path)


def half(path: Path) -> Run:
    return Run(make_half_run(path).path)


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

    def test_in_a_notebook_it_is_the_page_and_nothing_else(self, tmp_path: Path) -> None:
        run = planted(tmp_path / HOSTILE, "network", data="</style></main><script>alert(1)</script>")
        shown = run._repr_html_()
        files = sorted(run.path.rglob("*"))
        tags = {tag for tag, _ in Reader(shown).elements}
        assert not tags & {"script", "img", "iframe", "link"}
        assert shown.startswith("<style>.paceline-page {")
        assert shown.endswith("</main>")
        assert "Network-bound" in shown
        assert sorted(run.path.rglob("*")) == files


RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 6)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] > 0).astype(int)
EXACT: dict[str, Any] = {"pace": "sync", "workers": 2, "batch_size": 20, "epochs": 3, "progress": False}


def trained(path: Path, data: Any, **flags: Any) -> str:
    return str(paceline.train(data=data, run=path, **EXACT, **flags).result["model_sha256"])


class TestTrain:
    def test_every_form_of_the_same_rows_gives_the_same_model(self, tmp_path: Path) -> None:
        paceline.prepare((X, Y), tmp_path / "data", progress=False)
        expected = trained(tmp_path / "prepared", tmp_path / "data")
        csr = scipy.sparse.csr_matrix(X)
        halves = [(csr[:150], Y[:150]), (X[150:], Y[150:])]
        forms: list[tuple[Any, dict[str, Any]]] = [((X, Y), {}), (csr, {"label": Y}), (iter(halves), {})]
        for number, (data, more) in enumerate(forms):
            assert trained(tmp_path / str(number), data, **more) == expected

    def test_weights_count_like_repeated_rows(self, tmp_path: Path) -> None:
        """In one update of all rows, to the digits of float32; the weight of a column and of an array are the same."""
        weights = RNG.integers(0, 3, 400)
        flags: dict[str, Any] = {**EXACT, "epochs": 1, "optimizer": "sgd"}
        flags |= {"batch_size": 400, "learning_rate": 0.5}
        whole = paceline.train(data=(X, Y, weights), run=tmp_path / "weights", **flags)
        frame = pd.DataFrame(X, columns=[f"c{i}" for i in range(X.shape[1])]).assign(y=Y, w=weights)
        column = paceline.train(data=frame, label="y", weight="w", run=tmp_path / "column", **flags)
        rows = np.repeat(np.arange(400), weights)
        flags["batch_size"] = len(rows)
        repeated = paceline.train(data=(X[rows], Y[rows]), run=tmp_path / "rows", **flags)
        expected = paceline.load(repeated.path).weights
        # An update divides by rows, of which there are 400, and not by their weights.
        assert np.abs(expected).max() > 0.01
        np.testing.assert_allclose(paceline.load(whole.path).weights, expected * len(rows) / 400, rtol=1e-3, atol=1e-5)
        assert column.result["model_sha256"] == whole.result["model_sha256"]

    def test_defaults_depend_on_the_rows(self, tmp_path: Path) -> None:
        """As many epochs as small data needs, and evaluations on which an early stop can be decided."""
        validation: dict[str, Any] = {"validation_fraction": 0.2, "progress": False}
        rows = (X, np.random.default_rng(1).permutation(Y))  # nothing to learn
        paceline.prepare(rows, tmp_path / "data", **validation)
        prepared = paceline.train(data=tmp_path / "data", run=tmp_path / "a", early_stopping=2, progress=False)
        setting = iter(["checkpoint_every=7"])
        given = paceline.train(data=rows, run=tmp_path / "b", early_stopping=2, settings=setting, **validation)
        names = ("epochs", "workers", "batch_size", "test_every")
        assert [given.settings[name] for name in names] == [prepared.settings[name] for name in names]
        assert given.settings["checkpoint_every"] == 7
        assert 2 < len(given.metrics) < given.settings["epochs"]

    def test_a_frame_with_validation_and_test_rows(self, tmp_path: Path) -> None:
        frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "shop": RNG.integers(0, 9, 400), "y": Y})
        run = paceline.train(
            data=frame, label="y", categorical=["shop"], validation=frame.head(100), test=frame.tail(50), epochs=20,
            run=tmp_path / "run", progress=False,
        )  # fmt: skip
        assert run.result["test"]["auc"] > 0.95
        assert run.result["validation"]["loss"] < 0.5

    def test_wrong_settings_come_before_rows(self, tmp_path: Path) -> None:
        def rows() -> Any:
            pytest.fail("no row is needed")
            yield

        with pytest.raises(paceline.PacelineError, match="`pace`"):
            paceline.train(data=rows(), pace="hurried", run=tmp_path / "run")
        with pytest.raises(paceline.PacelineError, match="unknown setting `epoch`"):
            paceline.train(data=rows(), epoch=3, run=tmp_path / "run")  # type: ignore[call-arg]

    def test_callbacks_see_the_run(self, tmp_path: Path) -> None:
        seen: list[paceline.Status] = []
        paceline.train(data=(X, Y), test_fraction=0.2, callbacks=[seen.append], run=tmp_path / "run", progress=False)
        assert seen[-1].share == 1
        assert seen[-1].rows > 0
        assert seen[-1].train_loss > 0

    @pytest.mark.parametrize(
        ("error", "seen"), [(ValueError("enough"), ValueError), (OSError("no room"), paceline.PacelineError)]
    )
    def test_a_callback_ends_the_run_with_an_error(
        self, tmp_path: Path, error: Exception, seen: type[Exception]
    ) -> None:
        def stop(_: paceline.Status) -> None:
            raise error

        with pytest.raises(seen, match=str(error)):
            paceline.train(data=(X, Y), callbacks=[stop], run=tmp_path / "run", progress=False)
        assert Run(tmp_path / "run").result["status"] == "failed"

    def test_callbacks_are_a_list(self, tmp_path: Path) -> None:
        with pytest.raises(paceline.PacelineError, match="`callbacks` is a function"):
            paceline.train(data=(X, Y), callbacks=print, run=tmp_path / "run", progress=False)  # type: ignore[arg-type]
        assert list(tmp_path.iterdir()) == []

    def test_a_stopped_run_goes_on_with_the_same_rows(self, tmp_path: Path) -> None:
        stops = iter([signal.SIGINT])

        def interrupt(_: paceline.Status) -> None:
            for stop in stops:
                signal.raise_signal(stop)

        flags: dict[str, Any] = {**EXACT, "epochs": 100, "test_every": 4000, "test_fraction": 0.1}
        with pytest.raises(paceline.PacelineError, match="interrupted"):
            paceline.train(data=(X, Y), run=tmp_path / "stopped", callbacks=[interrupt], **flags)
        assert Run(tmp_path / "stopped").result["status"] == "interrupted"
        with pytest.raises(paceline.PacelineError):
            paceline.resume(tmp_path / "stopped", data=(X[:, ::-1], Y), test_fraction=0.1, progress=False)
        resumed = paceline.resume(tmp_path / "stopped", data=(X, Y), test_fraction=0.1, progress=False)
        whole = paceline.train(data=(X, Y), run=tmp_path / "whole", **flags)
        assert resumed.result["model_sha256"] == whole.result["model_sha256"]


def test_prepare_takes_files_too(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("1 0:1\n0 1:1\n")
    made = paceline.prepare(tmp_path / "rows", tmp_path / "a", index_base="0")
    assert made.rows == 2
    assert paceline.prepare([str(tmp_path / "rows")], tmp_path / "b").rows == 2
    with pytest.raises(paceline.PacelineError, match="indexbase"):
        paceline.prepare(tmp_path / "rows", tmp_path / "c", indexbase="0")  # type: ignore[call-arg]
    (tmp_path / "more").write_text("1 0:1\n0 1:1\n")
    held_out = paceline.prepare(tmp_path / "rows", tmp_path / "d", test=tmp_path / "more")
    assert held_out.dataset.split("test").rows == 2


def test_prepare_shows_progress_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paceline.reports.progress_bar.PLAIN_LINE_SECONDS", 0)
    (tmp_path / "rows").write_text("1 0:1\n0 1:1\n")
    paceline.prepare(tmp_path / "rows", tmp_path / "a")
    assert "prepare: 100%, 2 rows" in capsys.readouterr().err
    paceline.prepare(tmp_path / "rows", tmp_path / "b", progress=False)
    assert capsys.readouterr().err == ""


def test_a_sweep_over_rows_in_memory_goes_on(tmp_path: Path) -> None:
    recipe = {"sweep": {"pace": ["sync", "async"]}, "epochs": 2}

    def sweep() -> Any:
        return paceline.sweep(recipe, data=(X, Y), out=tmp_path / "sweep", progress=False)

    first = sweep()
    assert [outcome.run.result["status"] for outcome in first] == ["done", "done"]
    written = [(outcome.run.path / "result.json").stat().st_mtime_ns for outcome in first]
    assert [(outcome.run.path / "result.json").stat().st_mtime_ns for outcome in sweep()] == written
    found = paceline.compare(*(outcome.run for outcome in first), out=tmp_path / "page.html")
    assert "pace" in [row.name for row in found.settings]
    # A notebook shows the pages that were written.
    assert said(found._repr_html_()) == said((tmp_path / "page.html").read_text("utf-8"))
    again = sweep()
    assert said(again._repr_html_()) == said((tmp_path / "sweep" / "comparison.html").read_text("utf-8"))
    assert "against pace" in said(again._repr_html_())
    del again[1]
    assert again._repr_html_() is None


def said(page: str) -> str:
    return Reader(page[page.index("<main") :]).text.strip()


def test_what_is_scored_is_found_out_in_one_way(tmp_path: Path) -> None:
    paceline.prepare((X, Y), tmp_path / "data", progress=False)
    run = paceline.train(data=tmp_path / "data", run=tmp_path / "run", progress=False)
    url = (tmp_path / "data").as_uri()
    assert paceline.predict(run, url, tmp_path / "a.csv") == paceline.evaluate(run, url)["rows"] == 400
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (url, {"id": "shop"}, "`id` is for files of raw rows, and a dataset has been prepared"),
        (X, {"split": "test"}, "raw rows are not in splits"),
        (X, {"format": "csv"}, "`format` is for files of raw rows, and the data is in memory"),
        (tmp_path / "rows.csv", {"split": "test"}, "raw rows are not in splits"),
    ]
    for data, options, words in wrong:
        with pytest.raises(paceline.PacelineError, match=words):
            paceline.predict(run, data, tmp_path / "b.csv", **options)
    with pytest.raises(paceline.PacelineError, match="raw rows are not in splits"):
        paceline.evaluate(run, (X, Y), split="test")


def test_a_sweep_that_starts_from_a_model_goes_on(tmp_path: Path) -> None:
    first = paceline.train(data=(X, Y), run=tmp_path / "first", progress=False)
    recipe = {"start_from": str(first.path), "sweep": {"optimizer.learning_rate": [0.01, 0.1]}, "epochs": 1}
    for _ in range(2):
        found = paceline.sweep(recipe, data=(X, Y), out=tmp_path / "sweep", progress=False)
        assert [outcome.error for outcome in found] == ["", ""]
