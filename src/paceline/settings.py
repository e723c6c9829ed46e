"""The settings of a run, as recipes and `config.toml` have them. `config.py` reads and checks them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec


class OptimizerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How weights change. If the rate decays, it is learning_rate · (1 + rows / decay_rows) ^ −decay_power.

    `own` are the settings that only some optimizers have and that differ from their defaults. Optimizers declare them
    in their files (`parameters/optimizers/`); in recipes and `config.toml` they stand next to the others.
    """

    name: str = "adagrad"
    learning_rate: float = 0.05
    l1: float = 0.0
    l2: float = 0.0
    decay_rows: int = 0
    decay_power: float = 0.5
    own: dict[str, float] = {}

    def rate_after(self, rows: int) -> float:
        """The learning rate after this many rows of training.

        >>> OptimizerConfig(name="sgd", learning_rate=0.5, decay_rows=100, decay_power=1.0).rate_after(100)
        0.25
        """
        decay: float = (1 + rows / self.decay_rows) ** -self.decay_power if self.decay_rows else 1.0
        return self.learning_rate * decay


class LossConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What training makes small. Without a `name`, the labels of the data decide.

    `class_weight` is empty, or `balanced`: then rows of all classes together count the same in training. The others are
    settings that only some losses have (`models/loss_entries.py`).
    """

    name: str = ""
    class_weight: str = ""
    quantile: float = 0.5
    delta: float = 1.0


class ImageConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How workers change images. They cut out squares of `crop` pixels (0 for whole images): at a random place in
    training, in the centre in tests. With `flip`, they mirror every other image in training.
    """

    crop: int = 0
    flip: bool = False


class FactorsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The factors of a factorization machine: `dim` per key (and field, if it is field-aware), drawn at first from a
    normal distribution with the standard deviation `initial`.

    With `row_wise`, all factors of a key share one sum of squares of AdaGrad, which saves nearly half of their memory.
    """

    dim: int = 8
    optimizer: str = "adagrad"
    learning_rate: float = 0.02
    l2: float = 0.0
    row_wise: bool = True
    initial: float = 0.01


class WireConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the processes of a cluster send each other, and how.

    `pull` is `keys` (the weights of a batch's keys) or `all` (the whole model in every step). `port` 0 takes any free
    port; otherwise the coordinator listens on `port`, and shard s on `port` + 1 + s. If all processes are on one
    machine, dense models go through shared memory instead, unless `shared_memory` is false. `tls` encrypts
    connections; with `mac` alone, they can be read but not altered on the way.
    """

    pull: str = "keys"
    values: str = "float32"
    key_deltas: bool = False
    tls: bool = False
    mac: bool = False
    shared_memory: bool = True
    port: int = 0


Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e38)]


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What a run that starts from a model takes over from it, besides its parameters. These are not settings: they are
    in `start.json` of the run folder.

    The model, with the checksum `sha256`, has been trained on `rows` rows, in `updates` updates of its dense values. It
    has `features` keys, numbers classes as in `class_names`, and takes values with this `scaling`. Its loss has these
    `scales` (start, unit of scores, unit of slopes) and `class_weights`, which came from the labels of its first data.
    `source` says how its rows were prepared.
    """

    sha256: str = ""
    rows: Count = 0
    updates: Count = 0
    features: Count = 0
    labels: str = ""
    class_names: tuple[str, ...] = ()
    scaling: dict[str, Any] = {}
    scales: tuple[float, Positive, Positive, float] | None = None
    class_weights: tuple[Positive, ...] = ()
    source: dict[str, Any] = {}


class RunConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One training run, as `config.toml` of its folder keeps it.

    0 means no limit for `epochs`, `steps` and `seconds`; the first limit reached ends the run. `epochs` is 0 if one of
    the others is given. `train_rows` 0 means all rows. With `early_stopping` N, a run ends after N evaluations without
    a lower loss on the validation rows. `start_from` is the folder of a run whose model this one starts from. Without
    `save_optimizer`, the run's own model is kept without its optimizer's state. Sparse rows stay on a GPU if they take
    at most the share `resident` of its free memory.

    The values below are what a missing setting means in the `config.toml` of any version. A new run gets another pace,
    number of workers, batch size, number of epochs and distance of evaluations if nobody gave them: those that
    `defaults.py` chooses. `chosen` lists these settings; in a run that starts from this one, they get new defaults.
    """

    data: str = ""
    start_from: str = ""
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
    early_stopping: int = 0
    checkpoint_every: float = 60.0
    save_optimizer: bool = True
    engine: str = "local"
    address: str = ""
    shuffle: bool = True
    exchange: str = "shard"
    device: str = "cpu"
    precision: str = "float32"
    resident: float = 1.0
    seed: int = 0
    run: str = ""
    track: str = ""
    chosen: tuple[str, ...] = ()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    factors: FactorsConfig = FactorsConfig()
    images: ImageConfig = ImageConfig()
    wire: WireConfig = WireConfig()
    start: Start = Start()


def without_old_settings(tree: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run of any version, without `wire.key_cache`, which older versions had, if it was off.

    >>> without_old_settings({"wire": {"pull": "keys", "key_cache": False}})
    {'wire': {'pull': 'keys'}}
    """
    wire = tree.get("wire")
    if not isinstance(wire, dict) or wire.get("key_cache") is not False:
        return tree
    return tree | {"wire": {name: value for name, value in wire.items() if name != "key_cache"}}
