"""Kernels: operands of one element, entries along any axis, derivatives of elementwise ops by one kernel."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, RangeError
from opstage.interpreters.eager_cpu import NumpyOps, interpreter
from opstage.interpreters.eager_cpu.loops import arrays as loops
from opstage.ops.catalogue import primitives
from opstage.ops.primitive import Kind
from opstage.transforms import fused_call as fused_call
from opstage.transforms import fused_call as pullbacks
from opstage.transforms.tape import Tape
from tests.conformance.harness import assert_close, inputs, is_float, leaves
from tests.samples import SAMPLES, Sample

OPS = NumpyOps(Options())
SHAPE = (3, 5, 67)


def drawn(shape: tuple[int, ...] = SHAPE, seed: int = 0, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def spread(value: float, dtype: Any = np.float32) -> Any:
    return np.broadcast_to(dtype(value), SHAPE)


KINDS = {
    "packed": drawn,
    "one": lambda seed=0, dtype=np.float32: spread(1.5 + seed, dtype),
    "row": lambda seed=0, dtype=np.float32: np.broadcast_to(drawn((67,), seed, dtype), SHAPE),
    "column": lambda seed=0, dtype=np.float32: np.broadcast_to(drawn((3, 5, 1), seed, dtype), SHAPE),
    "every second": lambda seed=0, dtype=np.float32: drawn((3, 5, 134), seed, dtype)[..., ::2],
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("left", "right"), list(product(KINDS, KINDS)))
def test_operands_of_any_strides(left: str, right: str, dtype: Any) -> None:
    x, y = KINDS[left](seed=0, dtype=dtype), KINDS[right](seed=1, dtype=dtype)
    mask = drawn(SHAPE, 2) > 0
    for m in (mask, np.broadcast_to(mask[0, 0, 0], SHAPE), mask.transpose(2, 1, 0).copy().transpose(2, 1, 0)):
        np.testing.assert_array_equal(loops.select(m, x, y), np.where(m, x, y))
    np.testing.assert_array_equal(loops.relu_grad(x, y), np.where(x <= 0, 0, y))
    np.testing.assert_array_equal(OPS.maximum(x, y), np.maximum(x, y))
    np.testing.assert_array_equal(OPS.minimum(y, x), np.minimum(y, x))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["sqrt", "inv", "sigmoid", "silu", "relu", "erf"])
def test_an_element_has_the_bits_of_a_number_wherever_it_stands(name: str, dtype: Any) -> None:
    """In a vector of 67, with a rest, by itself, one element spread, and with strides."""
    of, x = getattr(loops, name), np.abs(drawn((67,), 3, dtype)) + dtype(0.1)
    whole = of(x)
    np.testing.assert_array_equal(whole, [of(x[i : i + 1])[0] for i in range(67)])
    np.testing.assert_array_equal(whole, of(np.repeat(x, 2)[::2]))
    np.testing.assert_array_equal(of(np.broadcast_to(x[5:6], (40,))), np.repeat(whole[5], 40))


def test_a_constant_can_be_written_to_by_whoever_gets_it() -> None:
    x = np.zeros(4, np.float32)
    found = opstage.run(lambda ops, x: ops.full(shape=(3, 4), value=2.0), x)
    found[0, 0] = 5.0
    assert found.tolist() == [[5, 2, 2, 2], [2, 2, 2, 2], [2, 2, 2, 2]]


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(3, 700, 9), (2, 128, 64), (5, 2, 1000), (1, 257, 8), (4, 300, 2, 20), (6, 256, 7)])
def test_a_sum_over_an_axis_in_the_middle(shape: tuple[int, ...], dtype: str, keepdims: bool) -> None:
    x = drawn(shape, 4, np.dtype(dtype).type) + 1
    ops = NumpyOps(Options(dtype=dtype))
    for axes in ((1,), (1, 2), (0, 1)) if len(shape) == 4 else ((1,),):
        found = ops.reduce_sum(x, axis=axes, keepdims=keepdims)
        expected = x.astype(np.longdouble).sum(axis=axes, keepdims=keepdims)
        assert found.shape == expected.shape and found.dtype == dtype
        np.testing.assert_allclose(found, expected.astype(float), rtol=3e-6 if dtype == "float32" else 1e-14)
    x[0, 1] = np.inf
    x[0, 0] = np.nan
    assert np.isnan(ops.reduce_sum(x, axis=1)[0]).all() and np.isfinite(ops.reduce_sum(x, axis=1)[1:]).all()


SHAPES = {
    1: [(4, 7), (3, 7, 2), (3, 7, 2, 5), (1, 7), (4, 1, 3), (0, 7)],
    2: [(2, 3, 7), (2, 3, 7, 4)],
    3: [(2, 1, 3, 7)],
}
CASES = [(axis, shape) for axis, shapes in SHAPES.items() for shape in shapes]


def made(shape: tuple[int, ...], seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def behind(axis: int, rank: int) -> list[int]:
    return [axis, *[a for a in range(rank) if a != axis]]


@pytest.mark.parametrize("size", [(), (5,), (2, 3), (0,)])
@pytest.mark.parametrize(("axis", "shape"), CASES)
def test_entries_are_read_along_an_axis(axis: int, shape: tuple[int, ...], size: tuple[int, ...]) -> None:
    x, idx = made(shape), np.random.default_rng(1).integers(0, shape[axis], size)
    found = OPS.gather_rows(x.transpose(behind(axis, x.ndim)), idx)
    np.testing.assert_array_equal(found, np.moveaxis(x, axis, 0)[idx])


@pytest.mark.parametrize("start", ["zeros", "packed", "view"])
@pytest.mark.parametrize("many", [0, 1, 40])
@pytest.mark.parametrize(("axis", "shape"), CASES)
def test_entries_are_added_in_order_along_an_axis(axis: int, shape: tuple[int, ...], many: int, start: str) -> None:
    """The order is that of the indices, so the bits are those of a loop over them."""
    idx = np.random.default_rng(1).integers(0, shape[axis], many)
    order = behind(axis, len(shape))
    v = made((*shape[:axis], many, *shape[axis + 1 :]), 2).transpose(order)
    x = {
        "zeros": np.broadcast_to(np.float32(0), tuple(shape[a] for a in order)),
        "packed": made(tuple(shape[a] for a in order)),
        "view": made(shape).transpose(order),
    }[start]
    before, expected = x.copy(), x.copy()
    for i, row in zip(idx, v):
        expected[i] += row
    found = OPS.scatter_add_row(x, v, idx)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("bad", [-1, 7])
def test_an_index_out_of_range_is_refused_along_any_axis(bad: int) -> None:
    x = made((4, 7)).T
    with pytest.raises(RangeError, match=str(bad)):
        OPS.gather_rows(x, np.array([0, bad]))
    with pytest.raises(RangeError, match=str(bad)):
        OPS.scatter_add_row(x, made((4, 2)).T, np.array([0, bad]))
    np.testing.assert_array_equal(OPS.gather_rows(x, np.array([1, bad]), mode="zero")[1], np.zeros(4))


@pytest.mark.parametrize("dtype", ["float64", "int64", "int32", "bool"])
def test_other_dtypes(dtype: str) -> None:
    x = (10 * made((4, 7))).astype(dtype)
    np.testing.assert_array_equal(OPS.gather_rows(x.T, np.array([3, 3, 0])), x.T[[3, 3, 0]])


ELEMENTWISE = [
    sample
    for sample in SAMPLES
    if (primitive := primitives().get(sample.op)) is not None
    and primitive.kind is Kind.POINTWISE
    and primitive.differentiable
]
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 3.0, -3.0, 6.0, 0.5, np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-310])
CHEAP = {"leaky_relu": {"negative_slope": 0.1}, "hardswish": {}, "elu": {"alpha": 1.0}, "abs": {}, "selu": {}}


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for operands of any size."""
    monkeypatch.setattr(interpreter, "_WORTH", 0)
    monkeypatch.setattr(fused_call, "_TRACED", {})
    monkeypatch.setattr(pullbacks, "_SIMPLE", set())


def _gradients(sample: Sample, operands: tuple[Any, ...]) -> list[Any]:
    """By the operands, of outputs that have seeds."""
    tape = Tape(NumpyOps(Options(dtype="float64")))
    refs = [tape.leaf(x) if is_float(x) else tape.wrap(np.asarray(x)) for x in operands]
    wanted = [ref for ref in refs if ref.record is not None]
    with np.errstate(all="ignore"):
        outputs = [out for out in leaves(sample.apply(tape, *refs)) if out.record is not None]
        seeds = [np.linspace(-1.0, 2.0, out.value.size).reshape(out.shape) for out in outputs]
        return tape.pull(outputs, seeds, wanted)


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("sample", ELEMENTWISE, ids=lambda sample: sample.id)
def test_one_kernel_computes_what_the_rule_does(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    own = inputs(sample)
    special = tuple(np.resize(np.roll(SPECIAL, 3 * i), np.shape(x)) if is_float(x) else x for i, x in enumerate(own))
    for operands in (own, special):
        found = _gradients(sample, operands)
        with monkeypatch.context() as apart:
            apart.setattr(NumpyOps, "fuses", False)
            expected = _gradients(sample, operands)
        assert_close(found, expected, (1e-13, 1e-300), sample.id)


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("name", CHEAP)
def test_rules_of_several_ops_are_one(name: str) -> None:
    x = np.linspace(-4.0, 4.0, 64)
    opstage.value_and_grad(lambda ops, x: ops.sum(getattr(ops, name)(x, **CHEAP[name])), x)
    (found,) = [known for known in fused_call._TRACED.values() if known is not None]
    assert found.composite.name == f"{name}_pullback"


@pytest.mark.usefixtures("any_size")
def test_what_takes_long_is_kept_and_not_computed_again() -> None:
    x = np.linspace(-4.0, 4.0, 64)
    opstage.value_and_grad(lambda ops, x: ops.sum(ops.mish(x)), x)
    assert not any(fused_call._TRACED.values())


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("name", CHEAP)
def test_second_derivatives_are_those_of_the_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, v = np.linspace(-3.9, 4.1, 64), np.cos(np.arange(64.0))

    def found() -> Any:
        options = Options(dtype="float64")
        loss = lambda ops, x: ops.sum(ops.power(getattr(ops, name)(x, **CHEAP[name]), 3.0))  # noqa: E731
        return opstage.hvp(loss, (x,), (v,), options=options)

    first = found()
    monkeypatch.setattr(NumpyOps, "fuses", False)
    assert_close(first, found(), (1e-12, 1e-12), name)


@pytest.mark.usefixtures("any_size")
def test_each_set_of_static_parameters_has_its_own_rule() -> None:
    x = np.linspace(-4.0, 4.0, 64)
    for slope in (0.1, 0.2, 0.0, 1.0):
        _, g = opstage.value_and_grad(lambda ops, x, slope=slope: ops.sum(ops.leaky_relu(x, negative_slope=slope)), x)
        np.testing.assert_array_equal(g, np.where(x > 0, 1.0, slope).astype(g.dtype))


@pytest.mark.usefixtures("any_size")
def test_a_rule_of_a_user_is_asked_each_time() -> None:
    factor = [2.0]

    @opstage.custom_vjp
    def odd(ops: Any, x: Any) -> Any:
        return ops.mul(x, x)

    @odd.defvjp
    def _(ops: Any, inputs: Any, outputs: Any, cotangents: Any) -> Any:
        return ops.scale(ops.abs(ops.mul(inputs[0], cotangents[0])), c=factor[0])

    x = np.linspace(-4.0, 4.0, 64)
    for c in (2.0, 5.0):
        factor[0] = c
        _, g = opstage.value_and_grad(lambda ops, x: ops.sum(odd(ops, x)), x, options=Options(dtype="float64"))
        np.testing.assert_allclose(g, c * np.abs(x))


@pytest.mark.usefixtures("any_size")
def test_what_ran_before_does_not_decide() -> None:
    """The rule of exponent 0 is one op, that of others is three."""
    x = np.linspace(0.5, 4.0, 64)
    for exponent in (0.0, 2.5):
        opstage.value_and_grad(lambda ops, x, e=exponent: ops.sum(ops.pow(x, exponent=e)), x)
    assert [known.composite.name for known in fused_call._TRACED.values() if known] == ["pow_pullback"]


@pytest.mark.usefixtures("any_size")
def test_a_tape_within_a_backward_pass_keeps_what_takes_long_too() -> None:
    ops = NumpyOps(Options(dtype="float64"))
    ops.cursor.backward = True
    tape = Tape(ops)
    out = tape.mish(tape.leaf(np.linspace(-4.0, 4.0, 64)))
    assert out.record is not None and not any(fused_call._TRACED.values())
