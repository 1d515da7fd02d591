"""Random tensors. The bits of a draw are a function of seed, step, site and position, independent of order and device.

A draw in the body of a scan also depends on the iteration numbers of the enclosing scans, outermost first: key =
splitmix64(key + iteration) for each in turn.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, final

from .errors import DtypeError, ShapeError
from .method import Calls
from .primitive import Effect, Primitive, R, Row, Types
from .rule_helpers import require_rank
from .static_arguments import ShapeLike, as_shape
from .types import DType, Shape, TensorType, as_dtype, dtype_name, require_float, require_integer

if TYPE_CHECKING:
    from .protocol import Ops


_WORDS = 2**64


def _draw_shape(counters: Types, shape: Shape, seed: Any, site: Any) -> Shape:
    """Validate step, iterations, seed and site of a draw; return its shape."""
    for name, counter in zip(("step", *["iteration"] * (len(counters) - 1)), counters):
        require_integer(counter, name)
        require_rank(counter, 0, name)
    for name, value in (("seed", seed), ("site", site)):
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _WORDS:
            raise ShapeError(f"{name} must be an int with 0 <= {name} < 2^64 but is {value!r}")
    return shape


def _rand_shape(*counters: TensorType, shape: Shape, seed: Any, site: Any, dtype: str) -> Types:
    out = TensorType(_draw_shape(counters, shape, seed, site), as_dtype(dtype))
    if out.dtype.kind not in "fO":
        raise DtypeError(f"dtype must be float32, float64 or exact but is {dtype}")
    return (out,)


RAND_UNIFORM = Primitive(
    "rand_uniform", operands=("step", "*iterations"), effects={Effect.DRAWS}, shape=_rand_shape, differentiable=False
)


def _rand_normal_decomposition(ops: Ops[R], /, *counters: R, shape: Shape, seed: int, site: int, dtype: str) -> Row[R]:
    static = {"shape": (*shape, 2), "seed": seed, "site": site, "dtype": dtype}
    (pairs,) = ops.bind(RAND_UNIFORM, counters, static)
    u1, u2 = (ops.reshape(u, shape=shape) for u in ops.split(pairs, sizes=(1, 1), axis=-1))
    one = ops.full(shape=shape, value=1.0, dtype=dtype)
    radius = ops.sqrt(ops.scale(ops.log(ops.sub(one, u1)), c=-2.0))
    return (ops.mul(radius, ops.cos(ops.scale(u2, c=2 * math.pi))),)


RAND_NORMAL = Primitive(
    "rand_normal",
    operands=("step", "*iterations"),
    effects={Effect.DRAWS},
    shape=_rand_shape,
    decomposition=_rand_normal_decomposition,
    differentiable=False,
)


def _bernoulli_mask_shape(keep_prob: TensorType, *counters: TensorType, shape: Shape, seed: Any, site: Any) -> Types:
    require_float(keep_prob, "keep_prob")
    require_rank(keep_prob, 0, "keep_prob")
    return (TensorType(_draw_shape(counters, shape, seed, site), keep_prob.dtype),)


def _bernoulli_mask_decomposition(
    ops: Ops[R], keep_prob: R, /, *counters: R, shape: Shape, seed: int, site: int
) -> Row[R]:
    dtype = keep_prob.dtype
    (u,) = ops.bind(RAND_UNIFORM, counters, {"shape": shape, "seed": seed, "site": site, "dtype": dtype_name(dtype)})
    return (ops.cast(ops.less(u, ops.broadcast_to(keep_prob, shape=shape)), dtype=dtype),)


BERNOULLI_MASK = Primitive(
    "bernoulli_mask",
    operands=("keep_prob", "step", "*iterations"),
    effects={Effect.DRAWS},
    shape=_bernoulli_mask_shape,
    decomposition=_bernoulli_mask_decomposition,
    differentiable=False,
)

DRAWS = frozenset({RAND_UNIFORM, RAND_NORMAL, BERNOULLI_MASK})
"""All draws. They take a `shape`, where an op that a user declared impure takes what it likes."""


# The methods of Ops ------------------------------------------------------------------------------------------


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
        """Draw uniform numbers in [0, 1), with the same bits everywhere; no gradient. PyTorch: torch.rand (other bits).

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
        """Draw standard normal numbers by Box-Muller; no gradient. PyTorch: torch.randn (other bits).

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
        """Return 1 where keep_prob > u, else 0, for uniform u; no gradient. PyTorch: torch.bernoulli.

        keep_prob is a scalar, and the result has its dtype; u is the uniform draw at `site`.

        Raises:
            DtypeError: keep_prob not a float tensor.
            ShapeError: no such shape; keep_prob of another shape.
        """
        static = self._draw("bernoulli_mask", shape, seed, site)
        return self._call(BERNOULLI_MASK, (keep_prob, *self._counters(like)), static)
