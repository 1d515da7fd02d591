"""Kernels: attention with a bias, and its fused cotangents. The bias is read by blocks and never fully broadcast."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ....ops.catalogue.biased_attention import BIASED_ATTENTION, BIASED_ATTENTION_GRAD
from ....ops.primitive import Primitive
from .attention import (
    Array,
    attended,
    cotangents,
    fast_exponentials,
    fast_weights,
    numpy_exponentials,
    numpy_weights,
)


def _attention(exponentials: Callable[..., None]) -> Callable[..., tuple[Array, ...]]:
    def kernel(
        q: Array, k: Array, v: Array, bias: Array, *mask: Array, has_mask: bool, causal: bool
    ) -> tuple[Array, ...]:
        return attended(exponentials, q, k, v, mask, causal, bias)

    return kernel


def _grad(weights: Callable[..., None]) -> Callable[..., tuple[Array, ...]]:
    def kernel(
        q: Array, k: Array, v: Array, bias: Array, *rest: Array, has_mask: bool, causal: bool
    ) -> tuple[Array, ...]:
        *mask, peak, total, g = rest
        dbias = np.zeros((1,) * (q.ndim - bias.ndim) + bias.shape, q.dtype)
        found = cotangents(weights, q, k, v, tuple(mask), peak, total, g, causal, bias, dbias)
        return *found, dbias.reshape(bias.shape)

    return kernel


KERNELS: dict[Primitive, Callable[..., Any]] = {
    BIASED_ATTENTION: _attention(partial(numpy_exponentials, may_be_blank=True)),
    BIASED_ATTENTION_GRAD: _grad(numpy_weights),
}

FAST_KERNELS: dict[Primitive, Callable[..., Any]] = {
    BIASED_ATTENTION: _attention(partial(fast_exponentials, may_be_blank=True)),
    BIASED_ATTENTION_GRAD: _grad(fast_weights),
}

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = {}
