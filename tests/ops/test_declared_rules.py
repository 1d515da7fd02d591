"""A composite keeps its declared derivative rule, and refuses what its shape rule refuses, by whatever road."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Session, transform
from opstage.interpreters.graph.recorder import replay
from opstage.interpreters.registry import make_interpreter
from opstage.ops.errors import ProgramError, ShapeError
from opstage.ops.primitive import NO_STATIC, Linearity, Primitive
from opstage.ops.types import TensorType
from opstage.transforms.interpreter import BaseInterpreter
from opstage.transforms.transparent import Transparent

F64 = Options(dtype="float64")
COMPILED = Options(dtype="float64", backend="compiled")
X = np.array([-1.5, -0.25, 0.5, 2.0])
V = np.array([1.0, -2.0, 0.5, 3.0])


def _same(x: TensorType) -> tuple[TensorType, ...]:
    return (x,)


def _sign(ops: Any, x: Any, /) -> tuple[Any, ...]:
    zero = ops.full(shape=x.shape, value=0.0, dtype=x.dtype)
    one = ops.full(shape=x.shape, value=1.0, dtype=x.dtype)
    return (ops.select(ops.less(x, zero), ops.neg(one), one),)


def _copy(ops: Any, x: Any, /) -> tuple[Any, ...]:
    return (ops.scale(x, c=1.0),)


def _through(ops: Any, ctx: Any, cotangents: Any, /) -> Any:
    return cotangents


def _moved(ops: Any, primals: Any, outputs: Any, tangents: Any, /) -> Any:
    return tangents


def _op(name: str, **what: Any) -> Primitive:
    return Primitive(name, operands=("x",), shape=_same, **what)


STRAIGHT = _op("straight_through_sign", decomposition=_sign, vjp=_through, jvp=_moved)
"""sign(x), whose slope is declared as 1."""
REVERSE = _op(
    "reverse_gradient",
    decomposition=_copy,
    vjp=lambda ops, ctx, cotangents: (ops.neg(cotangents[0]),),
    jvp=lambda ops, primals, outputs, tangents: (ops.neg(tangents[0]),),
)
"""x, whose slope is declared as -1."""
CLIP = _op(
    "clip_gradient", decomposition=_copy, vjp=lambda ops, ctx, cotangents: (ops.clamp(cotangents[0], lo=-1.0, hi=1.0),)
)
"""x, whose cotangent is clipped: no linear map, so there is no jvp to it."""
STOP = _op("stop_gradient", decomposition=_copy, differentiable=False)
"""x, a constant to every derivative."""


def cube(op: Primitive) -> Callable[..., Any]:
    """x -> sum(x·y + y³) for y = op(x)."""

    def program(ops: Any, x: Any) -> Any:
        (y,) = ops.bind(op, (x,), NO_STATIC)
        return ops.sum(ops.add(ops.mul(x, y), ops.mul(y, ops.mul(y, y))))

    return program


_ONE = np.where(X < 0, -1.0, 1.0)  # sign(X)
GRADIENTS = {  # y + x·y' + 3·y²·y'
    STRAIGHT: _ONE + X + 3,
    REVERSE: X - X - 3 * X**2,
    CLIP: X + np.clip(X + 3 * X**2, -1, 1),
    STOP: X,
}
PRODUCTS = {  # (2·y' + 6·y·y'²)·v
    STRAIGHT: (2 + 6 * _ONE) * V,
    REVERSE: (-2 + 6 * X) * V,
    STOP: np.zeros(4),
}
BOTH = [STRAIGHT, REVERSE, STOP]
ALL = [*BOTH, CLIP]


# Roads to a gradient -------------------------------------------------------------------------------------------------


def plainly(options: Options) -> Callable[..., Any]:
    return lambda f, x: opstage.value_and_grad(f, x, options=options)[1]


def by_pullback(f: Any, x: Any) -> Any:
    return opstage.vjp(f, x, options=F64)[1](np.float64(1.0))[0]


def inside(options: Options) -> Callable[..., Any]:
    """`transform.grad` in a program that is only run."""
    return lambda f, x: opstage.run(lambda ops, x: transform.grad(ops, f, x), x, options=options)


def on_a_tape(options: Options) -> Callable[..., Any]:
    """The gradient for x of a program that takes another gradient inside: the tape of that stands on a tape."""

    def outer(f: Any) -> Any:
        def program(ops: Any, x: Any, s: Any) -> Any:
            return transform.grad(ops, lambda inner, s: inner.mul(s, f(inner, x)), s)  # f(x), by another tape

        return program

    return lambda f, x: opstage.value_and_grad(outer(f), x, np.float64(2.0), options=options)[1]


def on_forward_mode(f: Any, x: Any) -> Any:
    """The gradient, as the primal value of a program that forward mode runs."""
    return opstage.jvp(lambda ops, x: transform.grad(ops, f, x), (x,), (None,), options=F64)[0]


def in_a_scan(options: Options) -> Callable[..., Any]:
    def program(f: Any) -> Any:
        def looped(ops: Any, x: Any) -> Any:
            start = ops.full(shape=(), value=0.0)
            return ops.scan(lambda ops, c, row: (ops.add(c, f(ops, row)), None), start, ops.reshape(x, shape=(2, 2)))[0]

        return looped

    return lambda f, x: opstage.value_and_grad(program(f), x, options=options)[1]


def by_a_scan_of_gradients(f: Any, x: Any) -> Any:
    """The loop's body takes the gradient of its row; the loop itself is on a tape."""

    def program(ops: Any, x: Any, w: Any) -> Any:
        def body(ops: Any, carry: Any, row: Any) -> Any:
            return carry, transform.grad(ops, f, row)

        zero = ops.full(shape=(), value=0.0)
        rows = ops.scan(body, zero, ops.reshape(x, shape=(2, 2)))[1]
        return ops.sum(ops.mul(w, ops.reshape(rows, shape=(4,))))

    return opstage.value_and_grad(program, x, np.ones(4), wrt=1, options=F64)[1]


def by_compile(f: Any, x: Any) -> Any:
    return opstage.compile(f, x, options=F64).backward(x)[0]  # type: ignore[union-attr]


def by_a_session(backend: str) -> Callable[..., Any]:
    def road(f: Any, x: Any) -> Any:
        session = Session(F64.replace(backend=backend))
        leaf = session.leaf(x)
        session.backward(f(session, leaf))
        return session.grad(leaf)

    return road


def inside_a_session(f: Any, x: Any) -> Any:
    """`transform.grad` on a session, whose own tape lies beneath."""
    session = Session(F64)
    return session.get_value(transform.grad(session, f, session.leaf(x)))


def by_a_trainer(backend: str) -> Callable[..., Any]:
    def road(f: Any, x: Any) -> Any:
        def loss(ops: Any, params: Any) -> Any:
            return f(ops, params["x"])

        trainer = opstage.scalar_trainer(loss, {"x": x}, options=F64.replace(backend=backend))
        trainer.step(1.0)
        return x - trainer.get_params()["x"]

    return road


def by_a_replayed_graph(f: Any, x: Any) -> Any:
    """A recorded graph, run op by op on a base interpreter, gives the gradient that was recorded."""
    graph = opstage.record(lambda ops, x: transform.grad(ops, f, x), x, options=F64)
    base = make_interpreter(F64)
    return base.get(replay(base, graph, [base.put(x)])[0])


class _Watching(Transparent[Any]):
    """Another interpreter in front of the one that computes, as packages add them."""

    __slots__ = ()

    def bind(self, primitive: Primitive, refs: Any, static: Any, /) -> Any:
        return self.inner.bind(primitive, refs, static)


def behind_another(f: Any, x: Any) -> Any:
    base: BaseInterpreter[Any] = _Watching(make_interpreter(F64))
    (result,) = base.execute(lambda ops, x: (transform.grad(ops, f, x),), (base.put(x),))
    return base.get(result)


ROADS: dict[str, Callable[..., Any]] = {
    "eager": plainly(F64),
    "plain NumPy": plainly(F64.replace(fast_kernels=False)),
    "compiled": plainly(COMPILED),
    "anomaly watch": plainly(F64.replace(detect_anomaly=True)),
    "pullback": by_pullback,
    "inside": inside(F64),
    "inside, compiled": inside(COMPILED),
    "on a tape": on_a_tape(F64),
    "on a tape, compiled": on_a_tape(COMPILED),
    "scan": in_a_scan(F64),
    "scan, compiled": in_a_scan(COMPILED),
    "scan of gradients": by_a_scan_of_gradients,
    "compile": by_compile,
    "session": by_a_session("eager"),
    "recorded session": by_a_session("compiled"),
    "inside a session": inside_a_session,
    "trainer": by_a_trainer("eager"),
    "compiled trainer": by_a_trainer("compiled"),
    "replayed graph": by_a_replayed_graph,
    "behind another interpreter": behind_another,
}


@pytest.mark.parametrize("op", ALL, ids=str)
@pytest.mark.parametrize("road", ROADS)
def test_the_declared_slope_is_the_gradient(road: str, op: Primitive) -> None:
    np.testing.assert_allclose(ROADS[road](cube(op), X), GRADIENTS[op], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("op", BOTH, ids=str)
def test_on_forward_mode(op: Primitive) -> None:
    np.testing.assert_allclose(on_forward_mode(cube(op), X), GRADIENTS[op], rtol=1e-12)
    (_, tangent) = opstage.jvp(cube(op), (X,), (V,), options=F64)
    np.testing.assert_allclose(tangent, GRADIENTS[op] @ V, rtol=1e-12)


# Roads to a Hessian-vector product -----------------------------------------------------------------------------------


def reverse_over_reverse(f: Any, x: Any, v: Any, options: Options = F64) -> Any:
    def along(ops: Any, x: Any, v: Any) -> Any:
        return ops.sum(ops.mul(transform.grad(ops, f, x), v))

    return opstage.value_and_grad(along, x, v, options=options)[1]


def scan_of_products(f: Any, x: Any, v: Any) -> Any:
    """Gradients of rows in a loop, and the loop differentiated."""

    def along(ops: Any, x: Any, v: Any) -> Any:
        def body(ops: Any, carry: Any, row: Any) -> Any:
            return carry, transform.grad(ops, f, row)

        zero = ops.full(shape=(), value=0.0)
        rows = ops.scan(body, zero, ops.reshape(x, shape=(2, 2)))[1]
        return ops.sum(ops.mul(v, ops.reshape(rows, shape=(4,))))

    return opstage.value_and_grad(along, x, v, options=F64)[1]


PRODUCT_ROADS: dict[str, Callable[..., Any]] = {
    "hvp": lambda f, x, v: opstage.hvp(f, (x,), (v,), options=F64)[0],
    "hvp, compiled": lambda f, x, v: opstage.hvp(f, (x,), (v,), options=COMPILED)[0],
    "compile": lambda f, x, v: opstage.compile(f, x, options=F64).hvp((x,), (v,))[0],  # type: ignore[union-attr]
    "reverse over reverse": reverse_over_reverse,
    "reverse over reverse, compiled": lambda f, x, v: reverse_over_reverse(f, x, v, COMPILED),
    "reverse over forward": lambda f, x, v: opstage.value_and_grad(
        lambda ops, x, v: transform.jvp(ops, f, (x,), (v,))[1], x, v, options=F64
    )[1],
    "scan": scan_of_products,
}


@pytest.mark.parametrize("op", BOTH, ids=str)
@pytest.mark.parametrize("road", PRODUCT_ROADS)
def test_the_declared_slope_is_differentiated_again(road: str, op: Primitive) -> None:
    np.testing.assert_allclose(PRODUCT_ROADS[road](cube(op), X, V), PRODUCTS[op], rtol=1e-12, atol=1e-12)


def test_a_clipped_gradient_is_differentiated_by_reverse_mode_alone() -> None:
    """There the rule is used twice; a jvp of it does not exist, and nothing stands in for it in silence."""
    small, v = np.array([-0.3, 0.1, 0.2, 5.0]), np.array([1.0, -2.0, 0.5, 3.0])
    inside_bounds = np.abs(small + 3 * small**2) <= 1
    through = np.clip(v + 6 * small * v * inside_bounds, -1, 1)  # the cotangent of y = clip(x), clipped again
    np.testing.assert_allclose(reverse_over_reverse(cube(CLIP), small, v), v * inside_bounds + through, rtol=1e-12)
    for road in ("hvp", "hvp, compiled", "compile", "reverse over forward"):
        with pytest.raises(ProgramError, match=r"clip_gradient .* not jvp.*expandable=False"):
            PRODUCT_ROADS[road](cube(CLIP), X, V)
    with pytest.raises(ProgramError, match=r"clip_gradient .* not jvp"):
        opstage.jvp(cube(CLIP), (X,), (V,), options=F64)


def test_a_session_moves_leaves_through_a_vjp_only_where_there_is_a_jvp() -> None:
    session = Session(F64)
    leaf = session.leaf(X)
    np.testing.assert_allclose(session.jvp_leaf(cube(STRAIGHT)(session, leaf), leaf, V), GRADIENTS[STRAIGHT] @ V)
    with pytest.raises(ProgramError, match=r"clip_gradient .* not jvp"):
        session.jvp_leaf(cube(CLIP)(session, leaf), leaf, V)


# What a primitive may say --------------------------------------------------------------------------------------------


def test_a_rule_that_equals_the_derivative_may_be_expanded() -> None:
    """`expandable=True`: a missing rule, and derivatives of derivatives, come from the decomposition."""

    def square(**what: Any) -> Any:
        op = Primitive(
            "square",
            operands=("x",),
            residuals=("slope",),
            shape=lambda x: (x, x),
            decomposition=lambda ops, x: (ops.mul(x, x), ops.scale(x, c=2.0)),
            vjp=lambda ops, ctx, cotangents: (ops.mul(cotangents[0], ctx.saved[0]),),
            saves=("slope",),
            **what,
        )
        return lambda ops, x: ops.sum(ops.bind(op, (x,), NO_STATIC)[0])

    for road in PRODUCT_ROADS:
        np.testing.assert_allclose(PRODUCT_ROADS[road](square(expandable=True), X, V), 2 * V, err_msg=road)
        np.testing.assert_allclose(ROADS["eager"](square(), X), 2 * X)
        with pytest.raises(ProgramError, match=r"square .*expandable"):  # its residual would have to move
            PRODUCT_ROADS[road](square(), X, V)


def test_a_jvp_alone_serves_forward_mode() -> None:
    with pytest.raises(ProgramError, match=r"half declares .* not vjp.*expandable"):
        _op("half", decomposition=_copy, jvp=Linearity.JOINT)
    whole = _op("whole", decomposition=_copy, jvp=Linearity.JOINT, expandable=True)
    np.testing.assert_allclose(ROADS["eager"](cube(whole), X), 2 * X + 3 * X**2)


@pytest.mark.parametrize(
    "what, message",
    [
        ({"decomposition": _copy, "vjp": _through, "differentiable": False}, "differentiable=False would never use"),
        ({"decomposition": _copy, "jvp": _moved, "differentiable": False}, "differentiable=False would never use"),
        ({"vjp": _through, "expandable": True}, "expandable=True but lacks a decomposition"),
        ({"jvp": _moved}, "core and differentiable but lacks a vjp"),
        ({"decomposition": _copy, "jvp": _moved, "expandable": False}, "not vjp.*expandable=False"),
    ],
)
def test_what_contradicts_itself_is_refused(what: dict[str, Any], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        _op("odd", **what)


# What a composite's own rule refuses is refused also where its parts, which would let it pass, are differentiated -----

EMPTY = np.zeros((0, 3))


def squeezed(ops: Any, x: Any) -> Any:
    """A reshape of no elements into no elements."""
    return ops.squeeze(x, axis=1)


def total(ops: Any, x: Any) -> Any:
    return ops.sum(squeezed(ops, x))


QUESTIONS: dict[str, Callable[[Options], Any]] = {
    "run": lambda options: opstage.run(squeezed, EMPTY, options=options),
    "vjp": lambda options: opstage.vjp(squeezed, EMPTY, options=options),
    "value_and_grad": lambda options: opstage.value_and_grad(total, EMPTY, options=options),
    "jvp": lambda options: opstage.jvp(squeezed, (EMPTY,), (EMPTY,), options=options),
    "hvp": lambda options: opstage.hvp(total, (EMPTY,), (EMPTY,), options=options),
}


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_squeeze_of_a_long_axis_without_elements(question: str, backend: Any) -> None:
    with pytest.raises(ShapeError, match=r"squeeze at .*axis 1 has 3; only an axis of size 1 can be dropped"):
        QUESTIONS[question](Options(backend=backend))
