"""Samples: attention with a bias. The references are those of attention without one, with it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.samples.attention import Arrays, attention, biased_grad, zeros
from tests.samples.sample import BadCall, Sample, normal


def _biased(bias: Any, *shapes: tuple[int, ...], mask: Any = None) -> Arrays:
    """q, k, v, the mask, and the bias: one that is given, or of a shape."""

    def make(rng: np.random.Generator) -> tuple[Any, ...]:
        made = np.array(bias) if isinstance(bias, list) else rng.standard_normal(bias)
        return *normal(*shapes)(rng), None if mask is None else np.array(mask, bool), made

    return make


def _after_biased(bias: tuple[int, ...], *shapes: tuple[int, ...], mask: Any = None, causal: bool = False) -> Arrays:
    def make(rng: np.random.Generator) -> tuple[Any, ...]:
        q, k, v, allowed, added = _biased(bias, *shapes, mask=mask)(rng)
        scores = np.einsum("...nd,...md->...nm", q, k) / math.sqrt(q.shape[-1]) + added
        if causal:
            scores[..., np.arange(k.shape[-2]) > np.arange(q.shape[-2])[:, np.newaxis]] = -np.inf
        scores = scores if allowed is None else np.where(allowed, scores, -np.inf)
        peak = scores.max(axis=-1, keepdims=True)
        total = np.exp(scores - peak).sum(axis=-1, keepdims=True)
        return q, k, v, added, allowed, peak, total, rng.standard_normal((*q.shape[:-1], v.shape[-1]))

    return make


_SDPA, _GRAD = "scaled_dot_product_attention", "biased_attention_grad"
_SPARSE = [[1, 0, 1], [0, 1, 0], [1, 1, 1]]
_FORBIDDING = [[0.5, -math.inf, 1.0], [-math.inf] * 3]  # the second query may attend to nothing

SAMPLES = [
    Sample(_SDPA, "bias", _biased((3, 4), (3, 2), (4, 2), (4, 3)), attention),
    Sample(_SDPA, "bias of a number, scale", _biased((), (2, 3), (3, 3), (3, 1)), attention, {"scale": -1.5}),
    Sample(_SDPA, "bias of keys", _biased((2, 1, 3), (2, 2, 2), (2, 3, 2), (2, 3, 1)), attention),
    Sample(_SDPA, "bias of heads", _biased((2, 2, 3), *[(2, 2, n, 1) for n in (2, 3, 3)]), attention),
    Sample(_SDPA, "bias, causal", _biased((3, 1), (3, 2), (3, 2), (3, 2)), attention, {"causal": True}),
    Sample(_SDPA, "bias and mask", _biased((3, 3), (3, 2), (3, 2), (3, 2), mask=_SPARSE), attention),
    Sample(
        _SDPA,
        "bias, mask and causal",
        _biased((1, 3), (2, 3, 2), (2, 3, 2), (2, 3, 1), mask=_SPARSE),
        attention,
        {"causal": True},
    ),
    Sample(_SDPA, "bias that forbids", _biased(_FORBIDDING, (2, 2), (3, 2), (3, 2)), attention, order=0),
    Sample(_SDPA, "bias, no queries", _biased((0, 3), (0, 2), (3, 2), (3, 2)), attention),
    Sample(_GRAD, "one head", _after_biased((3, 4), (3, 2), (4, 2), (4, 3)), biased_grad),
    Sample(_GRAD, "of keys", _after_biased((3,), (2, 2, 3), (2, 3, 3), (2, 3, 1)), biased_grad),
    Sample(_GRAD, "of queries", _after_biased((2, 2, 1), (2, 2, 3), (2, 3, 3), (2, 3, 1)), biased_grad),
    Sample(
        _GRAD,
        "mask and causal",
        _after_biased((), (3, 2), (3, 2), (3, 2), mask=_SPARSE, causal=True),
        biased_grad,
        {"causal": True},
    ),
    Sample(_GRAD, "no queries", _after_biased((0, 3), (0, 2), (3, 2), (3, 2)), biased_grad),
]

BAD_CALLS = [
    BadCall(
        _SDPA,
        "boolean bias",
        lambda: (*zeros((3, 2), (3, 2), (3, 2))(), None, np.ones((3, 3), bool)),
        r"bias is added to the scores but is \(3, 3\) bool",
    ),
    BadCall(
        _SDPA,
        "bias of other keys",
        lambda: (*zeros((3, 2), (3, 2), (3, 2))(), None, np.zeros((3, 2))),
        r"bias is \(3, 2\) but the attention weights are \(3, 3\)",
    ),
]
