"""Random tensors: the same bits on every interpreter and device, with a separate site for each draw."""

from __future__ import annotations

from typing import Any, final

from ..arguments import ShapeLike, as_shape
from ..calls import Calls
from ..catalogue.random import BERNOULLI_MASK, RAND_NORMAL, RAND_UNIFORM
from ..primitive import R
from ..types import DType, as_dtype, dtype_name


class RandomOps(Calls[R]):
    __slots__ = ()

    @final
    def _draw(self, op: str, shape: ShapeLike, seed: int | None, site: int | None) -> dict[str, Any]:
        return {
            "shape": as_shape(op, shape),
            "seed": self.seed if seed is None else seed,
            "site": self.cursor.next_site() if site is None else site,
        }

    @final
    def _counters(self, like: R | None) -> tuple[R, ...]:
        """Return the operands of a draw. If it varies over the ranks of a mesh, as `like` does, each rank draws
        separately."""
        step = self.step() if like is None else self.vary_like(self.step(), like)
        return (step, *self.iterations())

    def rand_uniform(
        self,
        *,
        shape: ShapeLike,
        seed: int | None = None,
        site: int | None = None,
        dtype: str | DType | None = None,
        like: R | None = None,
    ) -> R:
        """Uniform in [0, 1), with the same bits everywhere; no gradient. PyTorch: torch.rand (other bits).

        Element i, in row-major order, is (splitmix64(key + i) >> 40) · 2^-24 with key =
        splitmix64(splitmix64(splitmix64(seed) + step) + site); exact in every dtype. Source: Steele, Lea & Flood 2014.

        On a mesh all ranks draw the same, unless `like` is a tensor that varies over them: then each has its rows
        of the draw that a single rank would make.

        Raises:
            DtypeError: a dtype of no floats.
            ShapeError: an invalid argument; no such shape.
            UsageError: no such dtype.
        """
        static = self._draw("rand_uniform", shape, seed, site)
        static["dtype"] = dtype_name(self.dtype if dtype is None else as_dtype(dtype))
        return self._call(RAND_UNIFORM, self._counters(like), static)

    def rand_normal(
        self,
        *,
        shape: ShapeLike,
        seed: int | None = None,
        site: int | None = None,
        dtype: str | DType | None = None,
        like: R | None = None,
    ) -> R:
        """Standard normal by Box-Muller; no gradient. PyTorch: torch.randn (other bits).

        √(-2 log(1 - u1))·cos(2π·u2), with u1 and u2 elements 2i and 2i + 1 of the uniform draw at `site`. Source: Box &
        Muller 1958.

        Raises:
            DtypeError: a dtype of no floats.
            ShapeError: no such shape.
            UsageError: no such dtype.
        """
        static = self._draw("rand_normal", shape, seed, site)
        static["dtype"] = dtype_name(self.dtype if dtype is None else as_dtype(dtype))
        return self._call(RAND_NORMAL, self._counters(like), static)

    def bernoulli_mask(
        self,
        keep_prob: R,
        /,
        *,
        shape: ShapeLike,
        seed: int | None = None,
        site: int | None = None,
        like: R | None = None,
    ) -> R:
        """1 where keep_prob > u, else 0, for uniform u; no gradient. PyTorch: torch.bernoulli.

        keep_prob is a scalar, and the result has its dtype; u is the uniform draw at `site`.

        Raises:
            DtypeError: keep_prob not a float tensor.
            ShapeError: no such shape; keep_prob of another shape.
        """
        static = self._draw("bernoulli_mask", shape, seed, site)
        return self._call(BERNOULLI_MASK, (keep_prob, *self._counters(like)), static)
