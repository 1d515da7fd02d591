"""The weights of attention, and their cotangents, in place: rows of scores, one for each query."""

from __future__ import annotations

import math

from .functions import add, exp, peak
from .jit import Array, loop

_WIDTH = 64  # keys taken together; a shorter rest is done one by one, which is slower than a few in vain


@loop()
def softmax_of_scores(queries: int, causal: bool, p: Array) -> None:
    """softmax of each row; with `causal` over as many keys as there are queries up to its own, and 0 beyond."""
    real, keys = p.dtype.type, p.shape[1]
    for i in range(p.shape[0]):
        allowed = min(i % queries + 1, keys) if causal else keys
        stop = min((allowed + _WIDTH - 1) // _WIDTH * _WIDTH, keys)
        for j in range(allowed, stop):
            p[i, j] = real(-math.inf)
        top = peak(p, i, stop)
        total = real(0)
        for j in range(stop):
            e = exp(p[i, j] - top)
            p[i, j] = e
            total = add(total, e)
        share = real(1) / total
        for j in range(stop):
            p[i, j] *= share
        for j in range(stop, keys):
            p[i, j] = real(0) * share  # nan if the row is


@loop()
def masked_softmax(mask: Array, queries: int, causal: bool, p: Array) -> None:
    """softmax of each row over the keys that its mask (and with `causal` its place) allows; 0 where it allows none."""
    real, keys = p.dtype.type, p.shape[1]
    for i in range(p.shape[0]):
        for j in range(keys):
            p[i, j] = p[i, j] if mask[i, j] else real(-math.inf)
        for j in range(i % queries + 1 if causal else keys, keys):
            p[i, j] = real(-math.inf)
        top = peak(p, i, keys)
        if top == real(-math.inf):
            top = real(0)
        total = real(0)
        for j in range(keys):
            e = exp(p[i, j] - top)
            p[i, j] = e
            total = add(total, e)
        share = real(1) / (total if total != real(0) else real(1))
        for j in range(keys):
            p[i, j] *= share


@loop()
def scores_cotangent(p: Array, factor: float, s: Array) -> None:
    """s, the cotangent of the weights p, becomes that of the products of queries and keys, which p saw by `factor`."""
    real = s.dtype.type
    for i in range(p.shape[0]):
        mean = real(0)
        for j in range(p.shape[1]):
            mean = add(mean, p[i, j] * s[i, j])
        for j in range(p.shape[1]):
            s[i, j] = p[i, j] * (s[i, j] - mean) * real(factor)
