"""Normalisations, and their fused cotangents."""

from __future__ import annotations

from typing import Any

from ..arguments import normalize_axis
from ..calls import Calls
from ..catalogue.normalization import (
    BATCH_NORM,
    BATCH_NORM_EVAL,
    BATCH_NORM_GRAD,
    GROUP_NORM,
    GROUP_NORM_GRAD,
    LAYER_NORM,
    LAYER_NORM_GRAD,
    RMS_NORM,
    RMS_NORM_GRAD,
)
from ..primitive import R


def _present(*refs: Any) -> tuple[Any, ...]:
    return tuple(ref for ref in refs if ref is not None)


class NormalizationOps(Calls[R]):
    __slots__ = ()

    def layer_norm(self, x: R, gamma: R | None, beta: R | None, /, *, eps: float = 1e-5) -> R:
        """(x - mean)/√(var + eps) · gamma + beta over the last axis. PyTorch: torch.nn.functional.layer_norm.

        x (..., d), biased variance; gamma and beta (d,) (Ba et al. 2016).

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: an invalid argument; an axis is empty; x, gamma, beta of another shape.
        """
        static = {"has_gamma": gamma is not None, "has_beta": beta is not None, "eps": eps}
        return self._call(LAYER_NORM, _present(x, gamma, beta), static)

    def rms_norm(self, x: R, gamma: R | None, /, *, eps: float = 1e-5) -> R:
        """x/√(mean(x²) + eps) · gamma over the last axis. PyTorch: torch.nn.functional.rms_norm.

        x (..., d); gamma (d,) (Zhang & Sennrich 2019).

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: an invalid argument; an axis is empty; x, gamma of another shape.
        """
        return self._call(RMS_NORM, _present(x, gamma), {"has_gamma": gamma is not None, "eps": eps})

    def group_norm(self, x: R, gamma: R | None, beta: R | None, /, *, groups: int, eps: float = 1e-5) -> R:
        """Normalisation over channel groups of (N, C, *S). PyTorch: torch.nn.functional.group_norm.

        Each of `groups` groups of C/groups channels is normalised over its channels and S; gamma and beta (C,) (Wu & He
        2018).

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: groups do not divide the channels; an invalid argument; an axis is empty; gamma, x, beta of
                another shape.
        """
        static = {"has_gamma": gamma is not None, "has_beta": beta is not None, "groups": groups, "eps": eps}
        return self._call(GROUP_NORM, _present(x, gamma, beta), static)

    def batch_norm(
        self, x: R, gamma: R | None, beta: R | None, /, *, channel_axis: int = 1, eps: float = 1e-5
    ) -> tuple[R, R, R]:
        """Training form: y, batch mean, unbiased batch variance. PyTorch: torch.nn.functional.batch_norm.

        y = (x - mean)/√(biased variance + eps) · gamma + beta, with statistics (C,) over all axes except the channel;
        gamma and beta (C,) (Ioffe & Szegedy 2015). At least 2 values per channel.

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: too few values for a variance; no such axis; an invalid argument; gamma, beta of another shape.
        """
        axis = normalize_axis("batch_norm", channel_axis, len(x.shape))
        static = {"has_gamma": gamma is not None, "has_beta": beta is not None, "channel_axis": axis, "eps": eps}
        y, mean, variance = self._call_many(BATCH_NORM, _present(x, gamma, beta), static)
        return y, mean, variance

    def batch_norm_eval(
        self,
        x: R,
        gamma: R | None,
        beta: R | None,
        mean: R,
        variance: R,
        /,
        *,
        channel_axis: int = 1,
        eps: float = 1e-5,
    ) -> R:
        """Evaluation form, with running statistics. PyTorch: torch.nn.functional.batch_norm.

        (x - mean)/√(variance + eps) · gamma + beta with given statistics (C,), along the channel axis.

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: no such axis; an invalid argument; gamma, beta, mean, variance of another shape.
        """
        axis = normalize_axis("batch_norm_eval", channel_axis, len(x.shape))
        static = {"has_gamma": gamma is not None, "has_beta": beta is not None, "channel_axis": axis, "eps": eps}
        return self._call(BATCH_NORM_EVAL, _present(x, gamma, beta, mean, variance), static)

    def layer_norm_grad(self, x: R, gamma: R | None, mean: R, rstd: R, g: R, /) -> tuple[R, R, R]:
        """Cotangents of layer_norm's x, gamma, beta; mean and rstd (..., 1).

        With y = (x - mean)·rstd and h = g·gamma: rstd·(h - mean(h) - y·mean(h·y)), Σ g·y, Σ g.

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: shapes differ; an axis is empty; mean, x, gamma, rstd of another shape.
        """
        dx, dgamma, dbeta = self._call_many(
            LAYER_NORM_GRAD, _present(x, gamma, mean, rstd, g), {"has_gamma": gamma is not None}
        )
        return dx, dgamma, dbeta

    def rms_norm_grad(self, x: R, gamma: R | None, rstd: R, g: R, /) -> tuple[R, R]:
        """Cotangents of rms_norm's x, gamma; rstd (..., 1).

        With y = x·rstd and h = g·gamma: rstd·(h - y·mean(h·y)), Σ g·y.

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: shapes differ; an axis is empty; rstd, x, gamma of another shape.
        """
        dx, dgamma = self._call_many(RMS_NORM_GRAD, _present(x, gamma, rstd, g), {"has_gamma": gamma is not None})
        return dx, dgamma

    def group_norm_grad(self, x: R, gamma: R | None, mean: R, rstd: R, g: R, /, *, groups: int) -> tuple[R, R, R]:
        """Cotangents of group_norm's x, gamma, beta; mean and rstd (N, groups).

        The formulas are those of layer_norm_grad, with means over a group.

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: groups do not divide the channels; shapes differ; an invalid argument; an axis is empty; gamma,
                x, mean, rstd of another shape.
        """
        static = {"has_gamma": gamma is not None, "groups": groups}
        dx, dgamma, dbeta = self._call_many(GROUP_NORM_GRAD, _present(x, gamma, mean, rstd, g), static)
        return dx, dgamma, dbeta

    def batch_norm_grad(
        self,
        x: R,
        gamma: R | None,
        mean: R,
        rstd: R,
        g: R,
        g_mean: R,
        g_variance: R,
        /,
        *,
        channel_axis: int = 1,
    ) -> tuple[R, R, R]:
        """Cotangents of batch_norm's x, gamma, beta, from those of y, mean and variance.

        dx is that of layer_norm_grad, with means over a channel's n values, + g_mean/n + 2·g_variance·(x - mean)/(n -
        1).

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: too few values for a variance; shapes differ; no such axis; gamma, mean, rstd, g_mean,
                g_variance of another shape.
        """
        axis = normalize_axis("batch_norm_grad", channel_axis, len(x.shape))
        static = {"has_gamma": gamma is not None, "channel_axis": axis}
        refs = _present(x, gamma, mean, rstd, g, g_mean, g_variance)
        dx, dgamma, dbeta = self._call_many(BATCH_NORM_GRAD, refs, static)
        return dx, dgamma, dbeta
