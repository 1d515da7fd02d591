"""Derivatives of elementwise ops by one kernel: what their ops compute one by one, for every op, specials included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.interpreters.eager_cpu import NumpyOps, interpreter
from opstage.ops.catalogue import primitives
from opstage.ops.primitive import Kind
from opstage.transforms import fused_call as fused_call
from opstage.transforms import fused_call as pullbacks
from opstage.transforms.tape import Tape
from tests.conformance.harness import assert_close, inputs, is_float, leaves
from tests.samples import SAMPLES, Sample

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
