"""What the ranges of whole programs say: what is safe, what is not and why, and fixes that were tried."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec
from opstage.facts import RangeReport, ranges_of
from opstage.ops.errors import UsageError

X = Spec("B 10")


def found(program: Any, *specs: Any, bounds: Any = None, dtype: str | None = None) -> RangeReport:
    report = opstage.check(program, *(specs or (X,)), train=False)
    assert report.ok, report
    return ranges_of(report, bounds, dtype)


def by_hand(axis: int, ops: Any, x: Any) -> Any:
    e = ops.exp(x - ops.reduce_max(x, axis=axis, keepdims=True))
    return e / ops.reduce_sum(e, axis=1, keepdims=True)


def logsumexp(ops: Any, x: Any) -> Any:
    peak = ops.reduce_max(x, axis=1)
    return peak + ops.log(ops.reduce_sum(ops.exp(x - ops.unsqueeze(peak, axis=1)), axis=1))


def variance(ops: Any, x: Any) -> Any:
    centred = x - ops.reduce_mean(x, axis=1, keepdims=True)
    return 1 / ops.sqrt(ops.reduce_mean(centred * centred, axis=1) + 1e-5)


def softplus(ops: Any, x: Any) -> Any:
    return ops.maximum(x, 0) + ops.log1p(ops.exp(-ops.abs(x)))


def normed(ops: Any, x: Any) -> Any:
    return ops.layer_norm(x, None, None)


SAFE = {
    "softmax": lambda ops, x: ops.softmax(x, axis=1),
    "softmax by hand": partial(by_hand, 1),
    "log_softmax": lambda ops, x: ops.log_softmax(x, axis=1),
    "logsumexp by hand": logsumexp,
    "variance": variance,
    "softplus by hand": softplus,
    "layer_norm": normed,
    "sigmoid": lambda ops, x: ops.sigmoid(x),
    "log of 1 + squares": lambda ops, x: ops.log(x * x + 1),
    "gelu": lambda ops, x: ops.gelu(x),
    "unscaled norm": lambda ops, x: x / ops.sqrt(ops.reduce_sum(x * x, axis=1, keepdims=True) + 1e-6),
}


@pytest.mark.parametrize("name", SAFE)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_safe_is_proved_so(name: str, dtype: str) -> None:
    report = found(SAFE[name], dtype=dtype)
    assert report.safe, report


UNSAFE = {
    "exp": (lambda ops, x: ops.exp(x), "overflow"),
    "softmax by another axis's maximum": (partial(by_hand, 0), "division-by-zero"),
    "log of softmax": (lambda ops, x: ops.log(ops.softmax(x, axis=1)), "log-of-zero"),
    "log of sigmoid": (lambda ops, x: ops.log(ops.sigmoid(x)), "log-of-zero"),
    "log of relu": (lambda ops, x: ops.log(ops.relu(x)), "log-of-zero"),
    "root of a difference": (lambda ops, x: ops.sqrt(ops.tanh(x) - 0.5), "sqrt-of-negative"),
    "norm without eps": (lambda ops, x: ops.layer_norm(x, None, None, eps=0.0), "division-by-zero"),
    "direction": (lambda ops, x: x / ops.sqrt(ops.reduce_sum(x * x, axis=1, keepdims=True)), "division-by-zero"),
    "variance by moments": (
        lambda ops, x: ops.reduce_mean(x * x, axis=1) - ops.reduce_mean(x, axis=1) ** 2,
        "cancellation",
    ),
    "reciprocal of counts": (lambda ops, x: 1 / ops.reduce_sum(ops.abs(x), axis=1), "division-by-zero"),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_what_is_unsafe_is_a_warning(name: str) -> None:
    program, rule = UNSAFE[name]
    report = found(program)
    assert [finding.rule for finding in report.findings if finding.severity == "warning"][:1] == [rule], report
    assert report.findings[0].source is not None


def test_fixes_are_those_that_leave_nothing_to_say() -> None:
    fixes = {name: found(UNSAFE[name][0]).findings[0].fix for name in UNSAFE}
    assert "ops.log_softmax" in fixes["log of softmax"]
    assert "ops.log_sigmoid" in fixes["log of sigmoid"]
    assert "safe_log" in fixes["log of relu"]
    assert "subtract the maximum first" in fixes["exp"]


def test_bounds_of_inputs_decide() -> None:
    def program(ops: Any, x: Any) -> Any:
        return ops.exp(x)

    assert found(program, bounds={"x": (-5, 11)}, dtype="float16").safe
    assert not found(program, bounds={"x": (-5, 12)}, dtype="float16").safe
    assert found(program, bounds={"*": (-5, 80)}).safe and not found(program, bounds={"*": (-5, 89)}).safe
    (_, range_), *_ = found(program, bounds={"x": (0, 1)}).outputs
    assert range_.low <= 1 and np.e <= range_.high < 2.7183


def test_an_index_beyond_its_rows() -> None:
    def program(ops: Any, table: Any, index: Any) -> Any:
        return ops.gather_rows(table, index)

    specs = (Spec("10 4"), Spec("B", dtype="int64"))
    assert found(program, *specs, bounds={"index": (0, 9)}).safe
    report = found(program, *specs, bounds={"index": (0, 10)})
    assert [finding.rule for finding in report.findings] == ["index-out-of-range"]


def test_a_loop_that_grows_is_not_called_safe() -> None:
    def doubled(ops: Any, x: Any) -> Any:
        return ops.scan(lambda ops, carry, entry: (carry + carry, None), ops.full(shape=(), value=1.0), x)[0]

    report = found(doubled, Spec("T"))
    assert not report.safe and report.findings


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet", "vit", "gpt", "unet", "pinn"])
def test_shipped_losses_are_proved_safe(name: str) -> None:
    model = opstage.models.model(name)
    held = [tree for tree in (model.init, model.state) if tree is not None]
    report = opstage.check(model.forward, *held, *model.batch)
    assert ranges_of(report, dtype="bfloat16").findings == ()


BAD = {
    "no such input": (lambda: found(normed, bounds={"y": (0, 1)}), "bounds: 'y' matches no input"),
    "wrong order": (lambda: found(normed, bounds={"x": (1, 0)}), "expected .low, high."),
    "no pair": (lambda: found(normed, bounds={"x": 3}), "expected .low, high."),
    "dtype": (lambda: found(normed, dtype="float8"), "float64, float32, bfloat16, float16"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_error(name: str) -> None:
    call, message = BAD[name]
    with pytest.raises(UsageError, match=message):
        call()


def test_ranges_of_a_float64_program_are_in_float64() -> None:
    report = opstage.check(normed, X, options=Options(dtype="float64"))
    assert ranges_of(report).dtype == "float64"


def test_an_integer_that_a_dtype_does_not_hold_may_be_any() -> None:
    def narrowed(ops: Any, x: Any) -> Any:
        return ops.cast(x, dtype="int32")

    for spec in (X, Spec("B", dtype="int64")):
        report = found(narrowed, spec, bounds={"x": (0, 1e10)})
        assert [finding.rule for finding in report.findings] == ["integer-overflow"]
        (_, range_), *_ = report.outputs
        assert range_.low < 0
        assert found(narrowed, spec, bounds={"x": (0, 1e9)}).safe
