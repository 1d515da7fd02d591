"""Each pass alone, and random programs through every pass: what it takes away, and that the graph means the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from opstage.interpreters.graph import Graph
from opstage.interpreters.graph.checker import GraphError
from opstage.interpreters.graph.passes.constants import Uniforms, fold_constants
from opstage.interpreters.graph.passes.cse import common_subexpressions
from opstage.interpreters.graph.passes.identities import simplify
from opstage.interpreters.graph.passes.pipeline import dead_code, expand, run_passes, standard, through_loops
from opstage.ops.body import Body
from opstage.ops.dims import DimScope
from opstage.ops.errors import RangeError
from opstage.ops.indexing import GATHER_ROW
from opstage.ops.logic import FULL, IOTA
from opstage.ops.primitive import Kind
from opstage.ops.reduction import REDUCE_MAX
from opstage.ops.slicing import PAD
from opstage.ops.types import INT64, TensorType
from opstage.transforms.derivatives import value_and_grad
from tests.graph.passes_common import assert_same, graph_of, names, no_kernels, outcome, passed, same_bits, to_core
from tests.graph.random_programs import graphs, random_graph
from tests.graph.recorded import NAMES, training_step
from tests.searches import share

X = np.array([[1.5, -2.0, 0.25], [0.0, 3.0, -0.5]], np.float32)
ALL = (dead_code, common_subexpressions, fold_constants, simplify, to_core)


def full(ops: Any, x: Any, value: Any) -> Any:
    return ops.full(shape=x.shape, value=value, dtype=x.dtype)


@pytest.mark.parametrize("run", ALL, ids=lambda run: run.__name__)
def test_a_pass_that_finds_nothing_returns_the_same_body(run: Any) -> None:
    graph = graph_of(lambda ops, x: ops.sin(ops.mul(x, x)), (2, 3))
    assert run(graph.body) is graph.body


@pytest.mark.parametrize("program", [lambda ops, x: x, lambda ops, x: ops.const(2.0), lambda ops, x: (x, x)])
def test_passes_take_programs_without_ops(program: Any) -> None:
    graph = graph_of(program, (2, 3))
    for run in ALL:
        assert_same(graph, passed(run, graph), [X])


# Dead code ------------------------------------------------------------------------------------------------------------


def test_dead_code_takes_what_nobody_reads() -> None:
    graph = graph_of(lambda ops, x: (ops.sin(x), ops.exp(ops.add(x, ops.const(np.ones((2, 3)))))), (2, 3))
    half = graph.body.replace(outputs=graph.body.outputs[:1])
    after = dead_code(half)
    assert names(after) == ["sin"] and after.constants == ()


def test_dead_code_keeps_an_op_of_which_one_result_is_read() -> None:
    graph = graph_of(lambda ops, x: ops.batch_norm(x, None, None, channel_axis=0)[1:2], (2, 3))
    assert names(passed(dead_code, graph)) == ["batch_norm"]


def test_an_index_out_of_range_does_not_raise_where_nobody_wants_the_result() -> None:
    graph = graph_of(lambda ops, x, i: (ops.gather_rows(x, i), ops.sin(x)), (2, 3), TensorType((1,), INT64))
    inputs = [X, np.array([7])]
    with pytest.raises(RangeError):
        outcome(graph, inputs)
    pruned = graph.body.replace(outputs=graph.body.outputs[1:])
    assert same_bits(outcome(graph.with_body(dead_code(pruned)), inputs)[0], np.sin(X))


def test_a_composite_whose_residual_is_read_no_more_is_closed_again() -> None:
    def program(ops: Any, x: Any) -> Any:
        value, grads = value_and_grad(ops, lambda o, y: o.sum(o.layer_norm(y, None, None)), x)
        return value, *grads

    body = graph_of(program, (2, 3)).body
    assert [e.opened for e in body.equations if e.primitive.name == "layer_norm"] == [True]
    forward = dead_code(body.replace(outputs=body.outputs[:1]))
    assert [e.opened for e in forward.equations if e.primitive.name == "layer_norm"] == [False]


# Common subexpressions ------------------------------------------------------------------------------------------------


def merged(program: Any, *shapes: Any) -> list[str]:
    graph = graph_of(program, *(shapes or ((2, 3),)))
    after = passed(common_subexpressions, graph)
    assert_same(graph, after, [X for _ in range(len(shapes) or 1)])
    return names(after)


def test_what_is_written_twice_runs_once() -> None:
    assert merged(lambda ops, x: ops.sub(ops.exp(ops.sin(x)), ops.exp(ops.sin(x)))) == ["sin", "exp", "sub"]


def test_operands_of_a_sum_and_of_a_product_may_come_in_either_order() -> None:
    assert merged(lambda ops, x, y: (ops.add(x, y), ops.add(y, x)), (2, 3), (2, 3)) == ["add"]
    assert merged(lambda ops, x, y: (ops.sub(x, y), ops.sub(y, x)), (2, 3), (2, 3)) == ["sub", "sub"]


@pytest.mark.parametrize(
    ("one", "other", "count"),
    [
        (0.0, -0.0, 2),
        (1, 1.0, 2),
        (1, True, 2),
        (float("nan"), -float("nan"), 2),
        (float("nan"), np.float64("nan").item(), 1),
        (0.1, 0.1, 1),
    ],
)
def test_static_numbers_are_the_same_in_type_and_bits_alone(one: Any, other: Any, count: int) -> None:
    graph = graph_of(lambda ops, x: (ops.scale(x, c=one), ops.scale(x, c=other)), (2, 3))
    assert len(names(common_subexpressions(graph.body))) == count


def test_two_draws_are_never_merged() -> None:
    program = lambda ops, x: (ops.rand_uniform(shape=(2,), site=5), ops.rand_uniform(shape=(2,), site=5))  # noqa: E731
    assert merged(program) == ["rand_uniform", "rand_uniform"]


def test_equal_constants_are_one() -> None:
    def program(ops: Any, x: Any) -> Any:
        one, same, other = (ops.const(np.full((2, 3), v)) for v in (0.0, 0.0, -0.0))
        return ops.add(x, one), ops.add(x, same), ops.add(x, other)

    graph = graph_of(program, (2, 3))
    after = passed(common_subexpressions, graph)
    assert len(after.body.constants) == 2 and names(after) == ["add", "add"]
    assert_same(graph, after, [X])


def test_loops_over_the_same_body_are_one() -> None:
    def loop(ops: Any, x: Any, c: float) -> Any:
        return ops.scan(lambda o, s, r: (o.add(s, o.scale(r, c=c)), None), ops.full(shape=(3,), value=0.0), x)[0]

    assert merged(lambda ops, x: (loop(ops, x, 2.0), loop(ops, x, 2.0))).count("scan") == 1
    assert merged(lambda ops, x: (loop(ops, x, 0.0), loop(ops, x, -0.0))).count("scan") == 2


# Folding and uniform tensors ------------------------------------------------------------------------------------------


def test_what_reads_constants_alone_is_computed_before() -> None:
    def program(ops: Any, x: Any) -> Any:
        table = ops.const(np.arange(6.0).reshape(2, 3))
        return ops.mul(x, ops.exp(ops.neg(ops.add(table, full(ops, x, 0.5)))))

    graph = graph_of(program, (2, 3))
    after = passed(lambda body: dead_code(fold_constants(body)), graph)
    assert names(after) == ["mul"] and len(after.body.constants) == 1
    assert_same(graph, after, [X])


def test_numbers_that_fill_a_tensor_stay_numbers() -> None:
    def program(ops: Any, x: Any) -> Any:
        rows = ops.reduce_max(x, axis=0)
        shift = ops.sub(full(ops, rows, 1.0), ops.scale(full(ops, rows, 0.1), c=2.0))
        moved = ops.permute(ops.reshape(shift, shape=(200, 1, 100)), axes=(1, 2, 0))
        return ops.add(x, ops.broadcast_to(moved, shape=x.shape))

    after = passed(lambda body: dead_code(fold_constants(body)), graph_of(program, (5, 100, 200)))
    assert names(after) == ["full", "add"] and after.body.constants == ()
    (filled,) = [e for e in after.body.equations if e.primitive is FULL]
    assert np.float32(filled.static["value"]) == np.float32(1) - np.float32(0.1) * np.float32(2)


def test_a_large_result_is_left_to_the_run() -> None:
    graph = graph_of(
        lambda ops, x: ops.add(x, ops.sin(ops.cast(ops.iota(shape=(300, 100), axis=0), dtype="float32"))), (300, 100)
    )
    assert fold_constants(graph.body) is graph.body
    assert names(dead_code(fold_constants(graph.body, largest=1 << 20))) == ["add"]


def test_what_raises_still_raises_when_it_runs() -> None:
    def program(ops: Any, x: Any) -> Any:
        return ops.add(x, ops.gather_rows(ops.const(np.arange(6.0).reshape(2, 3)), ops.const(np.array([0, 9]))))

    graph = passed(fold_constants, graph_of(program, (2, 3)))
    with pytest.raises(RangeError):
        outcome(graph, [X])


def test_what_depends_on_symbolic_sizes_is_left() -> None:
    size = DimScope().dim("B")
    graph = graph_of(lambda ops, x: ops.mul(ops.reduce_mean(x), ops.reduce_mean(full(ops, x, 3.0))), (size,))
    assert "full" in names(passed(fold_constants, graph))


@pytest.mark.parametrize(
    ("make", "number"),
    [
        (lambda ops: ops.full(shape=(4,), value=0.1, dtype="float32"), np.float32(0.1)),
        (lambda ops: ops.const(np.full((2, 2), 3.0)), np.float32(3)),
        (lambda ops: ops.const(np.array([0.0, -0.0])), None),
        (lambda ops: ops.broadcast_to(ops.const(2.0), shape=(5, 5)), np.float32(2)),
        (lambda ops: ops.sqrt(ops.full(shape=(4,), value=2.0, dtype="float32")), np.sqrt(np.float32(2))),
        (lambda ops: ops.reduce_sum(ops.full(shape=(4, 5), value=3.0, dtype="float32"), axis=1), np.float32(15)),
        (lambda ops: ops.reduce_sum(ops.full(shape=(4, 5), value=0.1, dtype="float32"), axis=1), None),
        (lambda ops: ops.concat([ops.full(shape=(1,), value=1.0), ops.full(shape=(2,), value=1.0)]), np.float32(1)),
        (lambda ops: ops.concat([ops.full(shape=(1,), value=0.0), ops.full(shape=(2,), value=-0.0)]), None),
        (lambda ops: ops.pad(ops.full(shape=(2,), value=1.0), padding=((1, 1),), value=1.0), np.float32(1)),
        (lambda ops: ops.pad(ops.full(shape=(2,), value=1.0), padding=((1, 1),), value=2.0), None),
        (lambda ops: ops.iota(shape=(3,)), None),
        (lambda ops: ops.cast(ops.full(shape=(3,), value=2.7), dtype="int64"), np.int64(2)),
    ],
)
def test_what_is_known_of_uniform_tensors(make: Any, number: Any) -> None:
    graph = graph_of(lambda ops: make(ops))
    uniforms = Uniforms(graph.body.constants)
    for equation in graph.body.equations:
        uniforms.see(equation, equation.inputs, graph.body.types)
    found = uniforms.get(graph.body.outputs[0])
    (value,) = outcome(graph, [])
    if number is None:
        assert found is None
    else:
        assert found.dtype == value.dtype and found == number and (value == found).all()


# Expansion ------------------------------------------------------------------------------------------------------------


def test_composites_are_written_out_where_they_stood() -> None:
    def program(ops: Any, x: Any) -> Any:
        def loss(o: Any, y: Any) -> Any:
            return o.region("layer", lambda inner, z: inner.sum(inner.gelu(inner.softmax(z))), y)

        value, grads = value_and_grad(ops, loss, x)
        return value, *grads

    graph = graph_of(program, (2, 3))
    after = passed(to_core, graph)
    assert all(e.primitive.core for e in after.body.equations)
    before_places = {(e.region.name, e.ordinal, e.backward) for e in graph.body.equations}
    assert {(e.region.name, e.ordinal, e.backward) for e in after.body.equations} == before_places
    assert_same(graph, after, [X], 1e-6)


def test_what_the_executor_has_a_kernel_for_stays() -> None:
    asked = []

    def keep(primitive: Any, types: Any, static: Any) -> bool:
        asked.append((primitive.name, types))
        return primitive.name in ("softmax", "reduce_mean")

    graph = graph_of(lambda ops, x: ops.layer_norm(ops.softmax(x), None, None), (2, 3))
    after = passed(lambda body: expand(body, keep), graph)
    assert names(after)[0] == "softmax" and "reduce_mean" in names(after) and "layer_norm" not in names(after)
    assert ("softmax", graph.input_types) in asked
    assert_same(graph, after, [X], 1e-6)


def test_residuals_go_to_those_that_read_them() -> None:
    def program(ops: Any, x: Any, labels: Any) -> Any:
        value, grads = value_and_grad(ops, lambda o, y, i: o.cross_entropy(o.layer_norm(y, None, None), i), x, labels)
        return value, *grads

    graph = graph_of(program, (2, 3), TensorType((2,), INT64))
    assert_same(graph, passed(to_core, graph), [X, np.array([2, 0])], 1e-6)


# The pipeline ---------------------------------------------------------------------------------------------------------


def test_a_pipeline_tells_what_each_pass_did() -> None:
    def program(ops: Any, x: Any) -> Any:
        y = ops.mul(x, ops.exp(ops.sub(full(ops, x, 1.0), full(ops, x, 1.0))))  # x · e⁰
        return ops.sub(ops.sin(y), ops.sin(x))

    graph = graph_of(program, (2, 3))
    after, notes = run_passes(graph, standard(no_kernels), checked=True)
    assert names(after) == ["sin", "sub"] and (notes.before, notes.after) == (8, 2)
    assert_same(graph, after, [X])
    lines = str(notes).splitlines()
    assert lines[0].split() == ["pass", "ops", "ms"] and lines[-1] == "8 ops became 2"
    assert [note.name for note in notes.passes] == [
        "expansion",
        "constant folding",
        "identities",
        "common subexpressions",
        "hoisting",
        "dead code",
    ]
    assert sum(note.added for note in notes.passes) == -6


def test_a_graph_that_is_as_it_should_be_is_returned_itself() -> None:
    graph = graph_of(lambda ops, x: ops.sin(x), (2, 3))
    assert run_passes(graph, standard(no_kernels))[0] is graph


def test_a_pass_that_breaks_a_graph_is_found_out() -> None:
    def breaking(body: Body) -> Body:
        return body.replace(equations=body.equations[1:])

    graph = graph_of(lambda ops, x: ops.sin(ops.exp(x)), (2, 3))
    with pytest.raises(GraphError):
        run_passes(graph, [("breaking", breaking)], checked=True)


def test_passes_go_through_the_bodies_of_loops() -> None:
    def program(ops: Any, x: Any) -> Any:
        def body(o: Any, state: Any, row: Any) -> Any:
            twice = o.add(o.sin(row), o.sin(row))
            return o.add(state, o.mul(twice, full(o, row, 1.0))), None

        return ops.scan(body, ops.full(shape=(3,), value=0.0), x)[0]

    graph = graph_of(program, (2, 3))
    after, notes = run_passes(graph, standard(no_kernels), checked=True)
    (loop,) = [e for e in after.body.equations if e.primitive.name == "scan"]
    assert names(loop.static["body"]) == ["sin", "add", "add"]
    assert notes.before - notes.after == 3
    assert_same(graph, after, [X])
    assert through_loops(after.body, dead_code) is after.body


@pytest.mark.parametrize("name", NAMES)
def test_the_steps_of_the_shipped_models_stay_well_formed(name: str) -> None:
    step = training_step(name)
    after, _ = run_passes(step, standard(no_kernels), checked=True)
    kept, notes = run_passes(step, standard(lambda primitive, types, static: True), checked=True)
    assert notes.after <= len(after.body.equations)
    assert kept.input_types == after.input_types == step.input_types


# Random programs ------------------------------------------------------------------------------------------------------


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
