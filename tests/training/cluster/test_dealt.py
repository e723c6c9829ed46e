"""The parameters of a run go to shards and come back: each once, to the shard that owns it, in the order it came in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from paceline.data.sparse.key_order import NO_COUNTS, KeyOrder
from paceline.errors import ConfigError
from paceline.parameters.layout import DenseLayout, Group, Layout, TableLayout
from paceline.settings import OptimizerConfig
from paceline.training.checkpoint import States
from paceline.training.cluster.dealt import DealtParameters
from paceline.training.cluster.messages import Fetched

ADAM = OptimizerConfig(name="adam")
Numbers = NDArray[np.float32]


class FakeLink:
    """A shard that keeps what it is given, and gives it back. Values are the first `dim` numbers of a state."""

    def __init__(self) -> None:
        self.states: dict[str, Numbers] = {}
        self.asked: list[Any] = []

    def load(self, of: str, states: Numbers) -> None:
        assert of not in self.states
        self.states[of] = states.copy()

    def fetch(self, what: str, of: str, out: Numbers, rows: int = 0) -> None:
        self.asked.append((what, of, rows))
        out[...] = self.states[of][:, : out.shape[1]]

    def ask(self, message: Any) -> None:
        self.asked.append(message)


class Case:
    """A model with some keys, hot ones among them, and some dense values, over some shards."""

    def __init__(self, features: int, dim: int, num_dense: int, shards: int, hot: list[int]) -> None:
        self.table = TableLayout(features, (Group("weight", dim, ADAM),)) if features else None
        self.dense = DenseLayout(num_dense, num_dense, ADAM) if num_dense else None
        self.order = KeyOrder(np.array(hot, np.uint64))
        model: Any = SimpleNamespace(
            layout=Layout(self.table, self.dense), initial=lambda: np.arange(num_dense, dtype=np.float32)
        )
        self.dealt = DealtParameters(model, SimpleNamespace(key_order=self.order), shards)
        self.links: list[Any] = [FakeLink() for _ in range(shards)]

    def states(self) -> States:
        """Every number is another."""
        table = None if self.table is None else numbered(self.table.num_keys, self.table.width, 0)
        return States(table, None if self.dense is None else numbered(self.dense.num_values, self.dense.width, 10**6))

    def load(self, states: States | None) -> None:
        begun = self.dealt.begin(states)
        for shard, link in enumerate(self.links):
            self.dealt.load(shard, link, begun)


def numbered(count: int, width: int, first: int) -> Numbers:
    return np.arange(first, first + count * width, dtype=np.float32).reshape(count, width)


def loaded(case: Case, name: str) -> Numbers:
    """All that shards have of one kind, one shard after the other."""
    return np.concatenate([link.states[name] for link in case.links])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    features, num_dense = draw(st.sampled_from([(0, 9), (1, 0), (7, 0), (30, 0), (7, 9), (30, 5)]))
    hot = draw(st.lists(st.integers(0, features - 1), unique=True, max_size=6)) if features else []
    most = features + 1 if features else num_dense
    return Case(features, draw(st.integers(1, 3)), num_dense, draw(st.integers(1, min(most, 5))), hot)


@given(cases())
@settings(max_examples=80, deadline=None)
def test_each_row_is_dealt_once_to_the_shard_that_owns_it(case: Case) -> None:
    case.load(case.states())
    given_out = case.states()
    if case.table is not None and given_out.table is not None:
        assert sorted(loaded(case, "table").tolist()) == given_out.table.tolist()
        keys = np.arange(case.table.num_keys, dtype=np.uint32)
        case.order.renumber(keys, NO_COUNTS)
        for key, place in enumerate(keys.tolist()):
            shard, index = place % len(case.links), place // len(case.links)
            assert case.links[shard].states["table"][index].tolist() == given_out.table[key].tolist()
    if given_out.dense is not None:
        assert loaded(case, "dense").tolist() == given_out.dense.tolist()


@given(cases())
@settings(max_examples=80, deadline=None)
def test_states_come_back_as_they_were(case: Case) -> None:
    case.load(case.states())
    room = case.dealt.room_for_states()
    # Shards are fetched from in any order, and not all at the same time.
    numbered_links = [*enumerate(case.links)]
    case.dealt.fetch_copies(numbered_links[1:], room)
    case.dealt.fetch_copies(numbered_links[:1], room)
    found, expected = case.dealt.as_states(room), case.states()
    for one, other in ((found.table, expected.table), (found.dense, expected.dense)):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert np.array_equal(one, other)
    for link in case.links:
        assert [asked[0] for asked in link.asked[:-1]] == ["copy"] * len(link.states)
        assert link.asked[-1] == Fetched()


@given(cases())
@settings(max_examples=80, deadline=None)
def test_values_to_save_are_in_the_inputs_order_and_those_to_score_with_in_the_blocks(case: Case) -> None:
    case.load(case.states())
    saved = case.dealt.as_parameters(case.dealt.fetch_values(case.links, 77), in_input_order=True)
    scored = case.dealt.as_parameters(case.dealt.fetch_values(case.links, 77), in_input_order=False)
    states = case.states()
    assert {asked[2] for link in case.links for asked in link.asked} == {77}
    assert (saved.table is None) == (case.table is None)
    if case.table is not None and saved.table is not None and scored.table is not None and states.table is not None:
        values = states.table[:, : case.table.dim]
        assert saved.table.rows.tolist() == values.ravel().tolist()
        assert scored.table.rows.tolist() == case.order.to_blocks(values.copy()).ravel().tolist()
    if states.dense is not None:
        assert saved.dense.tolist() == scored.dense.tolist() == states.dense[:, 0].tolist()
    else:
        assert saved.dense is None


def test_a_run_begins_with_the_models_tensors_and_leaves_tables_to_the_shards() -> None:
    case = Case(features=7, dim=2, num_dense=5, shards=2, hot=[6])
    case.load(None)
    assert [[*link.states] for link in case.links] == [["dense"], ["dense"]]
    assert loaded(case, "dense").tolist() == [[value, 0.0, 0.0] for value in range(5)]


def test_a_model_with_a_new_tensor_keeps_the_states_of_its_table() -> None:
    case = Case(features=3, dim=1, num_dense=2, shards=1, hot=[])
    table = case.states().table
    case.load(States(table, None))
    assert loaded(case, "table").tolist() == numbered(4, 3, 0).tolist()
    assert loaded(case, "dense").tolist() == [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]


@pytest.mark.parametrize(("features", "num_dense", "most"), [(3, 0, 4), (0, 3, 3), (3, 100, 4)])
def test_no_shard_is_without_parameters(features: int, num_dense: int, most: int) -> None:
    Case(features, 1, num_dense, most, [])
    with pytest.raises(ConfigError, match=f"`shards` is {most + 1}, but there are only {most} keys") as caught:
        Case(features, 1, num_dense, most + 1, [])
    assert caught.value.hint == "--shards 1"
