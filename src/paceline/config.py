"""What was asked for? Recipes, flags and `--set` become one `RunConfig`, checked before anything starts.

Flags override the recipe, `--set` overrides both. Every rule about settings, alone or together, is in this file; what a
model can do is in its entry (`models/registry.py`).
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tomli_w

from paceline.engines import ENGINES
from paceline.errors import ConfigError
from paceline.models.registry import Entry, find
from paceline.parameters.optimizers import OPTIMIZERS
from paceline.settings import ImageConfig, OptimizerConfig, RunConfig, WireConfig, without_old_settings

T = TypeVar("T")

EXCHANGES = ("shard", "allreduce")
DEVICES = ("cpu", "cuda")
PRECISIONS = ("float32", "bfloat16")
PULLS = ("keys", "all")
VALUES = ("float32", "float16", "bfloat16")
MOST_WORKERS = 1024
MOST_PORT = 65_535
MOST_CLOCKS_AHEAD = 10**9
LARGEST_FLOAT32 = 3.4028234663852886e38


SECTIONS: dict[str, type[msgspec.Struct]] = {
    "optimizer": OptimizerConfig, "images": ImageConfig, "wire": WireConfig
}  # fmt: skip


# Flags that set a key of a section; all others set the top-level key of their name.
SECTION_OF_FLAG = {
    "optimizer": ("optimizer", "name"),
    "learning_rate": ("optimizer", "learning_rate"),
    "momentum": ("optimizer", "momentum"),
    "l1": ("optimizer", "l1"),
    "l2": ("optimizer", "l2"),
}


def read_config(recipe: Path | None, flags: Mapping[str, Any], settings: Iterable[str] = ()) -> RunConfig:
    """The checked configuration of a recipe file, flags (by keyword; absent ones left out) and `--set` settings.

    >>> read_config(None, {"data": "clicks", "pace": "4", "optimizer": "sgd"}).optimizer.name
    'sgd'
    """
    tree = read_recipe(recipe) if recipe is not None else {}
    try:
        return config_of(tree, flags, settings)
    except ConfigError as error:
        if recipe is not None and {"sweep", "points"} & {*tree}:
            raise ConfigError(f"`{recipe}` is a recipe for several runs", f"paceline sweep {recipe}") from None
        if recipe is not None and error.message.startswith("unknown setting"):
            error.message = f"{error.message} in `{recipe}` or the flags"
        raise


def load_config(path: Path) -> RunConfig:
    """The settings that a run was made with, from its `config.toml`. Its model need not be importable here."""
    return _convert(without_old_settings(read_recipe(path)))


def config_of(tree: dict[str, Any], flags: Mapping[str, Any], settings: Iterable[str] = (),
              varied: Mapping[str, Any] | None = None) -> RunConfig:  # fmt: skip
    """The checked configuration of a recipe's tree, which is changed; `varied` settings (section.key) override all."""
    overrule(tree, flags, settings, varied or {})
    if "epochs" not in tree and ("steps" in tree or "seconds" in tree):
        tree["epochs"] = 0
    return check(_convert(tree))


def overrule(tree: dict[str, Any], flags: Mapping[str, Any], settings: Iterable[str],
             varied: Mapping[str, Any]) -> None:  # fmt: skip
    """Put flags, then `--set`, then `varied` settings into a recipe's tree."""
    for name, given in flags.items():
        value = str(given) if isinstance(given, Path) else given
        if name in SECTION_OF_FLAG:
            section, key = SECTION_OF_FLAG[name]
            tree.setdefault(section, {})[key] = value
        else:
            tree[name] = value
    for setting in settings:
        _apply_setting(tree, setting)
    for name, value in varied.items():
        section, dot, key = name.partition(".")
        part = tree.setdefault(section, {}) if dot else tree
        if not isinstance(part, dict):
            raise ConfigError(f"`{section}` is not a section", f"set {section} itself")
        part[key if dot else name] = value


def to_toml(config: RunConfig) -> bytes:
    """The configuration as `config.toml` holds it."""
    return tomli_w.dumps(msgspec.to_builtins(config)).encode()


def read_recipe(path: Path) -> dict[str, Any]:
    """What a recipe says, unchecked."""
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
            raise ConfigError(f"`--set {setting}`: `{section}` is not a section", f"set {section} itself")
    tree[path[-1]] = value


def _convert(tree: dict[str, Any]) -> RunConfig:
    refuse_unknown(tree, RunConfig, "")
    for section, kind in SECTIONS.items():
        if not isinstance(tree.get(section, {}), dict):
            raise ConfigError(
                f"`{section}` is `{tree[section]}`; it is a section of a recipe",
                f"write its settings below a line [{section}]: {', '.join(kind.__struct_fields__)}",
            )
        refuse_unknown(tree.get(section, {}), kind, f"{section}.")
    pace = tree.get("pace")
    if isinstance(pace, str) and pace.lstrip("+-").isdigit():
        tree = {**tree, "pace": int(pace)}
    return converted(tree, RunConfig, "see `paceline train --help`")


def converted(tree: dict[str, Any], kind: type[T], hint: str) -> T:
    """Settings as a `kind`; `ConfigError` names the one whose type is wrong."""
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        name = where.strip("`$").lstrip(".")
        said = f"{what[:1].lower()}{what[1:]}"
        raise ConfigError(f"`{name}`: {said}" if name else said, hint) from None


def refuse_unknown(tree: Mapping[str, Any], kind: type[msgspec.Struct], prefix: str) -> None:
    """Raise for the first name that settings of this kind do not have."""
    known = kind.__struct_fields__
    for name in tree:
        if name not in known:
            places = {prefix + other: other for other in known}
            if kind is RunConfig:
                places |= {f"{s}.{other}": other for s, part in SECTIONS.items() for other in part.__struct_fields__}
            near = difflib.get_close_matches(name, places.values(), n=1, cutoff=0.5)
            found = [place for place, other in places.items() if other in near]
            hint = f"did you mean `{found[0]}`?" if found else f"known are {', '.join(known)}"
            raise ConfigError(f"unknown setting `{prefix}{name}`", hint)


def check(config: RunConfig) -> RunConfig:
    """Raise the first thing that is wrong with a configuration, else return it."""
    if not config.data:
        raise ConfigError("no data to train on", "--data DIR, a folder made by `paceline prepare` or `generate`")
    entry = find(config.model)
    _check_choice("engine", config.engine, tuple(ENGINES))
    _check_choice("exchange", config.exchange, EXCHANGES)
    _check_choice("device", config.device, DEVICES)
    _check_choice("precision", config.precision, PRECISIONS)
    _check_choice("optimizer", config.optimizer.name, tuple(OPTIMIZERS))
    _check_pace(config)
    for name in ("workers", "shards", "batch_size"):
        _check(name, getattr(config, name), at_least=1)
    for name in ("train_rows", "epochs", "steps", "seconds", "test_every", "checkpoint_every", "seed"):
        _check(name, getattr(config, name), at_least=0)
    if config.epochs == 0 and not (config.steps or config.seconds):
        raise ConfigError("nothing ends this run: `epochs` is 0", "--epochs 1, --steps N or --seconds T")
    if config.workers > MOST_WORKERS:
        raise ConfigError(f"`workers` is {config.workers}; the limit is {MOST_WORKERS}", "--workers 4, or one per core")
    _check_engine(config)
    _check_optimizer(config.optimizer)
    _check_model(config, entry)
    return config


def _check_model(config: RunConfig, entry: Entry) -> None:
    """Refuse what this model cannot do."""
    if config.optimizer.name not in entry.optimizers:
        *others, last = entry.optimizers
        raise ConfigError(
            f"`optimizer` is `{config.optimizer.name}`, which cannot train the model `{config.model}`",
            f"--optimizer {', '.join(others)} or {last}" if others else f"--optimizer {last}",
        )
    for name, allowed in (
        ("exchange", entry.exchanges),
        ("device", entry.devices),
        ("precision", entry.precisions),
    ):
        if getattr(config, name) not in allowed:
            raise ConfigError(
                f"`{name}` is `{getattr(config, name)}`; the model `{config.model}` takes {' or '.join(allowed)}",
                f"leave {name} out, or choose another model",
            )
    if entry.input != "images" and config.images != ImageConfig():
        raise ConfigError(f"`images` is set, but the model `{config.model}` learns from {entry.input}", "leave it out")
    if config.images.crop < 0:
        raise ConfigError(f"`images.crop` is {config.images.crop}; it is 0 or more", "--set images.crop=224")
    _check_keyed(config) if entry.keyed else _check_not_keyed(config)
    if config.exchange == "allreduce":
        _check_allreduce(config)


def _check_keyed(config: RunConfig) -> None:
    """What tables of parameters by key cannot have."""
    if config.optimizer.momentum:
        raise ConfigError(
            f"`momentum` is set, but the model `{config.model}` has a table of keys, which moves without it",
            "leave it out, or --model softmax",
        )


def _check_not_keyed(config: RunConfig) -> None:
    """What only tables of parameters by key have."""
    if config.optimizer.l1:
        raise ConfigError(
            f"`l1` is {config.optimizer.l1}, but the model `{config.model}` has no table of keys",
            "leave it out; --l2 is weight decay",
        )
    if changed := [name for name in ("pull", "key_deltas", "values") if _is_changed(config.wire, name)]:
        raise ConfigError(
            f"`wire.{changed[0]}` is set, but the model `{config.model}` has no table of keys", "leave it out"
        )


def _check_allreduce(config: RunConfig) -> None:
    if config.wire.tls:
        raise ConfigError(
            "`wire.tls` is set, but `allreduce` uses gloo or NCCL, which do not encrypt", "--exchange shard"
        )
    if not ENGINES[config.engine].has_processes:
        raise ConfigError(
            f"`exchange` is `allreduce`, which is between processes; the engine `{config.engine}` has one",
            "--engine ray, or leave --exchange out",
        )
    if config.pace != "sync":
        raise ConfigError(
            f"`exchange` is `allreduce`, but the pace is `{config.pace}`", "--pace sync, or --exchange shard"
        )
    if config.shards != 1:
        raise ConfigError(
            f"`exchange` is `allreduce`, which has no shards, but `shards` is {config.shards}", "leave --shards out"
        )


def _is_changed(section: msgspec.Struct, name: str) -> bool:
    return bool(getattr(section, name) != getattr(type(section)(), name))


def _check_engine(config: RunConfig) -> None:
    """Refuse what only a cluster has if there is one process, and unknown settings of the wire."""
    _check_choice("wire.pull", config.wire.pull, PULLS)
    _check_choice("wire.values", config.wire.values, VALUES)
    if config.shards > MOST_WORKERS:
        raise ConfigError(f"`shards` is {config.shards}; the limit is {MOST_WORKERS}", "--shards 2")
    last_port = MOST_PORT - 1 - config.shards
    if not 0 <= config.wire.port <= last_port:
        raise ConfigError(
            f"`wire.port` is {config.wire.port}; it is 0 for any free one, or 1 to {last_port}", "--set wire.port=7000"
        )
    if ENGINES[config.engine].has_processes:
        return
    if config.shards != 1:
        raise ConfigError(
            f"`shards` is {config.shards}; the engine `{config.engine}` keeps the model in one",
            "leave --shards out, or --engine ray",
        )
    if config.address:
        raise ConfigError(
            f"`address` is `{config.address}`, but the engine is `{config.engine}`", "--engine ray joins a cluster"
        )
    if changed := [name for name in WireConfig.__struct_fields__ if _is_changed(config.wire, name)]:
        raise ConfigError(
            f"`wire.{changed[0]}` is set, but the engine `{config.engine}` has no wire", "leave it out, or --engine ray"
        )


def _check_pace(config: RunConfig) -> None:
    pace = config.pace
    if pace not in ("sync", "async") and not (isinstance(pace, int) and 1 <= pace <= MOST_CLOCKS_AHEAD):
        near = difflib.get_close_matches(str(pace).lower(), ("sync", "async"), n=1)
        hint = f"did you mean `--pace {near[0]}`?" if near else "`--pace async` never waits"
        raise ConfigError(
            f"`pace` is `{pace}`; it is `sync`, `async`, or the number of steps a worker may run ahead (1, 2, …)",
            "with `--pace sync` nobody runs ahead" if pace == 0 else hint,
        )


def _check_optimizer(optimizer: OptimizerConfig) -> None:
    rate = optimizer.learning_rate
    if not 0 < rate <= LARGEST_FLOAT32:
        raise ConfigError(
            f"`learning_rate` is {rate}; it is a number above 0", "--learning-rate 0.05; 0.01 to 0.5 is usual"
        )
    for name in ("l1", "l2", "decay_rows", "decay_power", "epsilon", "beta"):
        _check(name, getattr(optimizer, name), at_least=0)
    for name in ("momentum", "beta1", "beta2"):
        if not 0 <= getattr(optimizer, name) < 1:
            raise ConfigError(
                f"`{name}` is {getattr(optimizer, name)}; it is 0 or more, and below 1", f"--set optimizer.{name}=0.9"
            )
    for name in sorted({name for own in OPTIMIZERS.values() for name in own} - {"decay_rows"}):
        foreign = name not in OPTIMIZERS[optimizer.name]
        if _is_changed(optimizer, name) and (foreign or (name == "decay_power" and not optimizer.decay_rows)):
            owners = " and ".join(other for other, own in OPTIMIZERS.items() if name in own)
            raise ConfigError(
                f"`optimizer.{name}` is {getattr(optimizer, name)}, which does nothing here",
                f"it is for {owners}" + (", and needs decay_rows" if name == "decay_power" else "") + ": leave it out",
            )
    if optimizer.decay_rows and "decay_rows" not in OPTIMIZERS[optimizer.name]:
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
