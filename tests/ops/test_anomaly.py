"""`Options.detect_anomaly` outside of trainers and sessions: every function of the API looks at each result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.transforms.anomaly import AnomalyError

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
    with pytest.raises(AnomalyError, match=r"sqrt at .*test_anomaly.py:\d+: sqrt gave nan at index \(1,\)") as caught:
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
