"""Activations, softmax, dropout."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ...ops.derived import dropout, glu, logsumexp, prelu
from ...ops.errors import UnsupportedError
from ...ops.types import BOOL
from ..call import AtenCall, rule

_PLAIN: dict[str, Callable[[Any, Any], Any]] = {
    "relu": lambda ops, x: ops.relu(x) if x.dtype.kind == "f" else ops.maximum(x, 0),
    "relu6": lambda ops, x: ops.relu6(x),
    "silu": lambda ops, x: ops.silu(x),
    "mish": lambda ops, x: ops.mish(x),
    "selu": lambda ops, x: ops.selu(x),
    "hardsigmoid": lambda ops, x: ops.hardsigmoid(x),
    "hardswish": lambda ops, x: ops.hardswish(x),
    "log_sigmoid": lambda ops, x: ops.log_sigmoid(x),
}


def _registered(name: str, function: Callable[[Any, Any], Any]) -> None:
    @rule(f"{name}.default")
    def apply(call: AtenCall[Any], x: Any) -> Any:
        return call.give(function(call.ops, call.tensor(x, call.dtype())))


for _name, _function in _PLAIN.items():
    _registered(_name, _function)


@rule("log_sigmoid_forward.default")
def _log_sigmoid_forward(call: AtenCall[Any], x: Any) -> Any:
    return [call.give(call.ops.log_sigmoid(x.ref), 0), None]


@rule("gelu.default")
def _gelu(call: AtenCall[Any], x: Any, approximate: str) -> Any:
    return call.give(call.ops.gelu(x.ref, approximate=approximate))


@rule("leaky_relu.default")
def _leaky_relu(call: AtenCall[Any], x: Any, negative_slope: float) -> Any:
    return call.give(call.ops.leaky_relu(x.ref, negative_slope=negative_slope))


@rule("elu.default")
def _elu(call: AtenCall[Any], x: Any, alpha: float, scale: float, input_scale: float) -> Any:
    ops = call.ops
    if input_scale == 1:
        y = ops.elu(x.ref, alpha=alpha)
    else:  # x above 0, alpha·(e^(input_scale·x) - 1) below
        below = ops.scale(ops.expm1(ops.scale(ops.minimum(x.ref, 0.0), c=input_scale)), c=alpha)
        y = ops.select(ops.less(0.0, x.ref), x.ref, below)
    return call.give(y if scale == 1 else ops.scale(y, c=scale))


@rule("celu.default")
def _celu(call: AtenCall[Any], x: Any, alpha: float) -> Any:
    return call.give(call.ops.celu(x.ref, alpha=alpha))


@rule("hardtanh.default")
def _hardtanh(call: AtenCall[Any], x: Any, low: float, high: float) -> Any:
    return call.give(call.ops.hardtanh(x.ref, lo=low, hi=high))


@rule("softplus.default")
def _softplus(call: AtenCall[Any], x: Any, beta: float, threshold: float) -> Any:
    ops = call.ops
    scaled = x.ref if beta == 1 else ops.scale(x.ref, c=beta)
    y = ops.softplus(scaled)
    y = y if beta == 1 else ops.scale(y, c=1 / beta)
    return call.give(ops.select(ops.less(float(threshold), scaled), x.ref, y))


@rule("threshold.default")
def _threshold(call: AtenCall[Any], x: Any, threshold: float, value: float) -> Any:
    return call.give(call.ops.threshold(x.ref, threshold=threshold, value=value))


@rule("hardshrink.default")
def _hardshrink(call: AtenCall[Any], x: Any, width: float) -> Any:
    return call.give(call.ops.hardshrink(x.ref, width=width))


@rule("softshrink.default")
def _softshrink(call: AtenCall[Any], x: Any, width: float) -> Any:
    return call.give(call.ops.softshrink(x.ref, width=width))


@rule("prelu.default", "_prelu_kernel.default")
def _prelu(call: AtenCall[Any], x: Any, weight: Any) -> Any:
    slope = weight.ref if x.shape else call.ops.reshape(weight.ref, shape=())
    return call.give(prelu(call.ops, x.ref, slope))


@rule("softmax.int", "_softmax.default", "log_softmax.int", "_log_softmax.default")
def _softmax(call: AtenCall[Any], x: Any, axis: int) -> Any:
    ref = call.floats(x)
    if not ref.shape:
        return call.full((), 0.0 if "log" in call.name else 1.0)
    return call.give((call.ops.log_softmax if "log" in call.name else call.ops.softmax)(ref, axis=axis))


@rule("logsumexp.default")
def _logsumexp(call: AtenCall[Any], x: Any, axes: Any, keepdim: bool) -> Any:
    ref = call.floats(x)
    if not ref.shape:
        return call.give(ref)
    return call.give(logsumexp(call.ops, ref, axis=call.axes(axes, len(ref.shape)), keepdims=keepdim))


@rule("glu.default")
def _glu(call: AtenCall[Any], x: Any, axis: int) -> Any:
    return call.give(glu(call.ops, x.ref, axis=axis))


# Dropout: each call draws anew, by seed and site, not with PyTorch's bits --------------------------------------------


@rule("opstage_import.dropout.default")
def _dropout(call: AtenCall[Any], x: Any, p: float, train: bool, kind: str) -> Any:
    if not call.around.trains(call.node) or p == 0:
        return x
    ops, shape = call.ops, x.shape
    if "feature" in kind:  # whole channels
        shape = (*shape[:2], *[1] * (len(shape) - 2))
    ones = ops.full(shape=shape, value=1.0)
    if "alpha" not in kind:
        kept = dropout(ops, ones, p=p, train=True)
        return call.give(ops.mul(x.ref, call.stretched(kept, x.shape)))
    alpha = 1.7580993408473766  # -lim selu, Klambauer et al. 2017
    a = 1 / math.sqrt((alpha * alpha * p + 1) * (1 - p)) if p < 1 else 0.0
    kept = ops.scale(dropout(ops, ones, p=p, train=True), c=1 - p)
    kept = call.stretched(kept, x.shape)
    shift = ops.add(ops.scale(ops.sub(kept, 1.0), c=alpha * a), alpha * a * p)
    return call.give(ops.add(ops.mul(x.ref, ops.scale(kept, c=a)), shift))


@rule("native_dropout.default")
def _native_dropout(call: AtenCall[Any], x: Any, p: float, train: Any) -> Any:
    ops = call.ops
    if not call.around.trains(call.node) or p == 0:
        return [call.give(x.ref, 0), call.give(ops.full(shape=x.shape, value=True, dtype=BOOL), 1)]
    kept = dropout(ops, ops.full(shape=x.shape, value=1.0), p=p, train=True)
    there = ops.logical_not(ops.equal(kept, 0.0))
    return [call.give(ops.mul(x.ref, kept), 0), call.give(there, 1)]


@rule("rrelu_with_noise_functional.default", "rrelu.default", "rrelu_with_noise.default")
def _rrelu(call: AtenCall[Any], x: Any, *rest: Any) -> Any:
    """In evaluation, a leaky ReLU with the mean slope."""
    low, high, trains = rest if call.name == "aten.rrelu" else rest[1:4]
    if trains:
        raise UnsupportedError("its slopes are drawn in training; export the module in evaluation")
    y = call.give(call.ops.leaky_relu(x.ref, negative_slope=(low + high) / 2), 0)
    return [y, None] if "functional" in call.name else y
