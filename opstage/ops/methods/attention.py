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
        """softmax(q·kᵀ/√d)·v; mask True = attend. PyTorch: torch.nn.functional.scaled_dot_product_attention.

        q (..., n, d), k (..., m, d), v (..., m, e), m >= 1. A boolean mask broadcasts to (..., n, m) and says True
        where a query may attend; with `causal` query i attends to keys j <= i. A query that may attend to nothing gives
        zeros and takes no gradient. Nothing of the n·m weights is kept (Rabe & Staats 2021, Dao et al. 2022).
        """
        refs = (q, k, v) if mask is None else (q, k, v, mask)
        return self._call(SCALED_DOT_PRODUCT_ATTENTION, refs, {"has_mask": mask is not None, "causal": causal})

    def scaled_dot_product_attention_grad(
        self, q: R, k: R, v: R, mask: R | None, peak: R, total: R, g: R, /, *, causal: bool = False
    ) -> tuple[R, R, R]:
        """Cotangents of q, k, v, from each query's greatest score and sum of exponentials.

        peak and total (..., n, 1). With the weights p = exp(q·kᵀ/√d - peak)/total, 0 where a query may not attend, and
        s = p·(g·vᵀ - Σ p·(g·vᵀ)): s·k/√d, sᵀ·q/√d, pᵀ·g.
        """
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
        """Self-attention of (…, n, d), projections (d, H·h), output (H·h, d). PyTorch: torch.nn.MultiheadAttention.

        x (n, d) or (B, n, d). Of H heads, head i attends with columns i·h … (i+1)·h of x·wq, x·wk and x·wv, scale 1/√h;
        the heads side by side times wo; PyTorch has a bias, and weights transposed. mask (n, n) or (B, n, n), as in
        scaled_dot_product_attention.
        """
        refs = (wq, wk, wv, wo, x) if mask is None else (wq, wk, wv, wo, x, mask)
        static = {"has_mask": mask is not None, "num_heads": num_heads, "causal": causal}
        return self._call(MULTI_HEAD_ATTENTION, refs, static)
