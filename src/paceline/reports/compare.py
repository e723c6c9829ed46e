"""Which run was better, and how do the runs differ? Runs in rows, best first, in the terminal and on a page."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.text import Text

from paceline.errors import UsageError, printable
from paceline.files import replace_file
from paceline.reports.charts import MOST_LINES, line_legend
from paceline.reports.commands import repeat, verb_of
from paceline.reports.curves import curves_of_several, with_choice
from paceline.reports.header import data_of, when_and_where
from paceline.reports.layout import command_line, document, fragment, missing, note, prose, section, table
from paceline.reports.markup import Markup, element
from paceline.reports.measures import MEASURES, NOTHING, best_places, label_of
from paceline.reports.quality import quality_of
from paceline.reports.ranking import Ranking, rank, verdict_on
from paceline.reports.terminal import fitting, print_table
from paceline.run_folder import TRAIN, RunFolder

BEST = " *"
# They say nothing about how the run trained.
OWN_SETTINGS = ("run", "chosen")
# What follows the runs' names, the measure by which they are ordered, and the settings that differ.
FIRST = ("rows/s", "seconds", "train loss", "test error", "test AUC", "elements/s", "GFLOP/s", "bottleneck")
MOST_VERDICTS = 8
# The labels of losses, and of those of the best constant predictions for the same rows.
BASELINE_OF = {f"{rows} loss": label_of(f"{rows}_baseline_loss") for rows in ("validation", "test", "train")}
BASELINES = BASELINE_OF.values()


class Row(NamedTuple):
    """One line of the comparison: a text per run, and the places of the best ones."""

    name: str
    texts: list[str]
    best: set[int]


class PageParts(NamedTuple):
    """What a page of a comparison says besides it.

    `title` and, below it, `lead`, a sentence. `chosen` says on which rows the best run was chosen. `sections` come
    before the curves, and `after` at the end. `failed` names runs that left nothing to compare, and why.
    """

    title: str = ""
    lead: str = ""
    chosen: str = ""
    sections: Sequence[Markup] = ()
    failed: Mapping[str, str] = {}
    after: Sequence[Markup] = ()


PLAIN = PageParts()


class Comparison(NamedTuple):
    """The runs' names, best first, the settings that differ, and the results, each with one text per run; which run is
    best, in words; the runs in the same order, with the measure that decided; and what a page says besides.
    """

    names: list[str]
    settings: list[Row]
    results: list[Row]
    sentence: str
    runs: list[RunFolder]
    ranking: Ranking
    parts: PageParts = PLAIN

    def _repr_html_(self) -> str:
        """For notebooks: the whole page, whose style applies to nothing else."""
        return fragment(*_body(self, f"axis-{uuid.uuid4().hex[:8]}"))

    @property
    def columns(self) -> list[Row]:
        """What differs between the runs, the most important first."""
        decided = self.ranking.measure.label if self.ranking.measure else ""
        differ = [row for row in self.results if len(set(row.texts)) > 1]
        order = {name: place for place, name in enumerate((decided, *FIRST))}
        known = sorted((row for row in differ if row.name in order), key=lambda row: order[row.name])
        first = [row for row in known if row.name == decided]
        columns = [*first, *self.settings, *known[len(first) :], *(row for row in differ if row.name not in order)]
        return [beside for row in columns if row.name not in BASELINES for beside in (row, *self._baseline_of(row))]

    def _baseline_of(self, loss: Row) -> list[Row]:
        """The losses of the best constant predictions, which say what a loss means. Those may all be the same."""
        return [row for row in self.results if row.name == BASELINE_OF.get(loss.name)]

    @property
    def same(self) -> str:
        """What is the same in all runs, in words."""
        shown = [row.name for row in self.columns]
        same = [row for row in self.results if len(set(row.texts)) == 1 and row.name not in shown]
        return ", ".join(f"{row.name} {row.texts[0]}" for row in same)


def compare(runs: Sequence[RunFolder], names: Sequence[str] = (), parts: PageParts = PLAIN) -> Comparison:
    """How runs differ, best first. Only finished runs can be best, and only if they differ.

    Without `names`, runs are named by their folders.
    """
    if len(runs) < 2:
        raise UsageError(f"compare takes at least two runs, not {len(runs)}", "paceline compare RUN RUN…")
    jobs = {run.job: run.path for run in runs}
    if len(jobs) > 1:
        kinds = " and ".join(f"`{path}` is a run of `{job}`" for job, path in jobs.items())
        raise UsageError(f"different jobs cannot be compared: {kinds}", "give runs of one job")
    ranking = rank([run.result for run in runs])
    named = list(names) or _names(runs)
    names, runs = [named[place] for place in ranking.order], [runs[place] for place in ranking.order]
    results = [run.result for run in runs]
    ranking = ranking._replace(order=list(range(len(runs))))
    configs = [{key: str(value) for key, value in run.settings.items()} for run in runs]
    keys = [key for key in dict.fromkeys(k for config in configs for k in config) if key not in OWN_SETTINGS]
    settings = [Row(key, [config.get(key, NOTHING) for config in configs], set()) for key in keys]
    measured = [
        Row(measure.label, [measure.text(result) for result in results], best_places(measure, results))
        for measure in MEASURES
    ]
    verdicts = [str(run.saved_diagnosis.get("bottleneck") or NOTHING) for run in runs]
    return Comparison(
        names,
        [row for row in settings if len(set(row.texts)) > 1],
        [row for row in [*measured, Row("bottleneck", verdicts, set())] if set(row.texts) != {NOTHING}],
        verdict_on(names, results, ranking),
        runs,
        ranking,
        parts,
    )


def print_comparison(comparison: Comparison) -> None:
    """The table on standard output, one line per run, with as many columns as fit; the best of a column has a star."""

    def cell(text: str, is_best: bool) -> Text:
        return Text(text + BEST, style="bold green") if is_best else Text(text + " " * len(BEST))

    columns = comparison.columns
    # A table without any best value needs no room for stars.
    shown = [[cell(text, place in row.best) if row.best else Text(text) for place, text in enumerate(row.texts)]
             for row in columns]  # fmt: skip
    lines: list[list[str | Text]] = [
        [name, *(texts[place] for texts in shown)] for place, name in enumerate(comparison.names)
    ]
    titles, kept, left_out = fitting(["run", *(row.name for row in columns)], lines)
    print_table(titles, kept, wrap=True)
    if any(row.best for row in columns):
        print("* the best of its column")
    if left_out:
        print(f"not shown, because the terminal is too narrow: {', '.join(left_out)}")
    if comparison.sentence:
        print(printable(comparison.sentence.replace("`", "")))


def write_comparison(comparison: Comparison, out: Path) -> None:
    """Write one page with the same table and the runs' curves over each other."""
    data = _data(comparison)
    title = f"{_title(comparison)}{f' on {data}' if data else ''} – paceline"
    replace_file(out, document(title, *_body(comparison, "axis")))


def _body(comparison: Comparison, group: str) -> list[Markup]:
    """The page. `group` names the choice of the curves' axis."""
    runs, parts = comparison.runs, comparison.parts
    return [
        element("h1", _title(comparison)),
        note(" · ".join(part for part in (_data(comparison), when_and_where(runs[0])) if part)),
        *([element("p", *prose(parts.lead))] if parts.lead else []),
        *_winner(comparison),
        element("section", *_table(comparison)),
        *parts.sections,
        *_learning(comparison.names, runs, group),
        *_verdicts(comparison),
        *([section("Failed", table(("run", "error"), [*parts.failed.items()]))] if parts.failed else []),
        *parts.after,
    ]


def _title(comparison: Comparison) -> str:
    names = comparison.names
    return comparison.parts.title or (" and ".join(names) if len(names) == 2 else f"{len(names)} runs")


def _data(comparison: Comparison) -> str:
    return " and ".join(dict.fromkeys(name for run in comparison.runs if (name := data_of(run))))


def _winner(comparison: Comparison) -> list[Markup]:
    """Which run is best, by how much, and the command that repeats it."""
    chosen = comparison.parts.chosen
    if not comparison.sentence:
        return []
    sentence = element("p", *prose(comparison.sentence), class_="sentence")
    best = comparison.runs[0]
    again = [note(f"To {verb_of(best)} like the best one:"), command_line(repeat(best))]
    return [element("div", sentence, *([note(*prose(chosen))] if chosen else []), *again, class_="verdict")]


def _table(comparison: Comparison) -> list[Markup]:
    def cell(text: str, is_best: bool) -> Markup:
        return element("td", text + BEST, class_="number best") if is_best else element("td", text, class_="number")

    columns = comparison.columns
    lines = [
        [element("th", name, scope="row"), *(cell(row.texts[place], place in row.best) for row in columns)]
        for place, name in enumerate(comparison.names)
    ]
    notes = ["Best first."] if comparison.ranking.measure else []
    notes += ["Bold with a star: the best of its column."] if any(row.best for row in columns) else []
    notes += [f"The same in all: {comparison.same}."] if comparison.same else []
    notes += [] if comparison.settings else ["None of the settings differ: the runs have the same configuration."]
    return [
        table(["run", *(element("th", row.name, class_="number") for row in columns)], lines),
        note(" ".join(notes)),
    ]


def _learning(names: Sequence[str], runs: Sequence[RunFolder], group: str) -> list[Markup]:
    """The curves of training runs; other jobs have no such section."""
    if not any(run.job == TRAIN for run in runs):
        return []
    metrics = {name: run.metrics if run.job == TRAIN else [] for name, run in zip(names, runs, strict=True)}
    drawn = dict(list(metrics.items())[:MOST_LINES])
    if figures := curves_of_several(drawn):
        more = [note(f"The best {MOST_LINES} of {len(metrics):,} runs.")] if len(metrics) > MOST_LINES else []
        return [section("Learning", line_legend(list(drawn)), *more, with_choice(figures, group))]
    if not any(metrics.values()):
        return [section("Learning", missing("No run has been evaluated yet."))]
    once = "Each run was evaluated once, at the end: there are no curves. "
    return [section("Learning", note(once, element("code", "--test-every ROWS"), " evaluates more often."))]


def _verdicts(comparison: Comparison) -> list[Markup]:
    """What each run says about its learning and its speed."""
    entries = []
    for name, run in list(zip(comparison.names, comparison.runs, strict=True))[:MOST_VERDICTS]:
        if told := verdicts_of(run):
            entries += [element("dt", name), *(element("dd", *prose(text)) for text in told)]
    return [section("What each run says", element("dl", *entries, class_="told"))] if entries else []


def verdicts_of(run: RunFolder) -> list[str]:
    """How a run learned, if that is known, and what limited it, if it was diagnosed: sentences."""
    quality = quality_of(run.metrics) if run.job == TRAIN else None
    diagnosis = str(run.saved_diagnosis.get("sentence", ""))
    told = [quality.sentence if quality and quality.state else "", f"{diagnosis[:1].upper()}{diagnosis[1:]}"]
    return [sentence for sentence in told if sentence]


def _names(runs: Sequence[RunFolder]) -> list[str]:
    """The names of the folders; if some are the same, the paths as given; if even those are, with numbers."""
    names = [run.path.resolve().name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run.path) for run in runs]
    if len(set(names)) < len(names):
        names = [f"{place + 1}: {name}" for place, name in enumerate(names)]
    return names
