"""How many lines of code does `src/` have, without comments, docstrings and blank lines?

python benchmarks/lines.py [COMMIT...]
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tarfile
import tokenize
from collections import Counter

NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def count(text: str) -> int:
    """The lines of code of a module.

    >>> count('"A docstring."\\n\\n# A comment.\\nanswer = (\\n    42  # The answer.\\n)\\n')
    3
    """
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for at in tokens if at.type not in NO_CODE for line in range(at.start[0], at.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def count_commit(commit: str) -> Counter[str]:
    """The lines of code of each package in a commit."""
    packed = subprocess.run(["git", "archive", commit, "src"], capture_output=True, check=True).stdout
    found: Counter[str] = Counter()
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        for file in files:
            content = files.extractfile(file)
            if content is not None and file.name.endswith(".py"):
                parts = file.name.split("/")[2:]
                found[parts[0] if len(parts) > 1 else "others"] += count(content.read().decode())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commits", nargs="*", default=["HEAD"], metavar="COMMIT")
    for commit in parser.parse_args().commits:
        found = count_commit(commit)
        print(
            f"{commit}: {found.total():,} ({', '.join(f'{name} {lines:,}' for name, lines in sorted(found.items()))})"
        )


if __name__ == "__main__":
    main()
