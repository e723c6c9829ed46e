"""What does a person see of the inside of a model or a dataset?"""

from __future__ import annotations

from typing import Any

from paceline.errors import printable
from paceline.reports.measures import NOTHING
from paceline.reports.terminal import print_table

CLASSES_SHOWN = 10


def print_top(found: dict[str, Any]) -> None:
    """The features with the largest weights."""
    features = found["features"]
    if not features:
        print("all weights are 0")
        return
    by_class = "class" in features[0]
    rows = [
        (
            one["feature"],
            *([one.get("class", "")] if by_class else []),
            f"{one['weight']:+.5g}",
            NOTHING if one["rows"] is None else f"{one['rows']:,}",
            NOTHING if one["share"] is None else f"{one['share']:.2%}",
        )
        for one in features
    ]
    print_table(("feature", *(["class"] if by_class else []), "weight", "rows", "of all"), rows)


def print_info(found: dict[str, Any]) -> None:
    """A dataset, line by line, and what will hurt."""
    lines = {"rows": ", ".join(f"{count:,} {split}" for split, count in found["rows"].items() if count)}
    lines |= _images(found) if "shape" in found else _sparse_rows(found)
    if found["disk_bytes"] is not None:
        lines["on disk"] = size(found["disk_bytes"])
    lines["prepared"] = "; ".join(f"{name} {_short(value)}" for name, value in found["source"].items() if value)
    print(f"{printable(found['path'])}: {found['kind']}")
    width = max(map(len, lines))
    for name, text in lines.items():
        print(f"  {name.ljust(width)}  {printable(text)}")
    for one in found["warnings"]:
        print(printable(f"warning: {one['warning']}"))
        print(printable(f"  hint: {one['hint']}"))


def size(num_bytes: float) -> str:
    """Bytes as people write them.

    >>> size(512), size(33_554_440)
    ('512 B', '33.6 MB')
    """
    for unit in ("B", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} GB"


def _images(found: dict[str, Any]) -> dict[str, str]:
    return {"shape": " × ".join(map(str, found["shape"])), "classes": f"{found['classes']:,}"}


def _sparse_rows(found: dict[str, Any]) -> dict[str, str]:
    used, baseline = found["keys_used"], found["baseline"]
    share = f", {used:,} in training rows ({used / found['features']:.1%})" if used is not None else ""
    error = f", error {baseline['error']:.4f}" if "error" in baseline else f", RMSE {baseline['rmse']:.5g}"
    prediction = baseline["prediction"]
    shown = prediction if isinstance(prediction, str) else f"{prediction:.5g}"
    hot = [f"{one['feature']} {one['share']:.1%}" for one in found["hot_keys"][:8]]
    memory = [f"{size(count)} with {name}" for name, count in found["model_bytes"].items()]
    return {
        "features": f"{found['features']:,} keys{share}",
        "nonzeros": f"{found['nonzeros_per_row']:.1f} per row, at most {found['longest_row']:,}",
        "labels": "; ".join(_labels(found["labels"])),
        "best constant": f"{shown}: {baseline['loss']} loss {baseline['value']:.5g}{error}",
        "hot keys": ", ".join(hot) + " (of all nonzeros)",
        "linear model": ", ".join(memory),
    }


def _labels(labels: dict[str, Any]) -> list[str]:
    """The labels of each split in a few words."""
    splits = {split: found for split, found in labels.items() if split != "kind"}
    if labels["kind"] == "numbers":
        return [
            f"{split}: mean {one['mean']:.5g}, deviation {one['deviation']:.5g}, "
            f"quartiles {', '.join(f'{value:.5g}' for value in one['quantiles'].values())}"
            for split, one in splits.items()
        ]
    found = []
    for split, counts in splits.items():
        total = max(1, sum(counts.values()))
        shown = [f"{name} {count / total:.2%}" for name, count in [*counts.items()][:CLASSES_SHOWN]]
        more = f", … ({len(counts):,} classes)" if len(counts) > CLASSES_SHOWN else ""
        found.append(f"{split}: {', '.join(shown)}{more}")
    return found


def _short(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple | dict) else str(value)
    return text if len(text) <= 120 else f"{text[:120]}…"
