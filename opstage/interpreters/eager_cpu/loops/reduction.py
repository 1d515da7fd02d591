"""Normalised exponentials along the rows of a matrix."""

from __future__ import annotations

import math

from .functions import add, exp, peak
from .jit import Array, loop


@loop()
def softmax(x: Array, out: Array) -> None:
    for i in range(x.shape[0]):
        top = peak(x, i, x.shape[1])
        total = x.dtype.type(0)
        for j in range(x.shape[1]):
            e = exp(x[i, j] - top)
            out[i, j] = e
            total = add(total, e)
        share = x.dtype.type(1) / total
        for j in range(x.shape[1]):
            out[i, j] *= share


@loop()
def softmax_grad(y: Array, g: Array, out: Array) -> None:
    for i in range(y.shape[0]):
        mean = y.dtype.type(0)
        for j in range(y.shape[1]):
            mean = add(mean, y[i, j] * g[i, j])
        for j in range(y.shape[1]):
            out[i, j] = y[i, j] * (g[i, j] - mean)


@loop()
def log_softmax(x: Array, out: Array) -> None:
    for i in range(x.shape[0]):
        top = peak(x, i, x.shape[1])
        total = x.dtype.type(0)
        for j in range(x.shape[1]):
            total = add(total, exp(x[i, j] - top))
        log_total = x.dtype.type(math.log(total))
        for j in range(x.shape[1]):
            out[i, j] = (x[i, j] - top) - log_total


@loop()
def log_softmax_grad(y: Array, g: Array, out: Array) -> None:
    for i in range(y.shape[0]):
        total = y.dtype.type(0)
        for j in range(y.shape[1]):
            total = add(total, g[i, j])
        for j in range(y.shape[1]):
            out[i, j] = g[i, j] - exp(y[i, j]) * total
