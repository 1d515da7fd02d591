"""Pools over windows; the kernel's length gives the spatial rank."""

from __future__ import annotations

from typing import Any, final

from ..arguments import per_axis
from ..catalogue.pooling import (
    AVG_POOL,
    AVG_POOL_GRAD,
    MAX_POOL,
    MAX_POOL_GATHER,
    MAX_POOL_SCATTER,
    SMOOTH_MAX_POOL,
)
from ..dims import Dim
from ..protocol import IntOrTuple, Number, R
from .calls import Calls


def _window(op: str, kernel: Any, stride: Any, padding: Any) -> dict[str, Any]:
    rank = 1 if isinstance(kernel, int) else len(kernel)
    sizes = per_axis(op, "kernel", kernel, rank, least=1)
    return {
        "kernel": sizes,
        "stride": sizes if stride is None else per_axis(op, "stride", stride, rank, least=1),
        "padding": per_axis(op, "padding", padding, rank, least=0),
    }


def _pair(kernel: IntOrTuple) -> tuple[int, ...]:
    return (kernel, kernel) if isinstance(kernel, int) else kernel


class PoolingOps(Calls[R]):
    __slots__ = ()

    @final
    def max_pool(
        self, x: R, /, *, kernel: tuple[int, ...], stride: IntOrTuple | None = None, padding: IntOrTuple = 0
    ) -> R:
        return self._call(MAX_POOL, (x,), _window("max_pool", kernel, stride, padding))

    @final
    def max_pool_scatter(self, g: R, index: R, /, *, shape: tuple[Dim, ...]) -> R:
        return self._call(MAX_POOL_SCATTER, (g, index), {"shape": tuple(shape)})

    @final
    def max_pool_gather(self, x: R, index: R, /, *, rank: int) -> R:
        return self._call(MAX_POOL_GATHER, (x, index), {"rank": rank})

    @final
    def avg_pool(
        self,
        x: R,
        /,
        *,
        kernel: tuple[int, ...],
        stride: IntOrTuple | None = None,
        padding: IntOrTuple = 0,
        count_include_pad: bool = True,
    ) -> R:
        static = _window("avg_pool", kernel, stride, padding)
        return self._call(AVG_POOL, (x,), static | {"count_include_pad": count_include_pad})

    @final
    def avg_pool_grad(
        self,
        g: R,
        /,
        *,
        shape: tuple[Dim, ...],
        kernel: tuple[int, ...],
        stride: IntOrTuple,
        padding: IntOrTuple,
        count_include_pad: bool,
    ) -> R:
        static = _window("avg_pool_grad", kernel, stride, padding)
        return self._call(
            AVG_POOL_GRAD, (g,), {"shape": tuple(shape), **static, "count_include_pad": count_include_pad}
        )

    @final
    def smooth_max_pool(
        self,
        x: R,
        /,
        *,
        kernel: tuple[int, ...],
        beta: Number,
        stride: IntOrTuple | None = None,
        padding: IntOrTuple = 0,
    ) -> R:
        static = _window("smooth_max_pool", kernel, stride, padding)
        return self._call(SMOOTH_MAX_POOL, (x,), static | {"beta": beta})

    @final
    def max_pool2d(self, x: R, /, *, kernel: IntOrTuple, stride: IntOrTuple | None = None) -> R:
        return self.max_pool(x, kernel=_pair(kernel), stride=stride)

    @final
    def max_pool2d_pad(
        self, x: R, /, *, kernel: IntOrTuple, stride: IntOrTuple | None = None, padding: IntOrTuple
    ) -> R:
        return self.max_pool(x, kernel=_pair(kernel), stride=stride, padding=padding)

    @final
    def avg_pool2d(self, x: R, /, *, kernel: IntOrTuple, stride: IntOrTuple | None = None) -> R:
        return self.avg_pool(x, kernel=_pair(kernel), stride=stride)

    @final
    def avg_pool2d_pad(
        self, x: R, /, *, kernel: IntOrTuple, stride: IntOrTuple | None = None, padding: IntOrTuple
    ) -> R:
        return self.avg_pool(x, kernel=_pair(kernel), stride=stride, padding=padding)

    @final
    def smooth_max_pool2d(self, x: R, /, *, kernel: IntOrTuple, beta: Number, stride: IntOrTuple | None = None) -> R:
        return self.smooth_max_pool(x, kernel=_pair(kernel), beta=beta, stride=stride)
