"""One word per thing: no two classes of the package share a name."""

import ast
from collections import Counter
from pathlib import Path

import paceline


def test_no_two_classes_share_a_name() -> None:
    files = Path(paceline.__file__).parent.rglob("*.py")
    names = Counter(
        node.name for path in files for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
    )
    assert len(names) > 100
    assert [name for name, count in names.items() if count > 1] == []
