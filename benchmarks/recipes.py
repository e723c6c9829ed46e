"""What do all shipped sweeps say? Run every one of them, one after the other.

    python benchmarks/recipes.py [--data data] [--out runs] [--mnist FOLDER] [--only NAME] [--write]

Data that is not there is made up first, below `--data`; `--mnist` names a folder with MNIST's four IDX files, in place
of which images of the same shape are made up. `clicks-bottleneck` makes five hosts out of network namespaces and needs
root; where that is missing it is left out, by name. What was done before is not done again: the same command goes on.
Prints how long each took; `--write` keeps tables and curves under benchmarks/results/recipes/.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from embedded import machine
from paceline.reports.charts import HEIGHT, WIDTH, line_class
from paceline.reports.curves import curves_of_several
from paceline.reports.markup import Markup, element, joined
from paceline.run_folder import Run

HERE = Path(__file__).parent
RECIPES = HERE.parent / "recipes"
ON_HOSTS = "clicks-bottleneck"
CLICK_ROWS, DIGITS, PICTURES = 1_000_000, 60_000, 2_048
DIGIT_LOOKS = ["--size", "28", "--channels", "1", "--classes", "10"]


def paceline(*words: object) -> None:
    """Run a command of paceline; where it fails, so does this one."""
    command = [sys.executable, "-m", "paceline", *map(str, words)]
    print("$", "paceline", *words, flush=True)
    if code := subprocess.run(command).returncode:
        sys.exit(code)


def make_data(data: Path, mnist: Path | None) -> None:
    """Make what the recipes train on, as far as it is not there."""
    data.mkdir(parents=True, exist_ok=True)
    if not (data / "clicks").exists():
        paceline("generate", "clicks", "--rows", CLICK_ROWS, "--out", data / "clicks")
    if not (data / "fake").exists():
        paceline("generate", "images", "--rows", PICTURES, "--size", 256, "--classes", 1000, "--out", data / "fake")
    if not (data / "mnist").exists():
        if mnist:
            paceline("prepare", mnist, "--out", data / "mnist")
        else:
            print("MNIST was not given (--mnist FOLDER): images of its shape are made up", flush=True)
            paceline("generate", "images", "--rows", DIGITS, *DIGIT_LOOKS, "--out", data / "mnist")


def sweep(recipe: Path, data: Path, out: Path) -> bool:
    """Run one recipe; whether it could be."""
    text = recipe.read_text()
    words: list[object] = [sys.executable, "-m", "paceline", "sweep", recipe, "--out", out / recipe.stem]
    for line in text.splitlines():
        if line.startswith('data = "data/'):
            words += ["--data", data / line.split('"')[1].removeprefix("data/")]
    if recipe.stem == ON_HOSTS:
        if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
            print(f"{recipe.stem} is left out: it needs root, `ip` and `tc` for its five hosts", flush=True)
            return False
        words = [sys.executable, HERE / "on_hosts.py", "--", *words, "--address", "auto"]
    if code := subprocess.run([str(word) for word in words]).returncode:
        sys.exit(code)
    return True


def keep(recipe: Path, out: Path) -> None:
    """The tables of a sweep and its curves, where it has some, with date and machine."""
    kept = HERE / "results" / "recipes"
    kept.mkdir(parents=True, exist_ok=True)
    runs = {path.name: Run(path).metrics for path in sorted(out.iterdir()) if (path / "metrics.jsonl").exists()}
    text = f"# {recipe.stem}, {datetime.now(UTC):%Y-%m-%d}\n\n{machine()}. `paceline sweep recipes/{recipe.name}`.\n\n"
    text += (out / "summary.md").read_text()
    if (out / "nodes.md").exists():
        text += "\n" + (out / "nodes.md").read_text()
    if any(len(metrics) > 2 for metrics in runs.values()):
        for figure in curves_of_several(runs):
            title = re.findall("<figcaption>(.*?)</figcaption>", figure)[0]
            name = f"{recipe.stem}-{re.sub('[^a-z]+', '-', title.lower())}.svg"
            (kept / name).write_text(standalone(figure, title, list(runs)))
            text += f"\n![{title}]({name})\n"
    (kept / f"{recipe.stem}.md").write_text(text)


def standalone(figure: str, title: str, names: list[str]) -> str:
    """A chart of a page as a file of its own, with its title, its legend and the colours of the page."""
    inside = re.findall("<svg[^>]*>(.*)</svg>", figure, re.DOTALL)[0]
    drawn = [element("style", Markup(resources.files("paceline.reports").joinpath("page.css").read_text("utf-8")))]
    drawn.append(
        element("rect", x=0, y=-24, width=WIDTH, height=HEIGHT + 24 + 20 * len(names) + 8, fill="var(--paper)")
    )
    drawn += [element("text", title, x=4, y=-6), Markup(inside)]
    for style, name in enumerate(names):
        y = HEIGHT + 12 + 20 * style
        drawn.append(element("line", x1=8, y1=y, x2=32, y2=y, class_=line_class(style)))
        drawn.append(element("text", name, x=40, y=y + 4))
    view = f"0 -24 {WIDTH} {HEIGHT + 24 + 20 * len(names) + 8}"
    return element("svg", joined(drawn), xmlns="http://www.w3.org/2000/svg", viewBox=view, class_="chart") + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--mnist", type=Path)
    parser.add_argument("--only", default="", help="a part of the names of recipes")
    parser.add_argument("--write", action="store_true")
    flags = parser.parse_args()
    make_data(flags.data.resolve(), flags.mnist)
    took = {}
    for recipe in sorted(RECIPES.glob("*.toml")):
        if flags.only in recipe.stem and ("[sweep" in recipe.read_text() or "[[points" in recipe.read_text()):
            print(f"\n== {recipe.stem}", flush=True)
            began = time.perf_counter()
            if sweep(recipe, flags.data.resolve(), flags.out):
                took[recipe.stem] = time.perf_counter() - began
                if flags.write:
                    keep(recipe, flags.out / recipe.stem)
    print()
    for name, seconds in took.items():
        print(f"{name:24} {seconds:6.0f} s")
    print(f"{'together':24} {sum(took.values()):6.0f} s")


if __name__ == "__main__":
    main()
