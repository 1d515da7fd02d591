"""First and second derivatives of every op against central differences, and forward against reverse mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import optree
import pytest

import opstage
from opstage.ops.catalogue import primitives
from opstage.options import Options
from tests.conformance.harness import (
    SEED,
    assert_close,
    central_difference,
    dot,
    inputs,
    is_float,
    leaves,
    program_of,
    random_like,
)
from tests.conformance.xfails import EXEMPT_FROM_SECOND_ORDER
from tests.samples import SAMPLES
from tests.samples.parts import all_samples
from tests.samples.sample import Sample

FLOAT64 = Options(dtype="float64")
PLAIN = Options(dtype="float64", fast_kernels=False)
"""First derivatives are those of compiled kernels; what follows is about rules alone, so that none are compiled."""
FIRST = [s for s in SAMPLES if s.order >= 1]
SECOND = [s for s in SAMPLES if s.order >= 2]
RULED = {p.name for p in primitives().values() if p.expandable and (p.vjp is not None or p.jvp is not None)}


def _floats(tree: Any) -> list[Any]:
    return [x for x in leaves(tree) if is_float(x)]


@pytest.mark.parametrize("sample", all_samples(FIRST))
def test_first_derivatives(sample: Sample) -> None:
    """jvp = central difference, and <u, J v> = <Jᵀ u, v>."""
    rng = np.random.default_rng(SEED)
    args = inputs(sample)
    program = program_of(sample)
    v = random_like(rng, args)
    value, tangent = opstage.jvp(program, args, v, options=FLOAT64)
    expected = central_difference(lambda point: opstage.run(program, *point, options=FLOAT64), args, v)
    assert_close(_floats(tangent), expected, (1e-6, 1e-7), f"jvp of {sample.id}")

    u = random_like(rng, value)
    _, pullback = opstage.vjp(program, *args, options=FLOAT64)
    pulled = pullback(u)
    forward, reverse = dot(u, tangent), dot(pulled, v)
    scale = 1 + abs(forward)
    assert abs(forward - reverse) <= 1e-11 * scale, f"{sample.id}: <u, Jv> = {forward}, <Jᵀu, v> = {reverse}"
    for x, g in zip(optree.tree_leaves(args, none_is_leaf=True), optree.tree_leaves(pulled, none_is_leaf=True)):
        assert (g is None) == (x is None or not is_float(x))
        assert g is None or (g.shape == x.shape and g.dtype == x.dtype)


def scalarised(sample: Sample, weights: list[Any]) -> Any:
    """<weights, op(args)>, a scalar program, so that it has a gradient."""

    def program(ops: Any, *args: Any) -> Any:
        total = ops.full(shape=(), value=0.0)
        outputs = [out for out in optree.tree_leaves(sample.apply(ops, *args)) if out.dtype.kind == "f"]
        for out, w in zip(outputs, weights):
            total = ops.add(total, ops.sum(ops.mul(ops.cast(out, dtype=ops.dtype), ops.const(w))))
        return total

    return program


@pytest.mark.parametrize("sample", all_samples(SECOND))
def test_second_derivatives(sample: Sample, request: pytest.FixtureRequest) -> None:
    """Forward over reverse, and reverse over reverse, against a central difference of the gradient."""
    if sample.op in EXEMPT_FROM_SECOND_ORDER:
        request.applymarker(pytest.mark.xfail(reason=EXEMPT_FROM_SECOND_ORDER[sample.op], strict=True))
    rng = np.random.default_rng(SEED)
    args = inputs(sample)
    v = random_like(rng, args)
    outputs = _floats(opstage.run(program_of(sample), *args, options=PLAIN))
    program = scalarised(sample, [rng.standard_normal(out.shape) for out in outputs])
    everything = tuple(range(len(args)))

    def gradient(point: Any) -> Any:
        return opstage.value_and_grad(program, *point, wrt=everything, options=PLAIN)[1]

    expected = central_difference(gradient, args, v)
    forward_over_reverse = opstage.hvp(program, args, v, options=PLAIN)
    assert_close(_floats(forward_over_reverse), expected, (1e-6, 1e-6), f"hvp of {sample.id}")

    def directional(ops: Any, point: Any, direction: Any) -> Any:
        """<grad f, v>, whose gradient is H v."""

        def f(inner: Any, *refs: Any) -> Any:
            return program(inner, *refs)

        _, pullback = opstage.transform.vjp(ops, f, *point)
        grads = pullback(ops.full(shape=(), value=1.0))
        total = ops.full(shape=(), value=0.0)
        for g, d in zip(optree.tree_leaves(grads), optree.tree_leaves(direction)):
            total = ops.add(total, ops.sum(ops.mul(g, d)))
        return total

    _, reverse_over_reverse = opstage.value_and_grad(directional, args, v, options=PLAIN)
    assert_close(_floats(reverse_over_reverse), expected, (1e-6, 1e-6), f"reverse over reverse of {sample.id}")


@pytest.mark.parametrize("sample", all_samples([s for s in SAMPLES if s.order < 2 or s.op in RULED]))
def test_a_derivative_within_a_derivative_is_the_same(sample: Sample) -> None:
    """Where composites are expanded, as beneath forward mode, gradients are those of the rules, also at kinks."""
    args = inputs(sample)
    seeds = random_like(np.random.default_rng(SEED), opstage.run(program_of(sample), *args, options=PLAIN))
    if not _floats(args) or not _floats(seeds):
        return

    def pulled(ops: Any, args: Any, seeds: Any) -> Any:
        return opstage.transform.vjp(ops, program_of(sample), *args)[1](seeds)

    by_rules = opstage.run(pulled, args, seeds, options=PLAIN)
    expanded, _ = opstage.jvp(pulled, (args, seeds), (None, None), options=PLAIN)
    assert_close(expanded, by_rules, (1e-10, 1e-12), f"gradients of {sample.id} within forward mode")


@pytest.mark.parametrize("sample", all_samples(FIRST))
def test_shape_checker_agrees_on_the_backward_pass(sample: Sample) -> None:
    """The same gradient program, run on shapes, gives the gradients' types."""
    args = inputs(sample, "float32")
    plain = Options(fast_kernels=False)
    outputs = _floats(opstage.run(program_of(sample), *args, options=plain))
    program = scalarised(sample, [np.ones(out.shape, np.float32) for out in outputs])
    everything = tuple(range(len(args)))
    _, grads = opstage.value_and_grad(program, *args, wrt=everything, options=plain)
    _, types = opstage.value_and_grad(program, *args, wrt=everything, options=Options(backend="shape_check"))
    executed = [(g.shape, g.dtype) for g in leaves(grads)]
    checked = optree.tree_leaves(types, is_leaf=lambda t: hasattr(t, "dtype"))
    assert [(t.shape, t.dtype) for t in checked] == executed


TIES = np.array([-1.0, 0.0, 1.0])
KINKS: dict[str, tuple[Any, list[Any], Any]] = {
    "abs": (lambda ops, x: ops.abs(x), [TIES], [-1, 0, 1]),
    "relu": (lambda ops, x: ops.relu(x), [TIES], [0, 0, 1]),
    "clamp": (lambda ops, x: ops.clamp(x, lo=-1.0, hi=0.5), [TIES], [1, 1, 0]),
    "maximum": (lambda ops, x, y: ops.maximum(x, y), [TIES, TIES], [0.5] * 3),
    "minimum": (lambda ops, x, y: ops.minimum(x, y), [TIES, TIES], [0.5] * 3),
    "max_pool": (lambda ops, x: ops.max_pool(x, kernel=(2, 2)), [np.ones((1, 2, 2))], [[[1, 0], [0, 0]]]),
}
"""Where differences say nothing: a program, its operands, the gradient of its sum in the first of them."""


@pytest.mark.parametrize("name", KINKS)
def test_gradient_at_a_kink_is_the_documented_one(name: str) -> None:
    program, operands, expected = KINKS[name]
    for options in (FLOAT64, PLAIN):
        _, gradient = opstage.value_and_grad(lambda ops, *xs: ops.sum(program(ops, *xs)), *operands, options=options)
        assert np.asarray(gradient).tolist() == expected
