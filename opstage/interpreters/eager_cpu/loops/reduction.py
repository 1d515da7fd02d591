"""Normalised exponentials along the rows of a matrix."""

from __future__ import annotations

import math

from ...codegen.cpu.functions import RUN, add, exp, peak
from ...host import Array
from .jit import loop


@loop()
def softmax(x: Array, out: Array) -> None:
    for i in range(x.shape[0]):
        top = peak(x, i, x.shape[1])
        total = 0.0
        for run in range(0, x.shape[1], RUN):
            part = x.dtype.type(0)
            for j in range(run, min(run + RUN, x.shape[1])):
                e = exp(x[i, j] - top)
                out[i, j] = e
                part = add(part, e)
            total += part
        share = x.dtype.type(1 / total)
        for j in range(x.shape[1]):
            out[i, j] *= share


@loop()
def softmax_grad(y: Array, g: Array, out: Array) -> None:
    for i in range(y.shape[0]):
        total = 0.0
        for run in range(0, y.shape[1], RUN):
            part = y.dtype.type(0)
            for j in range(run, min(run + RUN, y.shape[1])):
                part = add(part, y[i, j] * g[i, j])
            total += part
        mean = y.dtype.type(total)
        for j in range(y.shape[1]):
            out[i, j] = y[i, j] * (g[i, j] - mean)


@loop()
def log_softmax(x: Array, out: Array) -> None:
    for i in range(x.shape[0]):
        top = peak(x, i, x.shape[1])
        total = 0.0
        for run in range(0, x.shape[1], RUN):
            part = x.dtype.type(0)
            for j in range(run, min(run + RUN, x.shape[1])):
                part = add(part, exp(x[i, j] - top))
            total += part
        log_total = x.dtype.type(math.log(total))
        for j in range(x.shape[1]):
            out[i, j] = (x[i, j] - top) - log_total


@loop()
def log_softmax_grad(y: Array, g: Array, out: Array) -> None:
    for i in range(y.shape[0]):
        total = 0.0
        for run in range(0, y.shape[1], RUN):
            part = y.dtype.type(0)
            for j in range(run, min(run + RUN, y.shape[1])):
                part = add(part, g[i, j])
            total += part
        whole = y.dtype.type(total)
        for j in range(y.shape[1]):
            out[i, j] = g[i, j] - exp(y[i, j]) * whole
