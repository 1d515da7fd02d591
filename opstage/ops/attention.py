# mypy: disable-error-code=empty-body
"""Attention: weighted means of values, with weights from the products of queries and keys (Vaswani et al. 2017)."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from .dims import Dim, DimFloat, exact_div, is_one, prod, require_at_most, require_equal, rsqrt
from .elementwise import SCALE
from .errors import DtypeError, ShapeError
from .method import Calls
from .primitive import Context, Primitive, R, Row, Some, Types
from .rule_helpers import full_like, zeros_like
from .static_arguments import InvalidStatic, Number, as_flag, plain
from .types import Shape, TensorType, require_bool, require_float, require_same_dtype, show_shape

if TYPE_CHECKING:
    from .protocol import Ops


# Scaled dot-product attention ----------------------------------------------------------------------------------------


def require_heads(q: TensorType, k: TensorType, v: TensorType) -> Shape:
    """Check q, k and v against each other; return the shape (..., n, m) of the attention weights."""
    require_float(q, "q")

    def shapes() -> str:
        return f"q is {show_shape(q.shape)}, k is {show_shape(k.shape)}, v is {show_shape(v.shape)}"

    rank = len(q.shape)
    if rank < 2 or len(k.shape) != rank or len(v.shape) != rank:
        raise ShapeError(f"{shapes()}; they must be (..., n, d), (..., m, d) and (..., m, e), of one rank")
    for name, x in (("k", k), ("v", v)):
        require_same_dtype(q, x, "q", name)
        for axis in range(rank - 2):
            require_equal(
                q.shape[axis],
                x.shape[axis],
                lambda: f"{shapes()}: their leading axes must agree, but axis {axis} differs",
            )
    (n, d), m = q.shape[-2:], k.shape[-2]
    require_equal(d, k.shape[-1], lambda: f"{shapes()}: q and k must agree in their last axis, {d} and {k.shape[-1]}")
    require_equal(m, v.shape[-2], lambda: f"{shapes()}: k has {m} keys but v has {v.shape[-2]} values")
    require_at_most(1, m, lambda: f"{shapes()}: there must be at least one key to attend to")
    require_at_most(1, d, lambda: f"{shapes()}: queries and keys must have at least 1 component")
    return (*q.shape[:-2], n, m)


def require_mask(mask: TensorType, shape: Shape, *, takes_bias: bool = True) -> None:
    """Require that `mask` is boolean and broadcasts to `shape`, that of the attention weights."""
    if takes_bias and mask.dtype.kind == "f":
        raise DtypeError(
            f"mask must be a boolean mask but is {mask}; make one with ops.less or ops.equal, or give what is to be "
            "added to the scores as the bias: scaled_dot_product_attention(q, k, v, None, bias)"
        )
    require_bool(mask, "mask")
    require_stretched(mask, "mask", shape)


def require_stretched(x: TensorType, name: str, shape: Shape) -> None:
    """Require that x broadcasts to `shape`, that of the attention weights."""

    def message() -> str:
        return (
            f"{name} is {show_shape(x.shape)} but the attention weights are {show_shape(shape)} (..., queries, keys); "
            f"each axis of the {name}, counted from the last, must agree or be 1"
        )

    if len(x.shape) > len(shape):
        raise ShapeError(message())
    for a, b in zip(reversed(x.shape), reversed(shape)):
        if not is_one(a):
            require_equal(a, b, message)


def _attention_shape(
    q: TensorType, k: TensorType, v: TensorType, *mask: TensorType, has_mask: bool, causal: bool
) -> Types:
    weights = require_heads(q, k, v)
    if has_mask:
        require_mask(mask[0], weights)
    number = TensorType((*q.shape[:-1], 1), q.dtype)
    return TensorType((*q.shape[:-1], v.shape[-1]), q.dtype), number, number


def _transposed(ops: Ops[R], x: R) -> R:
    """Transpose (..., a, b) to (..., b, a)."""
    rank = len(x.shape)
    return ops.permute(x, axes=(*range(rank - 2), rank - 1, rank - 2))


def attention_mask(ops: Ops[R], shape: Shape, mask: Row[R], causal: bool) -> R:
    """Return the keys that each query may attend to, in the shape of the weights, given a mask, `causal`, or both."""
    conditions = [ops.broadcast_to(m, shape=shape) for m in mask]
    if causal:
        earlier = ops.less_equal(ops.iota(shape=shape[-2:], axis=1), ops.iota(shape=shape[-2:], axis=0))
        conditions.append(ops.broadcast_to(earlier, shape=shape))
    return conditions[0] if len(conditions) == 1 else ops.logical_and(*conditions)


def attention_scores(ops: Ops[R], q: R, k: R) -> R:
    """Return q·kᵀ/√d."""
    return ops.bmm(ops.scale(q, c=rsqrt(q.shape[-1])), _transposed(ops, k))


def _exponentials(ops: Ops[R], scores: R, peak: R, allowed: R | None) -> R:
    """Return exp(scores - peak), and 0 where masked.

    Masked entries are replaced both before and after exp, so that they cause no inf or nan in values or derivatives.
    """
    shifted = ops.sub(scores, ops.broadcast_to(peak, shape=scores.shape))
    if allowed is None:
        return ops.exp(shifted)
    zero = zeros_like(ops, scores)
    return ops.select(allowed, ops.exp(ops.select(allowed, shifted, zero)), zero)


def attended(ops: Ops[R], scores: R, v: R, mask: Row[R], causal: bool, *, may_be_blank: bool) -> tuple[R, R, R]:
    """Return the result and each query's peak and total, which are 0 and 1 for a query whose scores are all -inf."""
    allowed = attention_mask(ops, scores.shape, mask, causal) if mask or causal else None
    seen = scores
    if allowed is not None:
        seen = ops.select(allowed, scores, full_like(ops, scores, -math.inf))
    peak = ops.detach(ops.reduce_max(seen, axis=-1, keepdims=True))
    nothing = ops.equal(peak, full_like(ops, peak, -math.inf)) if may_be_blank else None
    if nothing is not None:
        peak = ops.select(nothing, zeros_like(ops, peak), peak)
    e = _exponentials(ops, scores, peak, allowed)
    total = ops.reduce_sum(e, axis=-1, keepdims=True)
    if nothing is not None:
        total = ops.select(nothing, full_like(ops, total, 1.0), total)
    if allowed is None and nothing is None:
        p = ops.softmax(scores, axis=-1)
    else:
        p = ops.div(e, ops.broadcast_to(total, shape=e.shape))
    return ops.bmm(p, v), peak, total


def _attention_decomposition(ops: Ops[R], q: R, k: R, v: R, /, *mask: R, has_mask: bool, causal: bool) -> Row[R]:
    return attended(ops, attention_scores(ops, q, k), v, mask, causal, may_be_blank=has_mask)


def _attention_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, has_mask: bool, causal: bool) -> Some[R]:
    (g, *_), (q, k, v, mask, peak, total) = cotangents, ctx.saved
    found = ops.scaled_dot_product_attention_grad(q, k, v, mask, peak, total, g, causal=causal)
    return *(c if needed else None for c, needed in zip(found, ctx.needs)), *(None,) * has_mask


def count_products(q: TensorType, k: TensorType) -> Dim:
    """Return the number of pairs of a query and a key."""
    return prod(q.shape[:-1]) * k.shape[-2]


def _attention_flops(inputs: Types, outputs: Types, /, *, has_mask: bool, causal: bool) -> Dim:
    q, k, v, *_ = inputs
    return count_products(q, k) * (2 * q.shape[-1] + 2 * v.shape[-1] + 5)


# Only two numbers per query are kept, from which the weights are recomputed: peak, the maximal score, and total, Σ
# exp(score - peak); they are 0 and 1 where everything is masked. Rabe & Staats and Dao et al. keep peak + log total,
# which would round off the differences of large scores.
SCALED_DOT_PRODUCT_ATTENTION = Primitive(
    "scaled_dot_product_attention",
    operands=("q", "k", "v", "mask?"),
    shape=_attention_shape,
    residuals=("peak", "total"),
    vjp=_attention_vjp,
    saves=("q", "k", "v", "mask", "peak", "total"),
    decomposition=_attention_decomposition,
    expandable=True,
    flops=_attention_flops,
)


def _attention_grad_shape(
    q: TensorType, k: TensorType, v: TensorType, /, *rest: TensorType, has_mask: bool, causal: bool
) -> Types:
    weights = require_heads(q, k, v)
    if has_mask:
        require_mask(rest[0], weights)
    require_statistics(q, k, v, *rest[-3:])
    return q, k, v


def require_statistics(
    q: TensorType, k: TensorType, v: TensorType, peak: TensorType, total: TensorType, g: TensorType
) -> None:
    """Check the two numbers kept per query, and the result's cotangent, against q, k and v."""
    number = (*q.shape[:-1], 1)
    for x, name, shape in ((peak, "peak", number), (total, "total", number), (g, "g", (*q.shape[:-1], v.shape[-1]))):
        text = f"{name} is {show_shape(x.shape)} but must be {show_shape(shape)}, by q, k and v"
        if len(x.shape) != len(shape):
            raise ShapeError(text)
        for a, b in zip(x.shape, shape):
            require_equal(a, b, text)
        require_same_dtype(x, q, name, "q")


def attention_cotangents(
    ops: Ops[R], scores: R, q: R, k: R, v: R, mask: Row[R], causal: bool, peak: R, total: R, g: R
) -> tuple[R, R, R, R]:
    """Return the cotangents of q, k, v and the scores."""
    allowed = attention_mask(ops, scores.shape, mask, causal) if mask or causal else None
    e = _exponentials(ops, scores, peak, allowed)
    p = ops.div(e, ops.broadcast_to(total, shape=e.shape))
    ds, factor = ops.softmax_grad(p, ops.bmm(g, _transposed(ops, v)), axis=-1), rsqrt(q.shape[-1])
    dq = ops.scale(ops.bmm(ds, k), c=factor)
    dk = ops.scale(ops.bmm(_transposed(ops, ds), q), c=factor)
    return dq, dk, ops.bmm(_transposed(ops, p), g), ds


def _attention_grad_decomposition(ops: Ops[R], q: R, k: R, v: R, /, *rest: R, has_mask: bool, causal: bool) -> Row[R]:
    *mask, peak, total, g = rest
    return attention_cotangents(ops, attention_scores(ops, q, k), q, k, v, tuple(mask), causal, peak, total, g)[:3]


def _attention_grad_flops(inputs: Types, outputs: Types, /, *, has_mask: bool, causal: bool) -> Dim:
    q, k, v, *_ = inputs
    return count_products(q, k) * (6 * q.shape[-1] + 4 * v.shape[-1] + 8)


SCALED_DOT_PRODUCT_ATTENTION_GRAD = Primitive(
    outputs=("dq", "dk", "dv"),
    shape=_attention_grad_shape,
    decomposition=_attention_grad_decomposition,
    flops=_attention_grad_flops,
)

# Multi-head attention ------------------------------------------------------------------------------------------------


def _head_size(width: Dim, num_heads: Any) -> Dim:
    if isinstance(num_heads, bool) or not isinstance(num_heads, int) or num_heads < 1:
        raise ShapeError(f"num_heads must be an int that is at least 1 but is {num_heads!r}")
    return exact_div(
        width,
        num_heads,
        lambda: f"num_heads={num_heads} must divide the columns of wq, wk and wv, of which there are {width}",
    )


def _multi_head_shape(
    wq: TensorType,
    wk: TensorType,
    wv: TensorType,
    wo: TensorType,
    x: TensorType,
    *mask: TensorType,
    has_mask: bool,
    num_heads: Any,
    causal: bool,
) -> Types:
    require_float(x, "x")
    if len(x.shape) < 2:
        raise ShapeError(f"x must be (n, d) or (B, n, d) but is {show_shape(x.shape)}")
    if len(wq.shape) != 2:
        raise ShapeError(f"wq must be (d, H·h) but is {show_shape(wq.shape)}")
    (*batch, n, d), width = x.shape, wq.shape[1]
    for w, name, shape in (
        (wq, "wq", (d, width)),
        (wk, "wk", (d, width)),
        (wv, "wv", (d, width)),
        (wo, "wo", (width, d)),
    ):
        text = (
            f"{name} is {show_shape(w.shape)} but must be {show_shape(shape)}, for x {show_shape(x.shape)} and wq "
            f"{show_shape(wq.shape)}"
        )
        if len(w.shape) != 2:
            raise ShapeError(text)
        for a, b in zip(w.shape, shape):
            require_equal(a, b, text)
        require_same_dtype(w, x, name, "x")
    head = _head_size(width, num_heads)
    require_at_most(1, head, f"wq is {show_shape(wq.shape)}: a head must have at least 1 component")
    require_at_most(1, n, f"x is {show_shape(x.shape)}: there must be at least one position to attend to")
    if has_mask:
        if len(mask[0].shape) not in (2, len(x.shape)):
            raise ShapeError(
                f"mask is {show_shape(mask[0].shape)} but must be (queries, keys), or have x's leading axes before "
                f"them; x is {show_shape(x.shape)}"
            )
        require_mask(mask[0], (*batch, n, n), takes_bias=False)
    return (x,)


def _multi_head_decomposition(
    ops: Ops[R], wq: R, wk: R, wv: R, wo: R, x: R, /, *mask: R, has_mask: bool, num_heads: int, causal: bool
) -> Row[R]:
    *batch, n, d = x.shape
    rank = len(x.shape)
    rows = ops.reshape(x, shape=(prod((*batch, n)), d)) if batch else x
    swap = (*range(rank - 2), rank - 1, rank - 2, rank)  # (..., n, H, h) <-> (..., H, n, h)

    def heads(w: R) -> R:
        split = (*batch, n, num_heads, _head_size(w.shape[1], num_heads))
        return ops.permute(ops.reshape(ops.matmul(rows, w), shape=split), axes=swap)

    # A mask with x's leading axes gets an axis for the heads; a matrix broadcasts.
    masks = tuple(ops.unsqueeze(m, axis=rank - 2) if len(m.shape) > 2 else m for m in mask)
    merged = ops.scaled_dot_product_attention(heads(wq), heads(wk), heads(wv), *masks, causal=causal)
    merged = ops.reshape(ops.permute(merged, axes=swap), shape=(rows.shape[0], wo.shape[0]))
    return (ops.reshape(ops.matmul(merged, wo), shape=x.shape),)


def _multi_head_flops(inputs: Types, outputs: Types, /, *, has_mask: bool, num_heads: int, causal: bool) -> Dim:
    wq, _, _, _, x, *_ = inputs
    n, width = x.shape[-2], wq.shape[1]
    return x.size * 8 * width + prod(x.shape[:-1]) * n * (4 * width + 5 * num_heads)


MULTI_HEAD_ATTENTION = Primitive(
    shape=_multi_head_shape, decomposition=_multi_head_decomposition, flops=_multi_head_flops
)


# With a bias on the scores: relative positions (T5, ALiBi), windows (Swin), or a mask of -inf -------------------------


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
    scores = attention_scores(ops, q, k)
    return ops.add(scores, ops.broadcast_to(bias, shape=scores.shape))


def _decomposition(ops: Ops[R], q: R, k: R, v: R, bias: R, /, *mask: R, has_mask: bool, causal: bool) -> Row[R]:
    return attended(ops, _scores(ops, q, k, bias), v, mask, causal, may_be_blank=True)


def _vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, has_mask: bool, causal: bool) -> Some[R]:
    (g, *_), (q, k, v, bias, mask, peak, total) = cotangents, ctx.saved
    found = ops.biased_attention_grad(q, k, v, bias, mask, peak, total, g, causal=causal)
    return *(c if needed else None for c, needed in zip(found, ctx.needs)), *(None,) * has_mask


def _flops(inputs: Types, outputs: Types, /, *, has_mask: bool, causal: bool) -> Dim:
    q, k, v, *_ = inputs
    return count_products(q, k) * (2 * q.shape[-1] + 2 * v.shape[-1] + 6)


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
    require_statistics(q, k, v, *rest[-3:])
    return q, k, v, bias


def _summed(ops: Ops[R], ds: R, bias: R) -> R:
    """Return the cotangent of an operand that was broadcast to the shape of ds."""
    missing = len(ds.shape) - len(bias.shape)
    axes = (*range(missing), *[missing + i for i, n in enumerate(bias.shape) if is_one(n)])
    return ops.reshape(ops.reduce_sum(ds, axis=axes, keepdims=True), shape=bias.shape) if axes else ds


def _grad_decomposition(ops: Ops[R], q: R, k: R, v: R, bias: R, /, *rest: R, has_mask: bool, causal: bool) -> Row[R]:
    *mask, peak, total, g = rest
    scores = _scores(ops, q, k, bias)
    *found, ds = attention_cotangents(ops, scores, q, k, v, tuple(mask), causal, peak, total, g)
    return *found, _summed(ops, ds, bias)


def _grad_flops(inputs: Types, outputs: Types, /, *, has_mask: bool, causal: bool) -> Dim:
    q, k, v, *_ = inputs
    return count_products(q, k) * (6 * q.shape[-1] + 4 * v.shape[-1] + 10)


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


class AttentionOps(Calls[R]):
    __slots__ = ()

    @SCALED_DOT_PRODUCT_ATTENTION_GRAD.method
    def scaled_dot_product_attention_grad(
        self, q: R, k: R, v: R, mask: R | None, peak: R, total: R, g: R, /, *, causal: bool = False
    ) -> tuple[R, R, R]:
        """Return the cotangents of q, k, v, from each query's maximal score and sum of exponentials.

        peak and total (..., n, 1). With the weights p = exp(q·kᵀ/√d - peak)/total, 0 where a query may not attend, and
        s = p·(g·vᵀ - Σ p·(g·vᵀ)): s·k/√d, sᵀ·q/√d, pᵀ·g.

        Raises:
            DtypeError: q not a float tensor; dtypes differ.
            ShapeError: q, k and v do not fit; an invalid argument; peak, g, total of another shape.
        """

    @MULTI_HEAD_ATTENTION.method
    def multi_head_attention(
        self, wq: R, wk: R, wv: R, wo: R, x: R, mask: R | None = None, /, *, num_heads: int, causal: bool = False
    ) -> R:
        """Return the self-attention of x (…, n, d), projections (d, H·h), output (H·h, d). PyTorch:
        torch.nn.MultiheadAttention.

        x (n, d) or (B, n, d). Head i of H uses columns i·h … (i+1)·h of x·wq, x·wk and x·wv, with scale 1/√h;
        the concatenated heads are multiplied by wo. PyTorch has biases and transposed weights. mask (n, n) or (B, n,
        n), as in scaled_dot_product_attention.

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: num_heads do not divide the columns; no position to attend to; an invalid argument; wq, wk, wv,
                wo, x, mask of another shape.
        """

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
        """Return softmax(q·kᵀ/√d + bias)·v; mask True = attend. PyTorch:
        torch.nn.functional.scaled_dot_product_attention.

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
        static = {"has_mask": mask is not None, "causal": as_flag("scaled_dot_product_attention", "causal", causal)}
        if bias is None:
            return self._call(SCALED_DOT_PRODUCT_ATTENTION, (q, k, v, *masks), static)
        return self._call(BIASED_ATTENTION, (q, k, v, bias, *masks), static)

    @BIASED_ATTENTION_GRAD.method
    def biased_attention_grad(
        self, q: R, k: R, v: R, bias: R, mask: R | None, peak: R, total: R, g: R, /, *, causal: bool = False
    ) -> tuple[R, R, R, R]:
        """Return the cotangents with a bias, whose cotangent comes last: s, summed over its broadcast axes.

        Raises:
            DtypeError: the bias a mask; q not a float tensor; dtypes differ.
            ShapeError: q, k and v do not fit; the bias does not broadcast; an invalid argument; g, peak, total of
                another shape.
        """
