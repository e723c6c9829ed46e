"""What a command left on disk."""

from __future__ import annotations

from pathlib import Path


def tree(path: Path) -> list[str]:
    """All files below a folder."""
    return sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())
