"""docs/trace-one-step.md is true: every name exists, and each hop leads to the next."""

from __future__ import annotations

import re

import pytest

from tests.project.call_graph import PACKAGE, Package, Place

PAGE = (PACKAGE.parents[1] / "docs" / "trace-one-step.md").read_text("utf-8")
NAMED = re.compile(r"`([\w/]+\.py):\s+([\w.]+)`")
HOP = re.compile(r"\*\*`([\w/]+\.py):\s+([\w.]+)`\*\*")
CASES = ["train", "train", "train", "matmul", "trace"]


@pytest.fixture(scope="module")
def package() -> Package:
    return Package()


def places(pattern: re.Pattern[str], text: str) -> list[Place]:
    return [Place(*found) for found in pattern.findall(text)]


def cases() -> list[list[str]]:
    """The five numbered points of each case."""
    points = re.findall(r"^(\d)\. (.*?)(?=^\d\. |^\S|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert [number for number, _ in points] == list("12345") * len(CASES)
    texts = [text for _, text in points]
    return [texts[start : start + 5] for start in range(0, len(texts), 5)]


def test_every_name_on_the_page_exists(package: Package) -> None:
    named = places(NAMED, PAGE)
    assert len(named) > 40
    assert [str(place) for place in named if not package.has(place)] == []


@pytest.mark.parametrize("case", range(len(CASES)))
def test_every_hop_leads_to_the_next(package: Package, case: int) -> None:
    """Hops are printed in bold. Each refers to the next, at most through functions of its file or that the points name.

    A point with two hops has one after the other, or both after the point before it.
    """
    before: list[Place] = []
    named: list[Place] = []
    passed: dict[Place, frozenset[Place]] = {}
    missing = []
    for point in cases()[case]:
        hops, on_the_way = places(HOP, point), [*named, *places(NAMED, point)]
        assert hops, f"a point without a hop: {point}"
        for hop in hops:
            found = [package.way(origin, hop, on_the_way, passed[origin]) for origin in before]
            passed[hop] = frozenset[Place]().union(*(one for one in found if one is not None))
            if before and found.count(None) == len(found):
                missing.append(f"{' and '.join(map(str, before))} do not lead to {hop}")
            before.append(hop)
        assert missing == []
        before, named = hops, places(NAMED, point)
    assert next(iter(passed)).name == CASES[case]


def test_a_hop_that_does_not_lead_there_is_found(package: Package) -> None:
    run, coordinator = Place("run.py", "train"), Place("training/coordinator.py", "Coordinator.train")
    segment = Place("training/embedded/backend.py", "EmbeddedBackend.run_segment")
    loop = Place("training/embedded/loops.py", "StepLoop.run")
    engine = Place("engines/local.py", "LocalEngine.run")
    assert package.way(run, coordinator, []) is not None
    assert package.way(coordinator, segment, []) is not None
    assert package.way(segment, loop, []) is not None
    assert package.way(segment, engine, []) is not None
    for start, goal in ((run, segment), (coordinator, loop), (loop, segment), (engine, loop), (segment, coordinator)):
        assert package.way(start, goal, [run, engine]) is None
