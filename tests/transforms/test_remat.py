"""`remat`: the values, gradients and draws of the program that it wraps, in less memory, on every interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec, transform
from opstage.interpreters.graph import Graph
from opstage.ops.errors import ProgramError, ShapeError, UsageError
from opstage.training.memory import step_memory
from opstage.transforms.interpreter import Interpreter
from opstage.transforms.remat import REMAT
from tests.conformance.harness import leaves

FLOAT64 = Options(dtype="float64")
BACKENDS = pytest.mark.parametrize("backend", ["eager", "compiled"])
DEPTH, WIDTH, HIDDEN, ROWS = 6, 16, 256, 512


def block(ops: Any, p: Any, x: Any) -> Any:
    return x + ops.gelu(x @ p["w"]) @ p["v"]


def noisy(ops: Any, p: Any, x: Any) -> Any:
    return block(ops, p, x * ops.bernoulli_mask(ops.const(0.5), shape=x.shape))


def looped(ops: Any, p: Any, x: Any) -> Any:
    def step(own: Any, x: Any, _: Any) -> Any:
        return block(own, p, x), own.sum(x)

    last, sums = ops.scan(step, x, None, length=3)
    return last * ops.sum(sums)


def within_a_loop(ops: Any, p: Any, x: Any) -> Any:
    return ops.scan(lambda own, x, _: (own.remat(noisy, p, x), None), x, None, length=3)[0]


def with_the_step_of_two_interpreters(ops: Any, p: Any, x: Any) -> Any:
    def turn(own: Any, x: Any, _: Any) -> Any:
        step = own.step()
        return own.remat(lambda o, x: block(o, p, x) * o.cast(step + o.step() + 1, dtype="float64"), x), None

    return ops.scan(turn, x, None, length=2)[0]


def choosing(ops: Any, p: Any, x: Any) -> Any:
    return ops.cond(ops.sum(x) > 0.0, lambda own, x: block(own, p, x), lambda own, x: x * 2.0, x)


def nested(ops: Any, p: Any, x: Any) -> Any:
    return ops.remat(lambda own, x: own.remat(block, p, x) * 2.0, x)


def of_each(ops: Any, p: Any, x: Any) -> Any:
    return transform.vmap(ops, lambda own, x: own.remat(lambda o, x: o.tanh(p["w"] @ o.tanh(p["v"] @ x)), x), x)


def with_slope(ops: Any, p: Any, x: Any) -> Any:
    return x + transform.grad(ops, lambda own, x: own.sum(own.remat(block, p, x)), x)


PROGRAMS = [
    block,
    noisy,
    looped,
    within_a_loop,
    with_the_step_of_two_interpreters,
    choosing,
    nested,
    of_each,
    with_slope,
]
EVERY = pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)


def plain(program: Any) -> Any:
    """The same program without any remat: its interpreter calls f."""

    def run(ops: Any, *args: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Interpreter, "remat", lambda self, f, *operands: f(self, *operands))
            return program(ops, *args)

    return run


def loss(of: Any) -> Any:
    def program(ops: Any, params: Any, x: Any) -> Any:
        for p in params:
            x = of(ops, p, x)
        return ops.sum(x * x)

    return program


def parameters(depth: int, width: int, hidden: int) -> Any:
    rng = np.random.default_rng(1)
    return [
        {"w": rng.normal(size=(width, hidden)) / width, "v": rng.normal(size=(hidden, width)) / hidden}
        for _ in range(depth)
    ]


SMALL, X = parameters(2, 4, 4), np.random.default_rng(0).normal(size=(5, 4))


def same(found: Any, expected: Any, exact: bool) -> None:
    for a, b in zip(leaves(found), leaves(expected), strict=True):
        if exact:
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


@BACKENDS
@EVERY
def test_remat_changes_no_value_and_no_derivative(program: Any, backend: str) -> None:
    """On eager not in a bit, except for sums over the iterations of a loop around it, which then have another order."""
    options = FLOAT64.replace(backend=backend)
    ours, theirs, args = loss(opstage.remat(program)), loss(plain(program)), (SMALL, X)
    exact = backend == "eager" and program not in (within_a_loop, with_the_step_of_two_interpreters)
    calls: list[Any] = [
        lambda f: opstage.run(f, *args, options=options),
        lambda f: opstage.value_and_grad(f, *args, wrt=(0, 1), options=options),
        lambda f: opstage.jvp(f, args, args, options=options),
    ]
    for call in calls:
        same(call(ours), call(theirs), exact)
    products = [opstage.hvp(f, args, args, options=options) for f in (ours, theirs)]
    for a, b in zip(leaves(products[0]), leaves(products[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


def deep(of: Any) -> tuple[Any, ...]:
    return loss(of), parameters(DEPTH, WIDTH, HIDDEN), Spec(f"B {WIDTH}")


@BACKENDS
def test_backward_pass_keeps_operands_alone(backend: str) -> None:
    options = Options(backend=backend)
    kept, spared = (step_memory(*deep(of), options=options).at(B=ROWS).peak for of in (block, opstage.remat(block)))
    hidden = DEPTH * ROWS * HIDDEN * 4
    assert kept - spared > hidden * (DEPTH - 2) / DEPTH


def test_graph_with_remat_is_read_back() -> None:
    graph = opstage.record(opstage.remat(block), SMALL[0], Spec("B 4"))
    assert any(equation.primitive is REMAT for equation in graph.body.equations)
    assert str(Graph.parse(str(graph))) == str(graph)


def test_remat_is_checked_for_every_size_and_bounded() -> None:
    report = opstage.check(loss(opstage.remat(block)), SMALL, Spec("B 4"), options=FLOAT64)
    assert report.ok and str(report.outputs)
    found = opstage.bounds(opstage.remat(block), SMALL[0], opstage.Box.around(X, 0.01), options=FLOAT64)
    value = opstage.run(block, SMALL[0], X, options=FLOAT64)
    assert (found.lower <= value).all() and (value <= found.upper).all()


@pytest.mark.parametrize("zero", [0, 2])
def test_training_with_remat_on_a_mesh_equals_one_rank(zero: int) -> None:
    def trained(options: Options) -> list[float]:
        trainer = opstage.scalar_trainer(loss(opstage.remat(block)), SMALL, options=options)
        return [float(trainer.step(0.01, X[:4])) for _ in range(3)]

    alone = trained(FLOAT64)
    for backend in ("eager", "compiled"):
        options = FLOAT64.replace(mesh="data=2", zero=zero, backend=backend)
        np.testing.assert_allclose(trained(options), alone, rtol=1e-12)


def test_wrong_calls_are_refused() -> None:
    with pytest.raises(UsageError, match="remat: expected a function"):
        opstage.remat(3)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="must be a function"):
        opstage.run(lambda ops, x: ops.remat(x), X)
    with pytest.raises(ShapeError, match="matmul") as caught:
        opstage.run(lambda ops, x: ops.remat(lambda own, x: own.matmul(x, x), x), X)
    assert caught.value.source is not None and "own.matmul(x, x)" in caught.value.source.text


def test_exported_model_has_no_trace_of_remat(tmp_path: Path) -> None:
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")

    def program(ops: Any, x: Any) -> Any:
        return ops.remat(block, {name: ops.const(value) for name, value in SMALL[0].items()}, x)

    path = tmp_path / "model.onnx"
    opstage.record(program, Spec("B 4")).to_onnx(path)
    assert {node.op_type for node in onnx.load(path).graph.node} == {"Add", "Gelu", "Identity", "MatMul"}
    session = runtime.InferenceSession(path)
    x = X.astype(np.float32)
    (found,) = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(found, opstage.run(program, x), rtol=1e-5, atol=1e-6)
