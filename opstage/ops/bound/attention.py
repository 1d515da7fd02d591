"""Attention, one head and many."""

from __future__ import annotations

from typing import final

from ..catalogue.attention import (
    MULTI_HEAD_ATTENTION,
    SCALED_DOT_PRODUCT_ATTENTION,
    SCALED_DOT_PRODUCT_ATTENTION_GRAD,
)
from ..protocol import R
from .calls import Calls


class AttentionOps(Calls[R]):
    __slots__ = ()

    @final
    def scaled_dot_product_attention(self, q: R, k: R, v: R, mask: R | None = None, /, *, causal: bool = False) -> R:
        refs = (q, k, v) if mask is None else (q, k, v, mask)
        return self._call(SCALED_DOT_PRODUCT_ATTENTION, refs, {"has_mask": mask is not None, "causal": causal})

    @final
    def scaled_dot_product_attention_grad(
        self, q: R, k: R, v: R, mask: R | None, peak: R, total: R, g: R, /, *, causal: bool = False
    ) -> tuple[R, R, R]:
        refs = (q, k, v, peak, total, g) if mask is None else (q, k, v, mask, peak, total, g)
        static = {"has_mask": mask is not None, "causal": causal}
        dq, dk, dv = self._call_many(SCALED_DOT_PRODUCT_ATTENTION_GRAD, refs, static)
        return dq, dk, dv

    @final
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
        refs = (wq, wk, wv, wo, x) if mask is None else (wq, wk, wv, wo, x, mask)
        static = {"has_mask": mask is not None, "num_heads": num_heads, "causal": causal}
        return self._call(MULTI_HEAD_ATTENTION, refs, static)
