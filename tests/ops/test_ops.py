"""`Ops` is all that an interpreter inherits, and functions of users get refs with operators everywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Ops, Options, scalar_trainer, transform
from opstage.ops.dispatch import Cursor
from opstage.ops.errors import ProgramError
from opstage.ops.infix import Infix
from opstage.ops.primitive import Primitive, Static
from opstage.ops.protocol import OPS
from opstage.optim import Optimizer
from opstage.transforms.transparent import Transparent


class Words(Ops[Any]):
    """Refs are texts: what was computed, written down."""

    def __init__(self) -> None:
        self.cursor, self.dtype, self.seed = Cursor(), np.dtype("float32"), 3

    def bind(self, primitive: Primitive, refs: tuple[Any, ...], static: Static, /) -> tuple[Any, ...]:
        text = f"{primitive}({', '.join([*refs, *(f'{name}={value!r}' for name, value in static.items())])})"
        return (text,) * (len(primitive.outputs) + len(primitive.residuals))

    def const(self, value: Any, /, *, dtype: Any = None) -> Any:
        return str(value)

    def step(self) -> Any:
        return "step"

    def iterations(self) -> tuple[Any, ...]:
        return ()

    def _refused(self, *args: Any, **named: Any) -> Any:
        raise NotImplementedError

    region = scan = cond = switch = while_loop = vjp_of = jvp_of = vmap_of = bounds_of = remat = _refused


CALLS: dict[str, Any] = {
    "add(a, b)": lambda ops: ops.add("a", "b"),
    "select(m, a, b)": lambda ops: ops.select("m", "a", "b"),
    "linear(w, x, has_bias=False)": lambda ops: ops.linear("w", None, "x"),
    "relu(neg(a))": lambda ops: ops.relu(ops.neg("a")),
    "full(shape=(2,), value=0.0, dtype='float32')": lambda ops: ops.full(shape=np.array([2]), value=0.0),
    "bernoulli_mask(p, step, shape=(2,), seed=3, site=0)": lambda ops: ops.bernoulli_mask("p", shape=(2,), site=0),
}


@pytest.mark.parametrize("text", CALLS)
def test_ops_are_made_of_bind(text: str) -> None:
    ops = Words()
    assert CALLS[text](ops) == text
    assert isinstance(ops, Ops) and ops.cursor.ordinal == text.count("(") - text.count("=(")


@pytest.mark.parametrize("base", [Ops, Words, Transparent])
def test_a_name_of_an_op_has_no_other_meaning(base: type[Any]) -> None:
    with pytest.raises(ProgramError, match="class Mine defines relu, an op that every interpreter computes by bind"):
        type("Mine", (base,), {"relu": lambda ops, x: x})


def test_every_op_says_what_it_is() -> None:
    assert [name for name in sorted(OPS) if not getattr(Ops, name).__doc__] == []


# Functions of users get refs that have operators, on every interpreter and in every place that calls them -------------

RUNS = [Options(), Options(fast_kernels=False), Options(backend="compiled"), Options(detect_anomaly=True)]
X = np.array([1.5, -2.0, 3.0], np.float32)
DOORS: set[str] = set()


def refs(door: str, *trees: Any) -> None:
    """Note that a function was called, and require that all that it got are refs of float32."""
    DOORS.add(door)
    for ref in trees:
        if ref is not None:
            assert isinstance(ref, Infix) and ref.dtype == np.float32, (door, type(ref))


@opstage.custom_vjp
def squared(ops: Any, x: Any) -> Any:
    refs("function", x)
    y = x
    y *= x
    return y


@squared.defvjp
def _(ops: Any, inputs: Any, outputs: Any, cotangents: Any) -> Any:
    refs("vjp of custom_vjp", *inputs, *outputs, *cotangents)
    (g,), (x,) = cotangents, inputs
    g *= np.float64(2.0)
    x *= g
    return x


@squared.defjvp
def _(ops: Any, inputs: Any, outputs: Any, tangents: Any) -> Any:
    refs("jvp of custom_vjp", *inputs, *outputs, *tangents)
    return tangents[0] * inputs[0] * 2.0


def _cubed_vjp(ops: Any, ctx: Any, cotangents: Any) -> Any:
    refs("vjp of custom_op", *ctx.saved, *cotangents)
    (x,) = ctx.saved
    slope = x**2 * 3
    slope *= cotangents[0]
    return transform.vjp(ops, lambda ops, s: s * 1.0, slope)[0]


def _cubed_jvp(ops: Any, primals: Any, outputs: Any, tangents: Any) -> Any:
    refs("jvp of custom_op", *primals, *outputs, *tangents)
    return 3 * primals[0] * primals[0] * tangents[0]


def _cubed(ops: Any, x: Any) -> Any:
    refs("decomposition of custom_op", x)
    y = x
    y *= x
    y *= x
    return y


cubed = opstage.custom_op(
    "cubed_on_refs", operands=("x",), shape=lambda x: x, decomposition=_cubed, vjp=_cubed_vjp, jvp=_cubed_jvp,
    saves=("x",),
)  # fmt: skip


def _doubled(ops: Any, x: Any, /) -> Any:
    refs("decomposition of a primitive", x)
    x += x
    return (x,)


DOUBLED = Primitive("doubled_on_refs", operands=("x",), shape=lambda x: (x,), decomposition=_doubled)


def program(ops: Any, x: Any) -> Any:
    (twice,) = ops.bind(DOUBLED, (x,), {})
    total, _ = ops.scan(
        lambda ops, c, row: (refs("scan", c, row), (c + row, None))[1], ops.full(shape=(), value=0.0), x
    )
    kept = ops.cond(total < 9.0, lambda ops, c: (refs("branch", c), c * 1.0)[1], lambda ops, c: c, total)
    return ops.sum(squared(ops, x) + cubed(ops, x) + twice * ops.region("part", lambda ops, y: y * 2.0, x)) + kept


def expected(x: Any) -> tuple[Any, Any]:
    return np.sum(x**2 + x**3 + 4 * x**2) + np.sum(x), 10 * x + 3 * x**2 + 1


@pytest.mark.parametrize("options", RUNS, ids=str)
def test_rules_and_decompositions_compute_with_infix(options: Options) -> None:
    DOORS.clear()
    x = X.copy()
    value, gradient = expected(x.astype(np.float64))
    found, grad = opstage.value_and_grad(program, x, options=options)
    np.testing.assert_allclose(found, value, rtol=1e-6)
    np.testing.assert_allclose(grad, gradient, rtol=1e-6)
    _, tangent = opstage.jvp(program, (x,), (np.ones_like(x),), options=options)
    np.testing.assert_allclose(tangent, gradient.sum(), rtol=1e-6)
    np.testing.assert_array_equal(x, X)
    assert {door.split(" of ")[0] for door in DOORS} == {"function", "vjp", "jvp", "decomposition", "scan", "branch"}
    assert opstage.check(program, x, options=options).ok


def test_a_scalars_cotangent_takes_operators() -> None:
    @opstage.custom_vjp
    def halved(ops: Any, x: Any) -> Any:
        return ops.sum(x) * 0.5

    @halved.defvjp
    def _(ops: Any, inputs: Any, outputs: Any, c: Any) -> Any:
        return ops.broadcast_to(c[0] * 3.0, shape=inputs[0].shape)

    for options in RUNS:
        _, gradient = opstage.value_and_grad(halved, X, options=options)
        np.testing.assert_array_equal(gradient, np.full(3, 3.0, np.float32))


def test_an_array_that_a_rule_returns_is_an_error() -> None:
    @opstage.custom_vjp
    def plain(ops: Any, x: Any) -> Any:
        return ops.sum(x * 1.0)

    @plain.defvjp
    def _(ops: Any, inputs: Any, outputs: Any, c: Any) -> Any:
        return np.ones(3, np.float32)

    for options in RUNS:
        with pytest.raises(opstage.OpstageError, match=r"ops\.const"):
            opstage.value_and_grad(plain, X, options=options)


@dataclass(frozen=True)
class Heavy(Optimizer):
    """v = 0.9·v + g, p - lr·v, in infix that would write to arrays; a matrix product keeps it from being one loop."""

    num_slots = 1

    product: bool = False

    def update(self, ops: Any, p: Any, g: Any, slots: Any, scalars: Any, /) -> Any:
        (v,) = slots
        refs("update", p, g, v, scalars["lr"])
        v *= 0.9
        v += g * np.float64(1.0)
        if self.product and len(p.shape) == 2:
            v += (v @ ops.transpose2d(v) @ v) * 0.0
        p -= scalars["lr"] * v
        return p, (v,)


def _clip(ops: Any, gradients: Any) -> Any:
    clipped = []
    for g in gradients:
        refs("clip", g)
        g *= 0.5
        clipped.append(g)
    return clipped


def _loss(ops: Any, params: Any, x: Any) -> Any:
    return ops.sum(x @ params["w"]) + ops.sum(params["b"])


@pytest.mark.parametrize("clip", [None, _clip])
@pytest.mark.parametrize("product", [False, True])
@pytest.mark.parametrize("options", RUNS, ids=str)
def test_updates_and_clipping_compute_with_infix(
    options: Options, product: bool, clip: Callable[..., Any] | None
) -> None:
    start = {"w": np.ones((3, 2), np.float32), "b": np.zeros(2, np.float32)}
    trainer = scalar_trainer(_loss, start, options=options, clip=clip)
    optimizer = Heavy(0.1, product)
    state = trainer.init_optim(optimizer)
    for _ in range(3):
        state = trainer.step_with(optimizer, state, X[None])
    factor = 0.1 * (1 + 1.9 + 2.71) * (0.5 if clip else 1)
    found = trainer.get_params()
    np.testing.assert_allclose(found["w"], 1 - factor * np.repeat(X[:, None], 2, 1), rtol=1e-5)
    np.testing.assert_allclose(found["b"], -factor * np.ones(2), rtol=1e-5)
    assert found["w"].dtype == np.float32
    np.testing.assert_array_equal(start["w"], np.ones((3, 2)))
