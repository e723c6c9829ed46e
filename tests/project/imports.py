"""Which modules does a module name? Those it imports, at its top or later, and those it loads by name."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


def module_of(path: Path) -> str:
    """The name under which a file is imported.

    >>> module_of(ROOT / "src" / "paceline" / "data" / "__init__.py"), module_of(ROOT / "tests" / "skips.py")
    ('paceline.data', 'tests.skips')
    """
    parts = path.relative_to(ROOT / "src" if path.is_relative_to(ROOT / "src") else ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {
    module_of(path): path for folder in ("src/paceline", "tests") for path in sorted((ROOT / folder).rglob("*.py"))
}


@cache
def named_by(module: str) -> frozenset[str]:
    """The modules of paceline and of its tests that a module names."""
    found = set(_candidates(module))
    # pytest loads the fixtures of a test's folders, and `python -m PACKAGE` runs the package's `__main__`.
    if module.startswith("tests."):
        packages = module.split(".")[:-1]
        found |= {".".join([*packages[:depth], "conftest"]) for depth in range(1, len(packages) + 1)}
        found |= {f"{name}.__main__" for name in found}
    return frozenset(found & FILES.keys()) - {module}


def _candidates(module: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(FILES[module].read_text())):
        match node:
            case ast.Import():
                yield from (name.name for name in node.names)
            case ast.ImportFrom(module=str(source)):
                yield source
                yield from (f"{source}.{name.name}" for name in node.names)
            case ast.Constant(value=str(text)):
                # "MODULE:FUNCTION", "MODULE.ATTRIBUTE", or a file next to this one.
                name = text.partition(":")[0]
                yield from (name, name.rpartition(".")[0], f"{module}.{name}")


def steps_to(start: str) -> dict[str, int]:
    """How many imports lead from a test to each module of paceline. Imports among tests do not count."""
    steps, queue = {start: 0}, deque([start])
    while queue:
        module = queue.popleft()
        for name in named_by(module):
            count = steps[module] + name.startswith("paceline")
            if count < steps.get(name, count + 1):
                steps[name] = count
                queue.append(name)
    return steps
