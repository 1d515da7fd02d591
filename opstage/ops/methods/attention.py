"""Attention, one head and many."""

from __future__ import annotations

from ..catalogue.attention import (
    MULTI_HEAD_ATTENTION,
    SCALED_DOT_PRODUCT_ATTENTION,
    SCALED_DOT_PRODUCT_ATTENTION_GRAD,
)
from ..primitive import R
from .calls import Calls


class AttentionOps(Calls[R]):
    __slots__ = ()

    def scaled_dot_product_attention(self, q: R, k: R, v: R, mask: R | None = None, /, *, causal: bool = False) -> R:
        """softmax(q·kᵀ/√d)·v; mask True = attend."""
        refs = (q, k, v) if mask is None else (q, k, v, mask)
        return self._call(SCALED_DOT_PRODUCT_ATTENTION, refs, {"has_mask": mask is not None, "causal": causal})

    def scaled_dot_product_attention_grad(
        self, q: R, k: R, v: R, mask: R | None, peak: R, total: R, g: R, /, *, causal: bool = False
    ) -> tuple[R, R, R]:
        """Cotangents of q, k, v, from each query's greatest score and sum of exponentials."""
        refs = (q, k, v, peak, total, g) if mask is None else (q, k, v, mask, peak, total, g)
        static = {"has_mask": mask is not None, "causal": causal}
        dq, dk, dv = self._call_many(SCALED_DOT_PRODUCT_ATTENTION_GRAD, refs, static)
        return dq, dk, dv

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
        """Self-attention of (…, n, d), projections (d, H·h), output (H·h, d)."""
        refs = (wq, wk, wv, wo, x) if mask is None else (wq, wk, wv, wo, x, mask)
        static = {"has_mask": mask is not None, "num_heads": num_heads, "causal": causal}
        return self._call(MULTI_HEAD_ATTENTION, refs, static)
