"""Random tensors. The bits of a draw are a function of seed, step, site and position, independent of order and device.

A draw in the body of a scan also depends on the iteration numbers of the enclosing scans, outermost first: key =
splitmix64(key + iteration) for each in turn.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..errors import DtypeError, ShapeError
from ..kinds import Effect
from ..primitive import Primitive, R
from ..rules import require_rank
from ..types import Shape, TensorType, as_dtype, dtype_name, require_float, require_integer

if TYPE_CHECKING:
    from ..protocol import Ops

_WORDS = 2**64


def _draw_shape(counters: tuple[TensorType, ...], shape: Shape, seed: Any, site: Any) -> Shape:
    """Validate step, iterations, seed and site of a draw; return its shape."""
    for name, counter in zip(("step", *["iteration"] * (len(counters) - 1)), counters):
        require_integer(counter, name)
        require_rank(counter, 0, name)
    for name, value in (("seed", seed), ("site", site)):
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _WORDS:
            raise ShapeError(f"{name} must be an int with 0 <= {name} < 2^64 but is {value!r}")
    return shape


def _rand_shape(*counters: TensorType, shape: Shape, seed: Any, site: Any, dtype: str) -> tuple[TensorType, ...]:
    out = TensorType(_draw_shape(counters, shape, seed, site), as_dtype(dtype))
    if out.dtype.kind not in "fO":
        raise DtypeError(f"dtype must be float32, float64 or exact but is {dtype}")
    return (out,)


RAND_UNIFORM = Primitive(
    "rand_uniform",
    operands=("step", "*iterations"),
    effects={Effect.DRAWS},
    shape=_rand_shape,
    differentiable=False,
)


def _rand_normal_decomposition(
    ops: Ops[R], /, *counters: R, shape: Shape, seed: int, site: int, dtype: str
) -> tuple[R, ...]:
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


def _bernoulli_mask_shape(
    keep_prob: TensorType, *counters: TensorType, shape: Shape, seed: Any, site: Any
) -> tuple[TensorType, ...]:
    require_float(keep_prob, "keep_prob")
    require_rank(keep_prob, 0, "keep_prob")
    return (TensorType(_draw_shape(counters, shape, seed, site), keep_prob.dtype),)


def _bernoulli_mask_decomposition(
    ops: Ops[R], keep_prob: R, /, *counters: R, shape: Shape, seed: int, site: int
) -> tuple[R, ...]:
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
