"""Attention weights and their cotangents, computed in place on rows of scores.

Row i belongs to query `first + i % queries` of its matrix, which with `causal` attends to keys up to its own index. A
weight of 0 is multiplied like any other, so that nan and infinity propagate.
"""

from __future__ import annotations

import math

from ...codegen.cpu.functions import add, exp, peak
from ...host import Array
from .jit import loop

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
