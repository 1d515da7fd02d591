"""Random draws in ONNX models: the bits that every interpreter draws, and in normal draws the runtime's log and cos."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx.numpy_helper
import pytest

import opstage
from opstage import Options, Spec
from opstage.interop.onnx.export import model_of
from opstage.interop.onnx.operators import EXPORTS
from opstage.interop.onnx.operators.elementwise import Word, constant
from opstage.interop.onnx.writer import OnnxWriter
from opstage.interpreters.graph import Graph
from opstage.interpreters.graph.recorder import replay
from opstage.interpreters.registry import make_interpreter
from opstage.ops.derived import dropout
from opstage.ops.types import dtype_name
from tests.interop.onnx.runs import checked, run_session, session_of
from tests.samples.random import uniform

WORDS = 2**64
LARGE = WORDS - 1
STEPS = (0, 1, 12345, 2**40 + 3, 2**63 - 1)
SHAPES = [(), (1,), (7,), (3, 4), (2, 1, 5), (16385,)]
KEYS = [(0, 0), (7, 2**63), (LARGE, LARGE), (2**63, 2**63 - 1), (2**32 - 1, 2**32)]


def held(
    program: Callable[..., Any], graph: Graph, *args: Any, step: int = 0, optimized: bool = False
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What the model of the graph gives at a step, and what the program gives op by op on the same arrays."""
    options = Options(dtype=dtype_name(graph.dtype), fast_kernels=False)
    ops, sized = make_interpreter(options), opstage.record(program, *args, options=options)
    expected = [ops.get(ref) for ref in replay(ops, sized, [ops.put(arg) for arg in args], step)]
    actual = run_session(session_of(checked(graph), optimized=optimized), graph, *args, step=step)
    assert [(a.shape, a.dtype) for a in actual] == [(e.shape, e.dtype) for e in expected]
    return actual, expected


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_uniform_draws_and_masks(shape: tuple[int, ...], dtype: str) -> None:
    """At five steps and keys up to the largest; element by element, in Python's own integers, and bit for bit."""

    def program(ops: Any, keep: Any) -> Any:
        drawn = [ops.rand_uniform(shape=shape, seed=seed, site=site) for seed, site in KEYS]
        return *drawn, *[ops.bernoulli_mask(keep, shape=shape, seed=seed, site=site) for seed, site in KEYS]

    keep = np.asarray(0.3, dtype)
    graph = opstage.record(program, keep, options=Options(dtype=dtype))
    session = session_of(checked(graph))
    for step in STEPS if shape != SHAPES[-1] else STEPS[:1]:
        actual = run_session(session, graph, keep, step=step)
        for (seed, site), u, mask in zip(KEYS, actual, actual[len(KEYS) :], strict=False):
            expected = uniform(shape, seed, site, step)
            assert u.shape == mask.shape == shape and u.dtype == mask.dtype == dtype
            np.testing.assert_array_equal(u, expected)
            np.testing.assert_array_equal(mask, np.where(expected < keep, 1.0, 0.0))


@pytest.mark.parametrize(("dtype", "epsilons"), [("float32", 4), ("float64", 5)])
def test_normal_draws(dtype: str, epsilons: int) -> None:
    """√(-2 log(1 - u))·cos(2πv): within 4 epsilons of the radius √(-2 log(1 - u)), at most 5.77, or 5 in float64.

    Over all 2^24 numbers u the radii of runtime and NumPy differ by at most 2.2 epsilons of themselves, or 1 in
    float64, and over all v the cosines by half an epsilon, or 2; each rounds its product by another half.
    """

    def program(ops: Any) -> Any:
        return ops.rand_normal(shape=(2**18,), seed=1, site=2), ops.rand_uniform(shape=(2**18, 2), seed=1, site=2)

    graph = opstage.record(program, options=Options(dtype=dtype))
    (actual, uniforms), (expected, _) = held(program, graph, optimized=dtype == "float32")
    radius = np.sqrt(-2 * np.log1p(-uniforms[:, 0].astype(np.float64)))
    error = np.abs(actual.astype(np.float64) - expected)
    assert (error <= epsilons * np.finfo(dtype).eps * radius).all()


def test_draws_of_symbolic_size() -> None:
    def program(ops: Any, x: Any) -> Any:
        b, t, _ = x.shape
        return (
            ops.rand_uniform(shape=x.shape),
            ops.rand_uniform(shape=(b * t + 1, b), dtype="float64"),
            ops.rand_uniform(shape=(b, 0, t)),
            ops.bernoulli_mask(ops.const(0.5), shape=(t,)),
        )

    graph = opstage.record(program, Spec("B T 3"))
    for size in ((1, 1, 3), (4, 2, 3), (30, 50, 3)):
        for optimized in (False, True):
            x = np.zeros(size, np.float32)
            for a, e in zip(*held(program, graph, x, step=9, optimized=optimized)):
                np.testing.assert_array_equal(a, e)


@pytest.mark.parametrize("reverse", [False, True])
def test_draws_in_loops(reverse: bool) -> None:
    """The key of a draw in a loop also says where the loop stands; what the step alone says of it stands outside."""

    def program(ops: Any, x: Any) -> Any:
        def outer(ops: Any, total: Any, entry: Any) -> Any:
            def inner(ops: Any, total: Any, _: Any) -> Any:
                u = ops.rand_uniform(shape=entry.shape)
                return ops.add(total, u), u

            total, each = ops.scan(inner, total, None, length=3)
            return total, (each, ops.rand_uniform(shape=(2,)))

        return ops.scan(outer, x, ops.stack([x, x, x, x]), reverse=reverse)[1], ops.rand_uniform(shape=x.shape)

    graph = opstage.record(program, Spec("B"))
    for a, e in zip(*held(program, graph, np.zeros(5, np.float32), step=4)):
        np.testing.assert_array_equal(a, e)
    nodes = model_of(graph).graph.node
    (loop,) = (node for node in nodes if node.op_type == "Scan")
    assert "step" in {name for node in nodes for name in node.input}
    assert "step" not in {name for node in loop.attribute[0].g.node for name in node.input}


def test_a_step_that_is_given_is_a_constant() -> None:
    def program(ops: Any, x: Any) -> Any:
        return dropout(ops, x, p=0.5, train=True)

    graph = opstage.record(program, Spec("B 3"))
    x = np.ones((40, 3), np.float32)
    model = checked(graph, {"step": 5})
    assert [given.name for given in checked(graph).graph.input] == ["x", "step"]
    assert [given.name for given in model.graph.input] == ["x"]
    (given,) = session_of(model, optimized=True).run(None, {"x": x})
    fed = [run_session(session_of(checked(graph)), graph, x, step=step)[0] for step in (5, 0)]
    np.testing.assert_array_equal(given, fed[0])
    np.testing.assert_array_equal(fed[1], opstage.run(program, x))
    assert (given != fed[1]).any()


def test_dropout_and_its_gradient() -> None:
    """The mask that the backward pass needs is the one that the forward pass drew."""

    def loss(ops: Any, w: Any, x: Any) -> Any:
        h = ops.relu(ops.linear(w, None, dropout(ops, x, p=0.2, train=True)))
        return ops.sum(dropout(ops, h, p=0.5, train=True, seed=3))

    def gradient(ops: Any, w: Any, x: Any) -> Any:
        value, back = opstage.transform.vjp(ops, loss, w, x)
        return value, back(ops.const(1.0))

    rng = np.random.default_rng(0)
    w, options = rng.standard_normal((6, 8)).astype(np.float32), Options(dtype="float32")
    graph = opstage.record(gradient, Spec("6 8"), Spec("B 8"), options=options)
    for rows in (3, 11):
        x = rng.standard_normal((rows, 8)).astype(np.float32)
        for a, e in zip(*held(gradient, graph, w, x, step=2)):
            np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5)


def test_the_models_stay_small() -> None:
    """Whatever is drawn: constants are single words and shapes, and draws of one seed share how their keys begin."""

    def program(ops: Any, draws: int) -> Any:
        return [ops.rand_uniform(shape=(1000, 1000)) for _ in range(draws)]

    models = [model_of(opstage.record(lambda ops, d=d: program(ops, d))).graph for d in (1, 2)]
    assert all(onnx.numpy_helper.to_array(constant).size <= 2 for constant in models[1].initializer)
    first, second = (len(model.node) for model in models)
    assert first < 160 and second - first < 120


# What the nodes of a draw compute, in Python's own integers, which never overflow.
OPERATORS: dict[str, Callable[..., Any]] = {
    "Range": lambda start, limit, delta: np.arange(int(start), int(limit), int(delta)).astype(object),
    "Cast": lambda x: x,
    "Reshape": lambda x, shape: x.reshape(shape.astype(int)),
    "Add": lambda x, y: x + y,
    "Mul": lambda x, y: x * y,
    "BitwiseAnd": lambda x, y: x & y,
    "BitwiseOr": lambda x, y: x | y,
    "BitwiseXor": lambda x, y: x ^ y,
    "RIGHT": lambda x, y: x >> y,
    "LEFT": lambda x, y: x << y,
}


def evaluated(writer: OnnxWriter, values: dict[str, Any], wanted: str) -> Any:
    """What the writer's nodes make of values, none of which may leave the range of a word."""
    known = {name: array.astype(object) for name, array in writer.initializers.items()} | values
    for node in writer.nodes:
        value = OPERATORS[node.attributes.get("direction", node.op)](*[known[name] for name in node.inputs])
        known[node.outputs[0]] = value = np.asarray(value, object)
        assert ((value >= 0) & (value < WORDS)).all(), node.name
    return known[wanted]


EDGES = sorted({n % WORDS for power in (0, 1, 31, 32, 33, 63, 64) for n in (2**power - 1, 2**power, 2**power + 1)})


@pytest.mark.parametrize("factor", [*EDGES, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], ids=hex)
def test_words_do_not_overflow(factor: int) -> None:
    writer = OnnxWriter(EXPORTS, np.dtype(np.float32), 0)
    x, y = np.meshgrid(np.array(EDGES, object), np.array(EDGES, object))
    total, product = Word(writer, "x") + Word(writer, "y"), Word(writer, "x") * constant(writer)(factor)
    np.testing.assert_array_equal(evaluated(writer, {"x": x, "y": y}, total.name), (x + y) % WORDS)
    np.testing.assert_array_equal(evaluated(writer, {"x": x, "y": y}, product.name), x * factor % WORDS)


@pytest.mark.parametrize(("seed", "site"), KEYS)
def test_no_integer_overflows(seed: int, site: int) -> None:
    """ONNX does not say what an integer that overflows becomes: no node of a draw depends on it."""

    def program(ops: Any) -> Any:
        return ops.rand_uniform(shape=(20, 10), seed=seed, site=site)

    graph = opstage.record(program)
    writer = OnnxWriter(EXPORTS, graph.dtype, graph.seed)
    (drawn,) = writer.write(graph.body, [writer.input("step", graph.input_types[0])])
    for step in STEPS:
        values = evaluated(writer, {"step": np.asarray(step, object)}, drawn.name)
        np.testing.assert_array_equal(values, uniform((20, 10), seed, site, step))
