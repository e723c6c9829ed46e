"""What was asked for? Recipes, flags and `--set` become one `RunConfig`, checked before anything starts.

Flags override the recipe, `--set` overrides both. Every rule about settings, alone or together, stands in this file.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tomli_w

from paceline.errors import ConfigError

T = TypeVar("T")

# Models by name; `PACKAGE.MODULE:FUNCTION` names any other.
SPARSE_MODEL = "logistic"
MODELS = (SPARSE_MODEL, "softmax", "alexnet", "alexnet-small")
SPARSE_OPTIMIZERS = ("sgd", "adagrad", "ftrl")
DENSE_OPTIMIZERS = ("sgd", "adagrad", "adam")
OPTIMIZERS = ("sgd", "adagrad", "ftrl", "adam")
ENGINES = ("local", "ray")
EXCHANGES = ("shard", "allreduce")
DEVICES = ("cpu", "cuda")
PRECISIONS = ("float32", "bfloat16")
PULLS = ("keys", "all")
VALUES = ("float32", "float16", "bfloat16")
MOST_WORKERS = 1024
MOST_PORT = 65_535
MOST_CLOCKS_AHEAD = 10**9
LARGEST_FLOAT32 = 3.4028234663852886e38


class OptimizerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How weights change. `decay_rows` and `decay_power` are sgd's: rate · (1 + rows / decay_rows) ^ −decay_power.

    `momentum` is sgd's on dense models, `beta1` and `beta2` are adam's.
    """

    name: str = "adagrad"
    learning_rate: float = 0.05
    momentum: float = 0.0
    l1: float = 0.0
    l2: float = 0.0
    decay_rows: int = 0
    decay_power: float = 0.5
    epsilon: float = 1e-6
    beta: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.999


class ImageConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What workers make of images: squares of `crop` pixels (0 for all of it), from anywhere in training and from the
    middle in tests; and `flip`, every other one mirrored in training.
    """

    crop: int = 0
    flip: bool = False


class WireConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What goes between the processes of a cluster, and how.

    `pull` is `keys`, the weights of a batch's keys, or `all`, the whole model at every step. `port` 0 takes any free
    one; otherwise the coordinator listens there and shard s at `port` + 1 + s. Where all processes are on one machine,
    dense models go through memory that they share instead, unless `shared_memory` is false.
    """

    pull: str = "keys"
    values: str = "float32"
    key_deltas: bool = False
    key_cache: bool = False
    tls: bool = False
    shared_memory: bool = True
    port: int = 0


class RunConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One training run, as `config.toml` of its folder keeps it.

    0 means no limit for `epochs`, `steps` and `seconds`; whichever comes first ends the run. `epochs` is 1, or 0 where
    one of the others is given. `train_rows` 0: all of them.
    """

    data: str = ""
    train_rows: int = 0
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
    exchange: str = "shard"
    device: str = "cpu"
    precision: str = "float32"
    seed: int = 0
    run: str = ""
    optimizer: OptimizerConfig = OptimizerConfig()
    images: ImageConfig = ImageConfig()
    wire: WireConfig = WireConfig()

    @property
    def dense(self) -> bool:
        """Whether every value of the model takes part in every row."""
        return self.model != SPARSE_MODEL


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
            raise ConfigError(f"`{section}` is no section", f"set {section} itself")
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
            raise ConfigError(f"`--set {setting}`: `{section}` is no section", f"set {section} itself")
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
    _check_model(config)
    _check_choice("engine", config.engine, ENGINES)
    _check_choice("exchange", config.exchange, EXCHANGES)
    _check_choice("device", config.device, DEVICES)
    _check_choice("precision", config.precision, PRECISIONS)
    _check_choice("optimizer", config.optimizer.name, OPTIMIZERS)
    _check_pace(config)
    for name in ("workers", "shards", "batch_size"):
        _check(name, getattr(config, name), at_least=1)
    for name in ("train_rows", "epochs", "steps", "seconds", "test_every", "checkpoint_every", "seed"):
        _check(name, getattr(config, name), at_least=0)
    if config.epochs == 0 and not (config.steps or config.seconds):
        raise ConfigError("nothing ends this run: `epochs` is 0", "--epochs 1, --steps N or --seconds T")
    if config.workers > MOST_WORKERS:
        raise ConfigError(
            f"`workers` is {config.workers}; {MOST_WORKERS} is the most", "--workers 4, or as many as cores"
        )
    _check_engine(config)
    _check_optimizer(config.optimizer)
    _check_dense(config) if config.dense else _check_sparse(config)
    return config


def _check_model(config: RunConfig) -> None:
    module, colon, function = config.model.partition(":")
    if colon and all(part.isidentifier() for part in (*module.split("."), function)):
        return
    if colon:
        raise ConfigError(
            f"`model` is `{config.model}`; a function is PACKAGE.MODULE:FUNCTION", "--model mine.nets:build"
        )
    _check_choice("model", config.model, MODELS)


def _check_sparse(config: RunConfig) -> None:
    """What only dense models have."""
    if config.optimizer.name not in SPARSE_OPTIMIZERS:
        raise ConfigError(
            f"`optimizer` is `{config.optimizer.name}`, which is for dense models", "--optimizer adagrad or ftrl"
        )
    for name, nothing in (("exchange", "shard"), ("device", "cpu"), ("precision", "float32")):
        if getattr(config, name) != nothing:
            raise ConfigError(
                f"`{name}` is `{getattr(config, name)}`, but the model is `{config.model}`", f"leave --{name} out"
            )
    if config.images != ImageConfig():
        raise ConfigError(f"`images` is set, but the model is `{config.model}`", "leave it out, or --model softmax")
    if config.optimizer.momentum:
        raise ConfigError("`momentum` is set, which is for dense models", "leave it out, or --model softmax")


def _check_dense(config: RunConfig) -> None:
    """What dense models cannot have."""
    optimizer = config.optimizer
    if optimizer.name not in DENSE_OPTIMIZERS:
        raise ConfigError(
            f"`optimizer` is `{optimizer.name}`, which is for sparse models", "--optimizer sgd, adagrad or adam"
        )
    if optimizer.l1:
        raise ConfigError(f"`l1` is {optimizer.l1}, which is for sparse models", "leave it out; --l2 is weight decay")
    changed = [
        name
        for name in ("pull", "key_deltas", "key_cache")
        if getattr(config.wire, name) != getattr(WireConfig(), name)
    ]
    if changed:
        raise ConfigError(f"`wire.{changed[0]}` is set, but a dense model has no keys", "leave it out")
    if config.wire.values != "float32":
        raise ConfigError(f"`wire.values` is `{config.wire.values}`; dense models travel as float32", "leave it out")
    if config.images.crop < 0:
        raise ConfigError(f"`images.crop` is {config.images.crop}; it is 0 or more", "--set images.crop=224")
    if config.model == "softmax" and (config.device != "cpu" or config.precision != "float32"):
        raise ConfigError("softmax is computed on processors, in float32", "leave --device and precision out")
    if config.exchange == "allreduce":
        _check_allreduce(config)


def _check_allreduce(config: RunConfig) -> None:
    if config.model == "softmax":
        raise ConfigError("`exchange` is `allreduce`, which is PyTorch's: softmax has none", "--exchange shard")
    if config.wire.tls:
        raise ConfigError(
            "`wire.tls` is set, but `allreduce` goes over gloo or NCCL, which do not encrypt", "--exchange shard"
        )
    if config.engine == "local":
        raise ConfigError(
            "`exchange` is `allreduce`, which is between processes; the engine `local` has one",
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


def _check_engine(config: RunConfig) -> None:
    """What only a cluster has must not be asked of one process; and what goes over its wire must be known."""
    _check_choice("wire.pull", config.wire.pull, PULLS)
    _check_choice("wire.values", config.wire.values, VALUES)
    if config.shards > MOST_WORKERS:
        raise ConfigError(f"`shards` is {config.shards}; {MOST_WORKERS} is the most", "--shards 2")
    last_port = MOST_PORT - 1 - config.shards
    if not 0 <= config.wire.port <= last_port:
        raise ConfigError(
            f"`wire.port` is {config.wire.port}; it is 0 for any free one, or 1 to {last_port}", "--set wire.port=7000"
        )
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
    for name in ("momentum", "beta1", "beta2"):
        if not 0 <= getattr(optimizer, name) < 1:
            raise ConfigError(
                f"`{name}` is {getattr(optimizer, name)}; it is 0 or more, and below 1", f"--set optimizer.{name}=0.9"
            )
    owners = {
        "beta": "ftrl", "epsilon": "adagrad and adam", "decay_power": "sgd", "momentum": "sgd", "beta1": "adam",
        "beta2": "adam",
    }  # fmt: skip
    for name, owner in owners.items():
        changed = getattr(optimizer, name) != getattr(OptimizerConfig(), name)
        foreign = optimizer.name not in owner.split(" and ")
        if changed and (foreign or (name == "decay_power" and not optimizer.decay_rows)):
            raise ConfigError(
                f"`optimizer.{name}` is {getattr(optimizer, name)}, which does nothing here",
                f"it is for {owner}" + (", and needs decay_rows" if name == "decay_power" else "") + ": leave it out",
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
