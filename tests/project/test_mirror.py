"""tests/X/test_Y.py tests src/paceline/X/Y.py. What is tested in other places is listed, and the list is checked."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from tests.project.elsewhere import TESTED_IN
from tests.project.imports import module_of, steps_to

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS.parent / "src" / "paceline"
BY_KIND = {"benchmarks", "conformance", "faults", "fuzz", "project"}
MOST_STEPS = 4
"""How many imports may lead from a test to a file that it is listed for."""


def own_tests_of(source: Path) -> Path:
    """Where a source file has its own tests. Those of a package's `__init__.py` are named after the package."""
    place = source.relative_to(PACKAGE)
    if place.name == "__init__.py" and len(place.parts) > 1:
        place = place.parent.with_suffix(".py")
    return TESTS / place.parent / f"test_{place.name}"


def has_code(source: Path) -> bool:
    """Whether there is more than a docstring."""
    return len(ast.parse(source.read_text()).body) > 1


def test_every_test_file_has_the_name_of_what_it_tests() -> None:
    found = [path for path in TESTS.rglob("test_*.py") if path.relative_to(TESTS).parts[0] not in BY_KIND]
    mirrored = {own_tests_of(source) for source in PACKAGE.rglob("*.py")}
    assert len(found) > 100
    assert [path.relative_to(TESTS).as_posix() for path in found if path not in mirrored] == []


def test_folders_by_kind_are_not_rooms_of_the_source() -> None:
    assert [name for name in sorted(BY_KIND) if (PACKAGE / name).exists()] == []
    assert [name for name in sorted(BY_KIND) if not any((TESTS / name).glob("test_*.py"))] == []


def test_every_source_file_has_its_own_tests_or_is_listed() -> None:
    """A file that gets its own tests leaves the list."""
    without = {
        source.relative_to(PACKAGE).as_posix()
        for source in PACKAGE.rglob("*.py")
        if has_code(source) and not own_tests_of(source).is_file()
    }
    listed = Counter(source for sources in TESTED_IN.values() for source in sources)
    assert sorted(without - listed.keys()) == []
    assert sorted(listed.keys() - without) == []
    assert [source for source, count in listed.items() if count > 1] == []


def test_listed_tests_use_what_they_are_listed_for() -> None:
    far = []
    for test, sources in TESTED_IN.items():
        steps = steps_to(module_of(TESTS / test))
        far += [(test, source) for source in sources if steps.get(module_of(PACKAGE / source), 99) > MOST_STEPS]
    assert far == []
