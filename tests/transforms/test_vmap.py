"""`vmap` of whole programs against a loop over the examples: every backend, chunks, derivatives above and beneath.

The programs nest derivatives, loops, branches, custom derivatives and other batches. Each op alone is in
tests/conformance/test_vmap.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import optree
import pytest

import opstage
from opstage import Options, Spec, debug, transform
from opstage.ops.errors import ProgramError, RangeError, ShapeError, UsageError
from opstage.ops.trees import map_leaves
from tests.conformance.harness import leaves

FLOAT64 = Options(dtype="float64")
B = 6
BACKENDS = pytest.mark.parametrize("backend", ["eager", "compiled"])
RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape) / 2


# Programs for one example ---------------------------------------------------------------------------------------------

NET = {"w1": normal(8, 4), "b1": normal(8), "w2": normal(3, 8), "b2": normal(3)}
CELL = {"u": normal(5, 5), "v": normal(5, 4)}
KERNELS = {"k": normal(4, 2, 3, 3), "b": normal(4), "w": normal(3, 4)}


def mlp(ops: Any, p: Any, x: Any) -> Any:
    return ops.linear(p["w2"], p["b2"], ops.tanh(ops.linear(p["w1"], p["b1"], x)))


def loss(ops: Any, p: Any, x: Any, y: Any) -> Any:
    return ops.cross_entropy(mlp(ops, p, x), y)


def loss_of_batch_of_one(ops: Any, p: Any, x: Any, y: Any) -> Any:
    return ops.cross_entropy(mlp(ops, p, ops.unsqueeze(x, axis=0)), ops.unsqueeze(y, axis=0))


def gradient(f: Any) -> Any:
    return lambda ops, first, *rest: transform.grad(ops, lambda own, first: f(own, first, *rest), first)


def squared(f: Any) -> Any:
    def g(ops: Any, *args: Any) -> Any:
        out = f(ops, *args)
        return ops.sum(out * out)

    return g


def hvp(ops: Any, p: Any, x: Any, y: Any) -> Any:
    return transform.jvp(ops, lambda own, p: gradient(loss)(own, p, x, y), (p,), (p,))[1]


def cnn(ops: Any, p: Any, x: Any) -> Any:
    h = ops.max_pool(ops.relu(ops.conv(p["k"], p["b"], x, padding=1)), kernel=(2, 2))
    return ops.linear(p["w"], None, ops.reduce_mean(h, axis=(1, 2)))


def rnn(ops: Any, p: Any, xs: Any) -> Any:
    def step(inner: Any, h: Any, x: Any) -> Any:
        h = inner.tanh(inner.linear(p["u"], None, h) + inner.linear(p["v"], None, x))
        return h, inner.sum(h)

    return ops.scan(step, ops.full(shape=(5,), value=0.0), xs)


def rnn_total(ops: Any, p: Any, xs: Any) -> Any:
    return ops.sum(rnn(ops, p, xs)[1])


@opstage.custom_vjp
def twice(ops: Any, x: Any, w: Any) -> Any:
    return ops.sum(x * w)


@twice.defvjp
def _(ops: Any, inputs: Any, outputs: Any, cotangents: Any) -> Any:
    x, w = inputs
    return 2.0 * cotangents[0] * w, 3.0 * cotangents[0] * x


def attention(ops: Any, q: Any, k: Any) -> Any:
    return ops.scaled_dot_product_attention(q, k, k, None, causal=True)


def branch(ops: Any, p: Any, x: Any) -> Any:
    return ops.cond(p, lambda own, x: own.exp(x), lambda own, x: x * x, x)


def root_or_square(ops: Any, x: Any) -> Any:
    """Without a nan from the root of a negative number, or in its gradient."""
    return ops.cond(x > 0.0, lambda own, x: own.sqrt(x), lambda own, x: x * x, x)


def three_ways(ops: Any, i: Any, x: Any) -> Any:
    ways = [lambda own, x: own.log(x), lambda own, x: x * x, lambda own, x: own.inv(x)]
    return ops.switch(i, ways, x)


def newton(ops: Any, a: Any) -> Any:
    """The root of a, and the number of iterations, which differs from example to example."""

    def goes_on(own: Any, state: Any) -> Any:
        return own.abs(state[0] * state[0] - a) > 1e-3

    def body(own: Any, state: Any) -> Any:
        x, i = state
        return (x + a / x) * 0.5, i + 1

    return ops.while_loop(goes_on, body, (a, ops.const(0, dtype="int64")), max_iterations=30)


def layers(ops: Any, p: Any, x: Any) -> Any:
    h = ops.layer_norm(mlp(ops, p, x), p["b2"], p["b2"])
    return ops.softmax(ops.gelu(h), axis=-1)


def pick(ops: Any, table: Any, idx: Any) -> Any:
    return ops.reduce_sum(ops.gather_rows(table, idx), axis=0)


def put(ops: Any, v: Any, idx: Any) -> Any:
    return ops.scatter_add_row(ops.full(shape=(5, 3), value=1.0), v, idx)


def order(ops: Any, x: Any) -> Any:
    at = ops.argsort(x)
    return ops.gather_vec(x, at), ops.cumsum(x), ops.argmax(x, axis=0)


def solved(ops: Any, a: Any, b: Any) -> Any:
    eye = ops.cast(ops.equal(ops.iota(shape=(4, 4), axis=0), ops.iota(shape=(4, 4), axis=1)), dtype=a.dtype)
    spd = a @ ops.transpose2d(a) + eye
    return ops.solve(spd, ops.unsqueeze(b, axis=1)), ops.sum(ops.log(ops.cholesky(spd)[0:1, 0]))


def jacobian(ops: Any, p: Any, x: Any) -> Any:
    return transform.jacobian(ops, lambda own, x: mlp(own, p, x), x)


def hessian(ops: Any, p: Any, x: Any, y: Any) -> Any:
    return transform.hessian(ops, lambda own, x: loss(own, p, x, y), x)


def nested(ops: Any, p: Any, xs: Any) -> Any:
    return transform.vmap(ops, lambda own, x: mlp(own, p, x), xs)


def distances(ops: Any, x: Any, ys: Any) -> Any:
    return transform.vmap(ops, lambda own, y: own.sum((x - y) * (x - y)), ys)


class Case(NamedTuple):
    name: str
    program: Callable[..., Any]
    args: tuple[Any, ...]
    in_axes: Any = 0


def stacked(tree: Any) -> Any:
    return map_leaves(lambda x: np.stack([x * (1 + i / 9) for i in range(B)]), tree)


X, XS, Y = normal(B, 4), normal(B, 7, 4), RNG.integers(0, 3, B)
ROWS, IMAGES = RNG.integers(0, 5, (B, 4)), normal(B, 2, 6, 6)
EITHER, POSITIVE = RNG.integers(0, 2, B).astype(bool), np.abs(normal(B)) + 0.5
SHARED = (None, 0)

CASES = [
    Case("mlp", mlp, (NET, X), SHARED),
    Case("ensemble on one x", mlp, (stacked(NET), X[0]), (0, None)),
    Case("ensemble", mlp, (stacked(NET), X)),
    Case("axis 1", mlp, (NET, np.ascontiguousarray(X.T)), (None, 1)),
    Case("axes of a tree", mlp, ({**NET, "b1": stacked(NET["b1"])}, X), ({**dict.fromkeys(NET), "b1": 0}, 0)),
    Case("losses", loss, (NET, X, Y), (None, 0, 0)),
    Case("gradients", gradient(loss), (NET, X, Y), (None, 0, 0)),
    Case("gradients of batches of one", gradient(loss_of_batch_of_one), (NET, X, Y), (None, 0, 0)),
    Case("gradients of an ensemble", gradient(loss), (stacked(NET), X, Y)),
    Case("hessian-vector products", hvp, (NET, X, Y), (None, 0, 0)),
    Case("jacobians", jacobian, (NET, X), SHARED),
    Case("hessians", hessian, (NET, X, Y), (None, 0, 0)),
    Case("cnn", cnn, (KERNELS, IMAGES), SHARED),
    Case("gradients of a cnn", gradient(squared(cnn)), (KERNELS, IMAGES), SHARED),
    Case("gradients of cnns", gradient(squared(cnn)), (stacked(KERNELS), IMAGES)),
    Case("rnn", rnn, (CELL, XS), SHARED),
    Case("gradients of an rnn", gradient(rnn_total), (CELL, XS), SHARED),
    Case("gradients of rnns", gradient(rnn_total), (stacked(CELL), XS)),
    Case("custom_vjp beneath", lambda ops, w, x: twice(ops, x, w), (normal(4), X), SHARED),
    Case("custom_vjp above", lambda ops, w, x: gradient(twice)(ops, x, w), (normal(4), X), SHARED),
    Case("attention", attention, (normal(B, 2, 5, 4), normal(B, 2, 5, 4))),
    Case("normalization", layers, (NET, X), SHARED),
    Case("rows of one table", gradient(squared(pick)), (normal(5, 3), ROWS), SHARED),
    Case("rows of tables", gradient(squared(pick)), (normal(B, 5, 3), ROWS)),
    Case("rows written", put, (normal(B, 4, 3), ROWS)),
    Case("order", order, (normal(B, 9),)),
    Case("solve", solved, (normal(B, 4, 4), normal(B, 4))),
    Case("one choice", branch, (np.array(True), X), SHARED),
    Case("choices", branch, (EITHER, X)),
    Case("gradients of choices", lambda ops, p, x: gradient(lambda own, x: own.sum(branch(own, p, x)))(ops, x),
         (EITHER, X)),
    Case("a branch with nan", root_or_square, (normal(B),)),
    Case("three branches", three_ways, (np.array([1, 1, 0, 0, 2, 1]), np.array([0.0, -1.0, 0.5, 0.7, 0.2, 0.0]))),
    Case("while_loop", newton, (POSITIVE,)),
    Case("gradients of a while_loop", lambda ops, a: gradient(lambda own, a: newton(own, a)[0])(ops, a), (POSITIVE,)),
    Case("nested", nested, (NET, XS), SHARED),
    Case("all pairs", distances, (X, X), (0, None)),
    Case("gradients of a nested batch", gradient(squared(nested)), (NET, XS), SHARED),
]  # fmt: skip
PROGRAMS = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def axes_of(case: Case) -> list[Any]:
    """The axis of each leaf of the arguments."""
    axes = case.in_axes if isinstance(case.in_axes, tuple) else (case.in_axes,) * len(case.args)
    return optree.broadcast_prefix(axes, case.args, none_is_leaf=True)


def examples(case: Case) -> list[Any]:
    flat, structure = optree.tree_flatten(case.args)
    rows = [[x if axis is None else np.take(x, i, axis) for x, axis in zip(flat, axes_of(case))] for i in range(B)]
    return [optree.tree_unflatten(structure, row) for row in rows]


def same(found: Any, expected: Any) -> None:
    for a, b in zip(leaves(found), leaves(expected), strict=True):
        assert np.shape(a) == np.shape(b)
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("backend", "chunk"),
    [
        ("eager", None),
        ("eager", 3),
        ("compiled", 4),
        *[pytest.param(*row, marks=pytest.mark.slow) for row in (("eager", 4), ("compiled", None), ("compiled", 3))],
    ],
)
@PROGRAMS
def test_vmap_equals_a_loop(case: Case, chunk: int | None, backend: str) -> None:
    options = FLOAT64.replace(backend=backend)
    each = [leaves(opstage.run(case.program, *row, options=FLOAT64)) for row in examples(case)]
    found = opstage.run(opstage.vmap(case.program, case.in_axes, chunk=chunk), *case.args, options=options)
    same(found, list(map(np.stack, zip(*each))))


@pytest.mark.parametrize("backend", ["eager", pytest.param("compiled", marks=pytest.mark.slow)])
@PROGRAMS
def test_derivatives_of_vmap_equal_those_of_a_loop(case: Case, backend: str) -> None:
    options = FLOAT64.replace(backend=backend)
    batched = opstage.vmap(case.program, case.in_axes)

    def total(ops: Any, *args: Any, run: Any = batched) -> Any:
        outs = [out for out in leaves(run(ops, *args)) if out.dtype.kind == "f"]
        return ops.sum(ops.stack([ops.sum(out * ops.sin(out)) for out in outs]))

    def alone(ops: Any, *args: Any) -> Any:
        return total(ops, *args, run=case.program)

    axes = iter(axes_of(case))
    for i, arg in enumerate(case.args):
        of_arg = [next(axes) for _ in leaves(arg)]
        if any(np.asarray(x).dtype.kind != "f" for x in leaves(arg)):
            continue
        found = opstage.value_and_grad(total, *case.args, wrt=i, options=options)[1]
        each = [leaves(opstage.value_and_grad(alone, *row, wrt=i, options=FLOAT64)[1]) for row in examples(case)]
        expected = [np.sum(g, 0) if axis is None else np.stack(g, axis) for g, axis in zip(zip(*each), of_arg)]
        same(found, expected)
        tangents = tuple([arg if j == i else None for j in range(len(case.args))])
        moved = opstage.jvp(total, case.args, tangents, options=options)[1]
        along = sum(np.vdot(g, x) for g, x in zip(expected, leaves(arg)))
        np.testing.assert_allclose(moved, along, rtol=1e-8, atol=1e-10)


@PROGRAMS
def test_vmap_is_checked_for_every_batch_size(case: Case) -> None:
    def spec(x: Any, axis: Any) -> Spec:
        sizes = ["B" if i == axis else str(size) for i, size in enumerate(np.shape(x))]
        return Spec(" ".join(sizes), dtype=str(np.asarray(x).dtype))

    flat, structure = optree.tree_flatten(case.args)
    specs = optree.tree_unflatten(structure, map(spec, flat, axes_of(case)))
    report = opstage.check(opstage.vmap(case.program, case.in_axes), *specs, options=FLOAT64)
    assert report.ok, str(report)


@BACKENDS
@PROGRAMS
def test_batch_may_be_empty(case: Case, backend: str) -> None:
    flat, structure = optree.tree_flatten(case.args)
    none = [x if axis is None else np.take(x, [], axis) for x, axis in zip(flat, axes_of(case))]
    found = opstage.run(
        opstage.vmap(case.program, case.in_axes),
        *optree.tree_unflatten(structure, none),
        options=FLOAT64.replace(backend=backend),
    )
    one = opstage.run(case.program, *examples(case)[0], options=FLOAT64)
    assert [np.shape(x) for x in leaves(found)] == [(0, *np.shape(x)) for x in leaves(one)]


# Effects --------------------------------------------------------------------------------------------------------------


def printing_branch(ops: Any, x: Any) -> Any:
    return ops.cond(x > 0.0, lambda own, x: debug.print(own, x, "positive"), lambda own, x: x, x)


def printing_loop(ops: Any, x: Any) -> Any:
    return ops.while_loop(lambda own, x: x < 2.0, lambda own, x: debug.print(own, x + 1.0, "next"), x)


@BACKENDS
@pytest.mark.parametrize("program", [printing_branch, printing_loop])
def test_effects_are_those_of_a_loop(program: Any, backend: str) -> None:
    """A branch or iteration that an example does not take prints nothing for it."""
    options, x = FLOAT64.replace(backend=backend), np.array([-0.5, 0.5, 3.0])
    printed: list[list[str]] = []
    for run in (opstage.vmap(program), lambda ops, x: ops.scan(lambda own, c, x: (c, program(own, x)), (), x)[1]):
        with debug.redirect(printed.append([]) or printed[-1].append):
            opstage.run(run, x, options=options)
    assert printed[0] == printed[1] != []


# Draws ----------------------------------------------------------------------------------------------------------------


def dropout(ops: Any, x: Any) -> Any:
    return x * ops.bernoulli_mask(ops.const(0.5), shape=x.shape)


def walk(ops: Any, x: Any) -> Any:
    def step(own: Any, at: Any, _: Any) -> Any:
        return at + own.rand_normal(shape=()), own.rand_uniform(shape=())

    return ops.scan(step, ops.sum(x), None, length=3)[1], ops.rand_uniform(shape=(2,))


def gradients_with_dropout(ops: Any, x: Any) -> Any:
    return transform.grad(ops, lambda own, x: own.sum(dropout(own, x * x)), x)


def in_batches(ops: Any, x: Any) -> Any:
    return transform.vmap(ops, dropout, ops.stack([x, x]))


DRAWING = pytest.mark.parametrize("program", [dropout, walk, gradients_with_dropout, in_batches])


@BACKENDS
@pytest.mark.parametrize("chunk", [None, 4, 2])
@DRAWING
def test_each_example_draws_as_in_a_loop(program: Any, chunk: int | None, backend: str) -> None:
    options = FLOAT64.replace(backend=backend)
    x = np.ones((B, 20))
    loop = opstage.run(lambda ops, x: ops.scan(lambda own, c, x: (c, program(own, x)), (), x)[1], x, options=options)
    found = opstage.run(opstage.vmap(program, chunk=chunk), x, options=options)
    for a, b in zip(leaves(found), leaves(loop), strict=True):
        np.testing.assert_array_equal(a, b)
    assert len({row.tobytes() for row in leaves(found)[0]}) == B


@BACKENDS
@pytest.mark.parametrize("chunk", [None, 4])
@DRAWING
def test_examples_with_shared_draws_draw_as_one(program: Any, chunk: int | None, backend: str) -> None:
    options = FLOAT64.replace(backend=backend)
    x = np.ones((B, 20))
    found = opstage.run(opstage.vmap(program, draws="shared", chunk=chunk), x, options=options)
    for a, b in zip(leaves(found), leaves(opstage.run(program, x[0], options=options)), strict=True):
        np.testing.assert_array_equal(a, np.stack([b] * B))


# Axes of results, and what is refused ---------------------------------------------------------------------------------


def test_out_axes_place_the_examples() -> None:
    def program(ops: Any, x: Any, w: Any) -> Any:
        return {"x": ops.stack([x, x * w]), "w": w * 2.0}

    args = (X, normal(4))
    found = opstage.run(opstage.vmap(program, (0, None), {"x": -1, "w": None}, chunk=4), *args, options=FLOAT64)
    same(found, {"w": args[1] * 2, "x": np.stack([X, X * args[1]]).transpose(0, 2, 1)})


REFUSED = {
    "sizes": (lambda ops, x, y: transform.vmap(ops, mlp, x, y), ShapeError, "argument 0 is (6, 4) with 6 examples"),
    "axis": (lambda ops, x, y: transform.vmap(ops, mlp, x, in_axes=2), ShapeError, "expected an axis 2 of examples"),
    "none": (lambda ops, x, y: transform.vmap(ops, mlp, x, in_axes=None), ShapeError, "in_axes is None for every"),
    "tree": (lambda ops, x, y: transform.vmap(ops, mlp, x, in_axes=(0, 0)), UsageError, "expected: 2, got: 1"),
    "rank": (lambda ops, x, y: transform.vmap(ops, lambda own, x: own.matmul(x, x), x), ShapeError, "(4,)"),
    "leak": (lambda ops, x, y: leaked(ops, x), ProgramError, "a ref of a vmapped function was used outside"),
    "index": (lambda ops, x, y: transform.vmap(ops, lambda own, x: own.gather_scalar(x, index=9), x), ShapeError, "9"),
}  # fmt: skip


def leaked(ops: Any, x: Any) -> Any:
    refs = []
    transform.vmap(ops, lambda own, x: refs.append(x) or x, x)
    return ops.exp(refs[0])


@BACKENDS
@pytest.mark.parametrize("name", REFUSED)
def test_wrong_call_is_refused_in_terms_of_one_example(name: str, backend: str) -> None:
    program, error, words = REFUSED[name]
    with pytest.raises(error) as caught:
        opstage.run(program, X, normal(5), options=FLOAT64.replace(backend=backend))
    assert words in str(caught.value)


def test_check_reports_an_op_that_runs_on_one_example_after_the_other() -> None:
    notes = opstage.check(opstage.vmap(dropout), Spec("B 20"), options=FLOAT64).notes
    assert [(note.rule, note.op, note.source and note.source.line) for note in notes] == [
        ("vmap-loop", "rand_uniform", dropout.__code__.co_firstlineno + 1)
    ]


@BACKENDS
def test_index_out_of_the_range_of_its_example_raises(backend: str) -> None:
    with pytest.raises(RangeError, match=r"index 5 at position \(0, 0\) is out of range: x is \(5,"):
        opstage.run(opstage.vmap(pick), normal(B, 5, 3), np.full((B, 4), 5), options=FLOAT64.replace(backend=backend))
