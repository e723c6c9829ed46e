"""Write docs/reference.md from the help of the commands, and check that no link in the docs is broken.

With --check, write nothing and fail if the reference is out of date.
"""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import click
import msgspec
import tomli_w

from paceline.cli import cli
from paceline.cli.train import train
from paceline.config import CHOICES, SETTING_OF_FLAG, TYPES
from paceline.defaults import DEFAULTS
from paceline.models.loss_entries import LOSSES
from paceline.parameters.optimizers import OPTIMIZERS, formula_of
from paceline.run_folder import flat
from paceline.settings import RunConfig

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference.md"
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)")

# What the help of `paceline train` does not say, because there is no flag.
MEANINGS = {
    "precision": "bfloat16 is mixed precision, for PyTorch modules.",
    "resident": "Sparse rows stay on a GPU if they take at most this share of its free memory. 0: they are streamed.",
    "save_optimizer": "Keep the state of the optimizer with the model, so that `--from` can go on with it.",
    "loss.quantile": "The share of labels below predictions, for the loss `quantile`: above 0 and below 1.",
    "loss.delta": "Errors above this count linearly, for the loss `huber`: above 0.",
    "optimizer.decay_rows": "The learning rate falls with the rows trained on; 0 for a constant rate (see below).",
    "optimizer.decay_power": "How fast it falls, with `optimizer.decay_rows`.",
    "factors.optimizer": "How the factors of a factorization machine change; `optimizer.name` is for its weights.",
    "factors.learning_rate": "Their learning rate.",
    "factors.l2": "L2 penalty on the factors of each update.",
    "factors.row_wise": "All factors of a key share one sum of squares of AdaGrad, which saves memory.",
    "factors.initial": "Standard deviation of the factors at first.",
    "images.crop": "Cut out squares of this many pixels, at random in training, from the centre in tests. 0: no.",
    "images.flip": "Mirror every other image in training.",
    "wire.pull": "What workers fetch in a step: the weights of the batch's keys, or the whole model.",
    "wire.values": "Type of values on the wire.",
    "wire.key_deltas": "Send differences of sorted keys, which take fewer bytes.",
    "wire.tls": "Encrypt the connections.",
    "wire.mac": "Authenticate each frame without encrypting it.",
    "wire.shared_memory": "Dense models go through shared memory if all processes are on one machine.",
    "wire.port": "The coordinator listens on this port, and shard s on this + 1 + s. 0: any free ports.",
}


def reference() -> str:
    """The --help of every command, under the headings of `paceline --help`, and the settings of recipes."""
    top = context_of(cli, None)
    parts = ["# Commands\n\nWritten by `make docs` from `paceline COMMAND --help`.\n", help_text(top)]
    for heading, commands in cli.sections.items():
        parts.append(f"## {heading}\n")
        for command in commands.values():
            context = context_of(command, top)
            below = command.commands.values() if isinstance(command, click.Group) else []
            contexts = [context, *(context_of(child, context) for child in below)]
            parts += [f"### `{one.command_path}`\n\n{help_text(one)}" for one in contexts]
    return "\n".join([*parts, *settings_of_recipes(), *losses(), *settings_of_optimizers()])


def settings_of_recipes() -> list[str]:
    """A table of all settings of `paceline train`, with what its flags say about them."""
    flags = {option.name: option for option in train.params if isinstance(option, click.Option)}
    helps = {SETTING_OF_FLAG.get(name, name): option.help.partition("  [") for name, option in flags.items()}
    lines = ["| setting | default | values | meaning |", "|---|---|---|---|"]
    for name, default in flat(msgspec.to_builtins(RunConfig())).items():
        # Not for recipes: `start` is what a run with `--from` found in the model, `chosen` what nobody gave.
        if name not in ("optimizer.own", "chosen") and not name.startswith("start."):
            values = ", ".join(CHOICES.get(name, ())) or TYPES[type(default).__name__].replace("text", "")
            shown = f"`{tomli_w.dumps({'': default}).partition(' = ')[2].strip()}`"
            if name in DEFAULTS:
                shown = helps[name][2].removeprefix("default: ").removesuffix("]")
            lines.append(f"| `{name}` | {shown} | {values} | {MEANINGS.get(name) or helps[name][0]} |")
    return [
        "## Settings of recipes\n",
        "A recipe is a TOML file. `section.key` stands below a line `[section]`. On the command line, set one with",
        "`--set KEY=VALUE`, or with its flag if it has one.\n",
        *lines,
        "",
    ]


def losses() -> list[str]:
    """A table of the losses, with what they declare."""
    lines = ["| loss | labels | settings | metrics |", "|---|---|---|---|"]
    for name, entry in LOSSES.items():
        settings = ", ".join(f"`loss.{own}` ({setting.default:g})" for own, setting in entry.settings.items())
        labels, metrics = (", ".join(f"`{one}`" for one in some) for some in (entry.task.labels, entry.task.metrics))
        lines.append(f"| `{name}` | {labels} | {settings} | {metrics} |")
    return ["## Losses\n", "Choose one with `--loss NAME`; see [losses](losses.md).\n", *lines, ""]


def settings_of_optimizers() -> list[str]:
    """A table of the settings that each optimizer declares."""
    lines = ["| optimizer | setting | default | range | meaning |", "|---|---|---|---|---|"]
    for optimizer in OPTIMIZERS:
        for name, setting in formula_of(optimizer).settings.items():
            if not setting.of_model:
                bounded = math.isfinite(setting.below)
                allowed = f"at least {setting.least:g}" + (f" and below {setting.below:g}" if bounded else "")
                meaning = setting.help + (" Dense models only." if setting.dense_only else "")
                lines.append(f"| {optimizer} | `{name}` | {setting.default:g} | {allowed} | {meaning} |")
    decaying = " and ".join(f"`{name}`" for name in OPTIMIZERS if formula_of(name).decays)
    return [
        "## Settings of optimizers\n",
        "Set one with `--set optimizer.NAME=VALUE`, or in a recipe below `[optimizer]`.\n",
        *lines,
        f"\nWith `optimizer.decay_rows` N, the rate of {decaying} falls: after R rows it is `learning_rate`",
        "· (1 + R / N) ^ −`optimizer.decay_power`.\n",
    ]


def context_of(command: click.Command, parent: click.Context | None) -> click.Context:
    """What a command knows when it prints its help."""
    return command.make_context(command.name, [], parent, resilient_parsing=True)


def help_text(context: click.Context) -> str:
    """A command's help as a block of Markdown."""
    return f"```text\n{context.get_help().strip()}\n```\n"


def broken_links() -> list[str]:
    """Links in Markdown files to files that do not exist."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")]
    return [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in LINK.findall(page.read_text("utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]


def main() -> None:
    current = REFERENCE.read_text("utf-8") if REFERENCE.exists() else ""
    if "--check" not in sys.argv:
        REFERENCE.write_text(reference(), "utf-8")
    elif current != reference():
        sys.exit("docs/reference.md is out of date: run `make docs`")
    if broken := broken_links():
        sys.exit("broken links:\n" + "\n".join(broken))


if __name__ == "__main__":
    main()
