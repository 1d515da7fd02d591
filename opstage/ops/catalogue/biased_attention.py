# mypy: disable-error-code=empty-body
"""Attention with a bias on its scores: relative positions (T5, ALiBi), windows (Swin), or a mask of -inf."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ..arguments import Number
from ..calls import Calls
from ..dims import Dim, DimFloat, is_one, rsqrt
from ..errors import DtypeError
from ..invalid_static import InvalidStatic
from ..numbers import plain
from ..primitive import Context, Primitive, R, Row, Some, Types
from ..types import Shape, TensorType, require_same_dtype
from .attention import (
    SCALED_DOT_PRODUCT_ATTENTION,
    attended,
    cotangents_of,
    products_of,
    require_heads,
    require_kept,
    require_mask,
    require_stretched,
    scores_of,
)
from .elementwise import SCALE

if TYPE_CHECKING:
    from ..protocol import Ops


def _require_operands(q: TensorType, k: TensorType, v: TensorType, bias: TensorType, mask: Types) -> None:
    weights = require_heads(q, k, v)
    if bias.dtype.kind == "b":
        raise DtypeError(f"bias is added to the scores but is {bias}; what says where to attend is the mask")
    require_same_dtype(q, bias, "q", "bias")
    require_stretched(bias, "bias", weights)
    for each in mask:
        require_mask(each, weights)


def _shape(
    q: TensorType, k: TensorType, v: TensorType, bias: TensorType, /, *mask: TensorType, has_mask: bool, causal: bool
) -> Types:
    _require_operands(q, k, v, bias, mask)
    number = TensorType((*q.shape[:-1], 1), q.dtype)
    return TensorType((*q.shape[:-1], v.shape[-1]), q.dtype), number, number


def _scores(ops: Ops[R], q: R, k: R, bias: R) -> R:
    scores = scores_of(ops, q, k)
    return ops.add(scores, ops.broadcast_to(bias, shape=scores.shape))


def _decomposition(ops: Ops[R], q: R, k: R, v: R, bias: R, /, *mask: R, has_mask: bool, causal: bool) -> Row[R]:
    return attended(ops, _scores(ops, q, k, bias), v, mask, causal, may_be_blank=True)


def _vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, has_mask: bool, causal: bool) -> Some[R]:
    (g, *_), (q, k, v, bias, mask, peak, total) = cotangents, ctx.saved
    found = ops.biased_attention_grad(q, k, v, bias, mask, peak, total, g, causal=causal)
    return *(c if needed else None for c, needed in zip(found, ctx.needs)), *(None,) * has_mask


def _flops(inputs: Types, outputs: Types, /, *, has_mask: bool, causal: bool) -> Dim:
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
) -> Types:
    _require_operands(q, k, v, bias, rest[:-3])
    require_kept(q, k, v, *rest[-3:])
    return q, k, v, bias


def _summed(ops: Ops[R], ds: R, bias: R) -> R:
    """Return the cotangent of an operand that was broadcast to the shape of ds."""
    missing = len(ds.shape) - len(bias.shape)
    axes = (*range(missing), *[missing + i for i, n in enumerate(bias.shape) if is_one(n)])
    return ops.reshape(ops.reduce_sum(ds, axis=axes, keepdims=True), shape=bias.shape) if axes else ds


def _grad_decomposition(ops: Ops[R], q: R, k: R, v: R, bias: R, /, *rest: R, has_mask: bool, causal: bool) -> Row[R]:
    *mask, peak, total, g = rest
    scores = _scores(ops, q, k, bias)
    *found, ds = cotangents_of(ops, scores, q, k, v, tuple(mask), causal, peak, total, g)
    return *found, _summed(ops, ds, bias)


def _grad_flops(inputs: Types, outputs: Types, /, *, has_mask: bool, causal: bool) -> Dim:
    q, k, v, *_ = inputs
    return products_of(q, k) * (6 * q.shape[-1] + 4 * v.shape[-1] + 10)


BIASED_ATTENTION_GRAD = Primitive(
    outputs=("dq", "dk", "dv", "dbias"), shape=_grad_shape, decomposition=_grad_decomposition, flops=_grad_flops
)


# The methods of Ops ------------------------------------------------------------------------------------------


def _over_root(scale: Any, shape: Shape) -> Any:
    """Return scale·√d. For invalid shapes or a scale that is not a number, return a value that the op rejects."""
    if isinstance(scale, bool) or not isinstance(scale, (int, float, Fraction, DimFloat)):
        return InvalidStatic(f"scale must be a number but is {scale!r}", SCALED_DOT_PRODUCT_ATTENTION.name)
    has_width = len(shape) > 1 and not (isinstance(shape[-1], int) and shape[-1] < 1)
    return scale / rsqrt(shape[-1]) if has_width else scale


class BiasedAttentionOps(Calls[R]):
    __slots__ = ()

    def scaled_dot_product_attention(
        self,
        q: R,
        k: R,
        v: R,
        mask: R | None = None,
        bias: R | None = None,
        /,
        *,
        causal: bool = False,
        scale: Number | None = None,
    ) -> R:
        """softmax(q·kᵀ/√d + bias)·v; mask True = attend. PyTorch: torch.nn.functional.scaled_dot_product_attention.

        q (..., n, d), k (..., m, d), v (..., m, e), m >= 1. A boolean mask broadcasts to (..., n, m) and is True
        where a query may attend; with `causal` query i attends to keys j <= i. A float bias broadcasts like it; -inf
        also masks out. PyTorch combines both in one argument. `scale` replaces 1/√d. A query that attends to nothing
        gives zeros and has no gradient. The n·m weights are not stored (Rabe & Staats 2021, Dao
        et al. 2022).

        Raises:
            DtypeError: the bias a mask; q not a float tensor; mask not a mask; dtypes differ.
            ShapeError: q, k and v do not fit; the mask does not broadcast; the bias does not broadcast; an invalid
                argument.
        """
        if scale is not None:  # the primitives divide by √d themselves
            q = self._call(SCALE, (q,), {"c": _over_root(plain(scale), q.shape)})
        masks = () if mask is None else (mask,)
        static = {"has_mask": mask is not None, "causal": causal}
        if bias is None:
            return self._call(SCALED_DOT_PRODUCT_ATTENTION, (q, k, v, *masks), static)
        return self._call(BIASED_ATTENTION, (q, k, v, bias, *masks), static)

    @BIASED_ATTENTION_GRAD.method
    def biased_attention_grad(
        self, q: R, k: R, v: R, bias: R, mask: R | None, peak: R, total: R, g: R, /, *, causal: bool = False
    ) -> tuple[R, R, R, R]:
        """The same with a bias, whose cotangent comes last: s, summed over its broadcast axes.

        Raises:
            DtypeError: the bias a mask; q not a float tensor; dtypes differ.
            ShapeError: q, k and v do not fit; the bias does not broadcast; an invalid argument; g, peak, total of
                another shape.
        """
