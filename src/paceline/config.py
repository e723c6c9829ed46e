"""What was asked for? Recipes, flags and `--set` become one `RunConfig`, checked before anything starts.

Flags override the recipe, `--set` overrides both. Every rule about settings, alone or together, stands in this file.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from paceline.errors import ConfigError

MODELS = ("logistic",)
OPTIMIZERS = ("sgd", "adagrad", "ftrl")
ENGINES = ("local", "ray")
PULLS = ("keys", "all")
VALUES = ("float32", "float16", "bfloat16")
MOST_WORKERS = 1024
MOST_PORT = 65_535
MOST_CLOCKS_AHEAD = 10**9
LARGEST_FLOAT32 = 3.4028234663852886e38


class OptimizerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How weights change. `decay_rows` and `decay_power` are sgd's: rate · (1 + rows / decay_rows) ^ −decay_power."""

    name: str = "adagrad"
    learning_rate: float = 0.05
    l1: float = 0.0
    l2: float = 0.0
    decay_rows: int = 0
    decay_power: float = 0.5
    epsilon: float = 1e-6
    beta: float = 1.0


class WireConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What goes between the processes of a cluster, and how.

    `pull` is `keys`, the weights of a batch's keys, or `all`, the whole model at every step. `port` 0 takes any free
    one; otherwise the coordinator listens there and shard s at `port` + 1 + s.
    """

    pull: str = "keys"
    values: str = "float32"
    key_deltas: bool = False
    key_cache: bool = False
    tls: bool = False
    port: int = 0


class RunConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One training run, as `config.toml` of its folder keeps it.

    0 means no limit for `epochs`, `steps` and `seconds`; whichever comes first ends the run. `epochs` is 1, or 0 where
    one of the others is given.
    """

    data: str = ""
    model: str = "logistic"
    pace: str | int = "sync"
    workers: int = 1
    shards: int = 1
    batch_size: int = 100
    epochs: int = 1
    steps: int = 0
    seconds: float = 0.0
    test_every: int = 0
    checkpoint_every: float = 60.0
    engine: str = "local"
    address: str = ""
    seed: int = 0
    run: str = ""
    optimizer: OptimizerConfig = OptimizerConfig()
    wire: WireConfig = WireConfig()


SECTIONS: dict[str, type[msgspec.Struct]] = {"optimizer": OptimizerConfig, "wire": WireConfig}


# Flags that set a key of a section; all others set the top-level key of their name.
SECTION_OF_FLAG = {
    "optimizer": ("optimizer", "name"),
    "learning_rate": ("optimizer", "learning_rate"),
    "l1": ("optimizer", "l1"),
    "l2": ("optimizer", "l2"),
}


def read_config(recipe: Path | None, flags: Mapping[str, Any], settings: Iterable[str] = ()) -> RunConfig:
    """The checked configuration of a recipe file, flags (by keyword; absent ones left out) and `--set` settings.

    >>> read_config(None, {"data": "clicks", "pace": "4", "optimizer": "sgd"}).optimizer.name
    'sgd'
    """
    tree = _read_recipe(recipe) if recipe is not None else {}
    for name, given in flags.items():
        value = str(given) if isinstance(given, Path) else given
        if name in SECTION_OF_FLAG:
            section, key = SECTION_OF_FLAG[name]
            tree.setdefault(section, {})[key] = value
        else:
            tree[name] = value
    for setting in settings:
        _apply_setting(tree, setting)
    if "epochs" not in tree and ("steps" in tree or "seconds" in tree):
        tree["epochs"] = 0
    try:
        return check(_convert(tree))
    except ConfigError as error:
        if recipe is not None and error.message.startswith("unknown setting"):
            error.message = f"{error.message} in `{recipe}` or the flags"
        raise


def to_toml(config: RunConfig) -> bytes:
    """The configuration as `config.toml` holds it."""
    return tomli_w.dumps(msgspec.to_builtins(config)).encode()


def _read_recipe(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"recipe `{path}` cannot be read: {error.strerror}", "give the path of a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe `{path}` is not TOML: {error}", 'strings need quotes: pace = "async"') from None


def _apply_setting(tree: dict[str, Any], setting: str) -> None:
    name, equals, text = setting.partition("=")
    path = name.strip().split(".")
    if not equals or not all(path) or len(path) > 2:
        raise ConfigError(f"`--set {setting}` is not section.key=value", "for example --set optimizer.beta=0.5")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    for section in path[:-1]:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"`--set {setting}`: `{section}` is no section", f"set {section} itself")
    tree[path[-1]] = value


def _convert(tree: dict[str, Any]) -> RunConfig:
    _refuse_unknown(tree, RunConfig, "")
    for section, kind in SECTIONS.items():
        if not isinstance(tree.get(section, {}), dict):
            raise ConfigError(
                f"`{section}` is `{tree[section]}`; it is a section of a recipe",
                f"write its settings below a line [{section}]: {', '.join(kind.__struct_fields__)}",
            )
        _refuse_unknown(tree.get(section, {}), kind, f"{section}.")
    pace = tree.get("pace")
    if isinstance(pace, str) and pace.lstrip("+-").isdigit():
        tree = {**tree, "pace": int(pace)}
    try:
        return msgspec.convert(tree, RunConfig)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        name = where.strip("`$").lstrip(".")
        raise ConfigError(f"`{name}`: {what[:1].lower()}{what[1:]}", "see `paceline train --help`") from None


def _refuse_unknown(tree: Mapping[str, Any], kind: type[msgspec.Struct], prefix: str) -> None:
    known = kind.__struct_fields__
    for name in tree:
        if name not in known:
            places = {prefix + other: other for other in known}
            if not prefix:
                places |= {f"{s}.{other}": other for s, part in SECTIONS.items() for other in part.__struct_fields__}
            near = difflib.get_close_matches(name, places.values(), n=1, cutoff=0.5)
            found = [place for place, other in places.items() if other in near]
            hint = f"did you mean `{found[0]}`?" if found else f"known are {', '.join(known)}"
            raise ConfigError(f"unknown setting `{prefix}{name}`", hint)


def check(config: RunConfig) -> RunConfig:
    """Raise the first thing that is wrong with a configuration, else return it."""
    if not config.data:
        raise ConfigError("no data to train on", "--data DIR, a folder made by `paceline prepare` or `generate`")
    _check_choice("model", config.model, MODELS)
    _check_choice("engine", config.engine, ENGINES)
    _check_choice("optimizer", config.optimizer.name, OPTIMIZERS)
    _check_pace(config)
    for name in ("workers", "shards", "batch_size"):
        _check(name, getattr(config, name), at_least=1)
    for name in ("epochs", "steps", "seconds", "test_every", "checkpoint_every", "seed"):
        _check(name, getattr(config, name), at_least=0)
    if config.epochs == 0 and not (config.steps or config.seconds):
        raise ConfigError("nothing ends this run: `epochs` is 0", "--epochs 1, --steps N or --seconds T")
    if config.workers > MOST_WORKERS:
        raise ConfigError(
            f"`workers` is {config.workers}; {MOST_WORKERS} is the most", "--workers 4, or as many as cores"
        )
    _check_engine(config)
    _check_optimizer(config.optimizer)
    return config


def _check_engine(config: RunConfig) -> None:
    """What only a cluster has must not be asked of one process; and what goes over its wire must be known."""
    _check_choice("wire.pull", config.wire.pull, PULLS)
    _check_choice("wire.values", config.wire.values, VALUES)
    last_port = MOST_PORT - 1 - config.shards
    if not 0 <= config.wire.port <= last_port:
        raise ConfigError(
            f"`wire.port` is {config.wire.port}; it is 0 for any free one, or 1 to {last_port}", "--set wire.port=7000"
        )
    if config.shards > MOST_WORKERS:
        raise ConfigError(f"`shards` is {config.shards}; {MOST_WORKERS} is the most", "--shards 2")
    if config.engine != "local":
        return
    if config.shards != 1:
        raise ConfigError(
            f"`shards` is {config.shards}; the engine `local` keeps the model in one",
            "leave --shards out, or --engine ray",
        )
    if config.address:
        raise ConfigError(f"`address` is `{config.address}`, but the engine is `local`", "--engine ray joins a cluster")
    changed = [
        name for name in WireConfig.__struct_fields__ if getattr(config.wire, name) != getattr(WireConfig(), name)
    ]
    if changed:
        raise ConfigError(
            f"`wire.{changed[0]}` is set, but the engine `local` has no wire", "leave it out, or --engine ray"
        )


def _check_pace(config: RunConfig) -> None:
    pace = config.pace
    if pace not in ("sync", "async") and not (isinstance(pace, int) and 1 <= pace <= MOST_CLOCKS_AHEAD):
        near = difflib.get_close_matches(str(pace).lower(), ("sync", "async"), n=1)
        hint = f"did you mean `--pace {near[0]}`?" if near else "`--pace async` never waits"
        raise ConfigError(
            f"`pace` is `{pace}`; it is `sync`, `async`, or how many clocks a worker may run ahead (1, 2, …)",
            "in `--pace sync` nobody runs ahead" if pace == 0 else hint,
        )


def _check_optimizer(optimizer: OptimizerConfig) -> None:
    rate = optimizer.learning_rate
    if not 0 < rate <= LARGEST_FLOAT32:
        raise ConfigError(
            f"`learning_rate` is {rate}; it is a number above 0", "--learning-rate 0.05; 0.01 to 0.5 is usual"
        )
    for name in ("l1", "l2", "decay_rows", "decay_power", "epsilon", "beta"):
        _check(name, getattr(optimizer, name), at_least=0)
    for name, owner in (("beta", "ftrl"), ("epsilon", "adagrad"), ("decay_power", "sgd")):
        changed = getattr(optimizer, name) != getattr(OptimizerConfig(), name)
        if changed and (optimizer.name != owner or (name == "decay_power" and not optimizer.decay_rows)):
            raise ConfigError(
                f"`optimizer.{name}` is {getattr(optimizer, name)}, which does nothing here",
                f"it is {owner}'s" + (", and needs decay_rows" if name == "decay_power" else "") + ": leave it out",
            )
    if optimizer.decay_rows and optimizer.name != "sgd":
        raise ConfigError(
            f"`optimizer.decay_rows` is {optimizer.decay_rows}, but {optimizer.name} slows down by itself",
            "leave it out, or --optimizer sgd",
        )


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        near = difflib.get_close_matches(value, choices, n=1)
        flag = f"--set {name}={choices[0]}" if "." in name else f"--{name} {choices[0]}"
        hint = f"did you mean `{near[0]}`?" if near else flag
        raise ConfigError(f"`{name}` is `{value}`; it is one of {', '.join(choices)}", hint)


def _check(name: str, value: float, *, at_least: int) -> None:
    if not at_least <= value <= LARGEST_FLOAT32:
        raise ConfigError(
            f"`{name}` is {value}; it is {at_least} or more", f"--{name.replace('_', '-')} {at_least or 1}"
        )
