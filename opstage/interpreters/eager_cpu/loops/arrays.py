"""Compiled loops over arrays: elementwise functions, draws, rows, recurrences and attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....compiler import scalar
from ....compiler.codegen.cpu.functions import add, exp, peak
from ....compiler.codegen.cpu.functions import erf as erf_of_one
from ....compiler.native.access import Function, inlined
from ....ops.host_arrays import Array
from .jit import Elementwise, loop

# Elementwise functions ------------------------------------------------------------------------------------------------

sigmoid = Elementwise(scalar.sigmoid, exp)
sigmoid_grad = Elementwise(scalar.sigmoid_grad, operands=2)
tanh_grad = Elementwise(scalar.tanh_grad, operands=2)
relu = Elementwise(scalar.relu)
relu_grad = Elementwise(scalar.relu_grad, operands=2)
silu = Elementwise(scalar.silu, exp)
select = Elementwise(scalar.select, operands=2, masked=True)


def _alone(real: Any, function: Function) -> Function:
    def formula(x: Any) -> Any:
        return function(x)

    return formula


def _square_root(real: Any) -> Function:
    def formula(x: Any) -> Any:
        return math.sqrt(x)

    return formula


def _inverse(real: Any) -> Function:
    one = real(1)

    def formula(x: Any) -> Any:
        return one / x

    return formula


erf = Elementwise(_alone, erf_of_one)
sqrt = Elementwise(_square_root)
inv = Elementwise(_inverse)


# Draws ----------------------------------------------------------------------------------------------------------------


@inlined()
def splitmix64(word: Any) -> Function:
    """Return the finalizer of one word."""
    return scalar.splitmix64(np.uint64)


@inlined()
def uniform_integer(word: Any) -> Function:
    """Return the function of element i in the stream of a key, as an integer in [0, 2^24)."""
    return scalar.uniform_integer(np.uint64, splitmix64)


@loop()
def uniform(key: Any, out: Array) -> None:
    unit = out.dtype.type(2.0**-24)
    for i in range(out.size):
        # converting signed integers is a vector instruction
        out[i] = out.dtype.type(np.int64(uniform_integer(key, np.uint64(i)))) * unit


@loop()
def bernoulli(key: Any, keep_prob: Any, out: Array) -> None:
    """Write 1 where the draw is less than keep_prob, else 0."""
    real = out.dtype.type
    unit = real(2.0**-24)
    for i in range(out.size):
        drawn = real(np.int64(uniform_integer(key, np.uint64(i)))) * unit
        out[i] = real(1) if drawn < keep_prob else real(0)


# Rows -----------------------------------------------------------------------------------------------------------------


@loop()
def scatter_add_rows(v: Array, idx: Array, out: Array) -> None:
    """Compute out[idx[i]] += v[i] in order; indices out of range are skipped."""
    for i in range(idx.size):
        row = idx[i]
        if 0 <= row < out.shape[0]:
            for j in range(out.shape[1]):
                out[row, j] += v[i, j]


@loop()
def add_along(v: Array, idx: Array, out: Array) -> None:
    """Compute out[i, idx[j]] += v[i, j] in the order of j; indices out of range are skipped."""
    for i in range(out.shape[0]):
        for j in range(idx.size):
            row = idx[j]
            if 0 <= row < out.shape[1]:
                for k in range(out.shape[2]):
                    out[i, row, k] += v[i, j, k]


@loop()
def take_along(x: Array, idx: Array, out: Array) -> None:
    """Compute out[i, j] = x[i, idx[j]]."""
    for i in range(out.shape[0]):
        for j in range(idx.size):
            row = idx[j]
            for k in range(out.shape[2]):
                out[i, j, k] = x[i, row, k]


@loop()
def take_numbers(x: Array, idx: Array, out: Array) -> None:
    """Compute the same for entries of one number, many at a time."""
    for i in range(out.shape[0]):
        for j in range(idx.size):
            out[i, j] = x[i, idx[j]]


# Recurrences ----------------------------------------------------------------------------------------------------------

# What is accumulated depends on the step before it, so a row by itself waits for every sum: several are done at once.


@loop()
def linear_recurrence(reverse: int, together: int, a: Array, b: Array, out: Array) -> None:
    """Compute out[:, k] = a[:, k] · out[:, k - 1] + b[:, k] from 0 on, or from the last k down if `reverse`."""
    length = a.shape[1]
    for first in range(0, a.shape[0], together):
        for step in range(length):
            k = length - 1 - step if reverse else step
            before = k + 1 if reverse else k - 1
            for i in range(first, min(first + together, a.shape[0])):
                if step == 0:
                    for j in range(a.shape[2]):
                        out[i, k, j] = a[i, k, j] * 0 + b[i, k, j]
                elif a.shape[2] == 1:
                    out[i, k, 0] = a[i, k, 0] * out[i, before, 0] + b[i, k, 0]
                else:
                    for j in range(a.shape[2]):
                        out[i, k, j] = a[i, k, j] * out[i, before, j] + b[i, k, j]


@loop()
def cumsum(exclusive: int, reverse: int, together: int, x: Array, out: Array) -> None:
    """Compute out[:, k] = out[:, k - 1] + x[:, k], or x[:, k - 1] if `exclusive`; from the last k down if `reverse`."""
    length = x.shape[1]
    for first in range(0, x.shape[0], together):
        for step in range(length):
            k = length - 1 - step if reverse else step
            before = k + 1 if reverse else k - 1
            term = before if exclusive else k
            for i in range(first, min(first + together, x.shape[0])):
                if step > 0:
                    for j in range(x.shape[2]):
                        out[i, k, j] = out[i, before, j] + x[i, term, j]
                elif exclusive:
                    for j in range(x.shape[2]):
                        out[i, k, j] = 0
                else:
                    for j in range(x.shape[2]):
                        out[i, k, j] = x[i, k, j]


@loop()
def cumprod(exclusive: int, reverse: int, together: int, x: Array, out: Array) -> None:
    """Compute out[:, k] = out[:, k - 1] · x[:, k], or x[:, k - 1] if `exclusive`; from the last k down if `reverse`."""
    length = x.shape[1]
    for first in range(0, x.shape[0], together):
        for step in range(length):
            k = length - 1 - step if reverse else step
            before = k + 1 if reverse else k - 1
            factor = before if exclusive else k
            for i in range(first, min(first + together, x.shape[0])):
                if step > 0:
                    for j in range(x.shape[2]):
                        out[i, k, j] = out[i, before, j] * x[i, factor, j]
                elif exclusive:
                    for j in range(x.shape[2]):
                        out[i, k, j] = 1
                else:
                    for j in range(x.shape[2]):
                        out[i, k, j] = x[i, k, j]


# Attention ------------------------------------------------------------------------------------------------------------

# Row i belongs to query `first + i % queries` of its matrix, which with `causal` attends to keys up to its own index.
# A weight of 0 is multiplied like any other, so that nan and infinity propagate.

_WIDTH = 64  # keys processed together; a shorter rest is processed one by one, which is slower than a few wasted ones


@loop(results=3)
def exponentials(
    first: int, queries: int, causal: bool, may_be_blank: bool, tops: Array, totals: Array, e: Array
) -> None:
    """Compute exp(score - top) for each row, with its maximal score `top` and the total; 0 for masked keys.

    If rows may be blank, a row with only -inf has top 0 and total 1.
    """
    real, keys = e.dtype.type, e.shape[1]
    for i in range(e.shape[0]):
        allowed = min(first + i % queries + 1, keys) if causal else keys
        stop = min((allowed + _WIDTH - 1) // _WIDTH * _WIDTH, keys)
        for j in range(allowed, stop):
            e[i, j] = real(-math.inf)
        top = peak(e, i, stop)
        if may_be_blank and top == real(-math.inf):  # or there is a nan, which the total then is
            top = real(0)
        total = real(0)
        for j in range(stop):
            x = exp(e[i, j] - top)
            e[i, j] = x
            total = add(total, x)
        for j in range(stop, keys):
            e[i, j] = real(0)
        tops[i] = top
        totals[i] = real(1) if may_be_blank and total == real(0) else total


@loop(results=3)
def masked_exponentials(
    mask: Array, first: int, queries: int, causal: bool, tops: Array, totals: Array, e: Array
) -> None:
    """Do the same for keys that the mask also allows; top is 0 and total 1 if all are masked."""
    real, keys = e.dtype.type, e.shape[1]
    for i in range(e.shape[0]):
        for j in range(keys):
            e[i, j] = e[i, j] if mask[i, j] else real(-math.inf)
        for j in range(first + i % queries + 1 if causal else keys, keys):
            e[i, j] = real(-math.inf)
        top = peak(e, i, keys)
        if top == real(-math.inf):
            top = real(0)
        total = real(0)
        for j in range(keys):
            x = exp(e[i, j] - top)
            e[i, j] = x
            total = add(total, x)
        tops[i] = top
        totals[i] = total if total != real(0) else real(1)


@loop(results=2)
def weights(tops: Array, totals: Array, first: int, queries: int, causal: bool, p: Array, s: Array) -> None:
    """Recompute the weights in p, and convert their cotangents in s to those of the scores."""
    real, keys = s.dtype.type, s.shape[1]
    for i in range(p.shape[0]):
        allowed = min(first + i % queries + 1, keys) if causal else keys
        top, share, mean = tops[i], real(1) / totals[i], real(0)
        for j in range(allowed):
            x = exp(p[i, j] - top) * share
            p[i, j] = x
            mean = add(mean, x * s[i, j])
        for j in range(allowed, keys):
            x = real(0) * share
            p[i, j] = x
            mean = add(mean, x * s[i, j])
        for j in range(keys):
            s[i, j] = p[i, j] * (s[i, j] - mean)


@loop(results=2)
def masked_weights(
    mask: Array,
    tops: Array,
    totals: Array,
    first: int,
    queries: int,
    causal: bool,
    p: Array,
    s: Array,
) -> None:
    """Do the same for keys that the mask also allows."""
    real, keys = s.dtype.type, s.shape[1]
    for i in range(p.shape[0]):
        allowed = min(first + i % queries + 1, keys) if causal else keys
        top, share, mean = tops[i], real(1) / totals[i], real(0)
        for j in range(allowed):
            x = (exp(p[i, j] - top) if mask[i, j] else real(0)) * share
            p[i, j] = x
            mean = add(mean, x * s[i, j])
        for j in range(allowed, keys):
            x = real(0) * share
            p[i, j] = x
            mean = add(mean, x * s[i, j])
        for j in range(keys):
            s[i, j] = p[i, j] * (s[i, j] - mean)
