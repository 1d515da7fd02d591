"""Products of matrices."""

from __future__ import annotations

from typing import final

from ..catalogue.linalg import BMM, LINEAR, MATMUL
from ..protocol import R
from .calls import Calls


class LinalgOps(Calls[R]):
    __slots__ = ()

    @final
    def matmul(self, x: R, y: R, /) -> R:
        return self._call2(MATMUL, x, y)

    @final
    def bmm(self, x: R, y: R, /) -> R:
        return self._call2(BMM, x, y)

    @final
    def linear(self, weight: R, bias: R | None, x: R, /) -> R:
        if bias is None:
            return self._call(LINEAR, (weight, x), {"has_bias": False})
        return self._call(LINEAR, (weight, bias, x), {"has_bias": True})
