"""What was asked for? Recipes, flags and `--set` become one `RunConfig`, checked before anything starts.

Flags override the recipe, `--set` overrides both. Every rule about settings, alone or together, is in this file. What a
model can do is in its entry (`models/registry.py`), and optimizers declare their own settings in their files.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from operator import attrgetter, getitem
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tomli_w

from paceline.defaults import DEFAULTS, MOST_WORKERS, with_defaults
from paceline.engines import ENGINES
from paceline.errors import BAD_TEXT, ConfigError, as_value, one_of
from paceline.models.loss_entries import LOSSES
from paceline.models.registry import ALIASES, IMAGES, Entry, check_code, find
from paceline.parameters.optimizers import OPTIMIZERS, formula_of, gpu_update_of, own_settings, updates_of
from paceline.settings import (
    FactorsConfig,
    ImageConfig,
    LossConfig,
    OptimizerConfig,
    RunConfig,
    WireConfig,
    without_old_settings,
)

T = TypeVar("T")

CHOICES = {
    "engine": tuple(ENGINES),
    "exchange": ("shard", "allreduce"),
    "device": ("cpu", "cuda"),
    "precision": ("float32", "bfloat16"),
    "track": ("mlflow",),
    "loss.name": tuple(LOSSES),
    "loss.class_weight": ("balanced",),
    "optimizer.name": tuple(OPTIMIZERS),
    "factors.optimizer": ("adagrad", "sgd"),
    "wire.pull": ("keys", "all"),
    "wire.values": ("float32", "float16", "bfloat16"),
}
TYPES = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}
# What a run that starts from another one's model does not take over from its settings: which rows are trained on.
OF_DATA = ("data", "run", "train_rows", "start_from")
# Nor these, if the engine or the pace is another one now: they were chosen for it.
OF_ENGINE = ("workers", "shards", "batch_size", "address", "wire")
OF_PACE = ("batch_size",)
# Nor these, if any of them is given.
LIMITS = ("epochs", "steps", "seconds")
SEE_HELP = "see `paceline train --help`"
MOST_RECIPE_BYTES = 1 << 20
MOST_PORT = 65_535
MOST_CLOCKS_AHEAD = 10**9
LARGEST_FLOAT32 = 3.4028234663852886e38
MOST_FACTORS = 64
SECTIONS: dict[str, type[msgspec.Struct]] = {
    "loss": LossConfig, "optimizer": OptimizerConfig, "factors": FactorsConfig, "images": ImageConfig,
    "wire": WireConfig,
}  # fmt: skip
# A new run gets this one if nobody says otherwise.
DEFAULT_MODEL = "linear"
# Flags that set a key of a section; all others set the top-level key of their name.
SETTING_OF_FLAG = {name: f"optimizer.{name}" for name in ("learning_rate", "momentum", "l1", "l2")}
SETTING_OF_FLAG |= {"optimizer": "optimizer.name", "loss": "loss.name", "class_weight": "loss.class_weight"}
SETTING_OF_FLAG["dim"] = "factors.dim"


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
    tree = read_recipe(path)
    try:
        return settings_of_run(tree)
    except ConfigError as error:
        raise ConfigError(f"{error.message} in `{path}`", "use the version of paceline that made this run") from None


def settings_of_run(tree: dict[str, Any]) -> RunConfig:
    """The settings of a run of any version: those that its version did not have are at their defaults.

    Runs list the settings of all optimizers, but those of others than their own mean nothing.
    """
    config = _convert(without_old_settings(tree))
    optimizer = config.optimizer
    used = formula_of(optimizer.name).settings if optimizer.name in OPTIMIZERS else {}
    own = {name: value for name, value in optimizer.own.items() if name in used}
    return msgspec.structs.replace(config, optimizer=msgspec.structs.replace(optimizer, own=own))


def config_of(tree: dict[str, Any], flags: Mapping[str, Any], settings: Iterable[str] = (),
              varied: Mapping[str, Any] | None = None) -> RunConfig:  # fmt: skip
    """The checked configuration of a recipe's tree, which is changed; `varied` settings (section.key) override all.

    Settings that are still missing then, and depend on others, get their defaults (`defaults.py`).
    """
    tree.pop("chosen", None)  # the config.toml of a run gives all settings
    overrule(tree, flags, settings, varied or {})
    if "chosen" in tree:
        raise ConfigError("`chosen` cannot be set: it lists the settings that nobody gave", "leave it out")
    before: RunConfig | None = None
    if isinstance(run := tree.get("start_from"), str) and run:
        before = _settings_before(Path(run), tree)
        tree = _over(before, tree)
    tree.setdefault("model", DEFAULT_MODEL)
    if "epochs" not in tree and ("steps" in tree or "seconds" in tree):
        tree["epochs"] = 0
    config = check(_convert(tree))
    if before is not None:
        # Not at the top: it loads NumPy, and few runs need it.
        from paceline.models.start import start_from

        _check_start(config, before)
        config = msgspec.structs.replace(config, start=start_from(Path(config.start_from)))
    return with_defaults(config, tree)


def _settings_before(run: Path, tree: Mapping[str, Any]) -> RunConfig:
    """The settings of a run from whose model another one starts."""
    path = run / "config.toml"
    if not path.is_file():
        problem = "is not a run folder: it has no config.toml" if run.exists() else "does not exist"
        raise ConfigError(f"`{run}` {problem}", "--from RUN, a folder that `paceline train` made")
    if "job" in read_recipe(path):
        raise ConfigError(f"`{run}` is not a run of `train`", "--from RUN, a folder that `paceline train` made")
    before = load_config(path)
    check_code(run, before.model, str(tree.get("model", "")), f"--model {before.model}")
    return before


def _over(before: RunConfig, tree: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an earlier run, and over them those of `tree`."""
    merged = tree_of(before)
    own = formula_of(before.optimizer.name).settings
    chosen = {*before.chosen} & {*DEFAULTS}
    dropped = {*OF_DATA, *chosen, *(LIMITS if {*LIMITS} & {*tree, *chosen} else ())}
    for name, others in (("engine", OF_ENGINE), ("pace", OF_PACE)):
        dropped |= {*others} if str(tree.get(name, merged[name])) != str(merged[name]) else set()
    merged = {name: value for name, value in merged.items() if name not in dropped}
    section = tree.get("optimizer")
    if isinstance(section, dict) and section.get("name", before.optimizer.name) != before.optimizer.name:
        merged["optimizer"] = {name: value for name, value in merged["optimizer"].items() if name not in own}
    for name, value in tree.items():
        both = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = merged[name] | value if both else value
    return merged


def _check_start(config: RunConfig, before: RunConfig) -> None:
    """Refuse another model than that of the run from which this one starts."""
    for name in ("model", "factors.dim", "images.crop", *(f"loss.{name}" for name in LossConfig.__struct_fields__)):
        was, now = (attrgetter(name)(one) for one in (before, config))
        if ALIASES.get(was, was) != ALIASES.get(now, now):
            flag = name.removeprefix("factors.").removesuffix(".name")
            raise ConfigError(
                f"`{flag}` is {as_value(now)}, but the model of `{config.start_from}` was trained with {as_value(was)}",
                "leave it out, or train without --from",
            )


def overrule(tree: dict[str, Any], flags: Mapping[str, Any], settings: Iterable[str],
             varied: Mapping[str, Any]) -> None:  # fmt: skip
    """Put flags, then `--set`, then `varied` settings into a recipe's tree."""
    if isinstance(tree.get("loss"), str):
        # Short for a section with that name.
        tree["loss"] = {"name": tree["loss"]}
    given = [(SETTING_OF_FLAG.get(name, name), value) for name, value in flags.items()]
    for setting, value in (*given, *map(_read_setting, settings), *varied.items()):
        name = "loss.name" if setting == "loss" else setting
        section, dot, key = name.rpartition(".")
        part = tree.setdefault(section, {}) if dot else tree
        if not isinstance(part, dict):
            raise ConfigError(f"`{name}` is set, but `{section}` is not a section", f"set {section} itself")
        part[key] = str(value) if isinstance(value, Path) else value


def to_toml(config: RunConfig) -> bytes:
    """The configuration as `config.toml` holds it."""
    return encode_toml(tree_of(config))


def encode_toml(tree: Mapping[str, Any]) -> bytes:
    """A tree of settings as a TOML file."""
    text = tomli_w.dumps(tree)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        line = text[: error.start].count("\n")
        raise ConfigError(
            f"`{text.splitlines()[line]}` is not UTF-8", "use other names for files and folders"
        ) from None


def tree_of(config: RunConfig) -> dict[str, Any]:
    """The configuration as a recipe's tree: all settings, the optimizers' own next to the others of that section."""
    tree: dict[str, Any] = msgspec.to_builtins(config)
    del tree["start"]
    own = tree["optimizer"].pop("own")
    defaults = own_settings(config.optimizer.name).items()
    tree["optimizer"] |= {name: own.get(name, setting.default) for name, setting in defaults}
    return tree


def read_recipe(path: Path) -> dict[str, Any]:
    """What a recipe says, unchecked."""
    try:
        # Not whole: it may be a device, which never ends.
        with path.open("rb") as file:
            content = file.read(MOST_RECIPE_BYTES + 1)
        if len(content) > MOST_RECIPE_BYTES:
            raise ConfigError(f"recipe `{path}` has more than {MOST_RECIPE_BYTES >> 20} MiB", "give a TOML file")
        return tomllib.loads(content.decode())
    except OSError as error:
        hint = f"for a dataset, --data {path}" if path.is_dir() else "give the path of a TOML file"
        raise ConfigError(f"recipe `{path}` cannot be read: {error.strerror}", hint) from None
    except BAD_TEXT as error:
        raise ConfigError(f"recipe `{path}` is not TOML: {error}", 'strings need quotes: pace = "async"') from None


def _read_setting(setting: str) -> tuple[str, Any]:
    """The name and the value of a `--set` argument. What is not TOML is a string."""
    name, equals, text = setting.partition("=")
    path = name.strip().split(".")
    if not equals or not all(path) or len(path) > 2:
        raise ConfigError(f"`--set {setting}` is not KEY=VALUE", "for example --set optimizer.beta=0.5")
    try:
        return name.strip(), tomllib.loads(f"value = {text}")["value"]
    except BAD_TEXT:
        return name.strip(), text.strip()


def _convert(tree: dict[str, Any]) -> RunConfig:
    refuse_unknown(tree, RunConfig, "")
    for section, kind in SECTIONS.items():
        if not isinstance(tree.get(section, {}), dict):
            hint = f"write its settings below a line [{section}]: {', '.join(_names_in(kind))}"
            raise ConfigError(f"`{section}` is `{tree[section]}`, but must be a section of a recipe", hint)
        refuse_unknown(tree.get(section, {}), kind, f"{section}.")
    tree = {**tree, "optimizer": _with_own(tree.get("optimizer", {}))}
    pace = tree.get("pace")
    if isinstance(pace, str) and re.fullmatch(r"[+-]?[0-9]{1,18}", pace):
        tree = {**tree, "pace": int(pace)}
    return converted(tree, RunConfig, SEE_HELP)


def _with_own(section: Mapping[str, Any]) -> dict[str, Any]:
    """The section `optimizer` as `OptimizerConfig` has it: the optimizers' own settings apart, without defaults."""
    others = {name: value for name, value in section.items() if name in OptimizerConfig.__struct_fields__}
    if others == section:
        return others
    declared = own_settings(str(section.get("name", OptimizerConfig().name)))
    own = {name: converted(section[name], float, SEE_HELP, f"optimizer.{name}") for name in declared if name in section}
    return others | {"own": {name: value for name, value in own.items() if value != declared[name].default}}


def converted(tree: Any, kind: type[T], hint: str, prefix: str = "") -> T:
    """Settings, or the one that `prefix` names, as a `kind`; `ConfigError` names the one whose type is wrong."""
    tree = plain(tree)
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        path = where.strip("`$").lstrip(".")
        name = prefix + path
        expected = re.match(r"Expected `([a-z |]+)`, got", what)
        if name and expected and {*expected[1].split(" | ")} <= {*TYPES}:
            wanted = one_of([TYPES[kind] for kind in expected[1].split(" | ")])
            value = reduce(getitem, path.split(".") if path else [], tree)
            raise ConfigError(f"`{name}` is {as_value(value)}; it must be {wanted}", hint) from None
        said = f"{what[:1].lower()}{what[1:]}"
        raise ConfigError(f"`{name}`: {said}" if name else said, hint) from None


def plain(value: Any) -> Any:
    """The same with Python's own numbers and lists in place of NumPy's, which callers from Python may have.

    >>> import numpy as np
    >>> plain({"workers": np.int64(4), "bins": {"age": np.array([18.0, 65.0])}})
    {'workers': 4, 'bins': {'age': [18.0, 65.0]}}
    """
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def refuse_unknown(tree: Mapping[str, Any], kind: type[msgspec.Struct], prefix: str) -> None:
    """Raise for the first name that settings of this kind do not have."""
    for name in tree:
        if name not in _names_in(kind):
            known = [*_names_in(kind)]
            places = {prefix + other: other for other in known}
            if kind is RunConfig:
                places |= {f"{s}.{other}": other for s, part in SECTIONS.items() for other in _names_in(part)}
            near = difflib.get_close_matches(name, places.values(), n=1, cutoff=0.5)
            found = [place for place, other in places.items() if other in near]
            hint = f"did you mean `{found[0]}`?" if found else f"known are {', '.join(known)}"
            raise ConfigError(f"unknown setting `{prefix}{name}`", hint)


def _names_in(kind: type[msgspec.Struct]) -> Iterator[str]:
    """The names of the settings of this kind, as recipes have them. Those that need NumPy to be loaded come last."""
    yield from (name for name in kind.__struct_fields__ if name not in ("own", "start"))
    if kind is OptimizerConfig:
        yield from own_settings(OptimizerConfig().name)


def check(config: RunConfig) -> RunConfig:
    """Raise the first thing that is wrong with a configuration, else return it."""
    if not config.data:
        raise ConfigError("no data to train on", "--data DIR, a folder made by `paceline prepare` or `generate`")
    entry = find(config.model)
    _check_choices(config)
    _check_pace(config.pace)
    _check_least(config, 1, "workers", "shards", "batch_size")
    _check_least(config, 0, "train_rows", "epochs", "steps", "seconds", "test_every", "checkpoint_every", "seed",
                 "early_stopping")  # fmt: skip
    if not 0 <= config.resident <= 1:
        raise ConfigError(f"`resident` is {as_value(config.resident)}; it must be from 0 to 1", "--set resident=1.0")
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
        message = f"`optimizer` is `{config.optimizer.name}`, which cannot train the model `{config.model}`"
        raise ConfigError(message, f"--optimizer {one_of(entry.optimizers)}")
    for name in ("exchange", "device", "precision"):
        value, allowed = getattr(config, name), getattr(entry, f"{name}s")
        if value not in allowed:
            message = f"`{name}` is `{value}`; the model `{config.model}` takes {one_of(allowed)}"
            raise ConfigError(message, f"leave {name} out, or choose another model")
    if entry.input != IMAGES and config.images != ImageConfig():
        raise ConfigError(f"`images` is set, but the model `{config.model}` learns from {entry.input}", "leave it out")
    if config.images.crop < 0:
        raise ConfigError(f"`images.crop` is {config.images.crop}; it must be at least 0", "--set images.crop=224")
    _check_loss(config, entry)
    if not entry.has_factors and (changed := _changed(config.factors)):
        message = f"`factors.{changed[0]}` is set, but the model `{config.model}` has no factors"
        raise ConfigError(message, "--model fm, or leave it out")
    _check_factors(config.factors)
    _check_keyed(config, entry.keyed)
    _check_gpu(config, entry)
    if config.exchange == "allreduce":
        _check_allreduce(config)


def _check_loss(config: RunConfig, entry: Entry) -> None:
    """Refuse a loss that the model cannot have, and settings of other losses. Without a name, the labels decide."""
    loss = config.loss
    if loss.name and loss.name not in entry.losses:
        message = f"`loss` is `{loss.name}`; the model `{config.model}` is trained with {one_of(entry.losses)}"
        raise ConfigError(message, "leave --loss out, or choose another model")
    if loss.class_weight and not entry.class_weights:
        message = f"`class_weight` is `{loss.class_weight}`; the model `{config.model}` has no class weights"
        raise ConfigError(message, "leave --class-weight out")
    used = LOSSES[loss.name].settings if loss.name else {}
    for name in (name for name in _changed(loss) if name not in ("name", "class_weight")):
        value = getattr(loss, name)
        if name not in used:
            owners = one_of([other for other, entry in LOSSES.items() if name in entry.settings])
            what = f"but the loss `{loss.name}` does not use it" if loss.name else "but no loss is named"
            raise ConfigError(f"`loss.{name}` is {as_value(value)}, {what}", f"leave it out, or --loss {owners}")
        setting = used[name]
        if not (setting.above < value < setting.below and value <= LARGEST_FLOAT32):
            limit = f"above {setting.above:g}"
            limit = f"{limit} and below {setting.below:g}" if math.isfinite(setting.below) else _limit(value, limit)
            message = f"`loss.{name}` is {as_value(value)}; it must be {limit}"
            raise ConfigError(message, f"--set loss.{name}={setting.default:g}")


def _check_factors(factors: FactorsConfig) -> None:
    if not 1 <= factors.dim <= MOST_FACTORS:
        raise ConfigError(f"`dim` is {factors.dim}; it must be from 1 to {MOST_FACTORS}", "--dim 8 is usual")
    for name in ("learning_rate", "initial"):
        value = getattr(factors, name)
        if not 0 < value <= LARGEST_FLOAT32:
            message = f"`factors.{name}` is {as_value(value)}; it must be {_limit(value, 'above 0')}"
            raise ConfigError(message, f"--set factors.{name}={getattr(FactorsConfig(), name)}")
    _check_least(factors, 0, "l2", prefix="factors.")


def _check_keyed(config: RunConfig, keyed: bool) -> None:
    """What tables of parameters by key cannot have, and what only they have."""
    for name, value in config.optimizer.own.items():
        if keyed and formula_of(config.optimizer.name).settings[name].dense_only:
            message = f"`{_shown(name)}` is {as_value(value)}, but the model `{config.model}` does not use it"
            raise ConfigError(message, "leave it out, or --model softmax")
    if not keyed and config.optimizer.l1:
        message = f"`l1` is {as_value(config.optimizer.l1)}, but the model `{config.model}` has no table of keys"
        raise ConfigError(message, "leave it out; --l2 is weight decay")
    changed = [name for name in _changed(config.wire) if name in ("pull", "key_deltas", "values")]
    if not keyed and changed:
        raise ConfigError(f"`wire.{changed[0]}` is set, but `{config.model}` has no table of keys", "leave it out")


def _check_gpu(config: RunConfig, entry: Entry) -> None:
    """Refuse what cannot update parameters on a GPU. Shards update them on the CPU, so that workers may be as usual."""
    on_shards = ENGINES[config.engine].has_processes and config.exchange == "shard"
    if config.device == "cpu" or on_shards:
        return
    if entry.keyed:
        _check_table_on_gpu(config)
    gpu_update_of(config.optimizer, by_key=entry.keyed)


def _check_table_on_gpu(config: RunConfig) -> None:
    """What runs over sparse rows cannot have if their table is on a GPU."""
    if config.workers != 1:
        raise ConfigError(
            f"`workers` is {config.workers}, but one worker trains sparse rows on a GPU, thousands at a time",
            "--workers 1, or --engine ray, where each worker has a GPU",
        )
    if config.pace not in ("sync", "async"):
        raise ConfigError(
            f"`pace` is {config.pace}; sparse rows on a GPU take sync or async", "--pace async, or --engine ray"
        )
    if config.optimizer.l1 and config.pace == "async" and updates_of(config.optimizer).weight is None:
        raise ConfigError(
            f"`l1` is {config.optimizer.l1}, but {config.optimizer.name} cannot apply it at pace async on a GPU",
            "--optimizer ftrl, or --pace sync",
        )


def _check_allreduce(config: RunConfig) -> None:
    for name in ("tls", "mac"):
        if getattr(config.wire, name):
            message = f"`wire.{name}` is set, but gloo and NCCL (`allreduce`) neither encrypt nor authenticate"
            raise ConfigError(message, "--exchange shard")
    if not ENGINES[config.engine].has_processes:
        raise ConfigError(
            f"`allreduce` needs several processes; the engine `{config.engine}` has only one", "--engine ray"
        )
    if config.pace != "sync":
        raise ConfigError(f"`allreduce` is for sync, but the pace is `{config.pace}`", "--pace sync")
    if config.shards != 1:
        raise ConfigError(f"`shards` is {config.shards}, but `allreduce` has no shards", "leave --shards out")


def _changed(section: msgspec.Struct) -> list[str]:
    """The settings of a section that differ from their defaults."""
    default = type(section)()
    return [name for name in section.__struct_fields__ if getattr(section, name) != getattr(default, name)]


def _check_engine(config: RunConfig) -> None:
    """Refuse what only a cluster has if there is one process."""
    if config.shards > MOST_WORKERS:
        raise ConfigError(f"`shards` is {config.shards}; the limit is {MOST_WORKERS}", "--shards 2")
    last_port = MOST_PORT - 1 - config.shards
    if not 0 <= config.wire.port <= last_port:
        message = f"`wire.port` is {config.wire.port}; it must be 0 for any free one, or 1 to {last_port}"
        raise ConfigError(message, "--set wire.port=7000")
    if ENGINES[config.engine].has_processes:
        return
    if config.shards != 1:
        raise ConfigError(f"`shards` is {config.shards}; the engine `local` has one", "--engine ray, or leave it out")
    if config.address:
        raise ConfigError(f"`address` is `{config.address}`, but the engine is `local`", "--engine ray joins a cluster")
    if changed := _changed(config.wire):
        raise ConfigError(
            f"`wire.{changed[0]}` is for processes of a cluster, but the engine is `local`",
            "leave it out, or --engine ray",
        )


def _check_pace(pace: str | int) -> None:
    if pace not in ("sync", "async") and not (isinstance(pace, int) and 1 <= pace <= MOST_CLOCKS_AHEAD):
        near = difflib.get_close_matches(str(pace).lower(), ("sync", "async"), n=1)
        hint = f"did you mean `--pace {near[0]}`?" if near else "`--pace async` never waits, `--pace sync` always does"
        message = f"`pace` is `{pace}`; it must be `sync`, `async`, or how many steps a worker may run ahead (1, 2, …)"
        raise ConfigError(message, hint)


def _check_optimizer(optimizer: OptimizerConfig) -> None:
    rate = optimizer.learning_rate
    if not 0 < rate <= LARGEST_FLOAT32:
        hint = "--learning-rate 0.05 is usual"
        raise ConfigError(f"`learning_rate` is {as_value(rate)}; it must be {_limit(rate, 'above 0')}", hint)
    _check_least(optimizer, 0, "l1", "l2")
    _check_least(optimizer, 0, "decay_rows", "decay_power", prefix="optimizer.")
    for name, value in optimizer.own.items():
        if (setting := formula_of(optimizer.name).settings.get(name)) is None:
            message = f"`optimizer.{name}` is {as_value(value)}, but {optimizer.name} does not use it"
            owners = " and ".join(other for other in OPTIMIZERS if name in formula_of(other).settings)
            raise ConfigError(message, f"leave it out: it is for {owners}")
        if not (setting.least <= value < setting.below and value <= LARGEST_FLOAT32):
            limit = f"at least {setting.least:g}"
            limit = f"{limit} and below {setting.below:g}" if math.isfinite(setting.below) else _limit(value, limit)
            message = f"`{_shown(name)}` is {as_value(value)}; it must be {limit}"
            raise ConfigError(message, f"--set optimizer.{name}={setting.default:g}")
    decay = [name for name in _changed(optimizer) if name in ("decay_rows", "decay_power")]
    if decay and not (formula_of(optimizer.name).decays and optimizer.decay_rows):
        given = as_value(getattr(optimizer, decay[0]))
        message = f"`optimizer.{decay[0]}` is {given}, but {optimizer.name} does not use it"
        owners = " and ".join(name for name in OPTIMIZERS if formula_of(name).decays)
        raise ConfigError(message, f"leave it out: decay_rows is for {owners}, and decay_power needs decay_rows")


def _shown(name: str) -> str:
    """How messages call an optimizer's own setting: as its flag, if it has one."""
    return name if name in SETTING_OF_FLAG else f"optimizer.{name}"


def _check_choices(config: RunConfig) -> None:
    for name, choices in CHOICES.items():
        value, default = attrgetter(name)(config), attrgetter(name)(RunConfig())
        if value not in (*choices, default):
            near = difflib.get_close_matches(value, choices, n=1)
            usual = f"the default is `{default}`" if default else "leave it out"
            hint = f"did you mean `{near[0]}`?" if near else usual
            shown = name.removesuffix(".name")
            raise ConfigError(f"`{shown}` is `{value}`; it must be one of {', '.join(choices)}", hint)


def _check_least(section: msgspec.Struct, least: int, *names: str, prefix: str = "") -> None:
    """Refuse settings below `least`, and those that are not finite. With a `prefix` they have no flag."""
    for name in names:
        value = getattr(section, name)
        if not least <= value <= LARGEST_FLOAT32:
            usual = as_value(getattr(type(section)(), name))
            hint = f"--set {prefix}{name}={usual}" if prefix else f"--{name.replace('_', '-')} {usual}"
            limit = _limit(value, f"at least {least}")
            raise ConfigError(f"`{prefix}{name}` is {as_value(value)}; it must be {limit}", hint)


def _limit(value: float, lower: str) -> str:
    """The limit that a value breaks: `lower`, or the largest number in float32."""
    return f"at most {LARGEST_FLOAT32:g}" if value > LARGEST_FLOAT32 else lower
