"""Samples: attention, with a bias and without. The references are the definitions, one query and one head at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.samples.sample import BadCall, Sample, normal, zeros

Arrays = Callable[[np.random.Generator], tuple[Any, ...]]
Place = tuple[int, ...]


def _weights(q: Any, k: Any, mask: Any, causal: bool, bias: Any = None, scale: float | None = None) -> Any:
    """The attention weights of one head; all 0 for a query that may attend to nothing."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    bias = np.zeros((len(q), len(k))) if bias is None else bias
    weights = np.zeros((len(q), len(k)))
    for i in range(len(q)):
        seen = [j for j in range(len(k)) if (mask is None or mask[i, j]) and (not causal or j <= i)]
        allowed = [j for j in seen if bias[i, j] > -math.inf]
        scores = [float(np.dot(q[i], k[j])) * scale + bias[i, j] for j in allowed]
        exponentials = [math.exp(s - max(scores)) for s in scores]
        for j, e in zip(allowed, exponentials):
            weights[i, j] = e / sum(exponentials)
    return weights


def attention(
    q: Any, k: Any, v: Any, mask: Any = None, bias: Any = None, causal: bool = False, scale: float | None = None
) -> Any:
    out = np.zeros((*q.shape[:-1], v.shape[-1]))
    mask, bias = (None if x is None else np.broadcast_to(x, (*q.shape[:-1], k.shape[-2])) for x in (mask, bias))
    for b in np.ndindex(q.shape[:-2]):
        own = (None if x is None else x[b] for x in (mask, bias))
        out[b] = _weights(q[b], k[b], next(own), causal, next(own), scale) @ v[b]
    return out


def _attention_grad(q: Any, k: Any, v: Any, mask: Any, peak: Any, total: Any, g: Any, causal: bool = False) -> Any:
    return biased_grad(q, k, v, np.zeros(()), mask, peak, total, g, causal)[:3]


def biased_grad(
    q: Any, k: Any, v: Any, bias: Any, mask: Any, peak: Any, total: Any, g: Any, causal: bool = False
) -> Any:
    """By the chain rule from each output element, through the Jacobian p·(δ - p) of each row's softmax."""
    shape = (*q.shape[:-1], k.shape[-2])
    if mask is not None:
        mask = np.broadcast_to(mask, shape)
    stretched = np.broadcast_to(bias, shape)
    places = np.broadcast_to(np.arange(np.size(bias)).reshape(np.shape(bias)), shape)
    dq, dk, dv, dbias = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v), np.zeros(np.size(bias))
    root = math.sqrt(q.shape[-1])
    for b in np.ndindex(q.shape[:-2]):
        for i in range(q.shape[-2]):
            seen = [j for j in range(k.shape[-2]) if (mask is None or mask[b][i, j]) and (not causal or j <= i)]
            scores = {j: np.dot(q[b][i], k[b][j]) / root + stretched[b][i, j] for j in seen}
            row = {j: math.exp(score - peak[b][i, 0]) / total[b][i, 0] for j, score in scores.items()}
            dp = {j: float(np.dot(g[b][i], v[b][j])) for j in seen}
            for j in seen:
                ds = sum(dp[a] * row[a] * ((a == j) - row[j]) for a in seen)
                dq[b][i] += ds * k[b][j] / root
                dk[b][j] += ds * q[b][i] / root
                dv[b][j] += row[j] * g[b][i]
                dbias[places[b][i, j]] += ds
    return dq, dk, dv, dbias.reshape(np.shape(bias))


def _multi_head(
    wq: Any, wk: Any, wv: Any, wo: Any, x: Any, mask: Any = None, num_heads: int = 1, causal: bool = False
) -> Any:
    out = np.zeros_like(x)
    size = wq.shape[1] // num_heads
    for b in np.ndindex(x.shape[:-2]):
        own = mask if mask is None or mask.ndim == 2 else np.broadcast_to(mask, (*x.shape[:-1], x.shape[-2]))[b]
        for head in range(num_heads):
            columns = slice(head * size, (head + 1) * size)
            weights = _weights(x[b] @ wq[:, columns], x[b] @ wk[:, columns], own, causal)
            out[b] += weights @ (x[b] @ wv[:, columns]) @ wo[columns]
    return out


def _masked(mask: Any, *shapes: tuple[int, ...]) -> Arrays:
    return lambda rng: (*normal(*shapes)(rng), np.array(mask, bool))


def _after(q: Place, k: Place, v: Place, mask: Any = None, causal: bool = False, bias: Place | None = None) -> Arrays:
    """q, k, v, the bias if any, mask, and what is kept of each query: the weights of each row add up to 1."""

    def make(rng: np.random.Generator) -> tuple[Any, ...]:
        x, y, z, g = normal(q, k, v, (*q[:-1], v[-1]))(rng)
        added = () if bias is None else normal(bias)(rng)
        scores = sum(added, np.einsum("...nd,...md->...nm", x, y) / math.sqrt(q[-1]))
        if causal:
            scores[..., np.arange(k[-2]) > np.arange(q[-2])[:, np.newaxis]] = -np.inf
        if mask is not None:
            scores = np.where(np.array(mask, bool), scores, -np.inf)
        peak = scores.max(axis=-1, keepdims=True)
        peak[peak == -np.inf] = 0
        total = np.exp(scores - peak).sum(axis=-1, keepdims=True)
        total[total == 0] = 1
        return x, y, z, *added, None if mask is None else np.array(mask, bool), peak, total, g

    return make


def _projections(d: int, width: int, x: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return (d, width), (d, width), (d, width), (width, d), x


_SDPA, _GRAD, _HEADS = "scaled_dot_product_attention", "scaled_dot_product_attention_grad", "multi_head_attention"
_SPARSE = [[1, 0, 1], [0, 1, 0], [1, 1, 1]]
_BLIND = [[1, 1, 0], [0, 0, 0]]  # the second query may attend to nothing
_FEW = [[[1, 0], [1, 1]], [[0, 0], [0, 1]]]

SAMPLES = [
    Sample(_SDPA, "one head", normal((3, 2), (4, 2), (4, 3)), attention),
    Sample(_SDPA, "batch", normal((2, 2, 3), (2, 3, 3), (2, 3, 2)), attention),
    Sample(_SDPA, "batch of heads", normal((2, 2, 2, 1), (2, 2, 3, 1), (2, 2, 3, 2)), attention),
    Sample(_SDPA, "one key", normal((2, 3), (1, 3), (1, 2)), attention),
    Sample(_SDPA, "causal", normal((3, 2), (3, 2), (3, 2)), attention, causal=True),
    Sample(_SDPA, "causal, more keys", normal((2, 2), (4, 2), (4, 1)), attention, causal=True),
    Sample(_SDPA, "causal, more queries", normal((2, 4, 2), (2, 2, 2), (2, 2, 1)), attention, causal=True),
    Sample(_SDPA, "mask", _masked(_SPARSE, (3, 2), (3, 2), (3, 2)), attention),
    Sample(_SDPA, "mask for a batch", _masked(_SPARSE, (2, 3, 2), (2, 3, 2), (2, 3, 1)), attention),
    Sample(_SDPA, "mask of keys", _masked([[[1, 1, 0]], [[0, 1, 1]]], (2, 2, 2), (2, 3, 2), (2, 3, 1)), attention),
    Sample(_SDPA, "mask and causal", _masked(_SPARSE, (3, 2), (3, 2), (3, 2)), attention, causal=True),
    Sample(_SDPA, "nothing to attend to", _masked(_BLIND, (2, 2), (3, 2), (3, 2)), attention),
    Sample(
        _SDPA,
        "nothing to attend to, causal",
        _masked([[0, 1, 1], [0, 1, 1]], (2, 2), (3, 2), (3, 2)),
        attention,
        causal=True,
    ),
    Sample(_SDPA, "mask of nothing", _masked([[0]], (2, 2), (3, 2), (3, 2)), attention),
    Sample(
        _SDPA,
        "large scores",
        lambda rng: (np.array([[3e3, 0.0]]), np.array([[1e3, 1.0], [-1e3, 0.0]]), rng.standard_normal((2, 2))),
        attention,
        order=0,
    ),
    Sample(
        _SDPA,
        "large scores, masked",
        lambda rng: (
            np.array([[3e3, 0.0], [1.0, 2.0]]),
            np.array([[1e3, 1.0], [-1e3, 0.0]]),
            rng.standard_normal((2, 2)),
            np.array([[False, True], [True, True]]),
        ),
        attention,
        order=0,
    ),
    Sample(_SDPA, "no queries", normal((0, 2), (3, 2), (3, 2)), attention),
    Sample(_SDPA, "no values", normal((2, 2), (3, 2), (3, 0)), attention),
    Sample(_SDPA, "no batch", _masked([[1, 0]], (0, 1, 2), (0, 2, 2), (0, 2, 1)), attention),
    Sample(_SDPA, "scale", normal((3, 2), (4, 2), (4, 3)), attention, scale=0.4),
    Sample(_SDPA, "scale 0", normal((3, 2), (4, 2), (4, 3)), attention, scale=0),
    Sample(_GRAD, "one head", _after((3, 2), (4, 2), (4, 3)), _attention_grad),
    Sample(_GRAD, "batch", _after((2, 2, 3), (2, 3, 3), (2, 3, 1)), _attention_grad),
    Sample(_GRAD, "causal", _after((3, 2), (4, 2), (4, 1), None, True), _attention_grad, causal=True),
    Sample(_GRAD, "mask", _after((3, 2), (3, 2), (3, 2), _SPARSE), _attention_grad),
    Sample(_GRAD, "mask and causal", _after((3, 2), (3, 2), (3, 2), _SPARSE, True), _attention_grad, causal=True),
    Sample(_GRAD, "nothing to attend to", _after((2, 2), (3, 2), (3, 2), _BLIND), _attention_grad),
    Sample(_GRAD, "no queries", _after((0, 2), (3, 2), (3, 2)), _attention_grad),
    Sample(_HEADS, "one head", normal(*_projections(3, 2, (3, 3))), _multi_head, num_heads=1),
    Sample(_HEADS, "two heads", normal(*_projections(2, 4, (3, 2))), _multi_head, num_heads=2),
    Sample(_HEADS, "batch", normal(*_projections(2, 2, (2, 3, 2))), _multi_head, num_heads=2),
    Sample(_HEADS, "two leading axes", normal(*_projections(2, 2, (2, 1, 2, 2))), _multi_head, num_heads=1),
    Sample(_HEADS, "causal", normal(*_projections(2, 4, (3, 2))), _multi_head, num_heads=2, causal=True),
    Sample(_HEADS, "mask", _masked(_SPARSE, *_projections(2, 2, (3, 2))), _multi_head, num_heads=2),
    Sample(_HEADS, "mask for a batch", _masked(_SPARSE, *_projections(2, 2, (2, 3, 2))), _multi_head, num_heads=1),
    Sample(_HEADS, "mask a batch", _masked(_FEW, *_projections(2, 2, (2, 2, 2))), _multi_head, num_heads=2),
    Sample(_HEADS, "no batch", normal(*_projections(2, 2, (0, 2, 2))), _multi_head, num_heads=1),
]


def _zeros_masked(mask: Any, *shapes: tuple[int, ...]) -> Callable[[], tuple[Any, ...]]:
    return lambda: (*zeros(*shapes)(), np.array(mask))


def _zeros_kept(*shapes: tuple[int, ...]) -> Callable[[], tuple[Any, ...]]:
    """q, k, v, no mask, peak, total, g."""
    made = zeros(*shapes)
    return lambda: (*made()[:3], None, *made()[3:])


BAD_CALLS = [
    BadCall(_SDPA, "vectors", zeros((2,), (2,), (2,)), r"they must be \(..., n, d\)"),
    BadCall(_SDPA, "ranks", zeros((2, 3, 2), (3, 2), (3, 2)), r"of one rank"),
    BadCall(_SDPA, "batches", zeros((2, 3, 2), (4, 3, 2), (2, 3, 2)), r"leading axes must agree"),
    BadCall(_SDPA, "components", zeros((3, 2), (3, 4), (3, 2)), r"q and k must agree in their last axis, 2 and 4"),
    BadCall(_SDPA, "keys and values", zeros((3, 2), (3, 2), (4, 2)), r"k has 3 keys but v has 4 values"),
    BadCall(_SDPA, "no keys", zeros((3, 2), (0, 2), (0, 2)), r"at least one key to attend to"),
    BadCall(_SDPA, "no components", zeros((3, 0), (2, 0), (2, 2)), r"at least 1 component"),
    BadCall(_SDPA, "float mask", zeros((3, 2), (3, 2), (3, 2), (3, 3)), r"mask must be a boolean mask.*as the bias"),
    BadCall(
        _SDPA,
        "mask of other queries",
        _zeros_masked([[True] * 3] * 2, (3, 2), (3, 2), (3, 2)),
        r"mask is \(2, 3\) but the attention weights are \(3, 3\)",
    ),
    BadCall(
        _SDPA,
        "mask of higher rank",
        _zeros_masked([[[True]]], (3, 2), (3, 2), (3, 2)),
        r"mask is \(1, 1, 1\) but the attention weights are \(3, 3\)",
    ),
    BadCall(
        _SDPA, "scale of no number", zeros((3, 2), (3, 2), (3, 2)), r"scale must be a number but is 'big'", scale="big"
    ),
    BadCall(_SDPA, "integers", lambda: (np.zeros((2, 2), int),) * 3, r"q must be a float tensor"),
    BadCall(
        _GRAD, "peak", _zeros_kept((3, 2), (4, 2), (4, 2), (3,), (3, 1), (3, 2)), r"peak is \(3,\) but must be \(3, 1\)"
    ),
    BadCall(
        _GRAD, "total", _zeros_kept((3, 2), (4, 2), (4, 2), (3, 1), (2, 1), (3, 2)), r"total is \(2, 1\) but must be"
    ),
    BadCall(
        _GRAD, "cotangent", _zeros_kept((3, 2), (4, 2), (4, 5), (3, 1), (3, 1), (3, 2)), r"g is \(3, 2\) but must be"
    ),
    BadCall(_HEADS, "vector", zeros(*_projections(2, 2, (2,))), r"x must be \(n, d\)", num_heads=1),
    BadCall(_HEADS, "heads do not divide", zeros(*_projections(2, 4, (3, 2))), r"num_heads=3 must divide", num_heads=3),
    BadCall(_HEADS, "no heads", zeros(*_projections(2, 4, (3, 2))), r"num_heads must be an int", num_heads=0),
    BadCall(
        _HEADS,
        "wo transposed",
        zeros((2, 4), (2, 4), (2, 4), (2, 4), (3, 2)),
        r"wo is \(2, 4\) but must be \(4, 2\)",
        num_heads=2,
    ),
    BadCall(_HEADS, "wide x", zeros(*_projections(2, 4, (3, 5))), r"wq is \(2, 4\) but must be", num_heads=2),
    BadCall(
        _HEADS,
        "mask of heads",
        _zeros_masked([[[[True]]]], *_projections(2, 4, (2, 3, 2))),
        r"mask is \(1, 1, 1, 1\) but must be \(queries, keys\)",
        num_heads=2,
    ),
    BadCall(
        _HEADS, "no positions", zeros(*_projections(2, 4, (0, 2))), r"at least one position to attend to", num_heads=2
    ),
]


# Attention with a bias. The references are those of attention without one, with it ------------------------------------


def _biased(bias: Any, *shapes: tuple[int, ...], mask: Any = None) -> Arrays:
    """q, k, v, the mask, and the bias: one that is given, or of a shape."""

    def make(rng: np.random.Generator) -> tuple[Any, ...]:
        made = np.array(bias) if isinstance(bias, list) else rng.standard_normal(bias)
        return *normal(*shapes)(rng), None if mask is None else np.array(mask, bool), made

    return make


_BIASED_GRAD = "biased_attention_grad"
_FORBIDDING = [[0.5, -math.inf, 1.0], [-math.inf] * 3]  # the second query may attend to nothing

SAMPLES += [
    Sample(_SDPA, "bias", _biased((3, 4), (3, 2), (4, 2), (4, 3)), attention),
    Sample(_SDPA, "bias of a number, scale", _biased((), (2, 3), (3, 3), (3, 1)), attention, scale=-1.5),
    Sample(_SDPA, "bias of keys", _biased((2, 1, 3), (2, 2, 2), (2, 3, 2), (2, 3, 1)), attention),
    Sample(_SDPA, "bias of heads", _biased((2, 2, 3), *[(2, 2, n, 1) for n in (2, 3, 3)]), attention),
    Sample(_SDPA, "bias, causal", _biased((3, 1), (3, 2), (3, 2), (3, 2)), attention, causal=True),
    Sample(_SDPA, "bias and mask", _biased((3, 3), (3, 2), (3, 2), (3, 2), mask=_SPARSE), attention),
    Sample(
        _SDPA,
        "bias, mask and causal",
        _biased((1, 3), (2, 3, 2), (2, 3, 2), (2, 3, 1), mask=_SPARSE),
        attention,
        causal=True,
    ),
    Sample(_SDPA, "bias that forbids", _biased(_FORBIDDING, (2, 2), (3, 2), (3, 2)), attention, order=0),
    Sample(_SDPA, "bias, no queries", _biased((0, 3), (0, 2), (3, 2), (3, 2)), attention),
    Sample(_BIASED_GRAD, "one head", _after((3, 2), (4, 2), (4, 3), bias=(3, 4)), biased_grad),
    Sample(_BIASED_GRAD, "of keys", _after((2, 2, 3), (2, 3, 3), (2, 3, 1), bias=(3,)), biased_grad),
    Sample(_BIASED_GRAD, "of queries", _after((2, 2, 3), (2, 3, 3), (2, 3, 1), bias=(2, 2, 1)), biased_grad),
    Sample(
        _BIASED_GRAD,
        "mask and causal",
        _after((3, 2), (3, 2), (3, 2), mask=_SPARSE, causal=True, bias=()),
        biased_grad,
        causal=True,
    ),
    Sample(_BIASED_GRAD, "no queries", _after((0, 2), (3, 2), (3, 2), bias=(0, 3)), biased_grad),
]

BAD_CALLS += [
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
