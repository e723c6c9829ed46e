"""What mkdocs is told beyond mkdocs.yml: the pages of the site lie where they lie in the repository.

README.md is the home page, docs/tutorial.md is docs/tutorial.html, and so on. So a link from one file to another works
on the site as it does in a checkout. Linked source files become pages that show them, linked folders pages that list
their content. In `nav`, a folder stands for all of its pages.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PAGES = ("*.md", "docs/**/*.md", "benchmarks/**/*.md")
AS_THEY_ARE = {".svg", ".png"}
LINK = re.compile(r"(\]\()([^)#\s:]+)(?=[)#])")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace each folder in `nav` by its pages."""

    def expand(entry: Any) -> Any:
        if isinstance(entry, dict):
            return {title: expand(below) for title, below in entry.items()}
        if isinstance(entry, list):
            return [expand(below) for below in entry]
        return [page_of(entry), *pages_in(entry)] if entry.endswith("/") else entry

    config.nav = expand(config.nav)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The theme's files, all Markdown pages of the repository, and what these link to."""
    kept = [file for file in files if not Path(file.abs_src_path or "/").is_relative_to(ROOT / "docs")]
    pages = sorted({path for pattern in PAGES for path in ROOT.glob(pattern)})
    found = {path.relative_to(ROOT).as_posix(): path for path in pages}
    made: dict[str, str] = {}
    for uri, path in list(found.items()):
        for _, target in LINK.findall(path.read_text("utf-8")):
            there = posixpath.normpath(posixpath.join(posixpath.dirname(uri), target))
            if (ROOT / there).is_dir():
                made[page_of(f"{there}/")] = folder_page(there)
            elif (ROOT / there).suffix in AS_THEY_ARE:
                found[there] = ROOT / there
            elif (ROOT / there).is_file() and there not in found:
                made[page_of(there)] = source_page(there)
    made = {uri: text for uri, text in made.items() if uri not in found}
    return Files(
        [
            *kept,
            *(File.generated(config, uri, abs_src_path=str(path)) for uri, path in found.items()),
            *(File.generated(config, uri, content=text) for uri, text in made.items()),
        ]
    )


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to source files and folders to their pages."""

    def lead(match: re.Match[str]) -> str:
        there = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), match[2]))
        if files.get_file_from_path(there) or not (ROOT / there).exists():
            return match[0]
        if (ROOT / there).is_dir():
            return match[1] + posixpath.join(match[2], posixpath.basename(page_of(f"{there}/")))
        return match[1] + page_of(match[2])

    return LINK.sub(lead, markdown)


def page_of(path: str) -> str:
    """The page for a source file, or for a folder (with a slash at its end)."""
    if path.endswith("/"):
        return f"{path}README.md" if (ROOT / path / "README.md").exists() else f"{path}index.md"
    return f"{path}.md"


def pages_in(folder: str) -> list[str]:
    """The pages in a folder, without the one about the folder itself."""
    names = sorted(path.name for path in (ROOT / folder).glob("*.md") if path.name not in ("README.md", "index.md"))
    return [f"{folder}{name}" for name in names]


def folder_page(folder: str) -> str:
    """A list of the pages in a folder."""
    lines = [f"- [{title_of(ROOT / page)}]({posixpath.basename(page)})" for page in pages_in(f"{folder}/")]
    return "\n".join([f"# {posixpath.basename(folder).capitalize()}", "", *lines, ""])


def source_page(path: str) -> str:
    """A file's text, with its syntax highlighted."""
    language = {".py": "python"}.get(Path(path).suffix, Path(path).suffix.lstrip("."))
    return f"# {path}\n\n````{language}\n{(ROOT / path).read_text('utf-8').rstrip()}\n````\n"


def title_of(page: Path) -> str:
    """A page's first heading."""
    return next((line[2:] for line in page.read_text("utf-8").splitlines() if line.startswith("# ")), page.stem)
