"""The shared part of normalisations: (x - mean)/√(variance + eps) over some axes, then scale gamma and shift beta."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from .dims import Dim, prod, require_at_most, require_equal
from .errors import ShapeError
from .primitive import Context, R
from .rule_helpers import corrected_mean, full_like
from .types import Shape, TensorType, require_float, require_same_dtype, show_shape

if TYPE_CHECKING:
    from .protocol import Ops


# Shape rules ---------------------------------------------------------------------------------------------------------


def require_eps(eps: Any) -> None:
    """Require that eps is a nonnegative real number."""
    if isinstance(eps, bool) or not isinstance(eps, (int, float, Fraction)) or not eps >= 0:
        raise ShapeError(f"eps must be a number that is at least 0 but is {eps!r}")


def require_axes(x: TensorType, least: int, why: str) -> None:
    """Require that x is a float tensor with at least `least` axes; `why` explains them."""
    require_float(x, "x")
    if len(x.shape) < least:
        raise ShapeError(f"x must have rank {least} or more, {why}, but is {show_shape(x.shape)}")


def require_type(v: TensorType, name: str, shape: Shape, x: TensorType, what: str) -> None:
    """Require that operand `name` has x's dtype and `shape`; `what` explains that shape."""

    def message() -> str:
        return f"{name} must be {show_shape(shape)}, {what}, but is {show_shape(v.shape)}; x is {show_shape(x.shape)}"

    if len(v.shape) != len(shape):
        raise ShapeError(message())
    for a, b in zip(v.shape, shape):
        require_equal(a, b, message)
    require_same_dtype(v, x, name, "x")


def require_affine(x: TensorType, affine: tuple[TensorType, ...], has_gamma: bool, axis: int) -> None:
    """Require that gamma and beta, if present, are vectors along `axis` of x."""
    names = ("gamma", "beta") if has_gamma else ("beta",)
    for v, name in zip(affine, names):
        require_type(v, name, (x.shape[axis],), x, f"one entry for each along axis {axis} of x")


def require_some(size: Dim, x: TensorType, over: str) -> None:
    """Require at least one element to take the mean of."""
    require_at_most(1, size, lambda: f"x is {show_shape(x.shape)}: {over} must not be empty to normalise over it")


def values_per_channel(shape: Shape, channel_axis: int) -> Dim:
    """Return the number of values per channel."""
    return prod(tuple(d for i, d in enumerate(shape) if i != channel_axis))


def require_two(x: TensorType, channel_axis: int) -> None:
    """Require at least two values per channel, which a variance needs."""
    require_at_most(
        2,
        values_per_channel(x.shape, channel_axis),
        lambda: (
            f"x is {show_shape(x.shape)} with channels on axis {channel_axis}: the batch variance needs at least 2 "
            "values per channel; give a larger batch, or use ops.batch_norm_eval with running statistics"
        ),
    )


def other_axes(rank: int, axis: int) -> tuple[int, ...]:
    """Return all axes except one."""
    return tuple(i for i in range(rank) if i != axis)


# Decompositions ------------------------------------------------------------------------------------------------------


def unpack(refs: tuple[R, ...], has_gamma: bool, has_beta: bool = False) -> tuple[R | None, R | None, tuple[R, ...]]:
    """Return gamma and beta (None where absent), and the operands after them."""
    gamma = refs[0] if has_gamma else None
    beta = refs[has_gamma] if has_beta else None
    return gamma, beta, refs[has_gamma + has_beta :]


def along(ops: Ops[R], v: R, shape: Shape, axis: int) -> R:
    """Broadcast the vector v along `axis` of a tensor of `shape`."""
    if axis != len(shape) - 1:
        v = ops.reshape(v, shape=tuple(d if i == axis else 1 for i, d in enumerate(shape)))
    return ops.broadcast_to(v, shape=shape)


def affine_map(ops: Ops[R], x: R, gamma: R | None, beta: R | None, axis: int) -> R:
    """Return x · gamma + beta, both along `axis`."""
    if gamma is not None:
        x = ops.mul(x, along(ops, gamma, x.shape, axis))
    return ops.add(x, along(ops, beta, x.shape, axis)) if beta is not None else x


def reciprocal_deviation(ops: Ops[R], variance: R, eps: float) -> R:
    """Return 1/√(variance + eps), and nan for infinite variance, where the divisor is unknown.

    Squares overflow where the values do not; 1/√∞ would silently turn them into zeros.
    """
    floor = full_like(ops, variance, eps)
    known = ops.add(variance, ops.sub(variance, variance))  # ∞ - ∞ is nan; finite differences are 0
    return ops.inv(ops.sqrt(ops.add(known, floor)))


def standardize(
    ops: Ops[R], x: R, axes: tuple[int, ...], eps: float, whole: Callable[[R], R] = lambda mean: mean
) -> tuple[R, R, R, R]:
    """Return (x - mean)·rstd over `axes`, and the mean, biased variance and rstd with those axes kept at size 1.

    `whole` turns a rank's mean into the mean over all ranks of a mesh.
    """
    mean = whole(corrected_mean(ops, x, axes))
    centred = ops.sub(x, ops.broadcast_to(mean, shape=x.shape))
    variance = whole(ops.reduce_mean(ops.mul(centred, centred), axis=axes, keepdims=True))
    rstd = reciprocal_deviation(ops, variance, eps)
    return ops.mul(centred, ops.broadcast_to(rstd, shape=x.shape)), mean, variance, rstd


def standardized(ops: Ops[R], x: R, mean: R, rstd: R) -> R:
    """Return (x - mean)·rstd from known statistics, which broadcast to x."""
    centred = ops.sub(x, ops.broadcast_to(mean, shape=x.shape))
    return ops.mul(centred, ops.broadcast_to(rstd, shape=x.shape))


def pull(ops: Ops[R], y: R, rstd: R, g: R, axes: tuple[int, ...], *, centred: bool = True) -> R:
    """Return the cotangent of x from the cotangent g of y = (x - mean)·rstd: rstd · (g - mean(g) - y·mean(g·y))."""
    slope = ops.reduce_mean(ops.mul(g, y), axis=axes, keepdims=True)
    inner = ops.sub(g, ops.mul(y, ops.broadcast_to(slope, shape=y.shape)))
    if centred:
        shift = ops.reduce_mean(g, axis=axes, keepdims=True)
        inner = ops.sub(inner, ops.broadcast_to(shift, shape=y.shape))
    return ops.mul(inner, ops.broadcast_to(rstd, shape=y.shape))


def affine_cotangents(
    dx: R | None, dgamma: R | None, dbeta: R | None, ctx: Context[R], has_gamma: bool, has_beta: bool
) -> tuple[R | None, ...]:
    """Return the cotangents of x, gamma and beta, for operands that are present, None if not needed."""
    found = (dx, *((dgamma,) if has_gamma else ()), *((dbeta,) if has_beta else ()))
    return tuple(cotangent if needed else None for cotangent, needed in zip(found, ctx.needs))


def affine_vjp(fused: Callable[..., Any], axis: int | None = None) -> Callable[..., Any]:
    """Return the vjp of a normalisation with gamma and beta along `axis`, or along the static `channel_axis`.

    `fused(ops, *saved, *cotangents, **static)` returns the cotangents of x, gamma and beta; beta's alone is a sum.
    """

    def vjp(
        ops: Ops[R],
        ctx: Context[R],
        cotangents: tuple[R, ...],
        /,
        *,
        has_gamma: bool,
        has_beta: bool,
        eps: float,
        **static: Any,
    ) -> tuple[R | None, ...]:
        dx = dgamma = None
        if ctx.needs[0] or (has_gamma and ctx.needs[1]):
            dx, dgamma, dbeta = fused(ops, *ctx.saved, *cotangents, **static)
        else:
            rank = len(cotangents[0].shape)
            channel = static["channel_axis"] if axis is None else axis % rank
            dbeta = ops.reduce_sum(cotangents[0], axis=other_axes(rank, channel))
        return affine_cotangents(dx, dgamma, dbeta, ctx, has_gamma, has_beta)

    return vjp


def flops_per_element(count: int) -> Callable[..., Dim]:
    """Count `count` operations for each element of x, and one each for gamma and beta."""

    def flops(
        inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...], /, *, has_gamma: bool, **static: Any
    ) -> Dim:
        each: int = count + has_gamma + static.get("has_beta", False)
        return each * inputs[0].size

    return flops
