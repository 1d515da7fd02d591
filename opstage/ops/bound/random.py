"""Random tensors: the same bits on every interpreter and device, each draw at a site of its own."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, final

from ..arguments import as_shape
from ..catalogue.random import BERNOULLI_MASK, RAND_NORMAL, RAND_UNIFORM
from ..protocol import R, ShapeLike
from ..types import DType, as_dtype, dtype_name
from .calls import Calls


class RandomOps(Calls[R]):
    __slots__ = ()

    seed: int
    """The seed of draws that name none (`Options.seed`)."""

    @abstractmethod
    def iterations(self) -> tuple[R, ...]:
        """Where each scan around this place stands along its xs, outermost first: integer scalars that a draw reads."""

    @final
    def _draw(self, op: str, shape: ShapeLike, seed: int | None, site: int | None) -> dict[str, Any]:
        return {
            "shape": as_shape(op, shape),
            "seed": self.seed if seed is None else seed,
            "site": self.cursor.next_site() if site is None else site,
        }

    @final
    def rand_uniform(
        self,
        *,
        shape: ShapeLike,
        seed: int | None = None,
        site: int | None = None,
        dtype: str | DType | None = None,
    ) -> R:
        static = self._draw("rand_uniform", shape, seed, site)
        static["dtype"] = dtype_name(self.dtype if dtype is None else as_dtype(dtype))
        return self._call(RAND_UNIFORM, (self.step(), *self.iterations()), static)

    @final
    def rand_normal(
        self,
        *,
        shape: ShapeLike,
        seed: int | None = None,
        site: int | None = None,
        dtype: str | DType | None = None,
    ) -> R:
        static = self._draw("rand_normal", shape, seed, site)
        static["dtype"] = dtype_name(self.dtype if dtype is None else as_dtype(dtype))
        return self._call(RAND_NORMAL, (self.step(), *self.iterations()), static)

    @final
    def bernoulli_mask(
        self, keep_prob: R, /, *, shape: ShapeLike, seed: int | None = None, site: int | None = None
    ) -> R:
        static = self._draw("bernoulli_mask", shape, seed, site)
        return self._call(BERNOULLI_MASK, (keep_prob, self.step(), *self.iterations()), static)
