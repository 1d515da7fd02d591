"""Kernels: normalisations and their fused cotangents, with variances in two passes.

Rows are what layer, rms and group norm normalise over: element j of row r belongs to channel
r % groups·each + j // spatial, of `each` channels in a group and `spatial` elements in a channel; layer norm has one
group, whose channels have one element. The statistics of batch norm and the cotangents of gamma and beta are made of
sums over channels; see `channels.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

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
from ....ops.primitive import Primitive
from ....ops.types import TensorType
from ...gpu.buffer import DeviceBuffer
from ...gpu.counting import quotient, remainder, steps, unrolled_steps
from ...gpu.device.interface import Device
from ...gpu.language import cuda, device_function, sqrt
from ...gpu.rows import MOST_WARPS, ONE, ZERO, joined_sum
from .channels import Parts, channel_mean, channel_squares, products
from .launches import Entry, Types, scalar
from .reduction import along

# What may be absent (gamma, beta, the mean of rms_norm) is a pointer that is not read beside a 0 that says so.

# Rows -----------------------------------------------------------------------------------------------------------------


@device_function
def channel_of(j: Any, spatial: Any) -> Any:
    """j // spatial; where a channel has one element, as in layer norm, without a division for each of them."""
    return j if spatial == 1 else quotient(j, spatial)


@device_function
def reciprocal_deviation(variance: Any, eps: Any) -> Any:
    """1/√(variance + eps), nan where the variance is infinite."""
    return ONE / sqrt(variance + (variance - variance) + eps)


def normalize_kernel(
    rows: Any,
    lanes: Any,
    out: Any,
    mean: Any,
    rstd: Any,
    x: Any,
    gamma: Any,
    beta: Any,
    has_gamma: Any,
    has_beta: Any,
    centred: Any,
    extent: Any,
    spatial: Any,
    groups: Any,
    eps: Any,
) -> None:
    """out = (x - mean)·rstd·gamma + beta, by each row's mean (0 unless `centred`) and rstd = 1/√(mean square + eps)."""
    shared = cuda.shared.array(MOST_WARPS, np.float32)
    lane = remainder(cuda.threadIdx.x, lanes)
    size = np.float32(extent)
    for row in steps(quotient(cuda.grid(1), lanes), rows, quotient(cuda.gridsize(1), lanes)):
        first = row * extent
        centre = ZERO
        if centred != 0:
            for j in unrolled_steps(lane, extent, lanes):
                centre += x[first + j]
            centre = joined_sum(centre, shared, cuda.threadIdx.x, lanes) / size
        square = ZERO
        for j in unrolled_steps(lane, extent, lanes):
            d = x[first + j] - centre
            square += d * d
        square = joined_sum(square, shared, cuda.threadIdx.x, lanes)
        scale = reciprocal_deviation(square / size, eps)
        if lane == 0:
            rstd[row] = scale
            if centred != 0:
                mean[row] = centre
        channels = remainder(row, groups) * quotient(extent, spatial)
        for j in steps(lane, extent, lanes):
            channel = channels + channel_of(j, spatial)
            y = (x[first + j] - centre) * scale
            if has_gamma != 0:
                y = y * gamma[channel]
            if has_beta != 0:
                y = y + beta[channel]
            out[first + j] = y


def normalize_grad_kernel(
    rows: Any,
    lanes: Any,
    dx: Any,
    x: Any,
    gamma: Any,
    mean: Any,
    rstd: Any,
    g: Any,
    has_gamma: Any,
    centred: Any,
    extent: Any,
    spatial: Any,
    groups: Any,
) -> None:
    """dx = rstd·(h - y·mean(h·y) - mean(h)), for h = g·gamma and y = (x - mean)·rstd; mean(h) only if `centred`."""
    shared = cuda.shared.array(MOST_WARPS, np.float32)
    lane = remainder(cuda.threadIdx.x, lanes)
    size = np.float32(extent)
    for row in steps(quotient(cuda.grid(1), lanes), rows, quotient(cuda.gridsize(1), lanes)):
        first = row * extent
        channels = remainder(row, groups) * quotient(extent, spatial)
        scale = rstd[row]
        centre = mean[row] if centred != 0 else ZERO
        shift, slope = ZERO, ZERO
        for j in unrolled_steps(lane, extent, lanes):
            h = g[first + j]
            if has_gamma != 0:
                h = h * gamma[channels + channel_of(j, spatial)]
            shift += h
            slope += h * ((x[first + j] - centre) * scale)
        shift = joined_sum(shift, shared, cuda.threadIdx.x, lanes) / size if centred != 0 else ZERO
        slope = joined_sum(slope, shared, cuda.threadIdx.x, lanes) / size
        for j in steps(lane, extent, lanes):
            h = g[first + j]
            if has_gamma != 0:
                h = h * gamma[channels + channel_of(j, spatial)]
            dx[first + j] = scale * (h - (x[first + j] - centre) * scale * slope - shift)


# Channels -------------------------------------------------------------------------------------------------------------


def deviation_kernel(count: Any, variance: Any, rstd: Any, squares: Any, n: Any, eps: Any) -> None:
    """The unbiased variance and 1/√(biased variance + eps) of each channel, from Σ (x - mean)² over its n values."""
    for c in steps(cuda.grid(1), count, cuda.gridsize(1)):
        variance[c] = squares[c] / (n - ONE)
        rstd[c] = reciprocal_deviation(squares[c] / n, eps)


def reciprocal_kernel(count: Any, rstd: Any, variance: Any, eps: Any) -> None:
    """rstd = 1/√(variance + eps)."""
    for c in steps(cuda.grid(1), count, cuda.gridsize(1)):
        rstd[c] = reciprocal_deviation(variance[c], eps)


def affine_kernel(
    count: Any,
    out: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    gamma: Any,
    beta: Any,
    has_gamma: Any,
    has_beta: Any,
    channels: Any,
    inner: Any,
) -> None:
    """out = (x - mean)·rstd·gamma + beta of each element's channel."""
    for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
        c = remainder(quotient(i, inner), channels)
        y = (x[i] - mean[c]) * rstd[c]
        if has_gamma != 0:
            y = y * gamma[c]
        if has_beta != 0:
            y = y + beta[c]
        out[i] = y


def channel_grad_kernel(
    count: Any,
    dx: Any,
    x: Any,
    gamma: Any,
    mean: Any,
    rstd: Any,
    g: Any,
    g_mean: Any,
    g_variance: Any,
    dgamma: Any,
    dbeta: Any,
    has_gamma: Any,
    channels: Any,
    inner: Any,
    share: Any,
    twice: Any,
) -> None:
    """dx of batch_norm: linear in g, x - mean and 1, with coefficients of the channel; of its n values `share` is
    1/n and `twice` is 2/(n - 1)."""
    for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
        c = remainder(quotient(i, inner), channels)
        scale = rstd[c]
        slope = scale * gamma[c] if has_gamma != 0 else scale
        of_centred = g_variance[c] * twice - slope * scale * dgamma[c] * share
        of_one = (g_mean[c] - slope * dbeta[c]) * share
        dx[i] = g[i] * slope + ((x[i] - mean[c]) * of_centred + of_one)


# Entries --------------------------------------------------------------------------------------------------------------


def _vectors(affine: tuple[DeviceBuffer, ...], has_gamma: bool, has_beta: bool, x: DeviceBuffer) -> tuple[Any, ...]:
    """gamma, beta and whether each is there; x in place of what is not."""
    gamma = affine[0] if has_gamma else x
    beta = affine[has_gamma] if has_beta else x
    return gamma, beta, np.int32(has_gamma), np.int32(has_beta)


def _normalized(
    device: Device,
    types: Types,
    x: DeviceBuffer,
    affine: tuple[DeviceBuffer, ...],
    has: tuple[bool, bool],
    sizes: tuple[int, int, int],
    eps: Any,
    centred: bool,
) -> tuple[DeviceBuffer, ...]:
    """`sizes`: the rows' length, the elements of a channel in it, and the groups of channels."""
    out, *statistics = map(device.empty, types)
    rows = statistics[-1].size
    vectors = _vectors(affine, *has, x)
    numbers = np.int32(centred), *map(np.int32, sizes), scalar(eps, x.dtype)
    operands = out, statistics[0], statistics[-1], x, *vectors, *numbers
    device.each_row(normalize_kernel, rows, sizes[0], *operands)
    return out, *statistics


def _cotangents(
    device: Device,
    types: Types,
    x: DeviceBuffer,
    rest: tuple[DeviceBuffer, ...],
    has_gamma: bool,
    sizes: tuple[int, int, int],
    parts: Parts,
    centred: bool,
) -> tuple[DeviceBuffer, ...]:
    *gamma, mean, rstd, g = rest if centred else (*rest[:-1], *rest[-2:])
    dx, (extent, spatial, groups) = device.empty(types[0]), sizes
    numbers = np.int32(has_gamma), np.int32(centred), np.int32(extent), np.int32(spatial), np.int32(groups)
    given = gamma[0] if has_gamma else x
    device.each_row(normalize_grad_kernel, rstd.size, extent, dx, x, given, mean, rstd, g, *numbers)
    each = parts.channels // groups
    return dx, *products(device, x, mean, rstd, g, parts, groups, each, centred)


def layer_norm(device: Device, types: Types, x: Any, *affine: Any, has_gamma: bool, has_beta: bool, eps: Any) -> Any:
    return _normalized(device, types, x, affine, (has_gamma, has_beta), (x.shape[-1], 1, 1), eps, True)


def layer_norm_grad(device: Device, types: Types, x: Any, *rest: Any, has_gamma: bool) -> Any:
    parts = Parts(math.prod(x.shape[:-1]), x.shape[-1], 1)
    return _cotangents(device, types, x, rest, has_gamma, (x.shape[-1], 1, 1), parts, True)


def rms_norm(device: Device, types: Types, x: Any, *gamma: Any, has_gamma: bool, eps: Any) -> Any:
    return _normalized(device, types, x, gamma, (has_gamma, False), (x.shape[-1], 1, 1), eps, False)


def rms_norm_grad(device: Device, types: Types, x: Any, *rest: Any, has_gamma: bool) -> Any:
    parts = Parts(math.prod(x.shape[:-1]), x.shape[-1], 1)
    return _cotangents(device, types, x, rest, has_gamma, (x.shape[-1], 1, 1), parts, False)[:2]


def _group_sizes(x: DeviceBuffer, groups: int) -> tuple[int, int, int]:
    spatial = math.prod(x.shape[2:])
    return x.shape[1] // groups * spatial, spatial, groups


def group_norm(
    device: Device, types: Types, x: Any, *affine: Any, has_gamma: bool, has_beta: bool, groups: int, eps: Any
) -> Any:
    return _normalized(device, types, x, affine, (has_gamma, has_beta), _group_sizes(x, groups), eps, True)


def group_norm_grad(device: Device, types: Types, x: Any, *rest: Any, has_gamma: bool, groups: int) -> Any:
    parts = Parts(*along(x, 1))
    return _cotangents(device, types, x, rest, has_gamma, _group_sizes(x, groups), parts, True)


def _affine(device: Device, x: DeviceBuffer, mean: Any, rstd: Any, vectors: Any, out: Any, channel_axis: int) -> Any:
    _, channels, inner = along(x, channel_axis)
    device.each(affine_kernel, x.size, out, x, mean, rstd, *vectors, np.int32(channels), np.int32(inner))
    return out


def batch_norm(
    device: Device, types: Types, x: Any, *affine: Any, has_gamma: bool, has_beta: bool, channel_axis: int, eps: Any
) -> Any:
    out, _, variance, rstd = map(device.empty, types)
    parts = Parts(*along(x, channel_axis))
    if not x.size:
        return out, device.empty(types[1]), variance, rstd
    mean = channel_mean(device, x, parts)
    squares, n = channel_squares(device, x, mean, parts), scalar(parts.outer * parts.inner, x.dtype)
    device.each(deviation_kernel, variance.size, variance, rstd, squares, n, scalar(eps, x.dtype))
    _affine(device, x, mean, rstd, _vectors(affine, has_gamma, has_beta, x), out, channel_axis)
    return out, mean, variance, rstd


def batch_norm_grad(device: Device, types: Types, x: Any, *rest: Any, has_gamma: bool, channel_axis: int) -> Any:
    *gamma, mean, rstd, g, g_mean, g_variance = rest
    dx, parts = device.empty(types[0]), Parts(*along(x, channel_axis))
    if not x.size:
        return dx, device.empty(types[1]), device.empty(types[2])
    dgamma, dbeta = products(device, x, mean, rstd, g, parts, 0, 1)
    operands = x, gamma[0] if has_gamma else x, mean, rstd, g, g_mean, g_variance, dgamma, dbeta
    numbers = np.int32(has_gamma), np.int32(parts.channels), np.int32(parts.inner)
    n = parts.outer * parts.inner
    device.each(
        channel_grad_kernel, dx.size, dx, *operands, *numbers, scalar(1 / n, x.dtype), scalar(2 / (n - 1), x.dtype)
    )
    return dx, dgamma, dbeta


def batch_norm_eval(
    device: Device, types: Types, x: Any, *rest: Any, has_gamma: bool, has_beta: bool, channel_axis: int, eps: Any
) -> Any:
    *affine, mean, variance = rest
    out, rstd = device.empty(types[0]), device.empty(TensorType(variance.shape, x.dtype))
    device.each(reciprocal_kernel, rstd.size, rstd, variance, scalar(eps, x.dtype))
    return (_affine(device, x, mean, rstd, _vectors(tuple(affine), has_gamma, has_beta, x), out, channel_axis),)


KERNELS: dict[Primitive, Entry] = {
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
