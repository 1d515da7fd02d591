"""Normalisations: of the rows of a matrix in one pass each, and what those of channels and groups are made of.

A plane is one channel of one image, as a row of a matrix. Channels and groups are sets of planes, so their statistics
are sums over planes, joined by the kernels, and everything else is one formula per plane. Vectors of numbers for planes
may be shorter than there are planes: plane i takes entry i modulo their length, so those of channels need no copies.
"""

from __future__ import annotations

import math
from typing import Any

from ...codegen.cpu.functions import RUN, add
from ...host import Array
from ...native.inlined import Function, inlined
from .jit import loop

BLOCK = 64
"""Rows of which sums are added up at a time: in one running sum over all rows, those of many would lose digits."""


@inlined()
def _rstd(real: Any) -> Function:
    """1/√(variance + eps), nan where the variance is infinite."""
    one = real(1)
    return lambda variance, eps: one / real(math.sqrt(variance + (variance - variance) + eps))


@loop(results=3)
def layer_norm(x: Array, gamma: Array, beta: Array, eps: float, out: Array, mean: Array, rstd: Array) -> None:
    real, n = x.dtype.type, x.shape[1]
    for i in range(x.shape[0]):
        total = 0.0
        for run in range(0, n, RUN):
            part = real(0)
            for j in range(run, min(run + RUN, n)):
                part = add(part, x[i, j])
            total += part
        centre = real(total / n)
        total = 0.0
        for run in range(0, n, RUN):
            part = real(0)
            for j in range(run, min(run + RUN, n)):
                part = add(part, (x[i, j] - centre) * (x[i, j] - centre))
            total += part
        scale = _rstd(real(total / n), real(eps))
        mean[i] = centre
        rstd[i] = scale
        for j in range(n):
            out[i, j] = (x[i, j] - centre) * scale * gamma[j] + beta[j]


@loop(results=3)
def layer_norm_grad(
    x: Array, gamma: Array, mean: Array, rstd: Array, g: Array, dx: Array, dgamma: Array, dbeta: Array
) -> None:
    """dgamma and dbeta, with a row for each block of rows, are added to."""
    real, n = x.dtype.type, x.shape[1]
    for i in range(x.shape[0]):
        total, product = 0.0, 0.0
        for run in range(0, n, RUN):
            part, weighted = real(0), real(0)
            for j in range(run, min(run + RUN, n)):
                y = (x[i, j] - mean[i]) * rstd[i]
                h = g[i, j] * gamma[j]
                part = add(part, h)
                weighted = add(weighted, h * y)
                dgamma[i // BLOCK, j] += g[i, j] * y
                dbeta[i // BLOCK, j] += g[i, j]
            total += part
            product += weighted
        shift, slope = real(total / n), real(product / n)
        for j in range(n):
            y = (x[i, j] - mean[i]) * rstd[i]
            dx[i, j] = rstd[i] * (g[i, j] * gamma[j] - y * slope - shift)


@loop(results=2)
def rms_norm(x: Array, gamma: Array, eps: float, out: Array, rstd: Array) -> None:
    real, n = x.dtype.type, x.shape[1]
    for i in range(x.shape[0]):
        total = 0.0
        for run in range(0, n, RUN):
            part = real(0)
            for j in range(run, min(run + RUN, n)):
                part = add(part, x[i, j] * x[i, j])
            total += part
        scale = _rstd(real(total / n), real(eps))
        rstd[i] = scale
        for j in range(n):
            out[i, j] = x[i, j] * scale * gamma[j]


@loop(results=2)
def rms_norm_grad(x: Array, gamma: Array, rstd: Array, g: Array, dx: Array, dgamma: Array) -> None:
    """dgamma, with a row for each block of rows, is added to."""
    real, n = x.dtype.type, x.shape[1]
    for i in range(x.shape[0]):
        product = 0.0
        for run in range(0, n, RUN):
            part = real(0)
            for j in range(run, min(run + RUN, n)):
                y = x[i, j] * rstd[i]
                part = add(part, g[i, j] * gamma[j] * y)
                dgamma[i // BLOCK, j] += g[i, j] * y
            product += part
        slope = real(product / n)
        for j in range(n):
            dx[i, j] = rstd[i] * (g[i, j] * gamma[j] - x[i, j] * rstd[i] * slope)


@loop()
def plane_sums(x: Array, total: Array) -> None:
    for i in range(x.shape[0]):
        whole = 0.0
        for run in range(0, x.shape[1], RUN):
            part = x.dtype.type(0)
            for j in range(run, min(run + RUN, x.shape[1])):
                part = add(part, x[i, j])
            whole += part
        total[i] = whole


@loop()
def plane_squares(x: Array, mean: Array, total: Array) -> None:
    """Σ (x - mean)²."""
    for i in range(x.shape[0]):
        centre, whole = mean[i % mean.size], 0.0
        for run in range(0, x.shape[1], RUN):
            part = x.dtype.type(0)
            for j in range(run, min(run + RUN, x.shape[1])):
                part = add(part, (x[i, j] - centre) * (x[i, j] - centre))
            whole += part
        total[i] = whole


@loop(results=2)
def plane_products(x: Array, mean: Array, g: Array, total: Array, product: Array) -> None:
    """Σ g and Σ g·(x - mean)."""
    for i in range(x.shape[0]):
        centre, whole, whole_product = mean[i % mean.size], 0.0, 0.0
        for run in range(0, x.shape[1], RUN):
            alone, weighted = x.dtype.type(0), x.dtype.type(0)
            for j in range(run, min(run + RUN, x.shape[1])):
                alone = add(alone, g[i, j])
                weighted = add(weighted, g[i, j] * (x[i, j] - centre))
            whole += alone
            whole_product += weighted
        total[i] = whole
        product[i] = whole_product


@loop()
def plane_affine(x: Array, mean: Array, slope: Array, offset: Array, out: Array) -> None:
    """(x - mean)·slope + offset."""
    for i in range(x.shape[0]):
        centre, a, b = mean[i % mean.size], slope[i % slope.size], offset[i % offset.size]
        for j in range(x.shape[1]):
            out[i, j] = (x[i, j] - centre) * a + b


@loop()
def plane_cotangents(
    x: Array, mean: Array, g: Array, of_g: Array, of_centred: Array, of_one: Array, out: Array
) -> None:
    """of_g·g + of_centred·(x - mean) + of_one."""
    for i in range(x.shape[0]):
        centre, a = mean[i % mean.size], of_g[i % of_g.size]
        b, c = of_centred[i % of_centred.size], of_one[i % of_one.size]
        for j in range(x.shape[1]):
            out[i, j] = g[i, j] * a + ((x[i, j] - centre) * b + c)
