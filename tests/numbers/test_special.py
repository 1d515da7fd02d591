"""nan, infinities, zeros of either sign and subnormal numbers at every operand's places: what comes of them, in results
and gradients, is on every interpreter what it is in the decomposition on NumPy.

Compared are where nan and either infinity are, and the numbers elsewhere. Not compared is the sign of a zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import optree
import pytest

from opstage.interpreters.eager_cpu.kernels import attention
from opstage.options import Options
from opstage.transforms.interpreter import BaseInterpreter
from tests.conformance.harness import EXECUTING, inputs, is_float
from tests.numbers.evaluate import Evaluation, evaluate, ones_for
from tests.samples import SAMPLES
from tests.samples.parts import searched
from tests.samples.sample import Sample

FLOAT32 = Options(dtype="float32")
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40)

LEFT_OUT = {"cast-up": "its cotangents are float64"}
"""Samples that are not gone through, and why."""

SWEPT = [s for s in SAMPLES if s.id not in LEFT_OUT]
DRAWN = 40
"""Of so many samples one is taken where time is short."""


def kinds(x: Any) -> Any:
    """0 at a number, 1 and 2 at infinities, 3 at nan."""
    return np.where(np.isnan(x), 3, np.where(np.isposinf(x), 1, np.where(np.isneginf(x), 2, 0)))


def changed(sample: Sample, values: tuple[float, ...], places: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The sample's operands with one of the values at one place, at so many places of each float operand."""
    leaves, structure = optree.tree_flatten(inputs(sample, "float32"))
    for i, leaf in enumerate(leaves):
        if not is_float(leaf) or not leaf.size:
            continue
        chosen = range(leaf.size)
        if leaf.size > places:
            chosen = sorted(np.random.default_rng(leaf.size + i).choice(leaf.size, places, replace=False))  # type: ignore[assignment]
        for value in values:
            for place in chosen:
                new = [np.array(each) for each in leaves]
                new[i].reshape(-1)[place] = value
                yield f"{value} at {place} of operand {i}", optree.tree_unflatten(structure, new)


def differences(
    sample: Sample, bases: dict[str, BaseInterpreter[Any]], values: tuple[float, ...], places: int
) -> Iterator[str]:
    """What one of `bases` makes otherwise than the decomposition on NumPy does, which is asked once for them all."""
    plain = EXECUTING["eager, decomposed"](FLOAT32)
    call = lambda ops, *args: sample.apply(ops, *args)  # noqa: E731
    evaluation: Evaluation | None = None
    for what, args in changed(sample, values, places):
        if evaluation is None:  # the shapes of results, and with them the cotangents, are those of all
            cotangents = ones_for(evaluate(plain, call, args, None).values) if sample.order else None
            evaluation = Evaluation(call, args, cotangents)
        expected = evaluation.on(plain, args).named()
        for interpreter, base in bases.items():
            actual = evaluation.on(base, args).named()
            for (name, a), (_, e) in zip(actual, expected, strict=True):
                if not agree(a, e):
                    yield f"{sample.id}, {interpreter}, {what}: {name} is\n{a}, not\n{e}"


def agree(a: Any, e: Any) -> bool:
    """Whether an array is what is expected: the same where it is no number, and near it elsewhere."""
    if a.dtype.kind != "f":
        return np.array_equal(a, e)
    number = kinds(e) == 0
    scale = 1e-5 * max(1.0, float(np.abs(e[number]).max(initial=0)))
    with np.errstate(invalid="ignore"):
        close = np.abs(a - e) <= 1e-4 * np.abs(e) + scale
    return bool(np.all((kinds(a) == kinds(e)) & (close | ~number)))


def made(*interpreters: str) -> dict[str, BaseInterpreter[Any]]:
    return {name: EXECUTING[name](FLOAT32) for name in interpreters}


def test_one_nan_and_one_infinity() -> None:
    bases = made("eager", "eager, plain NumPy")
    composite = [s for s in SWEPT if any(word in s.op for word in ("norm", "attention", "cross", "softmax", "gelu"))]
    rest = [s for s in SWEPT if s not in composite]
    found = [d for s in [*composite[::9], *rest[::DRAWN]] for d in differences(s, bases, (np.nan, np.inf), 1)]
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(("interpreters", "places"), [(("eager", "eager, plain NumPy"), 6), (("compiled",), 2)])
@pytest.mark.parametrize("sample", searched(SWEPT), ids=lambda s: s.id)
def test_every_value_at_every_operand(sample: Sample, interpreters: tuple[str, ...], places: int) -> None:
    found = list(differences(sample, made(*interpreters), SPECIAL, places))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "plain"])
def test_attention_in_blocks_leaves_no_nan_out(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a causal attention leave out keys that none of their queries sees; not where 0 · nan is to be nan."""
    monkeypatch.setattr(attention, "_WEIGHTS_BYTES", 3 * 7 * 4)
    base = EXECUTING["eager"](Options(dtype="float32", fast_kernels=fast))

    def arrays(rng: np.random.Generator) -> tuple[Any, ...]:
        return tuple(rng.standard_normal((2, n, 3)) for n in (7, 9, 9))

    sample = Sample(
        "scaled_dot_product_attention", "in blocks", arrays, None, {"causal": True}
    )  # some keys are beyond all queries
    found = list(differences(sample, {"eager": base}, (np.nan, np.inf), 9))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("interpreter", EXECUTING)
def test_a_row_whose_squares_overflow_is_nan_and_not_zero(interpreter: str) -> None:
    base = EXECUTING[interpreter](FLOAT32)
    rows = np.array([[1e20, -1e20, 3e20, 0], [3e38, 1, -3e38, 2], [1e-30, -1e-30, 0, 2e-30], [1, 2, 3, 4]], np.float32)
    for call in (
        lambda ops, x: ops.layer_norm(x, None, None),
        lambda ops, x: ops.rms_norm(x, None),
        lambda ops, x: ops.group_norm(x, None, None, groups=1),
        lambda ops, x: ops.transpose2d(ops.batch_norm(ops.transpose2d(x), None, None)[0]),
    ):
        for _, array in evaluate(base, call, (rows,), [np.ones((4, 4), np.float32)]).named():
            assert np.isnan(array[:2]).all() and np.isfinite(array[2:]).all()


@pytest.mark.parametrize("interpreter", EXECUTING)
def test_a_power_does_not_depend_on_how_its_exponent_lies_in_memory(interpreter: str) -> None:
    base = EXECUTING[interpreter](FLOAT32)
    x = np.array([-np.inf, -0.0, 4.0, -4.0], np.float32)

    def spread(ops: Any, x: Any, half: Any) -> Any:
        return ops.power(x, ops.broadcast_to(half, shape=(4,)))

    def filled(ops: Any, x: Any, half: Any) -> Any:
        return ops.power(x, ops.mul(ops.broadcast_to(half, shape=(4,)), ops.full(shape=(4,), value=1.0)))

    for call in (spread, filled):
        out = evaluate(base, call, (x, np.float32(0.5)), None).values[0]
        np.testing.assert_array_equal(out, np.array([np.inf, 0.0, 2.0, np.nan], np.float32))
    one = evaluate(base, lambda ops, x, half: ops.power(x, half), (x[0], np.float32(0.5)), None).values[0]
    assert one == np.inf


@pytest.mark.parametrize("interpreter", EXECUTING)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_matrix_with_an_entry_that_is_no_number_has_no_answer(interpreter: str, value: float) -> None:
    base = EXECUTING[interpreter](FLOAT32)
    stack = np.stack([4 * np.eye(3), 2 * np.eye(3)]).astype(np.float32)
    stack[0, 2, 0] = value
    right = np.ones((2, 3, 1), np.float32)
    for call in (lambda ops, a, b: ops.solve(a, b), lambda ops, a, b: ops.cholesky(a)):
        out = evaluate(base, call, (stack, right), None).values[0]
        assert np.isnan(out[0]).all() and np.isfinite(out[1]).all()
    for call in (
        lambda ops, a: ops.det(a),
        lambda ops, a: ops.cofactor(a),
        lambda ops, a: ops.slogdet(a),
        lambda ops, a: ops.eigh(a),
        lambda ops, a: ops.qr(a),
        lambda ops, a: ops.svd(a),
    ):
        for out in evaluate(base, call, (stack,), None).values:
            assert np.isnan(out[0]).all() and np.isfinite(out[1]).all()
    above = np.swapaxes(stack, 1, 2)
    for call in (lambda ops, a: ops.cholesky(a), lambda ops, a: ops.eigh(a)):
        for out in evaluate(base, call, (above,), None).values:
            assert np.isfinite(out).all()
