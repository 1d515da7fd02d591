"""Kernels: normalisations and their fused cotangents, with variances in two passes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.catalogue.normalization import (
    BATCH_NORM,
    BATCH_NORM_EVAL,
    BATCH_NORM_GRAD,
    GROUP_NORM,
    GROUP_NORM_GRAD,
    LAYER_NORM,
    LAYER_NORM_GRAD,
    RMS_NORM,
    RMS_NORM_GRAD,
)
from ....ops.catalogue.standardize import other_axes
from ....ops.primitive import Primitive
from ...host import packed
from ..loops import normalization as loops
from ..loops.jit import flat, rows
from .reduction import reduce_mean, reduce_sum

Array = npt.NDArray[Any]
Axes = tuple[int, ...]


def _along(v: Array, rank: int, axis: int) -> Array:
    """A vector shaped to broadcast along `axis` of a tensor of `rank`."""
    return v.reshape([-1 if i == axis else 1 for i in range(rank)])


def _affine(y: Array, affine: tuple[Array, ...], has_gamma: bool, axis: int) -> Array:
    """y · gamma + beta, in place of y, with those of the two that are present."""
    for i, v in enumerate(affine):
        (np.multiply if has_gamma and i == 0 else np.add)(y, _along(v, y.ndim, axis), out=y)
    return y


def _rstd(variance: Array, eps: float) -> Array:
    """1/√(variance + eps), nan where the variance is infinite."""
    out: Array = 1 / np.sqrt(variance + (variance - variance) + float(eps))
    return out


def _standardize(x: Array, axes: Axes, eps: float) -> tuple[Array, Array, Array, Array]:
    """(x - mean)·rstd over `axes`, and mean, biased variance and rstd with those axes kept at size 1."""
    mean = reduce_mean(x, axes, True)
    y = x - mean
    variance = reduce_mean(np.multiply(y, y), axes, True)
    rstd = _rstd(variance, eps)
    return np.multiply(y, rstd, out=y), mean, variance, rstd


def _cotangents(
    y: Array, gamma: Array | None, rstd: Array, g: Array, axes: Axes, across: Axes, *, centred: bool = True
) -> tuple[Array, Array, Array]:
    """Of x, gamma and beta, for y = (x - mean)·rstd over `axes`, then y·gamma + beta with one entry of each `across`.

    gamma and rstd broadcast to y, which is overwritten.
    """
    gy = np.multiply(g, y)
    dgamma, dbeta = reduce_sum(gy, across, False), reduce_sum(g, across, False)
    if gamma is not None:
        g = np.multiply(g, gamma)
        np.multiply(gy, gamma, out=gy)
    np.multiply(y, reduce_mean(gy, axes, True), out=y)
    dx = np.subtract(g, y, out=y)
    if centred:
        np.subtract(dx, reduce_mean(g, axes, True), out=dx)
    return np.multiply(dx, rstd, out=dx), dgamma, dbeta


def layer_norm(x: Array, *affine: Array, has_gamma: bool, has_beta: bool, eps: float) -> tuple[Array, ...]:
    y, mean, _, rstd = _standardize(x, (x.ndim - 1,), eps)
    return _affine(y, affine, has_gamma, x.ndim - 1), mean, rstd


def layer_norm_grad(x: Array, *rest: Array, has_gamma: bool) -> tuple[Array, ...]:
    *gamma, mean, rstd, g = rest
    y = x - mean
    np.multiply(y, rstd, out=y)
    last = x.ndim - 1
    return _cotangents(y, gamma[0] if has_gamma else None, rstd, g, (last,), other_axes(x.ndim, last))


def rms_norm(x: Array, *gamma: Array, has_gamma: bool, eps: float) -> tuple[Array, ...]:
    y = np.multiply(x, x)
    rstd = _rstd(reduce_mean(y, (x.ndim - 1,), True), eps)
    np.multiply(x, rstd, out=y)
    return _affine(y, gamma, has_gamma, x.ndim - 1), rstd


def rms_norm_grad(x: Array, *rest: Array, has_gamma: bool) -> tuple[Array, ...]:
    *gamma, rstd, g = rest
    y, last = np.multiply(x, rstd), x.ndim - 1
    found = _cotangents(y, gamma[0] if has_gamma else None, rstd, g, (last,), other_axes(x.ndim, last), centred=False)
    return found[:2]


def _grouped(x: Array, groups: int) -> Array:
    """(N, C, *S) as (N, groups, C/groups, *S)."""
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])


def group_norm(x: Array, *affine: Array, has_gamma: bool, has_beta: bool, groups: int, eps: float) -> tuple[Array, ...]:
    y, mean, _, rstd = _standardize(_grouped(x, groups), tuple(range(2, x.ndim + 1)), eps)
    statistic = (x.shape[0], groups)
    return (
        _affine(y.reshape(x.shape), affine, has_gamma, 1),
        mean.reshape(statistic),
        rstd.reshape(statistic),
    )


def group_norm_grad(x: Array, *rest: Array, has_gamma: bool, groups: int) -> tuple[Array, ...]:
    *gamma, mean, rstd, g = rest
    spatial = (1,) * (x.ndim - 2)
    slope = gamma[0].reshape(groups, x.shape[1] // groups, *spatial) if has_gamma else None
    mean, rstd = (s.reshape(*s.shape, 1, *spatial) for s in (mean, rstd))
    y = _grouped(x, groups) - mean
    np.multiply(y, rstd, out=y)
    axes = tuple(range(2, y.ndim))
    dx, dgamma, dbeta = _cotangents(y, slope, rstd, _grouped(g, groups), axes, (0, *axes[1:]))
    return dx.reshape(x.shape), dgamma.reshape(-1), dbeta.reshape(-1)


def _count(x: Array, channel_axis: int) -> int:
    """Values per channel."""
    return math.prod(x.shape[i] for i in other_axes(x.ndim, channel_axis))


def batch_norm(
    x: Array, *affine: Array, has_gamma: bool, has_beta: bool, channel_axis: int, eps: float
) -> tuple[Array, ...]:
    y, mean, variance, rstd = _standardize(x, other_axes(x.ndim, channel_axis), eps)
    channels = x.shape[channel_axis]
    n = _count(x, channel_axis)
    return (
        _affine(y, affine, has_gamma, channel_axis),
        mean.reshape(channels),
        variance.reshape(channels) * (n / (n - 1)),
        rstd.reshape(channels),
    )


def _channel_cotangents(
    gamma: list[Array], rstd: Array, product: Array, dbeta: Array, g_mean: Array, g_variance: Array, n: int
) -> tuple[Array, Array, Array, Array]:
    """What batch_norm's dx is made of, dx = slope·g + of_centred·(x - mean) + of_one, and dgamma.

    `product` is Σ g·(x - mean) over the n values of a channel.
    """
    dgamma = product * rstd
    slope = rstd * gamma[0] if gamma else rstd
    of_centred = g_variance * (2 / (n - 1)) - slope * rstd * dgamma / n
    return flat(slope), of_centred, (g_mean - slope * dbeta) / n, dgamma


def batch_norm_grad(x: Array, *rest: Array, has_gamma: bool, channel_axis: int) -> tuple[Array, ...]:
    """dx is linear in g, x - mean and 1, with coefficients that belong to the channel."""
    *gamma, mean, rstd, g, g_mean, g_variance = rest
    axes = other_axes(x.ndim, channel_axis)
    centred = x - _along(mean, x.ndim, channel_axis)
    dbeta = reduce_sum(g, axes, False)
    product = np.multiply(g, centred)
    slope, of_centred, of_one, dgamma = _channel_cotangents(
        gamma, rstd, reduce_sum(product, axes, False), dbeta, g_mean, g_variance, _count(x, channel_axis)
    )
    np.multiply(centred, _along(of_centred, x.ndim, channel_axis), out=centred)
    np.add(centred, _along(of_one, x.ndim, channel_axis), out=centred)
    np.multiply(g, _along(slope, x.ndim, channel_axis), out=product)
    return np.add(product, centred, out=product), dgamma, dbeta


def batch_norm_eval(x: Array, *rest: Array, has_gamma: bool, has_beta: bool, channel_axis: int, eps: float) -> Array:
    *affine, mean, variance = rest
    slope = _rstd(variance, eps)
    if has_gamma:
        slope = slope * affine[0]
    y = x - _along(mean, x.ndim, channel_axis)
    return _affine(y, (slope, *affine[has_gamma:]), True, channel_axis)


KERNELS: dict[Primitive, Callable[..., Any]] = {
    LAYER_NORM: layer_norm,
    LAYER_NORM_GRAD: layer_norm_grad,
    RMS_NORM: rms_norm,
    RMS_NORM_GRAD: rms_norm_grad,
    GROUP_NORM: group_norm,
    GROUP_NORM_GRAD: group_norm_grad,
    BATCH_NORM: batch_norm,
    BATCH_NORM_GRAD: batch_norm_grad,
    BATCH_NORM_EVAL: batch_norm_eval,
}


# Compiled ------------------------------------------------------------------------------------------------------------


def _given(affine: tuple[Array, ...], has_gamma: bool, x: Array, axis: int) -> tuple[Array, Array]:
    """gamma and beta, with ones and zeros in place of what is absent."""
    gamma = affine[0] if has_gamma else np.ones(x.shape[axis], x.dtype)
    beta = affine[has_gamma] if len(affine) > has_gamma else np.zeros(x.shape[axis], x.dtype)
    return flat(gamma), flat(beta)


def fast_layer_norm(x: Array, *affine: Array, has_gamma: bool, has_beta: bool, eps: float) -> tuple[Array, ...]:
    gamma, beta = _given(affine, has_gamma, x, -1)
    out = np.empty(x.shape, x.dtype)
    mean, rstd = np.empty((*x.shape[:-1], 1), x.dtype), np.empty((*x.shape[:-1], 1), x.dtype)
    loops.layer_norm(rows(x), gamma, beta, float(eps), rows(out), mean.reshape(-1), rstd.reshape(-1))
    return out, mean, rstd


def _blocks(x: Array) -> Array:
    """Zeros, a row for each block of x's rows, in which a loop adds up what is summed over rows."""
    return np.zeros((-(-math.prod(x.shape[:-1]) // loops.BLOCK), x.shape[-1]), x.dtype)


def fast_layer_norm_grad(x: Array, *rest: Array, has_gamma: bool) -> tuple[Array, ...]:
    *affine, mean, rstd, g = rest
    gamma, _ = _given(tuple(affine), has_gamma, x, -1)
    dx, dgamma, dbeta = np.empty(x.shape, x.dtype), _blocks(x), _blocks(x)
    loops.layer_norm_grad(rows(x), gamma, flat(mean), flat(rstd), rows(g), rows(dx), dgamma, dbeta)
    return dx, reduce_sum(dgamma, (0,), False), reduce_sum(dbeta, (0,), False)


def fast_rms_norm(x: Array, *affine: Array, has_gamma: bool, eps: float) -> tuple[Array, ...]:
    gamma, _ = _given(affine, has_gamma, x, -1)
    out, rstd = np.empty(x.shape, x.dtype), np.empty((*x.shape[:-1], 1), x.dtype)
    loops.rms_norm(rows(x), gamma, float(eps), rows(out), rstd.reshape(-1))
    return out, rstd


def fast_rms_norm_grad(x: Array, *rest: Array, has_gamma: bool) -> tuple[Array, ...]:
    *affine, rstd, g = rest
    gamma, _ = _given(tuple(affine), has_gamma, x, -1)
    dx, dgamma = np.empty(x.shape, x.dtype), _blocks(x)
    loops.rms_norm_grad(rows(x), gamma, flat(rstd), rows(g), rows(dx), dgamma)
    return dx, reduce_sum(dgamma, (0,), False)


_LEAST_PLANE = 4  # elements; in shorter planes there is nothing for vector instructions


def _planes(x: Array, axis: int) -> Array | None:
    """x as a matrix with a row for each combination of the axes up to `axis`; None if those are too short, or empty."""
    length = math.prod(x.shape[axis + 1 :])
    return packed(x).reshape(-1, length) if length >= _LEAST_PLANE and x.size else None


def _plane_sums(planes: Array) -> Array:
    total = np.empty(len(planes), planes.dtype)
    loops.plane_sums(planes, total)
    return total


def _of_channels(sums: Array, channels: int) -> Array:
    """Sums over the planes of each channel, from those of planes."""
    return reduce_sum(sums.reshape(-1, channels), (0,), False)


def _plane_squares(planes: Array, mean: Array) -> Array:
    total = np.empty(len(planes), planes.dtype)
    loops.plane_squares(planes, mean, total)
    return total


def _plane_products(planes: Array, mean: Array, g: Array) -> tuple[Array, Array]:
    total, product = np.empty(len(planes), planes.dtype), np.empty(len(planes), planes.dtype)
    loops.plane_products(planes, mean, g.reshape(planes.shape), total, product)
    return total, product


def _plane_affine(planes: Array, mean: Array, slope: Array, offset: Array, shape: tuple[int, ...]) -> Array:
    out = np.empty(shape, planes.dtype)
    loops.plane_affine(planes, flat(mean), flat(slope), flat(offset), out.reshape(planes.shape))
    return out


def fast_batch_norm(
    x: Array, *affine: Array, has_gamma: bool, has_beta: bool, channel_axis: int, eps: float
) -> tuple[Array, ...]:
    planes = _planes(x, channel_axis)
    if planes is None:
        return batch_norm(x, *affine, has_gamma=has_gamma, has_beta=has_beta, channel_axis=channel_axis, eps=eps)
    channels, n = x.shape[channel_axis], _count(x, channel_axis)
    gamma, beta = _given(affine, has_gamma, x, channel_axis)
    mean = _of_channels(_plane_sums(planes), channels) / n
    squares = _of_channels(_plane_squares(planes, mean), channels)
    rstd = _rstd(squares / n, eps)
    return _plane_affine(planes, mean, rstd * gamma, beta, x.shape), mean, squares / (n - 1), rstd


def fast_batch_norm_grad(x: Array, *rest: Array, has_gamma: bool, channel_axis: int) -> tuple[Array, ...]:
    planes = _planes(x, channel_axis)
    if planes is None:
        return batch_norm_grad(x, *rest, has_gamma=has_gamma, channel_axis=channel_axis)
    *gamma, mean, rstd, g, g_mean, g_variance = rest
    channels, n, mean, g = x.shape[channel_axis], _count(x, channel_axis), flat(mean), packed(g)
    dbeta, product = (_of_channels(s, channels) for s in _plane_products(planes, mean, g))
    slope, of_centred, of_one, dgamma = _channel_cotangents(gamma, rstd, product, dbeta, g_mean, g_variance, n)
    dx = np.empty(x.shape, x.dtype)
    loops.plane_cotangents(planes, mean, g.reshape(planes.shape), slope, of_centred, of_one, dx.reshape(planes.shape))
    return dx, dgamma, dbeta


def fast_batch_norm_eval(
    x: Array, *rest: Array, has_gamma: bool, has_beta: bool, channel_axis: int, eps: float
) -> Array:
    planes = _planes(x, channel_axis)
    if planes is None:
        return batch_norm_eval(x, *rest, has_gamma=has_gamma, has_beta=has_beta, channel_axis=channel_axis, eps=eps)
    *affine, mean, variance = rest
    gamma, beta = _given(tuple(affine), has_gamma, x, channel_axis)
    return _plane_affine(planes, mean, _rstd(variance, eps) * gamma, beta, x.shape)


def fast_group_norm(
    x: Array, *affine: Array, has_gamma: bool, has_beta: bool, groups: int, eps: float
) -> tuple[Array, ...]:
    planes = _planes(x, 1)
    if planes is None:
        return group_norm(x, *affine, has_gamma=has_gamma, has_beta=has_beta, groups=groups, eps=eps)
    images, channels = x.shape[:2]
    gamma, beta = _given(affine, has_gamma, x, 1)
    grouped = planes.reshape(images * groups, -1)
    mean = _plane_sums(grouped) / grouped.shape[1]
    rstd = _rstd(_plane_squares(grouped, mean) / grouped.shape[1], eps)
    mean, rstd = mean.reshape(images, groups), rstd.reshape(images, groups)
    of_planes = [np.repeat(s, channels // groups, axis=1) for s in (mean, rstd)]
    return _plane_affine(planes, of_planes[0], of_planes[1] * gamma, beta, x.shape), mean, rstd


def fast_group_norm_grad(x: Array, *rest: Array, has_gamma: bool, groups: int) -> tuple[Array, ...]:
    planes = _planes(x, 1)
    *affine, mean, rstd, g = rest
    if planes is None or not all(np.isfinite(gamma).all() for gamma in affine):  # else gamma is taken out of sums
        return group_norm_grad(x, *rest, has_gamma=has_gamma, groups=groups)
    images, channels = x.shape[:2]
    each, g = channels // groups, packed(g)
    gamma, _ = _given(tuple(affine), has_gamma, x, 1)
    mean, rstd = (np.repeat(s, each, axis=1) for s in (mean, rstd))
    total, product = (s.reshape(images, channels) for s in _plane_products(planes, flat(mean), g))
    y_product = product * rstd
    n = each * planes.shape[1]
    shift, slope = (
        np.repeat((s * gamma).reshape(images, groups, each).sum(axis=2) / n, each, axis=1) for s in (total, y_product)
    )
    dx = np.empty(x.shape, x.dtype)
    coefficients = (rstd * gamma, -rstd * rstd * slope, -rstd * shift)
    loops.plane_cotangents(
        planes, flat(mean), g.reshape(planes.shape), *map(flat, coefficients), dx.reshape(planes.shape)
    )
    return dx, _of_channels(y_product, channels), _of_channels(total, channels)


FAST_KERNELS: dict[Primitive, Callable[..., Any]] = {
    LAYER_NORM: fast_layer_norm,
    LAYER_NORM_GRAD: fast_layer_norm_grad,
    RMS_NORM: fast_rms_norm,
    RMS_NORM_GRAD: fast_rms_norm_grad,
    GROUP_NORM: fast_group_norm,
    GROUP_NORM_GRAD: fast_group_norm_grad,
    BATCH_NORM: fast_batch_norm,
    BATCH_NORM_GRAD: fast_batch_norm_grad,
    BATCH_NORM_EVAL: fast_batch_norm_eval,
}

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = {}
