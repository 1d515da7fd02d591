"""Normalisations, and the fused cotangents of each."""

from __future__ import annotations

from typing import Any, final

from ..arguments import normalize_axis
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
from ..protocol import R
from .calls import Calls


def _present(*refs: Any) -> tuple[Any, ...]:
    return tuple(ref for ref in refs if ref is not None)


class NormalizationOps(Calls[R]):
    __slots__ = ()

    @final
    def layer_norm(self, x: R, gamma: R | None, beta: R | None, /, *, eps: float = 1e-5) -> R:
        static = {"has_gamma": gamma is not None, "has_beta": beta is not None, "eps": eps}
        return self._call(LAYER_NORM, _present(x, gamma, beta), static)

    @final
    def rms_norm(self, x: R, gamma: R | None, /, *, eps: float = 1e-5) -> R:
        return self._call(RMS_NORM, _present(x, gamma), {"has_gamma": gamma is not None, "eps": eps})

    @final
    def group_norm(self, x: R, gamma: R | None, beta: R | None, /, *, groups: int, eps: float = 1e-5) -> R:
        static = {"has_gamma": gamma is not None, "has_beta": beta is not None, "groups": groups, "eps": eps}
        return self._call(GROUP_NORM, _present(x, gamma, beta), static)

    @final
    def batch_norm(
        self, x: R, gamma: R | None, beta: R | None, /, *, channel_axis: int = 1, eps: float = 1e-5
    ) -> tuple[R, R, R]:
        axis = normalize_axis("batch_norm", channel_axis, len(x.shape))
        static = {"has_gamma": gamma is not None, "has_beta": beta is not None, "channel_axis": axis, "eps": eps}
        y, mean, variance = self._call_many(BATCH_NORM, _present(x, gamma, beta), static)
        return y, mean, variance

    @final
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
        axis = normalize_axis("batch_norm_eval", channel_axis, len(x.shape))
        static = {"has_gamma": gamma is not None, "has_beta": beta is not None, "channel_axis": axis, "eps": eps}
        return self._call(BATCH_NORM_EVAL, _present(x, gamma, beta, mean, variance), static)

    @final
    def layer_norm_grad(self, x: R, gamma: R | None, mean: R, rstd: R, g: R, /) -> tuple[R, R, R]:
        dx, dgamma, dbeta = self._call_many(
            LAYER_NORM_GRAD, _present(x, gamma, mean, rstd, g), {"has_gamma": gamma is not None}
        )
        return dx, dgamma, dbeta

    @final
    def rms_norm_grad(self, x: R, gamma: R | None, rstd: R, g: R, /) -> tuple[R, R]:
        dx, dgamma = self._call_many(RMS_NORM_GRAD, _present(x, gamma, rstd, g), {"has_gamma": gamma is not None})
        return dx, dgamma

    @final
    def group_norm_grad(self, x: R, gamma: R | None, mean: R, rstd: R, g: R, /, *, groups: int) -> tuple[R, R, R]:
        static = {"has_gamma": gamma is not None, "groups": groups}
        dx, dgamma, dbeta = self._call_many(GROUP_NORM_GRAD, _present(x, gamma, mean, rstd, g), static)
        return dx, dgamma, dbeta

    @final
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
        axis = normalize_axis("batch_norm_grad", channel_axis, len(x.shape))
        static = {"has_gamma": gamma is not None, "channel_axis": axis}
        refs = _present(x, gamma, mean, rstd, g, g_mean, g_variance)
        dx, dgamma, dbeta = self._call_many(BATCH_NORM_GRAD, refs, static)
        return dx, dgamma, dbeta
