"""Which runs does a recipe ask for?

A sweep's recipe is a recipe of `paceline train` with two more parts: `[sweep]`, a list of values for each setting that
varies, and `[[points]]`, tables of settings that go together. Every point is combined with every value.

    data = "data/clicks"
    [sweep]
    pace = ["sync", "async"]
    batch_size = [100, 1000]

With `job = "trace"` the settings are those of `paceline trace`. With `ops = true`, the operations of a gradient step
are timed after each run, as `paceline diagnose --ops` does.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from paceline.config import SETTING_OF_FLAG, config_of, overrule, plain, read_recipe
from paceline.errors import ConfigError, as_value, one_of
from paceline.matrices.settings import TraceSettings, trace_settings_of
from paceline.models.registry import find
from paceline.run_folder import TRAIN, flat
from paceline.settings import RunConfig

MOST_POINTS = 1000
LONGEST_NAME = 200
JOBS = (TRAIN, "trace")


class Point(NamedTuple):
    """One run of a sweep: what varies, all settings, and whether to time the operations of a step."""

    settings: dict[str, Any]
    config: RunConfig | TraceSettings
    ops: bool = False

    @property
    def defaulted(self) -> frozenset[str]:
        """Settings that the recipe does not give and that another machine or version may choose differently."""
        return frozenset(self.config.chosen) if isinstance(self.config, RunConfig) else frozenset()

    @property
    def name(self) -> str:
        """The name for people.

        >>> Point({"pace": "async", "batch_size": 100}, RunConfig()).name
        'pace=async, batch_size=100'
        """
        return ", ".join(f"{key}={value}" for key, value in self.settings.items())

    @property
    def folder(self) -> str:
        """The name of its folder.

        >>> Point({"pace": "async", "optimizer.l2": 0.5}, RunConfig()).folder
        'pace-async_optimizer.l2-0.5'
        """
        words = "_".join(f"{key}-{value}" for key, value in self.settings.items()) or "only"
        name = re.sub(r"[^\w.\-]+", "-", words)
        if name == words and len(name.encode()) <= LONGEST_NAME:
            return name
        # What was left out may be the only difference.
        return f"{name[: LONGEST_NAME // 4]}-{hashlib.sha256(words.encode()).hexdigest()[:8]}"


def read_sweep(source: Path | Mapping[str, Any], flags: Mapping[str, Any], settings: Sequence[str] = ()) -> list[Point]:
    """All points of a recipe, a file or what such a file says, checked. Flags and `--set` apply to each."""
    if isinstance(source, Path):
        tree, recipe = read_recipe(source), f"`{source}`"
    else:
        tree, recipe = copy.deepcopy(plain(source)), "the recipe"
    grid, points = tree.pop("sweep", {}), tree.pop("points", [])
    job, ops = tree.pop("job", TRAIN), tree.pop("ops", False)
    if job not in JOBS:
        raise ConfigError(f"`job` in {recipe} is {as_value(job)}; it must be {one_of(JOBS)}", f'job = "{JOBS[-1]}"')
    if not isinstance(ops, bool):
        raise ConfigError(f"`ops` in {recipe} is {as_value(ops)}; it must be true or false", "ops = true")
    given = {*flags, *(setting.partition("=")[0].strip() for setting in settings)}
    combined = _combined(recipe, grid, points, given)
    found = [_point(job, ops, tree, varied, flags, list(settings)) for varied in combined]
    names = [point.folder for point in found]
    for point in found:
        if names.count(point.folder) > 1:
            raise ConfigError(f"{recipe} asks for {point.name} more than once", "remove one")
    return found


def _combined(recipe: str, grid: Any, points: Any, given: set[str]) -> list[dict[str, Any]]:
    """Every point with every combination of the grid's values."""
    if not grid and not points:
        raise ConfigError(f"{recipe} varies nothing", 'a table [sweep] lists values: pace = ["sync", "async"]')
    if not isinstance(points, list) or not all(isinstance(point, dict) and point for point in points):
        raise ConfigError(f"`points` in {recipe} is not a list of tables", "[[points]], then settings, for each")
    lists = flat(grid if isinstance(grid, dict) else {"sweep": grid})
    for key, values in lists.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"`sweep.{key}` is {as_value(values)}; it must be a list of values", f"{key} = [1, 2, 4]")
    in_points = {key for point in points for key in flat(point)}
    if twice := sorted(in_points & {*lists}):
        raise ConfigError(f"{recipe} has `{twice[0]}` in [[points]] and in [sweep]", "remove one of them")
    if set_too := sorted(given & {*lists, *in_points}):
        hint = "change the recipe, or leave the setting out"
        raise ConfigError(f"{recipe} varies `{set_too[0]}`, so it cannot be set", hint)
    count = max(1, len(points)) * math.prod(map(len, lists.values()))
    if count > MOST_POINTS:
        raise ConfigError(f"{recipe} asks for {count:,} runs; the limit is {MOST_POINTS:,}", "vary less")
    return [
        {**flat(point), **dict(zip(lists, values, strict=True))}
        for point in points or [{}]
        for values in itertools.product(*lists.values())
    ]


def _point(job: str, ops: bool, tree: Mapping[str, Any], varied: dict[str, Any], flags: Mapping[str, Any],
           settings: list[str]) -> Point:  # fmt: skip
    whole = copy.deepcopy(dict(tree))
    config: RunConfig | TraceSettings
    try:
        if job == TRAIN:
            config = config_of(whole, flags, settings, varied)
            name, has_operations = config.model, bool(find(config.model).operations)
        else:
            overrule(whole, flags, settings, varied)
            config = trace_settings_of(whole)
            name, has_operations = job, False
        if ops and not has_operations:
            raise ConfigError(f"the operations of a step of `{name}` cannot be timed", "leave `ops` out of the recipe")
        return Point(varied, config, ops)
    except ConfigError as error:
        name = Point(varied, RunConfig()).name
        raise ConfigError(f"point {name}: {error.message}", for_recipes(error.hint)) from None


def for_recipes(hint: str) -> str:
    """A hint with settings as recipes have them, instead of the flags of `train`.

    >>> for_recipes("--batch-size 100, or --set wire.port=7000; --pace sync")
    'batch_size = 100, or wire.port = 7000; pace = "sync"'
    """

    def setting(found: re.Match[str]) -> str:
        name = found["key"] or found["flag"].replace("-", "_")
        value = found["set"] or found["value"]
        quoted = value if re.fullmatch(r"[-\d.]+|[A-Z]+|true|false", value) else f'"{value}"'
        return f"{SETTING_OF_FLAG.get(name, name)} = {quoted}"

    return re.sub(
        r"--set (?P<key>[\w.]+)=(?P<set>[\w.]+)|--(?P<flag>(?!data|address)[\w-]+) (?P<value>[\w.]+)", setting, hint
    )
