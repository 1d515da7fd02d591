"""Attention with a bias on its scores: relative positions (T5, ALiBi), windows (Swin), or a mask of -inf."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..dims import Dim, is_one
from ..errors import DtypeError
from ..primitive import Context, Primitive, R
from ..types import TensorType, require_same_dtype
from .attention import (
    attended,
    cotangents_of,
    products_of,
    require_heads,
    require_kept,
    require_mask,
    require_stretched,
    scores_of,
)

if TYPE_CHECKING:
    from ..protocol import Ops


def _require_operands(
    q: TensorType, k: TensorType, v: TensorType, bias: TensorType, mask: tuple[TensorType, ...]
) -> None:
    weights = require_heads(q, k, v)
    if bias.dtype.kind == "b":
        raise DtypeError(f"bias is added to the scores but is {bias}; what says where to attend is the mask")
    require_same_dtype(q, bias, "q", "bias")
    require_stretched(bias, "bias", weights)
    for each in mask:
        require_mask(each, weights)


def _shape(
    q: TensorType, k: TensorType, v: TensorType, bias: TensorType, /, *mask: TensorType, has_mask: bool, causal: bool
) -> tuple[TensorType, ...]:
    _require_operands(q, k, v, bias, mask)
    number = TensorType((*q.shape[:-1], 1), q.dtype)
    return TensorType((*q.shape[:-1], v.shape[-1]), q.dtype), number, number


def _scores(ops: Ops[R], q: R, k: R, bias: R) -> R:
    scores = scores_of(ops, q, k)
    return ops.add(scores, ops.broadcast_to(bias, shape=scores.shape))


def _decomposition(ops: Ops[R], q: R, k: R, v: R, bias: R, /, *mask: R, has_mask: bool, causal: bool) -> tuple[R, ...]:
    return attended(ops, _scores(ops, q, k, bias), v, mask, causal, may_be_blank=True)


def _vjp(
    ops: Ops[R], ctx: Context[R], cotangents: tuple[R, ...], /, *, has_mask: bool, causal: bool
) -> tuple[R | None, ...]:
    (g, *_), (q, k, v, bias, mask, peak, total) = cotangents, ctx.saved
    found = ops.biased_attention_grad(q, k, v, bias, mask, peak, total, g, causal=causal)
    return *(c if needed else None for c, needed in zip(found, ctx.needs)), *(None,) * has_mask


def _flops(inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...], /, *, has_mask: bool, causal: bool) -> Dim:
    q, k, v, *_ = inputs
    return products_of(q, k) * (2 * q.shape[-1] + 2 * v.shape[-1] + 6)


BIASED_ATTENTION = Primitive(
    "biased_attention",
    operands=("q", "k", "v", "bias", "mask?"),
    shape=_shape,
    residuals=("peak", "total"),
    vjp=_vjp,
    saves=("q", "k", "v", "bias", "mask", "peak", "total"),
    decomposition=_decomposition,
    expandable=True,
    flops=_flops,
)


def _grad_shape(
    q: TensorType, k: TensorType, v: TensorType, bias: TensorType, /, *rest: TensorType, has_mask: bool, causal: bool
) -> tuple[TensorType, ...]:
    _require_operands(q, k, v, bias, rest[:-3])
    require_kept(q, k, v, *rest[-3:])
    return q, k, v, bias


def _summed(ops: Ops[R], ds: R, bias: R) -> R:
    """Return the cotangent of an operand that was broadcast to the shape of ds."""
    missing = len(ds.shape) - len(bias.shape)
    axes = (*range(missing), *[missing + i for i, n in enumerate(bias.shape) if is_one(n)])
    return ops.reshape(ops.reduce_sum(ds, axis=axes, keepdims=True), shape=bias.shape) if axes else ds


def _grad_decomposition(
    ops: Ops[R], q: R, k: R, v: R, bias: R, /, *rest: R, has_mask: bool, causal: bool
) -> tuple[R, ...]:
    *mask, peak, total, g = rest
    scores = _scores(ops, q, k, bias)
    *found, ds = cotangents_of(ops, scores, q, k, v, tuple(mask), causal, peak, total, g)
    return *found, _summed(ops, ds, bias)


def _grad_flops(
    inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...], /, *, has_mask: bool, causal: bool
) -> Dim:
    q, k, v, *_ = inputs
    return products_of(q, k) * (6 * q.shape[-1] + 4 * v.shape[-1] + 10)


BIASED_ATTENTION_GRAD = Primitive(
    "biased_attention_grad",
    operands=("q", "k", "v", "bias", "mask?", "peak", "total", "g"),
    outputs=("dq", "dk", "dv", "dbias"),
    shape=_grad_shape,
    decomposition=_grad_decomposition,
    flops=_grad_flops,
)
