"""Attention: single-head and multi-head."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from ..arguments import Number
from ..calls import Calls
from ..catalogue.attention import (
    MULTI_HEAD_ATTENTION,
    SCALED_DOT_PRODUCT_ATTENTION,
    SCALED_DOT_PRODUCT_ATTENTION_GRAD,
)
from ..catalogue.biased_attention import BIASED_ATTENTION, BIASED_ATTENTION_GRAD
from ..catalogue.elementwise import SCALE
from ..dims import DimFloat, rsqrt
from ..invalid_static import InvalidStatic
from ..numbers import plain
from ..primitive import R
from ..types import Shape


def _over_root(scale: Any, shape: Shape) -> Any:
    """Return scale·√d. For invalid shapes or a scale that is not a number, return a value that the op rejects."""
    if isinstance(scale, bool) or not isinstance(scale, (int, float, Fraction, DimFloat)):
        return InvalidStatic(f"scale must be a number but is {scale!r}", SCALED_DOT_PRODUCT_ATTENTION.name)
    has_width = len(shape) > 1 and not (isinstance(shape[-1], int) and shape[-1] < 1)
    return scale / rsqrt(shape[-1]) if has_width else scale


class AttentionOps(Calls[R]):
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

    def scaled_dot_product_attention_grad(
        self, q: R, k: R, v: R, mask: R | None, peak: R, total: R, g: R, /, *, causal: bool = False
    ) -> tuple[R, R, R]:
        """Cotangents of q, k, v, from each query's maximal score and sum of exponentials.

        peak and total (..., n, 1). With the weights p = exp(q·kᵀ/√d - peak)/total, 0 where a query may not attend, and
        s = p·(g·vᵀ - Σ p·(g·vᵀ)): s·k/√d, sᵀ·q/√d, pᵀ·g.

        Raises:
            DtypeError: q not a float tensor; dtypes differ.
            ShapeError: q, k and v do not fit; an invalid argument; peak, g, total of another shape.
        """
        refs = (q, k, v, peak, total, g) if mask is None else (q, k, v, mask, peak, total, g)
        static = {"has_mask": mask is not None, "causal": causal}
        dq, dk, dv = self._call_many(SCALED_DOT_PRODUCT_ATTENTION_GRAD, refs, static)
        return dq, dk, dv

    def biased_attention_grad(
        self, q: R, k: R, v: R, bias: R, mask: R | None, peak: R, total: R, g: R, /, *, causal: bool = False
    ) -> tuple[R, R, R, R]:
        """The same with a bias, whose cotangent comes last: s, summed over its broadcast axes.

        Raises:
            DtypeError: the bias a mask; q not a float tensor; dtypes differ.
            ShapeError: q, k and v do not fit; the bias does not broadcast; an invalid argument; g, peak, total of
                another shape.
        """
        refs = (q, k, v, bias, peak, total, g) if mask is None else (q, k, v, bias, mask, peak, total, g)
        static = {"has_mask": mask is not None, "causal": causal}
        dq, dk, dv, dbias = self._call_many(BIASED_ATTENTION_GRAD, refs, static)
        return dq, dk, dv, dbias

    def multi_head_attention(
        self,
        wq: R,
        wk: R,
        wv: R,
        wo: R,
        x: R,
        mask: R | None = None,
        /,
        *,
        num_heads: int,
        causal: bool = False,
    ) -> R:
        """Self-attention of (…, n, d), projections (d, H·h), output (H·h, d). PyTorch: torch.nn.MultiheadAttention.

        x (n, d) or (B, n, d). Head i of H uses columns i·h … (i+1)·h of x·wq, x·wk and x·wv, with scale 1/√h;
        the concatenated heads are multiplied by wo. PyTorch has biases and transposed weights. mask (n, n) or (B, n,
        n), as in scaled_dot_product_attention.

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: num_heads do not divide the columns; no position to attend to; an invalid argument; wq, wk, wv,
                wo, x, mask of another shape.
        """
        refs = (wq, wk, wv, wo, x) if mask is None else (wq, wk, wv, wo, x, mask)
        static = {"has_mask": mask is not None, "num_heads": num_heads, "causal": causal}
        return self._call(MULTI_HEAD_ATTENTION, refs, static)
