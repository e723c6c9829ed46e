"""tests/X/test_Y.py tests src/paceline/X/Y.py. Other folders of tests are by kind, and named here."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS.parent / "src" / "paceline"
BY_KIND = {"benchmarks", "conformance", "faults", "fuzz", "project"}


def test_every_test_file_has_the_name_of_what_it_tests() -> None:
    strays = []
    found = [path.relative_to(TESTS) for path in TESTS.rglob("test_*.py") if "__pycache__" not in path.parts]
    for test in found:
        source = PACKAGE / test.parent / test.name.removeprefix("test_")
        is_by_kind = test.parts[0] in BY_KIND
        # The tests of a package's `__init__.py` are named after the package.
        if not is_by_kind and not source.is_file() and not (source.with_suffix("") / "__init__.py").is_file():
            strays.append(test.as_posix())
    assert len(found) > 100
    assert strays == []


def test_folders_by_kind_are_not_rooms_of_the_source() -> None:
    assert [name for name in sorted(BY_KIND) if (PACKAGE / name).exists()] == []
    assert [name for name in sorted(BY_KIND) if not any((TESTS / name).glob("test_*.py"))] == []
