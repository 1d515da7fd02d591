"""Losses."""

from __future__ import annotations

from ..catalogue.loss import CROSS_ENTROPY, CROSS_ENTROPY_GRAD, MSE_LOSS
from ..primitive import R
from .calls import Calls


class LossOps(Calls[R]):
    __slots__ = ()

    def mse_loss(self, x: R, y: R, /) -> R:
        """Mean squared difference over all elements."""
        return self._call2(MSE_LOSS, x, y)

    def cross_entropy(
        self,
        logits: R,
        labels: R,
        /,
        *,
        reduction: str = "mean",
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> R:
        """-log softmax(logits)[label], classes on axis 1 (last for rank 1 and 2)."""
        static = {"reduction": reduction, "ignore_index": ignore_index, "label_smoothing": label_smoothing}
        return self._call(CROSS_ENTROPY, (logits, labels), static)

    def cross_entropy_grad(
        self,
        logits: R,
        labels: R,
        peak: R,
        total: R,
        g: R,
        /,
        *,
        reduction: str,
        ignore_index: int,
        label_smoothing: float,
    ) -> R:
        """The cotangent of cross_entropy's logits, from each position's greatest logit and sum of exponentials."""
        static = {"reduction": reduction, "ignore_index": ignore_index, "label_smoothing": label_smoothing}
        return self._call(CROSS_ENTROPY_GRAD, (logits, labels, peak, total, g), static)
