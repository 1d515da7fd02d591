"""Losses."""

from __future__ import annotations

from typing import Any

from ..calls import Calls
from ..catalogue.loss import CROSS_ENTROPY, CROSS_ENTROPY_GRAD, MSE_LOSS
from ..primitive import R


class LossOps(Calls[R]):
    __slots__ = ()

    def mse_loss(self, x: R, y: R, /) -> R:
        """Mean squared difference over all elements, x and y of one shape. PyTorch: torch.nn.functional.mse_loss.

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: shapes differ; an axis is empty.
        """
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
        weight: R | None = None,
    ) -> R:
        """-log softmax(logits)[label], classes on axis 1 (last up to rank 2).

        PyTorch: torch.nn.functional.cross_entropy. logits (C), (N, C) or (N, C, *D), labels the same without C,
        integers in [0, C) or ignore_index. With p = softmax(logits) over the classes and ε the smoothing (Szegedy et
        al. 2016), a position's loss is -(1 - ε)·log p[label] - ε·mean(log p), and 0 where it is ignored; "mean" divides
        their sum by the number of positions not ignored (0/0 = nan when all are). With `weight`, one number per class,
        see `derived.weighted_cross_entropy`.

        Raises:
            DtypeError: logits not a float tensor; labels not an integer tensor.
            RangeError: an index out of range, when it runs.
            ShapeError: labels do not fit the logits; the logits a scalar; an invalid argument; an axis is empty.
        """
        if weight is not None:
            from ..losses import weighted_cross_entropy  # composed of this op and others

            ops: Any = self
            more: dict[str, Any] = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
            weighted: R = weighted_cross_entropy(ops, logits, labels, weight, reduction=reduction, **more)
            return weighted
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
        """The cotangent of cross_entropy's logits, from each position's maximal logit and sum of exponentials.

        w·(exp(logits - peak)/total - (1 - ε)·onehot(labels) - ε/C), where w is g at a position (over the number of
        positions not ignored with "mean") and 0 where it is ignored; peak and total have size 1 along the classes.

        Raises:
            DtypeError: logits not a float tensor; labels not an integer tensor; dtypes differ.
            RangeError: an index out of range, when it runs.
            ShapeError: labels do not fit the logits; the logits a scalar; an invalid argument; an axis is empty; peak,
                total, g of another shape.
        """
        static = {"reduction": reduction, "ignore_index": ignore_index, "label_smoothing": label_smoothing}
        return self._call(CROSS_ENTROPY_GRAD, (logits, labels, peak, total, g), static)
