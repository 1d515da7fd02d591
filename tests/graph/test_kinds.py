"""Kinds and effects: what the catalogue says of its ops holds, and what other packages' ops say is respected."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.compiler.codegen.formulas import FORMULAS
from opstage.interpreters.eager_cpu.interpreter import NumpyOps
from opstage.interpreters.graph import Graph, record
from opstage.interpreters.graph.cpu.plan import CpuPlan, HostStep
from opstage.interpreters.graph.cpu.plan import optimise as optimise_for_cpu
from opstage.interpreters.graph.passes.pipeline import run_passes, standard
from opstage.ops.catalogue import primitives
from opstage.ops.primitive import Effect, Kind, Primitive
from opstage.ops.trees import flatten, unflatten
from opstage.ops.types import FLOAT64, TensorType
from tests.conformance.harness import inputs
from tests.graph.passes_common import no_kernels
from tests.samples import SAMPLES

PRIMITIVES = [p for p in primitives().values() if p.operands]
PLAIN = NumpyOps(Options(dtype="float64", fast_kernels=False))


class Call(NamedTuple):
    """A call of an op: static parameters, operands and results."""

    static: Any
    operands: tuple[Any, ...]
    results: tuple[Any, ...]


@cache
def calls() -> dict[Primitive, list[Call]]:
    """Every call of every op that the samples make, on NumPy's kernels."""
    found: dict[Primitive, list[Call]] = defaultdict(list)
    for sample in SAMPLES:
        values, structure = flatten(inputs(sample))

        def program(ops: Any, *refs: Any) -> tuple[Any, ...]:
            return tuple(flatten(sample.apply(ops, *unflatten(structure, refs)))[0])

        body = record(program, [TensorType(v.shape, v.dtype) for v in values], FLOAT64, 0).body
        step = [np.int64(3)] * (len(body.inputs) - len(values))
        known: dict[int, Any] = dict(zip(body.inputs, [*values, *map(np.asarray, step)]))
        known.update({constant.slot: constant.value for constant in body.constants})
        for e in body.equations:
            operands = tuple([known[slot] for slot in e.inputs])
            with np.errstate(all="ignore"):
                results = PLAIN.bind(e.primitive, operands, e.static)
            known.update(zip(e.outputs, results))
            found[e.primitive].append(Call(e.static, operands, tuple(results)))
    return found


def again(primitive: Primitive, call: Call, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    with np.errstate(all="ignore"):
        return tuple(map(np.asarray, PLAIN.bind(primitive, operands, call.static)))


def of_kind(kind: Kind) -> list[Primitive]:
    return [primitive for primitive in PRIMITIVES if primitive.kind is kind]


@pytest.mark.parametrize("primitive", of_kind(Kind.POINTWISE), ids=repr)
def test_a_pointwise_op_does_the_same_at_every_place(primitive: Primitive) -> None:
    """Elements in another order give the same results in that order, bit by bit."""
    assert calls()[primitive]
    for call in calls()[primitive]:
        (out,) = call.results
        assert {x.shape for x in call.operands} == {out.shape}
        order = np.random.default_rng(1).permutation(out.size)
        moved = tuple([x.reshape(-1)[order].reshape(x.shape) for x in call.operands])
        (result,) = again(primitive, call, moved)
        np.testing.assert_array_equal(result.reshape(-1), np.asarray(out).reshape(-1)[order])


@pytest.mark.parametrize("primitive", of_kind(Kind.LAYOUT), ids=repr)
def test_a_layout_op_gives_elements_of_its_operands(primitive: Primitive) -> None:
    """And which ones does not depend on what they are."""
    assert calls()[primitive]
    for call in calls()[primitive]:
        sizes = np.cumsum([0, *[x.size for x in call.operands]])
        places = tuple([np.arange(a, b).reshape(x.shape) for a, b, x in zip(sizes, sizes[1:], call.operands)])
        values = np.concatenate([x.reshape(-1) for x in call.operands])
        for out, at in zip(call.results, again(primitive, call, places)):
            assert at.size == 0 or (at.min() >= 0 and at.max() < sizes[-1])
            np.testing.assert_array_equal(np.asarray(out).reshape(-1), values[at.reshape(-1)])


@pytest.mark.parametrize("primitive", of_kind(Kind.REDUCTION), ids=repr)
def test_a_reduction_has_one_element_for_all_along_its_axes(primitive: Primitive) -> None:
    """Slices along the other axes are reduced each by itself: a change in one leaves the results of the others."""
    assert calls()[primitive]
    for call in calls()[primitive]:
        (x,), (out,) = call.operands, call.results
        axes = call.static.get("axes", (call.static["axis"],) if "axis" in call.static else range(x.ndim))
        kept = [axis for axis in range(x.ndim) if axis not in axes]
        assert np.asarray(out).size == np.prod([x.shape[axis] for axis in kept], dtype=int)
        for axis in kept:
            if x.shape[axis] > 1 and x.size:
                half = np.take(x, [0], axis)
                (alone,) = again(primitive, call, (half,))
                where = axis if call.static.get("keepdims") else kept.index(axis)
                np.testing.assert_allclose(alone, np.take(out, [0], where), rtol=1e-12)


@pytest.mark.parametrize("primitive", of_kind(Kind.CONTRACTION), ids=repr)
def test_a_contraction_is_linear_in_each_of_its_two_operands(primitive: Primitive) -> None:
    assert calls()[primitive]
    for call in calls()[primitive]:
        names = primitive.operand_names(call.static, len(call.operands))
        operands = [np.zeros_like(x) if name == "bias" else x for x, name in zip(call.operands, names)]
        (plain,) = again(primitive, call, tuple(operands))
        for i, name in enumerate(names):
            if name != "bias" and operands[i].dtype.kind == "f":
                (double,) = again(primitive, call, (*operands[:i], 2 * operands[i], *operands[i + 1 :]))
                np.testing.assert_array_equal(double, 2 * plain)


@pytest.mark.parametrize("primitive", PRIMITIVES, ids=repr)
def test_just_the_ops_that_say_so_raise_for_what_an_operand_holds(primitive: Primitive) -> None:
    """Integers far outside of any size, in the place of all integers that a sample has."""
    raised = False
    for call in calls()[primitive]:
        if call.static.get("mode") != "zero" and all(x.size for x in call.operands):
            wild = tuple([np.full_like(x, 10**6) if x.dtype.kind == "i" else x for x in call.operands])
            try:
                again(primitive, call, wild)
            except (IndexError, ValueError):
                raised = True
    assert raised == (Effect.RAISES in primitive.effects)


@pytest.mark.parametrize("primitive", PRIMITIVES, ids=repr)
def test_just_the_ops_that_say_so_draw(primitive: Primitive) -> None:
    """A draw is told by its seed, of which another one gives other bits."""
    drawn = [call for call in calls()[primitive] if "seed" in call.static and call.results[0].size > 4]
    differ = [
        not np.array_equal(
            PLAIN.bind(primitive, c.operands, {**c.static, "seed": c.static["seed"] ^ 1})[0], c.results[0]
        )
        for c in drawn
    ]
    assert any(differ) == (Effect.DRAWS in primitive.effects)


def test_views_and_formulas_are_of_their_kinds() -> None:
    views = {primitive.kind for primitive in PRIMITIVES if primitive.view}
    assert views == {Kind.LAYOUT, Kind.COLLECTIVE}  # vary and shard send nothing
    assert {primitive.kind for primitive in FORMULAS} <= {Kind.POINTWISE, Kind.LAYOUT}


# What other packages' ops say -----------------------------------------------------------------------------------------


def same(x: TensorType, *others: TensorType, **static: Any) -> tuple[TensorType, ...]:
    return (x,)


def another(name: str = "another", operands: tuple[str, ...] = ("x",), **fields: Any) -> Primitive:
    """An op of another package."""
    return Primitive(name, operands=operands, shape=same, differentiable=False, **fields)


def graph_of(program: Callable[..., Any]) -> Graph:
    return record(lambda ops, *refs: (program(ops, *refs),), [TensorType((64,), FLOAT64)], FLOAT64, 0)


def names(graph: Graph) -> list[str]:
    return [e.primitive.name for e in graph.body.equations]


def everywhere(graph: Graph) -> Iterator[Graph]:
    yield graph
    yield run_passes(graph, standard(no_kernels), checked=True)[0]
    yield optimise_for_cpu(graph)[0]


def test_an_op_that_does_not_say_what_it_is_is_opaque_and_has_no_effects() -> None:
    op = another()
    assert op.kind is Kind.OPAQUE and op.effects == frozenset()


@pytest.mark.parametrize("name", ["add", "full", "concat", "reduce_sum", "matmul", "max_pool", "pad"])
def test_an_op_of_another_package_is_not_taken_for_one_of_the_same_name(name: str) -> None:
    op = another(name, ("x", "y"), decomposition=lambda ops, x, y: (ops.sub(ops.scale(x, c=2.0), y),))
    x, y = np.arange(64.0), np.linspace(0, 1, 64)

    def program(ops: Any, x: Any, y: Any) -> Any:
        return ops.tanh(ops.bind(op, (ops.exp(x), y), {})[0])

    for backend in ("eager", "compiled"):
        found = opstage.run(program, -x, y, options=Options(backend=backend, dtype="float64"))
        np.testing.assert_allclose(found, np.tanh(2 * np.exp(-x) - y), rtol=1e-12)


@pytest.mark.parametrize("kind", Kind)
def test_an_op_without_a_formula_is_never_fused(kind: Kind) -> None:
    op = another(kind=kind)
    graph = graph_of(lambda ops, x: ops.tanh(ops.bind(op, (ops.exp(x),), {})[0]))
    plan = CpuPlan(optimise_for_cpu(graph)[0].body)
    assert [[e.primitive.name for e in group.equations] for group in plan.groups] == [["exp"], ["another"], ["tanh"]]
    assert isinstance(plan.steps[1], HostStep)


@pytest.mark.parametrize("kind", Kind)
def test_an_op_that_numpy_has_no_kernel_for_is_not_folded(kind: Kind) -> None:
    """Its operands are known, and of a layout op so is its result; nothing fails for want of a kernel."""
    op = another(kind=kind)
    for value in (np.arange(64.0), np.ones(64)):
        graph = graph_of(lambda ops, x: ops.add(x, ops.bind(op, (ops.const(value),), {})[0]))
        known = kind is Kind.LAYOUT and value.min() == value.max()
        for each in list(everywhere(graph))[1:]:
            assert ("another" in names(each)) is not known


def test_a_kind_says_nothing_of_several_results() -> None:
    """Of which only one would be replaced."""

    def two(x: TensorType) -> tuple[TensorType, ...]:
        return (x, x)

    op = Primitive("two", operands=("x",), outputs=("a", "b"), shape=two, differentiable=False, kind=Kind.LAYOUT)

    def program(ops: Any, x: Any) -> Any:
        a, b = ops.bind(op, (ops.full(shape=(64,), value=1.0),), {})
        return ops.add(x, ops.mul(a, b))

    for graph in everywhere(graph_of(program)):
        assert "two" in names(graph)


@pytest.mark.parametrize("effect", Effect)
def test_two_ops_with_an_effect_stay_two(effect: Effect) -> None:
    op = another(effects={effect})
    once = effect is Effect.RAISES
    for graph in list(everywhere(graph_of(lambda ops, x: ops.mul(*[ops.bind(op, (x,), {})[0] for _ in range(2)]))))[1:]:
        assert names(graph).count("another") == (1 if once else 2)


@pytest.mark.parametrize("effect", Effect)
def test_what_is_seen_outside_is_done_though_nothing_reads_it(effect: Effect) -> None:
    op = another(effects={effect})

    def program(ops: Any, x: Any) -> Any:
        ops.bind(op, (ops.exp(x),), {})
        return ops.tanh(x)

    expected = ["exp", "another", "tanh"] if effect is Effect.EXTERNAL else ["tanh"]
    for graph in everywhere(graph_of(program)):
        assert names(graph) == expected
    if effect is Effect.EXTERNAL:
        plan = CpuPlan(optimise_for_cpu(graph_of(program))[0].body)
        assert any(isinstance(step, HostStep) for step in plan.steps)


def test_a_loop_has_the_effects_of_its_body() -> None:
    op = another(effects={Effect.EXTERNAL})

    def program(ops: Any, x: Any) -> Any:
        def turn(ops: Any, carry: Any, entry: Any) -> Any:
            ops.bind(op, (entry,), {})
            return carry, ()

        ops.scan(turn, ops.sum(x), ops.reshape(x, shape=(8, 8)))
        return ops.tanh(x)

    for graph in everywhere(graph_of(program)):
        (loop,) = [e for e in graph.body.equations if e.primitive.name == "scan"]
        assert loop.effects == {Effect.EXTERNAL}
        assert "another" in [e.primitive.name for e in loop.static["body"].equations]


@pytest.mark.parametrize("effect", [Effect.DRAWS, Effect.EXTERNAL])
def test_what_has_an_effect_is_not_done_beforehand(effect: Effect) -> None:
    op = another(effects={effect}, kind=Kind.POINTWISE, decomposition=lambda ops, x: (ops.scale(x, c=2.0),))
    graph = graph_of(lambda ops, x: ops.add(x, ops.bind(op, (ops.const(np.ones(64)),), {})[0]))
    after, _ = run_passes(graph, standard(no_kernels)[1:])
    assert "another" in names(after)
