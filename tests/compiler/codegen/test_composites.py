"""Composites as bodies: decompositions, values that are computed again, and runs of ops in long loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec
from opstage.compiler.codegen import composites as runs
from opstage.compiler.codegen import fusion
from opstage.compiler.codegen.composites import Expander
from opstage.compiler.codegen.cpu.kernels import fused
from opstage.compiler.codegen.cuda.source import CUDA
from opstage.compiler.codegen.formulas import has_formula
from opstage.compiler.codegen.lowering import Lowered
from opstage.interpreters.eager_cpu import NumpyOps, interpreter
from opstage.interpreters.graph import Graph
from opstage.interpreters.graph.passes.cse import body_key
from opstage.ops.attention import SCALED_DOT_PRODUCT_ATTENTION_GRAD
from opstage.ops.body import Body
from opstage.ops.normalization import BATCH_NORM, BATCH_NORM_GRAD, GROUP_NORM
from opstage.ops.primitive import Primitive
from opstage.ops.types import TensorType
from opstage.transforms.tracer import constants, evaluate
from tests.graph.lowered_meaning import Memory, run_groups

X = np.random.default_rng(0).standard_normal((2, 3))
FLOAT64 = Options(dtype="float64")


def body_of(program: Any) -> Body:
    return opstage.check(program, Spec("2 3"), options=FLOAT64).program.body


def run(body: Body) -> Any:
    ops = NumpyOps(FLOAT64)
    return evaluate(ops, body, (X,), constants(ops, body))


def test_a_body_without_composites_stays_as_it_is() -> None:
    def looped(ops: Any, x: Any) -> Any:
        x = ops.add(ops.tanh(x), ops.const(np.ones((2, 3))))
        return ops.scan(lambda ops, h, row: (ops.mul(h, row), h), ops.reduce_sum(x, axis=0), x)

    body = body_of(looped)
    keep = {equation.primitive for equation in body.equations}
    assert Expander(lambda primitive, types, static: primitive in keep, loops=False).written_out(body) is body


def test_one_composite_among_others_is_written_out_where_it_stands() -> None:
    body = body_of(lambda ops, x: ops.softmax(ops.tanh(x), axis=1))
    written = Expander(lambda *_: False, loops=False).written_out(body)
    assert any(not equation.primitive.core for equation in body.equations)
    assert all(equation.primitive.core for equation in written.equations)
    assert body_key(written) != body_key(body)
    np.testing.assert_allclose(run(written)[0], run(body)[0], rtol=1e-14)


SHAPE = (4, 6, 16, 16)
CHANNELS = {"channel_axis": 1}
CASES: list[tuple[Primitive, int, dict[str, Any]]] = [
    (BATCH_NORM, 2, {"has_gamma": True, "has_beta": True, "eps": 1e-5, **CHANNELS}),
    (BATCH_NORM_GRAD, 6, {"has_gamma": True, **CHANNELS}),
    (GROUP_NORM, 2, {"has_gamma": True, "has_beta": True, "eps": 1e-5, "groups": 3}),
]


def operands(primitive: Primitive, vectors: int) -> list[Any]:
    rng = np.random.default_rng(7)
    made = [rng.standard_normal(SHAPE), *rng.standard_normal((vectors, SHAPE[1]))]
    if primitive is BATCH_NORM_GRAD:
        made[4] = rng.standard_normal(SHAPE)  # g, after x, gamma, mean and rstd
    return made


def types(arrays: list[Any]) -> tuple[TensorType, ...]:
    return tuple([TensorType(x.shape, x.dtype) for x in arrays])


@pytest.mark.parametrize(("primitive", "vectors", "static"), CASES, ids=lambda v: getattr(v, "name", None))
def test_it_gives_the_same_values_and_takes_no_memory(
    primitive: Primitive, vectors: int, static: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = operands(primitive, vectors)
    kernel = fused(primitive, types(arrays), static)
    monkeypatch.setattr(fusion, "recomputed", lambda lowered, groups: groups)
    written = fused(primitive, types(arrays), static)
    assert kernel is not None and written is not None
    for ours, theirs in zip(kernel(*arrays), written(*arrays)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-13)  # other loops may add in another order
    assert kernel.scratch < arrays[0].nbytes <= written.scratch or primitive is GROUP_NORM


def test_a_loop_of_which_only_what_its_rows_have_once_is_left() -> None:
    """A loop over elements that does along with them what each row has once, until another one makes its elements."""
    rng = np.random.default_rng(7)
    shapes = ((32, 4, 64, 2),) * 3 + ((32, 4, 64, 1),) * 2 + ((32, 4, 64, 2),)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    arrays[4] = np.abs(arrays[4]) + 64
    static = {"has_mask": False, "causal": True}
    primitive = SCALED_DOT_PRODUCT_ATTENTION_GRAD
    body = Expander(has_formula, loops=False).body(primitive, types(arrays), static)
    lowered = Lowered(body, CUDA, own_outputs=True)
    groups = fusion.fuse(lowered)
    names = [str(i) for i in range(len(arrays))]
    graph = Graph(body, names, ["a", "b", "c"], np.dtype("float32"), 0)
    found = run_groups(Memory(lowered, graph, arrays), groups)
    expected = NumpyOps(Options(fast_kernels=False)).bind(primitive, tuple(arrays), static)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


LENGTH = 40


def _gates(ops: Any, h: Any, x: Any) -> Any:
    """Views of one operand, in two runs with a product between them."""
    z = ops.add(x, ops.matmul(h, ops.const(np.eye(6, dtype=np.float32) * 0.5)))
    left, right = ops.slice(z, axis=1, start=0, length=3), ops.slice(z, axis=1, start=3, length=3)
    gate = ops.mul(ops.sigmoid(left), ops.tanh(right))
    return ops.add(ops.scale(h, c=0.5), ops.concat([gate, ops.neg(gate)], axis=1)), z


def _padded(ops: Any, h: Any, x: Any) -> Any:
    inner = ops.slice(ops.tanh(x), axis=1, start=1, length=4)
    h = ops.add(ops.scale(h, c=-0.0), ops.pad(inner, padding=((0, 0), (1, 1)), value=2.0))
    return h, ops.permute(ops.mul(h, h), axes=(1, 0))


def _constants(ops: Any, h: Any, x: Any) -> Any:
    one = ops.full(shape=h.shape, value=1.0)
    return ops.select(ops.less(h, one), ops.add(h, ops.mul(x, one)), ops.sub(h, one)), one


def _carry_only_viewed(ops: Any, h: Any, x: Any) -> Any:
    turned = ops.reshape(ops.permute(h, axes=(1, 0)), shape=h.shape)
    return ops.add(turned, ops.mul(x, x)), ops.reshape(h, shape=(24,))


BODIES = (_gates, _padded, _constants, _carry_only_viewed)


def _program(body: Any) -> Any:
    def loss(ops: Any, h: Any, xs: Any) -> Any:
        h, ys = ops.scan(lambda ops, h, x: body(ops, h, x), h, xs)
        return ops.add(ops.sum(ops.mul(h, h)), ops.sum(ops.sin(ys)))

    return loss


def _data() -> tuple[Any, Any]:
    rng = np.random.default_rng(5)
    return rng.standard_normal((4, 6)).astype(np.float32), rng.standard_normal((LENGTH, 4, 6)).astype(np.float32)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_a_loop_in_runs_computes_what_its_ops_do(body: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    h, xs = _data()

    def found() -> Any:
        return opstage.value_and_grad(_program(body), h, xs, wrt=(0, 1), options=Options())

    value, gradients = found()
    monkeypatch.setattr(interpreter, "_LONG", LENGTH + 1)
    apart, apart_gradients = found()
    np.testing.assert_allclose(value, apart, rtol=1e-6)
    for a, b in zip(gradients, apart_gradients):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("length", [0, 1, interpreter._LONG - 1, interpreter._LONG])
def test_whether_a_loop_is_in_runs_depends_on_its_length(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Body] = []
    monkeypatch.setattr(interpreter, "in_runs", lambda body, has_kernel: asked.append(body) or body)
    h, xs = _data()
    opstage.run(_program(_gates), h, xs[:length])
    assert bool(asked) == (length >= interpreter._LONG)


def test_a_kernel_serves_every_trace_of_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_COMPOSITES", {})
    h, xs = _data()
    opstage.run(_program(_gates), h, xs)
    known = dict(runs._COMPOSITES)
    assert known
    opstage.run(_program(_gates), h, xs)
    assert known == runs._COMPOSITES


def test_zeros_of_either_sign_are_other_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    _, xs = _data()

    def scaled(c: float) -> Any:
        return lambda ops, h, x: (ops.add(ops.scale(h, c=c), ops.neg(ops.abs(ops.scale(x, c=0.0)))), x)

    for c in (0.0, -0.0):
        first = np.full((4, 6), 1.0, np.float32)
        # after an odd number of iterations, since -0.0 times -0.0 is 0.0
        out = opstage.run(lambda ops, h, xs, c=c: ops.scan(scaled(c), h, xs)[0], first, xs[: LENGTH - 1])
        assert np.signbit(np.asarray(out)).all() == np.signbit(c), c


def test_effects_keep_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    def body(ops: Any, h: Any, x: Any) -> Any:
        h = ops.tanh(ops.add(h, x))
        opstage.debug.print(ops, h, "first")
        h = ops.mul(h, ops.add(h, h))
        opstage.debug.print(ops, h, "second")
        return h, ops.scale(h, c=2.0)

    h, xs = _data()
    opstage.run(_program(body), h, xs)
    said = [line.split()[0] for line in capsys.readouterr().err.splitlines() if "first" in line or "second" in line]
    assert len(said) == 2 * LENGTH
    assert said == [said[0], said[1]] * LENGTH
