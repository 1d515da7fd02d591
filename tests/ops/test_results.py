"""Results of programs share memory with nothing, and `Options.detect_anomaly` looks at each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.transforms.anomaly import AnomalyError

CONSTANT = np.arange(6.0, dtype=np.float32)
LEAKED: list[Any] = []


def leaking(ops: Any, x: Any) -> Any:
    y = ops.mul(x, x)
    LEAKED.append(y.value)
    return y


def twice(ops: Any, x: Any) -> Any:
    y = ops.mul(x, x)
    return y, y, ops.reshape(y, shape=(2, 3)), ops.slice(y, axis=0, start=1, length=2)


PROGRAMS = {
    "argument": lambda ops, x: x,
    "argument as a view": lambda ops, x: ops.reshape(x, shape=(3, 2)),
    "constant": lambda ops, x: ops.const(CONSTANT),
    "new": lambda ops, x: ops.mul(x, x),
    "twice and views": twice,
    "broadcast": lambda ops, x: ops.broadcast_to(ops.sum(x), shape=(4,)),
    "leaked": leaking,
}


CASES = [(name, "eager") for name in PROGRAMS]
CASES += [(name, "compiled") for name in PROGRAMS if name != "leaked"]  # there are no values while it is recorded


@pytest.mark.parametrize(("name", "backend"), CASES)
def test_results(name: str, backend: str) -> None:
    options = Options(backend=backend)
    x = np.arange(6.0, dtype=np.float32)
    found = [np.atleast_1d(each) for each in _leaves(opstage.run(PROGRAMS[name], x, options=options))]
    before = [each.copy() for each in found]
    others = [x, CONSTANT, *LEAKED]
    kept = [np.array(other) for other in others]
    for i, each in enumerate(found):
        each += 100
        for j, other in enumerate(found):
            np.testing.assert_array_equal(other, before[j] + (100 if j <= i else 0))
    for other, was in zip(others, kept):
        np.testing.assert_array_equal(other, was)
    again = _leaves(opstage.run(PROGRAMS[name], x, options=options))
    for a, b in zip(again, before):
        np.testing.assert_array_equal(np.atleast_1d(a), b)


def _leaves(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple) else [found]


# `Options.detect_anomaly` outside of trainers and sessions: every function of the API looks at each result ------------

WATCHED = Options(dtype="float64", detect_anomaly=True)
NEGATIVE, DIRECTION = np.array([1.0, -4.0]), np.ones(2)


def root(ops: Any, x: Any) -> Any:
    return ops.sum(ops.sqrt(x))


@pytest.mark.parametrize(
    "call",
    [
        lambda: opstage.run(root, NEGATIVE, options=WATCHED),
        lambda: opstage.value_and_grad(root, NEGATIVE, options=WATCHED),
        lambda: opstage.vjp(root, NEGATIVE, options=WATCHED),
        lambda: opstage.jvp(root, (NEGATIVE,), (DIRECTION,), options=WATCHED),
        lambda: opstage.hvp(root, (NEGATIVE,), (DIRECTION,), options=WATCHED),
    ],
    ids=["run", "value_and_grad", "vjp", "jvp", "hvp"],
)
def test_the_op_and_its_line_are_named(call: Callable[[], Any]) -> None:
    with pytest.raises(AnomalyError, match=r"sqrt at .*test_results.py:\d+: sqrt gave nan at index \(1,\)") as caught:
        call()
    assert caught.value.source is not None and "ops.sqrt(x)" in caught.value.source.text


def test_an_anomaly_of_a_backward_pass_has_the_line_of_its_forward_op() -> None:
    zero = np.array([1.0, 0.0])  # √0 is fine, its derivative is not
    assert opstage.run(root, zero, options=WATCHED) == 1.0
    with pytest.raises(AnomalyError, match=r"div gave inf .* in the backward pass") as caught:
        opstage.value_and_grad(root, zero, options=WATCHED)
    assert caught.value.source is not None and "ops.sqrt(x)" in caught.value.source.text


def test_finite_programs_give_what_they_gave() -> None:
    value, slope = opstage.value_and_grad(root, np.array([4.0, 9.0]), options=WATCHED)
    assert value == 5.0
    np.testing.assert_allclose(slope, [1 / 4, 1 / 6], rtol=1e-15)


def test_shapes_have_nothing_to_look_at() -> None:
    result = opstage.run(root, NEGATIVE, options=WATCHED.replace(backend="shape_check"))
    assert str(result) == "() float64"
