"""Random programs through every pass: the graph that it leaves computes what the recorded one does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings

from opstage.interpreters.graph import Graph
from opstage.interpreters.graph.passes.pipeline import (
    common_subexpressions,
    dead_code,
    expand,
    fold_constants,
    run_passes,
    simplify,
    standard,
    through_loops,
)
from opstage.ops.body import Body
from opstage.ops.indexing import GATHER_ROW
from opstage.ops.logic import FULL, IOTA
from opstage.ops.primitive import Kind
from opstage.ops.reduction import REDUCE_MAX
from opstage.ops.slicing import PAD
from tests.graph.passes_common import assert_same, no_kernels, to_core
from tests.graph.random_programs import graphs, random_graph
from tests.searches import share

BITWISE: tuple[Callable[[Body], Body], ...] = (dead_code, common_subexpressions)
EXACT: tuple[Callable[[Body], Body], ...] = (fold_constants, simplify)
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


def some_kernels(primitive: Any, types: Any, static: Any) -> bool:
    """An executor that has kernels for some composites, chosen so that every program has both."""
    return len(primitive.name) % 2 == 0


def holds(graph: Graph, inputs: list[Any]) -> None:
    """Passes that only leave out ops change no bit; the others stay within the accuracy of kernels.

    What they change of arithmetic is exact, but elements may lie in another order, and so NumPy's sums run in another.
    """
    tolerance = TOLERANCE[graph.dtype.name]
    for run in BITWISE:
        assert_same(graph, graph.with_body(through_loops(graph.body, run)), inputs)
    for run in (*EXACT, to_core, lambda body: expand(body, some_kernels)):
        assert_same(graph, graph.with_body(through_loops(graph.body, run)), inputs, tolerance)
    for passes in (standard(no_kernels), standard(some_kernels)):
        after, _ = run_passes(graph, passes, checked=True)
        assert_same(graph, after, inputs, tolerance)


def adds_nothing_up(body: Body) -> bool:
    """Whether no element of it depends on an order of terms."""
    return all(
        e.primitive.kind in (Kind.POINTWISE, Kind.LAYOUT) or e.primitive in {REDUCE_MAX, FULL, IOTA, PAD, GATHER_ROW}
        for e in body.equations
    )


def keeps_every_bit(seed: int) -> bool:
    """Infinities, nan and zeros of either sign are kept; whether the program was one that tells of every pass."""
    graph, inputs = random_graph(seed, size=8, wild=True)
    telling = adds_nothing_up(graph.body)
    for run in (*BITWISE, *EXACT) if telling else BITWISE:
        assert_same(graph, graph.with_body(run(graph.body)), inputs)
    return telling


@settings(max_examples=40)
@given(graphs())
def test_passes_keep_what_a_program_computes(drawn: tuple[Graph, list[Any]]) -> None:
    holds(*drawn)


@pytest.mark.parametrize("first", [0, pytest.param(20, marks=pytest.mark.slow)])
def test_passes_keep_what_larger_programs_compute(first: int) -> None:
    for seed in range(first, first + 20):
        holds(*random_graph(seed, size=25))


def test_exact_passes_keep_infinities_and_nan() -> None:
    assert sum(keeps_every_bit(seed) for seed in range(150)) > 40


def test_the_random_programs_are_of_every_family() -> None:
    found = {e.primitive.name for seed in range(150) for e in random_graph(seed, size=20)[0].body.equations}
    families = {
        *("matmul", "bmm", "linear", "conv", "conv_kernel_grad", "max_pool", "softmax", "layer_norm", "cross_entropy"),
        *("gather_rows", "scatter_add_rows", "select", "cast", "iota", "full", "rand_normal", "bernoulli_mask", "scan"),
        *("adam_update", "adamw_update", "scaled_dot_product_attention", "batch_norm", "concat", "pad", "argmax"),
    }
    assert families <= found


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("first", range(1000, 1000 + share(2000), 250))
def test_many_more_programs(first: int) -> None:
    for seed in range(first, first + 250):
        holds(*random_graph(seed, size=5 + seed % 25))
        keeps_every_bit(seed)
