"""Samples: normalisations. The references are the definitions, one normalised set of elements at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.samples.sample import BadCall, Sample, zeros

Arrays = Callable[[np.random.Generator], tuple[Any, ...]]


def _standard(values: Any, eps: float) -> Any:
    """Zero mean and unit variance of a vector."""
    mean = sum(values) / len(values)
    variance = sum((v - mean) ** 2 for v in values) / len(values)
    return (values - mean) / np.sqrt(variance + eps)


def _broadcast(v: Any, rank: int, axis: int) -> Any:
    return np.expand_dims(v, tuple(i for i in range(rank) if i != axis % rank))


def _affine(y: Any, gamma: Any, beta: Any, axis: int) -> Any:
    if gamma is not None:
        y = y * _broadcast(gamma, y.ndim, axis)
    return y if beta is None else y + _broadcast(beta, y.ndim, axis)


def _layer_norm(x: Any, gamma: Any, beta: Any, eps: float = 1e-5) -> Any:
    rows = [_standard(row, eps) for row in x.reshape(-1, x.shape[-1])]
    return _affine(np.array(rows).reshape(x.shape), gamma, beta, -1)


def _rms_norm(x: Any, gamma: Any, eps: float = 1e-5) -> Any:
    rows = [row / np.sqrt(sum(row**2) / len(row) + eps) for row in x.reshape(-1, x.shape[-1])]
    return _affine(np.array(rows).reshape(x.shape), gamma, None, -1)


def _group_norm(x: Any, gamma: Any, beta: Any, groups: int, eps: float = 1e-5) -> Any:
    y = np.zeros_like(x)
    size = x.shape[1] // groups
    for image in range(x.shape[0]):
        for first in range(0, x.shape[1], size):
            part = x[image, first : first + size]
            y[image, first : first + size] = _standard(part.reshape(-1), eps).reshape(part.shape)
    return _affine(y, gamma, beta, 1)


def _batch_norm(x: Any, gamma: Any, beta: Any, channel_axis: int = 1, eps: float = 1e-5) -> Any:
    channels = np.moveaxis(x, channel_axis, 0)
    y = np.array([_standard(c.reshape(-1), eps).reshape(c.shape) for c in channels]).reshape(channels.shape)
    y = _affine(np.moveaxis(y, 0, channel_axis), gamma, beta, channel_axis)
    flat = channels.reshape(len(channels), -1) if x.size else np.zeros((0, 1))
    mean = np.array([sum(c) / len(c) for c in flat])
    variance = np.array([sum((c - m) ** 2) / (len(c) - 1) for c, m in zip(flat, mean)])
    return y, mean, variance


def _batch_norm_eval(
    x: Any, gamma: Any, beta: Any, mean: Any, variance: Any, channel_axis: int = 1, eps: float = 1e-5
) -> Any:
    mean, variance = (_broadcast(v, x.ndim, channel_axis) for v in (mean, variance))
    return _affine((x - mean) / np.sqrt(variance + eps), gamma, beta, channel_axis)


def _pulled(x: Any, mean: Any, rstd: Any, h: Any, centred: bool) -> Any:
    """hᵀ·J of y = (x - mean)·rstd for one set of elements: J[i, j] = rstd·(δ(i, j) - 1/n - y[i]·y[j]/n)."""
    y = (x - mean) * rstd
    n = len(x)
    jacobian = rstd * (np.eye(n) - centred / n - np.outer(y, y) / n)
    return h @ jacobian, y


def _layer_norm_grad(x: Any, gamma: Any, mean: Any, rstd: Any, g: Any) -> Any:
    dx, dgamma, dbeta = np.zeros_like(x), np.zeros(x.shape[-1]), np.zeros(x.shape[-1])
    for index in np.ndindex(x.shape[:-1]):
        h = g[index] if gamma is None else g[index] * gamma
        dx[index], y = _pulled(x[index], mean[index], rstd[index], h, True)
        dgamma += g[index] * y
        dbeta += g[index]
    return dx, dgamma, dbeta


def _rms_norm_grad(x: Any, gamma: Any, rstd: Any, g: Any) -> Any:
    dx, dgamma = np.zeros_like(x), np.zeros(x.shape[-1])
    for index in np.ndindex(x.shape[:-1]):
        h = g[index] if gamma is None else g[index] * gamma
        dx[index], y = _pulled(x[index], 0.0, rstd[index], h, False)
        dgamma += g[index] * y
    return dx, dgamma


def _group_norm_grad(x: Any, gamma: Any, mean: Any, rstd: Any, g: Any, groups: int) -> Any:
    dx, dgamma, dbeta = np.zeros_like(x), np.zeros(x.shape[1]), np.zeros(x.shape[1])
    size = x.shape[1] // groups
    h = _affine(g, gamma, None, 1)
    for image in range(x.shape[0]):
        for group in range(groups):
            part = slice(group * size, (group + 1) * size)
            values = x[image, part]
            pulled, y = _pulled(
                values.reshape(-1), mean[image, group], rstd[image, group], h[image, part].reshape(-1), True
            )
            dx[image, part] = pulled.reshape(values.shape)
            y = y.reshape(values.shape)
            for i in range(size):
                dgamma[group * size + i] += np.sum(g[image, group * size + i] * y[i])
                dbeta[group * size + i] += np.sum(g[image, group * size + i])
    return dx, dgamma, dbeta


def _batch_norm_grad(
    x: Any, gamma: Any, mean: Any, rstd: Any, g: Any, g_mean: Any, g_variance: Any, channel_axis: int
) -> Any:
    channels, cotangents = np.moveaxis(x, channel_axis, 0), np.moveaxis(g, channel_axis, 0)
    dx, dgamma, dbeta = [], [], []
    for c, (values, cotangent) in enumerate(zip(channels, cotangents)):
        flat, g_y = values.reshape(-1), cotangent.reshape(-1)
        pulled, y = _pulled(flat, mean[c], rstd[c], g_y if gamma is None else g_y * gamma[c], True)
        pulled = pulled + g_mean[c] / len(flat) + 2 * g_variance[c] * (flat - mean[c]) / (len(flat) - 1)
        dx.append(pulled.reshape(values.shape))
        dgamma.append(np.sum(g_y * y))
        dbeta.append(np.sum(g_y))
    return np.moveaxis(np.array(dx), 0, channel_axis), np.array(dgamma), np.array(dbeta)


def _operands(*shapes: tuple[int, ...] | None) -> Arrays:
    """Normal numbers; None for an absent operand."""
    return lambda rng: tuple(None if shape is None else rng.standard_normal(shape) for shape in shapes)


def _with_rstd(position: int, arrays: Arrays) -> Arrays:
    """The operand at `position` made positive: a variance or a reciprocal deviation."""

    def make(rng: np.random.Generator) -> tuple[Any, ...]:
        operands = list(arrays(rng))
        operands[position] = 0.5 + np.abs(operands[position])
        return tuple(operands)

    return make


def _offset(arrays: Arrays) -> Arrays:
    """x far from 0, where a one-pass variance loses all its digits."""
    return lambda rng: (100.0 + (operands := arrays(rng))[0], *operands[1:])


_LOOSE = (1e-5, 1e-4)  # the deviations from a mean of 100 have two digits fewer

SAMPLES = [
    Sample("layer_norm", "matrix", _operands((3, 4), (4,), (4,)), _layer_norm),
    Sample("layer_norm", "vector", _operands((5,), (5,), (5,)), _layer_norm),
    Sample("layer_norm", "rank 3, gamma alone", _operands((2, 2, 3), (3,), None), _layer_norm, eps=0.1),
    Sample("layer_norm", "beta alone", _operands((2, 3), None, (3,)), _layer_norm),
    Sample("layer_norm", "plain", _operands((3, 3), None, None), _layer_norm, eps=0.0),
    Sample("layer_norm", "one element", _operands((2, 1), (1,), (1,)), _layer_norm),
    Sample("layer_norm", "no rows", _operands((0, 3), (3,), (3,)), _layer_norm),
    Sample("layer_norm", "offset", _offset(_operands((2, 4), (4,), (4,))), _layer_norm, order=1, float32=_LOOSE),
    Sample("rms_norm", "matrix", _operands((3, 4), (4,)), _rms_norm),
    Sample("rms_norm", "vector", _operands((5,), (5,)), _rms_norm),
    Sample("rms_norm", "rank 3, plain", _operands((2, 2, 3), None), _rms_norm, eps=0.1),
    Sample("rms_norm", "no rows", _operands((0, 3), (3,)), _rms_norm),
    Sample("group_norm", "image", _operands((2, 4, 2, 2), (4,), (4,)), _group_norm, groups=2),
    Sample("group_norm", "sequence, gamma alone", _operands((2, 6, 2), (6,), None), _group_norm, groups=3),
    Sample("group_norm", "no spatial axes", _operands((3, 4), None, (4,)), _group_norm, groups=2, eps=0.1),
    Sample("group_norm", "one group", _operands((2, 3, 2), None, None), _group_norm, groups=1),
    Sample("group_norm", "a group a channel", _operands((1, 3, 4), (3,), (3,)), _group_norm, groups=3),
    Sample("group_norm", "no images", _operands((0, 4, 2), (4,), (4,)), _group_norm, groups=2),
    Sample("batch_norm", "matrix", _operands((5, 3), (3,), (3,)), _batch_norm),
    Sample("batch_norm", "image", _operands((2, 3, 2, 2), (3,), (3,)), _batch_norm),
    Sample("batch_norm", "channel first", _operands((2, 3, 2), (2,), None), _batch_norm, channel_axis=0),
    Sample("batch_norm", "channel last", _operands((2, 3, 2), None, (2,)), _batch_norm, channel_axis=-1),
    Sample("batch_norm", "plain", _operands((4, 2), None, None), _batch_norm, eps=0.1),
    Sample("batch_norm", "two values", _operands((2, 2), (2,), (2,)), _batch_norm, eps=0.5),
    Sample("batch_norm", "no channels", _operands((3, 0), (0,), (0,)), _batch_norm),
    Sample("batch_norm", "offset", _offset(_operands((6, 2), (2,), (2,))), _batch_norm, order=1, float32=_LOOSE),
    Sample("batch_norm_eval", "matrix", _with_rstd(4, _operands((3, 2), *[(2,)] * 4)), _batch_norm_eval),
    Sample(
        "batch_norm_eval",
        "image, gamma alone",
        _with_rstd(4, _operands((1, 3, 2, 2), (3,), None, (3,), (3,))),
        _batch_norm_eval,
    ),
    Sample(
        "batch_norm_eval",
        "channel first, beta alone",
        _with_rstd(4, _operands((2, 3), None, (2,), (2,), (2,))),
        _batch_norm_eval,
        channel_axis=0,
        eps=0.1,
    ),
    Sample(
        "batch_norm_eval",
        "channel last, plain",
        _with_rstd(4, _operands((2, 1, 3), None, None, (3,), (3,))),
        _batch_norm_eval,
        channel_axis=-1,
    ),
    Sample("batch_norm_eval", "no images", _with_rstd(4, _operands((0, 2), *[(2,)] * 4)), _batch_norm_eval),
    Sample(
        "layer_norm_grad", "matrix", _with_rstd(3, _operands((3, 4), (4,), (3, 1), (3, 1), (3, 4))), _layer_norm_grad
    ),
    Sample("layer_norm_grad", "vector", _with_rstd(3, _operands((4,), (4,), (1,), (1,), (4,))), _layer_norm_grad),
    Sample(
        "layer_norm_grad",
        "rank 3, plain",
        _with_rstd(3, _operands((2, 2, 3), None, (2, 2, 1), (2, 2, 1), (2, 2, 3))),
        _layer_norm_grad,
    ),
    Sample(
        "layer_norm_grad", "no rows", _with_rstd(3, _operands((0, 3), (3,), (0, 1), (0, 1), (0, 3))), _layer_norm_grad
    ),
    Sample("rms_norm_grad", "matrix", _with_rstd(2, _operands((3, 4), (4,), (3, 1), (3, 4))), _rms_norm_grad),
    Sample("rms_norm_grad", "vector, plain", _with_rstd(2, _operands((4,), None, (1,), (4,))), _rms_norm_grad),
    Sample(
        "group_norm_grad",
        "image",
        _with_rstd(3, _operands((2, 4, 2, 1), (4,), (2, 2), (2, 2), (2, 4, 2, 1))),
        _group_norm_grad,
        groups=2,
    ),
    Sample(
        "group_norm_grad",
        "no spatial axes, plain",
        _with_rstd(3, _operands((2, 6), None, (2, 3), (2, 3), (2, 6))),
        _group_norm_grad,
        groups=3,
    ),
    Sample(
        "batch_norm_grad",
        "image",
        _with_rstd(3, _operands((2, 3, 2, 1), (3,), (3,), (3,), (2, 3, 2, 1), (3,), (3,))),
        _batch_norm_grad,
        channel_axis=1,
    ),
    Sample(
        "batch_norm_grad",
        "channel last, plain",
        _with_rstd(3, _operands((2, 2, 3), None, (3,), (3,), (2, 2, 3), (3,), (3,))),
        _batch_norm_grad,
        channel_axis=-1,
    ),
]


def _integers() -> tuple[Any, ...]:
    return (np.zeros((2, 3), np.int64), None, None)


BAD_CALLS = [
    BadCall("layer_norm", "scalar", zeros((), None, None), r"x must have rank 1 or more"),
    BadCall("layer_norm", "integers", _integers, r"x must be a float tensor"),
    BadCall("layer_norm", "empty axis", zeros((2, 0), None, None), r"the last axis must not be empty"),
    BadCall("layer_norm", "short gamma", zeros((2, 3), (2,), (3,)), r"gamma must be \(3,\).*but is \(2,\)"),
    BadCall("layer_norm", "beta a matrix", zeros((2, 3), None, (1, 3)), r"beta must be \(3,\).*but is \(1, 3\)"),
    BadCall("layer_norm", "negative eps", zeros((2, 3), None, None), r"eps must be .* -1.0", eps=-1.0),
    BadCall("rms_norm", "long gamma", zeros((2, 3), (4,)), r"gamma must be \(3,\).*but is \(4,\)"),
    BadCall("rms_norm", "eps text", zeros((2, 3), None), r"eps must be .*'tiny'", eps="tiny"),
    BadCall("rms_norm", "empty axis", zeros((0,), None), r"the last axis must not be empty"),
    BadCall("group_norm", "vector", zeros((4,), None, None), r"\(N, C, \*spatial\)", groups=2),
    BadCall("group_norm", "groups do not divide", zeros((1, 4, 2), None, None), r"groups=3 must divide", groups=3),
    BadCall("group_norm", "no groups", zeros((1, 4), None, None), r"groups must be an int", groups=0),
    BadCall("group_norm", "empty group", zeros((1, 4, 0), None, None), r"a group must not be empty", groups=2),
    BadCall("group_norm", "short beta", zeros((1, 4), None, (2,)), r"beta must be \(4,\)", groups=2),
    BadCall("batch_norm", "one value", zeros((1, 3), None, None), r"at least 2 values per channel"),
    BadCall("batch_norm", "no such axis", zeros((4, 3), None, None), r"axis 2 is out of range", channel_axis=2),
    BadCall("batch_norm", "gamma of the batch", zeros((4, 3), (4,), None), r"gamma must be \(3,\)"),
    BadCall("batch_norm_eval", "short mean", zeros((4, 3), None, None, (2,), (3,)), r"mean must be \(3,\)"),
    BadCall("batch_norm_eval", "variance kept", zeros((4, 3), None, None, (3,), (1, 3)), r"variance must be \(3,\)"),
    BadCall("layer_norm_grad", "flat mean", zeros((2, 3), None, (2,), (2, 1), (2, 3)), r"mean must be \(2, 1\)"),
    BadCall("layer_norm_grad", "short g", zeros((2, 3), None, (2, 1), (2, 1), (1, 3)), r"g is \(1, 3\)"),
    BadCall("rms_norm_grad", "flat rstd", zeros((2, 3), None, (2,), (2, 3)), r"rstd must be \(2, 1\)"),
    BadCall(
        "group_norm_grad",
        "rstd of channels",
        zeros((2, 4), None, (2, 2), (2, 4), (2, 4)),
        r"rstd must be \(2, 2\)",
        groups=2,
    ),
    BadCall(
        "batch_norm_grad",
        "scalar cotangent",
        zeros((4, 3), None, (3,), (3,), (4, 3), (), (3,)),
        r"g_mean must be \(3,\)",
        channel_axis=1,
    ),
]
