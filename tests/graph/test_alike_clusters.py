"""Clusters that are alike share a loop: it has to be the one that each of them would have got by itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.compiler.codegen.clusters import Cluster
from opstage.compiler.codegen.cpu.arguments import LoweredLoop
from opstage.compiler.codegen.cpu.kernels import AlikeClusters
from opstage.compiler.codegen.cpu.source import cluster_loop
from opstage.interpreters.graph.cpu.plan import CpuPlan, optimise
from opstage.ops.body import Equation
from opstage.transforms.derivatives import value_and_grad
from tests.graph.random_programs import random_graph

rng = np.random.default_rng(0)
SHARE = AlikeClusters.loop


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each cluster got the loop of another one; all loops are compared with their own."""
    found: list[bool] = []

    def checked(
        self: AlikeClusters, cluster: Cluster, equations: Sequence[Equation], stored: Collection[int]
    ) -> LoweredLoop:
        own = cluster.copied()
        before = len(self._known)
        loop = SHARE(self, cluster, equations, stored)
        assert loop == cluster_loop(own, equations, stored)
        assert cluster.cuts == own.cuts
        found.append(len(self._known) == before)
        return loop

    monkeypatch.setattr(AlikeClusters, "loop", checked)
    return found


def plan(program: Callable[..., Any], *arrays: Any) -> None:
    CpuPlan(optimise(opstage.record(program, *arrays, options=Options(dtype="float64")))[0].body)


def after_each_other(pair: tuple[Any, Any]) -> Callable[..., Any]:
    """The second on a product of the first, so that they are two clusters."""

    def program(ops: Any, x: Any, y: Any) -> Any:
        first, second = pair
        x = ops.matmul(first(ops, x, y), y)
        return ops.matmul(second(ops, x, y), y)

    return program


X, Y = rng.normal(size=(4, 4)), rng.normal(size=(4, 4))
ONE, TWO = (lambda o, x, y: x * y + x), (lambda o, x, y: x * y + y)

ALIKE: dict[str, tuple[Any, Any]] = {
    "sums": (ONE, ONE),
    "statics": (lambda o, x, y: o.scale(x, c=0.5) * y,) * 2,
    "rows": (lambda o, x, y: o.softmax(x),) * 2,
}
DIFFERENT: dict[str, tuple[Any, Any]] = {
    "which operand is used twice": (ONE, TWO),
    "one tensor or two": (lambda o, x, y: x * x, lambda o, x, y: x * y),
    "statics": (lambda o, x, y: o.scale(x, c=0.5) * y, lambda o, x, y: o.scale(x, c=0.25) * y),
    "the sign of 0": (lambda o, x, y: o.exp(x) * 0.0, lambda o, x, y: o.exp(x) * -0.0),
    "strides": (lambda o, x, y: o.exp(x) * y, lambda o, x, y: o.exp(x) * o.permute(y, axes=(1, 0))),
    "dtypes": (
        lambda o, x, y: o.exp(x) * y,
        lambda o, x, y: o.cast(o.exp(o.cast(x, dtype="float32")), dtype="float64"),
    ),
    "order": (lambda o, x, y: x - o.exp(y), lambda o, x, y: o.exp(y) - x),
    "what is reduced": (lambda o, x, y: o.softmax(x), lambda o, x, y: o.softmax(x, axis=0)),
}


@pytest.mark.parametrize("pair", ALIKE.values(), ids=[*ALIKE])
def test_alike_clusters_are_printed_once(pair: tuple[Any, Any], shared: list[bool]) -> None:
    plan(after_each_other(pair), X, Y)
    assert shared == [False, True]


@pytest.mark.parametrize("pair", DIFFERENT.values(), ids=[*DIFFERENT])
def test_clusters_that_differ_have_loops_of_their_own(pair: tuple[Any, Any], shared: list[bool]) -> None:
    plan(after_each_other(pair), X, Y)
    assert len(shared) >= 2 and True not in shared


def test_parts_of_a_tensor_differ_in_where_they_begin(shared: list[bool]) -> None:
    def program(ops: Any, x: Any, y: Any) -> Any:
        halves = [ops.slice(x, axis=0, start=2 * i, length=2) for i in range(2)]
        return (ops.concat([ops.matmul(ops.exp(half), y) for half in halves], axis=1),)

    plan(program, X, Y)
    assert True not in shared


def test_layers_share_loops(shared: list[bool]) -> None:
    """With the gradients of all layers."""

    def loss(ops: Any, x: Any, *weights: Any) -> Any:
        for weight in weights:
            x = x + ops.gelu(ops.layer_norm(ops.matmul(x, weight), ops.const(np.ones(4)), ops.const(np.zeros(4))))
        return ops.sum(x * x)

    def program(ops: Any, *refs: Any) -> Any:
        _, gradients = value_and_grad(ops, loss, *refs, wrt=tuple(range(len(refs))))
        return gradients

    plan(program, X, *[rng.normal(size=(4, 4)) for _ in range(6)])
    assert shared.count(True) > shared.count(False)


@pytest.mark.parametrize("seed", range(20))
def test_loops_of_random_programs_are_their_own(seed: int, shared: list[bool]) -> None:
    CpuPlan(optimise(random_graph(seed, size=40)[0])[0].body)
    assert shared
