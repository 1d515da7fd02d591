"""A rule that is not declared follows from the other one where that is linear, and is refused where it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec
from opstage.ops import catalogue as registered
from opstage.ops import transform as transform
from opstage.ops.errors import ProgramError
from opstage.ops.types import TensorType

EAGER, COMPILED = Options(dtype="float64"), Options(dtype="float64", backend="compiled")
BOTH = pytest.mark.parametrize("options", [EAGER, COMPILED], ids=["eager", "compiled"])
RNG = np.random.default_rng(0)
X, W, V, U = (RNG.normal(size=shape) for shape in ((3, 4), (4, 2), (3, 4), (4, 2)))
ROWS = np.array([2, 0, 0, 1])


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Names that a test declares are free again after it."""
    before = set(registered._NAMED)
    yield
    for name in set(registered._NAMED) - before:
        registered.unregister(name)


# Ops of which both rules are written out, with twice the derivative, so that one sees whether they are used.


def _wave_vjp(ops: Any, ctx: Any, cotangents: Any, *, k: float) -> Any:
    x, w, i, *_ = ctx.saved
    g, h = cotangents
    slope = ops.mul(ops.cos(ops.scale(x, c=k)), 2.0 * k)
    dx = ops.mul(ops.matmul(g, ops.transpose2d(w)), slope)
    back = ops.scatter_add_row(ops.full(shape=x.shape, value=0.0, dtype=x.dtype), h * 2.0, i)
    dw = ops.scale(ops.matmul(ops.transpose2d(ops.sin(ops.scale(x, c=k))), g), c=2.0)
    return dx + back, dw, None


def _wave_jvp(ops: Any, primals: Any, outputs: Any, tangents: Any, *, k: float) -> Any:
    (x, w, i), (tx, tw, _) = primals, tangents
    moved, rows = None, None
    if tx is not None:
        moved = ops.matmul(tx * ops.cos(x * k) * k, w)
        rows = ops.gather_rows(tx, i) * 2.0
    if tw is not None:
        more = ops.matmul(ops.sin(x * k), tw)
        moved = more if moved is None else moved + more
    return None if moved is None else moved * 2.0, rows


def wave(rules: str) -> Callable[..., Any]:
    """sin(k x) w, and rows of x at integers."""
    given = {"vjp": _wave_vjp, "jvp": _wave_jvp}
    return opstage.custom_op(
        f"t_wave_{rules}",
        operands=("x", "w", "i"),
        outputs=("out", "rows"),
        shape=lambda x, w, i, *, k: (
            TensorType((x.shape[0], w.shape[1]), x.dtype),
            TensorType((i.shape[0], x.shape[1]), x.dtype),
        ),
        kernels={"cpu": lambda x, w, i, *, k: (np.sin(k * x) @ w, x[i])},
        **{rule: given[rule] for rule in rules.split("_")},  # type: ignore[arg-type]
    )


def program_of(op: Callable[..., Any]) -> Callable[..., Any]:
    def program(ops: Any, x: Any, w: Any) -> Any:
        out, rows = op(ops, x, w, ops.const(ROWS), k=0.5)
        return ops.sum(ops.exp(out)) + ops.sum(rows * rows * rows)

    return program


@BOTH
@pytest.mark.parametrize("rules", ["vjp", "jvp"])
def test_it_is_the_one_that_one_would_declare(rules: str, options: Options) -> None:
    derived, declared = program_of(wave(rules)), program_of(wave("vjp_jvp"))

    def same(do: Callable[[Any], Any]) -> None:
        for found, wanted in zip(do(derived), do(declared), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-12)

    for moving in ((V, U), (V, None), (None, U)):
        same(lambda f, moving=moving: opstage.jvp(f, (X, W), moving, options=options))
        same(lambda f, moving=moving: opstage.hvp(f, (X, W), moving, options=options))
    same(lambda f: opstage.value_and_grad(f, X, W, wrt=(0, 1), options=options)[1])
    same(lambda f: (opstage.value_and_grad(f, X, W, options=options)[1],))

    def nested(f: Callable[..., Any]) -> Callable[..., Any]:
        def slope(ops: Any, x: Any, w: Any) -> Any:
            return transform.jvp(ops, lambda ops, x: f(ops, x, w), (x,), (ops.const(V),))[1]

        return slope

    same(lambda f: (opstage.value_and_grad(nested(f), X, W, options=options)[1],))

    def looped(f: Callable[..., Any]) -> Callable[..., Any]:
        def program(ops: Any, x: Any, w: Any) -> Any:
            return ops.scan(lambda ops, c, e: (c * 0.5 + f(ops, c, w) * 0.01, None), x, None, length=2)[0]

        return program

    same(lambda f: opstage.jvp(looped(f), (X, W), (V, U), options=options))


@BOTH
def test_a_jvp_makes_jacobians_agree(options: Options) -> None:
    """<u, J v> = <Jᵀ u, v>, of a custom_vjp whose rule is made of composites."""

    @opstage.custom_vjp
    def soft(ops: Any, x: Any) -> Any:
        return ops.softmax(x, axis=-1)

    @soft.defvjp
    def _(ops: Any, inputs: Any, outputs: Any, cotangents: Any) -> Any:
        (p,), (g,) = outputs, cotangents
        pooled = ops.reduce_sum(p * g, axis=-1, keepdims=True)
        return p * (g - ops.broadcast_to(pooled, shape=p.shape)) + ops.linear(
            ops.full(shape=(4, 4), value=0.25), None, g
        )

    def f(ops: Any, x: Any) -> Any:
        return soft(ops, x)

    value, moved = opstage.jvp(f, (X,), (V,), options=options)
    u = RNG.normal(size=value.shape)
    (pulled,) = opstage.vjp(f, X, options=options)[1](u)
    np.testing.assert_allclose(np.sum(u * moved), np.sum(pulled * V), rtol=1e-12)
    assert opstage.check(lambda ops, x: transform.jvp(ops, f, (x,), (x,))[1], Spec("N 4")).ok


NOT_LINEAR: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "clips": (lambda ops, x, g: ops.clamp(g, lo=-1.0, hi=1.0), "clamp makes it nonlinear in the cotangents"),
    "adds": (lambda ops, x, g: g + 0.1 * x, "add makes it nonlinear in the cotangents"),
    "is constant": (lambda ops, x, g: x, "a constant term makes it nonlinear"),
    "squares": (lambda ops, x, g: g * g, "mul makes it nonlinear in the cotangents"),
    "divides": (lambda ops, x, g: x / g, "div makes it nonlinear in the cotangents"),
    "detaches": (lambda ops, x, g: ops.detach(g), "detach makes it nonlinear in the cotangents"),
    "chooses": (lambda ops, x, g: ops.select(ops.less(g, x), g, 0.0), "less makes it nonlinear in the cotangents"),
    "normalises": (lambda ops, x, g: ops.softmax(g, axis=0) * g, "softmax makes it nonlinear in the cotangents"),
    "concatenates": (
        lambda ops, x, g: ops.concat([g[:1], x[1:]], axis=0),
        "concat makes it nonlinear in the cotangents",
    ),
    "loops": (
        lambda ops, x, g: ops.scan(lambda ops, c, e: (c + c, None), g, None, length=2)[0],
        "scan makes it nonlinear in the cotangents",
    ),
}


@pytest.mark.parametrize(("rule", "why"), NOT_LINEAR.values(), ids=NOT_LINEAR)
def test_what_is_not_linear_has_no_transpose(rule: Callable[[Any, Any, Any], Any], why: str) -> None:
    @opstage.custom_vjp
    def same(ops: Any, x: Any) -> Any:
        return x * 1.0

    same.defvjp(lambda ops, inputs, outputs, cotangents: rule(ops, inputs[0], cotangents[0]))
    for options in (EAGER, COMPILED):
        opstage.value_and_grad(lambda ops, x: ops.sum(same(ops, x)), X, options=options)
        with pytest.raises(ProgramError, match=rf"same lacks a jvp.*does not follow from its vjp: .*{why}.*defjvp"):
            opstage.hvp(lambda ops, x: ops.sum(same(ops, x)), (X,), (X,), options=options)


@BOTH
def test_zeros_and_choices_are_linear(options: Options) -> None:
    @opstage.custom_vjp
    def kept(ops: Any, x: Any) -> Any:
        return x * 1.0, x * 3.0

    @kept.defvjp
    def _(ops: Any, inputs: Any, outputs: Any, cotangents: Any) -> Any:
        (x,), (g, _) = inputs, cotangents
        half = ops.select(x > 0, g, 0.0) - ops.neg(g) / 2.0
        return ops.concat([half[:1], ops.full(shape=(2, 4), value=0.0, dtype=x.dtype)], axis=0)

    slope = np.where(X > 0, 1.5, 0.5)
    slope[1:] = 0.0
    moved = opstage.jvp(lambda ops, x: kept(ops, x), (X,), (V,), options=options)[1]
    np.testing.assert_allclose(moved[0], slope * V)
    np.testing.assert_array_equal(moved[1], np.zeros_like(X))
