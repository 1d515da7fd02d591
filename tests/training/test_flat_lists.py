"""A flat list that stands for a tree is paired by the order in which the tree was written, or refused."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import opstage
from opstage import Aux, Options, Param, ScalarModuleDef, init
from opstage.ops.errors import ShapeError, UsageError
from opstage.ops.tied_parameters import Places
from opstage.ops.trees import flatten, written_order
from opstage.training.parameters import get_values, make_params, set_values, sgd_step


@dataclass
class Layer:
    w: Any
    b: Any


class Pair(NamedTuple):
    w: Any
    b: Any


def counted(make: Callable[[Any, Any, Any], Any]) -> Any:
    """A tree of three vectors, which hold their numbers in the order in which they are written."""
    return make(*[np.full(2, float(i)) for i in range(3)])


TREES = {
    "dict": counted(lambda a, b, c: {"w": a, "m": b, "b": c}),
    "sorted dict": counted(lambda a, b, c: {"a": a, "b": b, "c": c}),
    "nested dicts": counted(lambda a, b, c: {"z": {"w": a, "b": b}, "a": c}),
    "list of dicts": counted(lambda a, b, c: [{"w": a, "b": b}, c]),
    "dict of lists": counted(lambda a, b, c: {"w": [a, b], "b": (c,)}),
    "ordered dict": counted(lambda a, b, c: OrderedDict(w=a, m=b, b=c)),
    "default dict": counted(lambda a, b, c: defaultdict(list, {"w": a, "m": b, "b": c})),
    "dataclass": counted(lambda a, b, c: {"z": Layer(a, b), "a": c}),
    "named tuple": counted(lambda a, b, c: {"z": Pair(a, b), "a": c}),
    "with None": counted(lambda a, b, c: {"w": a, "n": None, "m": b, "b": c}),
}
PLAN = [init.flat([float(i)] * 2) for i in range(3)]


def total(ops: Any, params: Any) -> Any:
    return sum((ops.sum(leaf) for leaf in flatten(params)[0][1:]), ops.sum(flatten(params)[0][0]))


def equal(made: Any, tree: Any) -> bool:
    (leaves, structure), (others, expected) = flatten(made), flatten(tree)
    return structure == expected and all(np.array_equal(a, b) for a, b in zip(leaves, others))


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_a_list_goes_by_the_order_in_which_the_tree_was_written(tree: Any) -> None:
    leaves, structure = flatten(tree)
    assert [leaves[i][0] for i in written_order(structure)] == [0.0, 1.0, 2.0]
    assert equal(init.Plan(PLAN).materialise(tree), tree)
    definition = ScalarModuleDef(tree, total)
    assert equal(definition.instantiate_with_init(Options(), PLAN).params(), tree)
    for at in range(3):
        flags = [i != at for i in range(3)]
        trainers = [
            definition.instantiate(requires_grad=flags).trainer,
            definition.instantiate_with(lambda x: x, requires_grad=flags).trainer,
            definition.instantiate_with_init(Options(), PLAN, requires_grad=flags).trainer,
            opstage.scalar_trainer(total, tree, requires_grad=flags),
            opstage.scalar_trainer(total, make_params(tree), requires_grad=flags),
        ]
        for made in [make_params(tree, requires_grad=flags), *[each.params for each in trainers]]:
            assert [param.value[0] for param in flatten(made)[0] if not param.requires_grad] == [float(at)]
    params = make_params(tree)
    set_values(params, init.Plan([init.ones] * 3))
    set_values(params, init.Plan(PLAN))  # of params that were made, whose order is that of their tree
    assert equal(get_values(params), tree)


def test_a_tied_parameter_counts_where_it_was_written_first() -> None:
    tied, other = Param(np.zeros(2)), Param(np.zeros(2))
    tree = {"z": tied, "y": other, "a": tied}
    places = Places.of(tree)
    assert places.paths == ("a", "y", "z")
    assert places.columns(["tied", "other"]) == ["tied", "other", "tied"]
    assert places.columns(["z", "y", "a"]) == ["a", "y", "z"]
    assert places.columns(["one"]) is None
    set_values(tree, init.Plan([init.ones, init.zeros]))
    assert tied.value.tolist() == [1.0, 1.0] and other.value.tolist() == [0.0, 0.0]


TWO = {"w": np.ones(2), "b": np.zeros(2)}
LIST = [np.ones(2), np.zeros(2)]


def with_state(ops: Any, params: Any, state: Any) -> Any:
    return ops.sum(params["w"]) + ops.sum(params["b"]), Aux(state=state)


REFUSALS: dict[str, Callable[[], Any]] = {
    "set_params": lambda: opstage.scalar_trainer(total, TWO).set_params(LIST),
    "set_values": lambda: set_values(make_params(TWO), LIST),
    "set_state": lambda: opstage.scalar_trainer(with_state, TWO, state=TWO).set_state(LIST),
    "gradients": lambda: sgd_step(make_params(TWO), 0.1, LIST),
    "tangents": lambda: opstage.jvp(total, (TWO,), (LIST,)),
    "arguments of a compiled program": lambda: opstage.compile(total, TWO).forward(LIST),
    "arguments one by one": lambda: opstage.compile(total, TWO).forward(*LIST),
    "a short plan": lambda: init.Plan(PLAN[:1]).materialise(TWO),
    "short flags": lambda: opstage.scalar_trainer(total, TWO, requires_grad=[True]),
}


@pytest.mark.parametrize("door", REFUSALS.values(), ids=REFUSALS)
def test_a_list_of_values_for_a_dict_is_refused(door: Callable[[], Any]) -> None:
    with pytest.raises((UsageError, ShapeError)):
        door()


def test_a_report_counts_the_parameters_that_are_trained() -> None:
    def summary(first: str) -> str:
        params = {first: np.ones(100), "b": np.ones(1)}
        trainer = opstage.scalar_trainer(
            lambda ops, p: ops.sum(p[first]) + ops.sum(p["b"]), params, requires_grad={first: True, "b": False}
        )
        return str(trainer.report()).splitlines()[-1]

    assert summary("w") == summary("a")
