"""What are the results of all shipped sweeps? Runs them one after the other.

    python benchmarks/recipes.py [--data data] [--out runs] [--mnist FOLDER] [--only NAME] [--write]

Missing data is generated first, below `--data`. `--mnist` names a folder with MNIST's four IDX files; without it,
images of the same shape are generated. `clicks-bottleneck` creates five hosts as network namespaces, which needs
root; without root it is left out, with a message. Finished runs are not repeated: the same command
continues a stopped sweep. Prints how long each sweep took; `--write` keeps tables and curves under
benchmarks/results/recipes/.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from embedded import machine
from paceline.reports.charts import HEIGHT, WIDTH, line_class
from paceline.reports.curves import curves_of_several
from paceline.reports.markup import Markup, element, joined
from paceline.run_folder import RunFolder
from paceline.sweeps.points import read_sweep

HERE = Path(__file__).parent
RECIPES = HERE.parent / "recipes"
ON_HOSTS = "clicks-bottleneck"
INTERRUPTED = 130
MADE_UP_DIGITS = "made-up-digits"
CLICK_ROWS, DIGITS, PICTURES = 1_000_000, 60_000, 2_048
DIGIT_LOOKS = ["--size", "28", "--channels", "1", "--classes", "10"]


def run(*words: object) -> int:
    """Run a command to its end and return its exit code. If interrupted, it ends by itself."""
    with subprocess.Popen([str(word) for word in words]) as process:
        while True:
            try:
                code = process.wait()
            except KeyboardInterrupt:
                # A terminal has told it, too.
                continue
            if code == INTERRUPTED:
                sys.exit(code)
            return code


def paceline(*words: object) -> None:
    """Run a paceline command; exit if it fails."""
    print("$", "paceline", *words, flush=True)
    if code := run(sys.executable, "-m", "paceline", *words):
        sys.exit(code)


def data_of(recipe: Path) -> str:
    """The name of a recipe's data, below `data`; empty if it needs none."""
    return str(tomllib.loads(recipe.read_text()).get("data", "")).removeprefix("data/")


def make_data(name: str, data: Path, mnist: Path | None) -> Path:
    """The folder of the data with this name, generated if it does not exist. Generated digits have their own folder."""
    data.mkdir(parents=True, exist_ok=True)
    path = data / (MADE_UP_DIGITS if name == "mnist" and not mnist and not (data / name).exists() else name)
    if path.exists():
        return path
    if name == "clicks":
        paceline("generate", "clicks", "--rows", CLICK_ROWS, "--out", path)
    elif name == "fake":
        paceline("generate", "images", "--rows", PICTURES, "--size", 256, "--classes", 1000, "--out", path)
    elif mnist:
        paceline("prepare", mnist, "--out", path)
    else:
        print("no --mnist FOLDER: generating images of the same shape", flush=True)
        paceline("generate", "images", "--rows", DIGITS, *DIGIT_LOOKS, "--out", path)
    return path


def command_of(recipe: Path, data: Path | None, out: Path) -> list[object]:
    """The command that runs a recipe; empty if this machine cannot run it."""
    words: list[object] = [sys.executable, "-m", "paceline", "sweep", recipe, "--out", out]
    words += ["--data", data] if data else []
    if recipe.stem != ON_HOSTS:
        return words
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        print(f"{recipe.stem} is left out: it needs root, `ip` and `tc` for its five hosts", flush=True)
        return []
    return [sys.executable, HERE / "on_hosts.py", "--", *words, "--address", "auto"]


def keep(recipe: Path, data: Path | None, out: Path) -> None:
    """The tables and curves of a sweep, with date and machine."""
    kept = HERE / "results" / "recipes"
    kept.mkdir(parents=True, exist_ok=True)
    folders = [out / point.folder for point in read_sweep(recipe, {})]
    runs = {path.name: RunFolder(path).metrics for path in folders if (path / "metrics.jsonl").exists()}
    how = "make bottleneck" if recipe.stem == ON_HOSTS else f"paceline sweep recipes/{recipe.name}"
    text = f"# {recipe.stem}, {datetime.now(UTC):%Y-%m-%d}\n\n{machine()}. `{how}`.\n\n"
    if data and data.name == MADE_UP_DIGITS:
        text += "On generated images, not on MNIST's digits.\n\n"
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


def is_sweep(recipe: Path) -> bool:
    return bool({"sweep", "points"} & {*tomllib.loads(recipe.read_text())})


def standalone(figure: str, title: str, names: list[str]) -> str:
    """A chart of a page as a separate file, with its title, its legend and the colours of the page."""
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
    chosen = [path for path in sorted(RECIPES.glob("*.toml")) if flags.only in path.stem and is_sweep(path)]
    if not chosen:
        sys.exit(f"error: no recipe has `{flags.only}` in its name\nhint: see {RECIPES.name}/")
    took, failed = {}, []
    for recipe in chosen:
        print(f"\n== {recipe.stem}", flush=True)
        name, out = data_of(recipe), flags.out / recipe.stem
        data = make_data(name, flags.data.resolve(), flags.mnist) if name else None
        began = time.perf_counter()
        words = command_of(recipe, data, out)
        if words and run(*words):
            failed.append(recipe.stem)
        elif words:
            took[recipe.stem] = time.perf_counter() - began
            if flags.write:
                keep(recipe, data, out)
    print()
    for name, seconds in took.items():
        print(f"{name:24} {seconds:6.0f} s")
    print(f"{'together':24} {sum(took.values()):6.0f} s")
    if failed:
        sys.exit(f"error: {', '.join(failed)} failed\nhint: the same command tries again")


if __name__ == "__main__":
    main()
