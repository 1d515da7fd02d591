"""Bounds of ops as one kernel each: as wide as op by op, and told apart where operands are one ref, or points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Box, Options, Spec, bounds, transform
from opstage.transforms import fused_call as fused_call
from tests.analysis.inside import check_inside

SHAPE = (64, 96)
FAST, PLAIN = Options(dtype="float32"), Options(dtype="float32", fast_kernels=False)
WEIGHT, BIAS = (np.random.default_rng(0).standard_normal(shape).astype("f4") / 8 for shape in ((80, 96), (80,)))
KERNEL = np.random.default_rng(1).standard_normal((3, 2, 3, 3)).astype("f4") / 4

PROGRAMS: dict[str, Callable[..., Any]] = {
    "two refs": lambda ops, x, y: ops.mul(x, y),
    "one ref twice": lambda ops, x, y: ops.mul(x, x),
    "one value of two refs": lambda ops, x, y: ops.mul(x, ops.reshape(x, shape=x.shape)),
    "a point first": lambda ops, x, y: ops.mul(ops.const(np.full(SHAPE, -3, "f4")), x),
    "a point last": lambda ops, x, y: ops.div(x, ops.const(np.full(SHAPE, -3, "f4"))),
    "two points": lambda ops, x, y: ops.mul(ops.const(np.full(SHAPE, 0.1, "f4")), ops.const(np.full(SHAPE, 0.3, "f4"))),
    "less itself": lambda ops, x, y: ops.sub(x, x),
    "less another": lambda ops, x, y: ops.sub(x, y),
    "scaled up": lambda ops, x, y: ops.scale(x, c=0.1),
    "scaled down": lambda ops, x, y: ops.scale(x, c=-0.1),
    "over what may be 0": lambda ops, x, y: ops.div(x, y),
    "the log of what may be negative": lambda ops, x, y: ops.log(x),
    "gelu": lambda ops, x, y: ops.gelu(x),
    "gelu by tanh": lambda ops, x, y: ops.gelu(x, approximate="tanh"),
    "sine": lambda ops, x, y: ops.sin(ops.scale(x, c=9.0)),
    "softmax": lambda ops, x, y: ops.softmax(x, axis=-1),
    "softmax over rows": lambda ops, x, y: ops.softmax(x, axis=0),
    "log softmax": lambda ops, x, y: ops.log_softmax(x, axis=-1),
    "layer norm": lambda ops, x, y: ops.layer_norm(x, None, None),
    "rms norm": lambda ops, x, y: ops.rms_norm(x, None),
    "a mean": lambda ops, x, y: ops.reduce_mean(x, axis=1),
    "a comparison": lambda ops, x, y: ops.select(ops.less(x, y), ops.exp(x), ops.exp(y)),
    "linear": lambda ops, x, y: ops.linear(ops.const(WEIGHT), ops.const(BIAS), x),
    "linear without bias": lambda ops, x, y: ops.linear(ops.const(WEIGHT), None, x),
    "linear of open weights": lambda ops, x, y: ops.linear(x, None, ops.const(WEIGHT)),
    "an open bias": lambda ops, x, y: ops.linear(
        ops.const(WEIGHT), ops.slice(ops.reshape(y, shape=(-1,)), axis=0, start=0, length=80), x
    ),
    "a product of two that are open": lambda ops, x, y: ops.matmul(x, ops.permute(y, axes=(1, 0))),
    "a product with itself": lambda ops, x, y: ops.matmul(x, ops.permute(x, axes=(1, 0))),
    "a convolution": lambda ops, x, y: ops.conv(
        ops.const(KERNEL), None, ops.reshape(x, shape=(2, 2, 32, 48)), padding=1
    ),
}  # fmt: skip


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def boxes(radius: float) -> list[Box]:
    return [Box.around(rng(k).standard_normal(SHAPE).astype("f4"), np.float32(radius)) for k in (1, 2)]


@pytest.mark.parametrize("radius", [0.0, 1e-3, 0.5])
@pytest.mark.parametrize("name", PROGRAMS)
def test_bounds_by_one_kernel_hold_and_are_as_wide_as_op_by_op(name: str, radius: float) -> None:
    program, given = PROGRAMS[name], boxes(radius)
    found: Any = bounds(program, *given, options=FAST)
    plain: Any = bounds(program, *given, options=PLAIN)
    check_inside(program, found, [b.lower for b in given], [b.upper for b in given], rng(3), PLAIN, 3)
    known = np.isfinite(plain.lower) & np.isfinite(plain.upper)
    assert (known == (np.isfinite(found.lower) & np.isfinite(found.upper))).all()
    width = (plain.upper - plain.lower)[known]
    for a, b in ((found.lower[known], plain.lower[known]), (found.upper[known], plain.upper[known])):
        assert (np.abs(a - b) <= 1e-2 * width + 1e-5 * np.abs(b) + 1e-6).all()


def test_a_kernel_is_kept_for_operands_that_are_one_ref_and_another_for_two() -> None:
    """All of these have the same types, and none of their bounds are those of another."""
    x = boxes(0.5)[0]
    square, product, same, apart = (
        bounds(program, x, Box(x.lower, x.upper), options=FAST)
        for program in (
            lambda ops, x, y: ops.mul(x, x),
            lambda ops, x, y: ops.mul(x, y),
            lambda ops, x, y: ops.sub(x, x),
            lambda ops, x, y: ops.sub(x, y),
        )
    )
    assert (square.lower >= 0).all() and (product.lower < 0).any()
    assert not same.upper.any() and (apart.upper >= 1).all()


def test_factors_of_other_signs_have_other_kernels() -> None:
    x = boxes(0.5)[0]
    found = [bounds(lambda ops, x, c=c: ops.scale(x, c=c), x, options=FAST) for c in (2.0, -2.0, 0.0, -0.0)]
    for box, c in zip(found, (2.0, -2.0, 0.0, -0.0)):
        ends = np.sort([c * x.lower, c * x.upper], axis=0)
        assert np.allclose(box.lower, ends[0]) and np.allclose(box.upper, ends[1])


def test_a_norm_and_the_parts_of_a_product_are_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[Any, Any] = {}
    monkeypatch.setattr(fused_call, "_TRACED", known)
    for program in (PROGRAMS["layer norm"], PROGRAMS["linear"]):
        bounds(program, *boxes(0.5), options=FAST)
    made = [traced.composite.name for traced in known.values() if traced is not None]
    assert {"layer_norm_bounds", "product_centred", "product_around"} <= set(made)


def test_bounds_in_a_program_of_an_open_batch_are_checked() -> None:
    """Whether a kernel pays is asked of interpreters that fuse, whose sizes are numbers."""

    def loss(ops: Any, w: Any, x: Any) -> Any:
        box = transform.bounds(ops, lambda ops, w, x: ops.relu(ops.matmul(x, w)), w, Box(x - 0.1, x + 0.1))
        return ops.reduce_mean(box.upper)

    report = opstage.check_step(loss, Spec("8 64"), Spec("B 8"))
    assert report.ok, str(report)
