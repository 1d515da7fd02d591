"""Convolutions and pools over sizes that are not known: forward, backward and twice backward, with nothing assumed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Spec
from opstage.ops.dims import evaluate
from opstage.ops.types import show_shape

KERNEL, BIAS = Spec("O C 3 3"), Spec("O")
IMAGES = Spec("B C H W", where=["H >= 4", "W >= 4"])


def _score(ops: Any, kernel: Any, bias: Any, x: Any) -> Any:
    features = ops.conv(kernel, bias, x, stride=2, padding=1)
    pooled = ops.max_pool(features, kernel=(2, 2), stride=1)
    return ops.sum(ops.avg_pool(ops.mul(pooled, pooled), kernel=(2, 1), stride=1, padding=(1, 0)))


def _gradient(ops: Any, *refs: Any) -> Any:
    return opstage.transform.grad(ops, _score, *refs)


def _second(ops: Any, *refs: Any) -> Any:
    def squared(inner: Any, *inner_refs: Any) -> Any:
        total = inner.full(shape=(), value=0.0)
        for g in _gradient(inner, *inner_refs):
            total = inner.add(total, inner.sum(inner.mul(g, g)))
        return total

    return opstage.transform.grad(ops, squared, *refs)


@pytest.mark.parametrize("program", [_gradient, _second])
def test_gradients_have_the_shapes_of_what_they_are_taken_by(program: Any) -> None:
    report = opstage.check(program, KERNEL, BIAS, IMAGES)
    assert report.ok, report
    assert not report.conditions, report
    assert [show_shape(t.shape) for t in report.outputs] == ["(O, C, 3, 3)", "(O,)", "(B, C, H, W)"]


def _strided(ops: Any, kernel: Any, bias: Any, x: Any) -> Any:
    return ops.conv(kernel, bias, x, stride=(3, 2), dilation=(1, 2))


@pytest.mark.parametrize(("height", "width"), [(3, 5), (5, 6), (6, 9), (8, 8)])
def test_symbolic_shapes_hold_at_every_size(height: int, width: int) -> None:
    report = opstage.check(_strided, KERNEL, BIAS, Spec("B C H W", where=["H >= 3", "W >= 5"]))
    assert report.ok, report
    promised = evaluate(report.outputs.shape, {"O": 2, "C": 1, "B": 3, "H": height, "W": width})
    arrays = [np.zeros(shape, np.float32) for shape in ((2, 1, 3, 3), (2,), (3, 1, height, width))]
    assert opstage.run(_strided, *arrays).shape == promised


def test_a_kernel_that_may_not_fit_is_refuted_with_an_example() -> None:
    report = opstage.check(lambda ops, k, x: ops.conv(k, None, x), Spec("8 3 5 5"), Spec("B 3 H 32"))
    assert not report.ok
    assert 'add where=["H >= 5"]' in str(report)
