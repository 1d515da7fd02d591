"""Pooling over windows of the spatial axes: maximum, mean, and a smooth maximum.

x is (N, C, *S) or (C, *S), where the number of entries of `kernel` determines the spatial axes. Windows start every
`stride` cells, from `padding` cells before the first one; there are O = floor((S + 2·padding - kernel) / stride) + 1.
With a padding of at most half the kernel, every window has a cell of x.

max_pool returns the position of each maximum as a residual, which max_pool_gather and max_pool_scatter read from and
write to; they are each other's adjoint, and so are avg_pool and avg_pool_grad. So both families are closed under
differentiation.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from .dims import Dim, DimFloat, prod, require_at_most
from .errors import ShapeError
from .method import Calls
from .primitive import Context, Effect, Ints, Linearity, Primitive, R, Row, Some, Types
from .rule_helpers import full_like, zeros_like
from .static_arguments import IntOrTuple, InvalidStatic, Number, as_flag, as_number, as_shape, per_axis, plain_sequence
from .types import INT64, Shape, TensorType, require_float, require_integer, show_shape
from .windows import pooled_images, require_shape, window_counts

if TYPE_CHECKING:
    from .protocol import Ops


def _pool_counts(spatial: Shape, kernel: Ints, stride: Ints, padding: Ints) -> Shape:
    """Return the number of windows along each spatial axis; no window consists of padding only."""
    for axis, (n, k, p) in enumerate(zip(spatial, kernel, padding)):
        if 2 * p > k:
            raise ShapeError(
                f"padding {p} along spatial axis {axis} is more than half of the kernel's {k}, so a window could lie "
                "in the padding alone"
            )
        require_at_most(1, n, lambda: f"spatial axis {axis} must have a cell to pool")
    return window_counts(spatial, kernel, stride, padding)


def _leading(x: TensorType, kernel: Ints, name: str) -> Shape:
    """Return the axes before the spatial ones, (C) or (N, C)."""
    rank = len(kernel)
    if not rank:
        raise ShapeError("kernel is (); it must hold a size for each spatial axis, of which there is at least one")
    if len(x.shape) not in (rank + 1, rank + 2):
        raise ShapeError(
            f"{name} must be (C, *S) or (N, C, *S) with a spatial axis for each entry of kernel {show_shape(kernel)}, "
            f"so of rank {rank + 1} or {rank + 2}, but is {show_shape(x.shape)} of rank {len(x.shape)}"
        )
    return x.shape[:-rank]


def _pooled(x: TensorType, name: str, kernel: Ints, stride: Ints, padding: Ints) -> TensorType:
    """Return the type with one element per window of x."""
    require_float(x, name)
    leading = _leading(x, kernel, name)
    counts = _pool_counts(x.shape[-len(kernel) :], kernel, stride, padding)
    return TensorType((*leading, *counts), x.dtype)


def _require_windows(x: TensorType, name: str, shape: Shape, kernel: Ints, stride: Ints, padding: Ints) -> TensorType:
    """Require that x has an element per window over cells (..., *shape); return the type of those cells."""
    leading = _leading(x, kernel, name)
    if len(shape) != len(kernel):
        raise ShapeError(
            f"shape {show_shape(shape)} has {len(shape)} spatial axes but kernel {show_shape(kernel)} has {len(kernel)}"
        )
    require_shape(x, name, (*leading, *_pool_counts(shape, kernel, stride, padding)))
    return TensorType((*leading, *shape), x.dtype)


def _flops_per_window_cell(inputs: Types, outputs: Types, /, *, kernel: Ints, **static: Any) -> Dim:
    """Count one operation for each cell of each window."""
    return outputs[0].size * prod(kernel)


def _flops_of_adjoint(inputs: Types, outputs: Types, /, *, kernel: Ints, **static: Any) -> Dim:
    return inputs[0].size * prod(kernel)


def _flops_per_window(inputs: Types, outputs: Types, /, **static: Any) -> Dim:
    return inputs[1].size


# Maximum ------------------------------------------------------------------------------------------------------------


def _max_pool_shape(x: TensorType, *, kernel: Ints, stride: Ints, padding: Ints) -> Types:
    out = _pooled(x, "x", kernel, stride, padding)
    return out, TensorType(out.shape, INT64)


def _max_pool_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, **window: Any) -> Some[R]:
    spatial = ctx.inputs[0].shape[-len(window["kernel"]) :]
    return (ops.max_pool_scatter(cotangents[0], ctx.saved[0], shape=spatial, **window),)


def _max_pool_jvp(ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Row[R], /, **window: Any) -> tuple[R | None]:
    return (ops.max_pool_gather(tangents[0], outputs[1], **window),)


# The residual `index` is a maximum's flat position in the plane of its channel.
MAX_POOL = Primitive(
    "max_pool",
    operands=("x",),
    residuals=("index",),
    shape=_max_pool_shape,
    vjp=_max_pool_vjp,
    jvp=_max_pool_jvp,
    saves=("index",),
    flops=_flops_per_window_cell,
)


def _max_pool_scatter_shape(
    g: TensorType, index: TensorType, *, shape: Shape, kernel: Ints, stride: Ints, padding: Ints
) -> Types:
    require_float(g, "g")
    require_integer(index, "index")
    cells = _require_windows(g, "g", shape, kernel, stride, padding)
    require_shape(index, "index", g.shape)
    return (cells,)


def _max_pool_scatter_vjp(
    ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, shape: Shape, **window: Any
) -> Some[R]:
    return ops.max_pool_gather(cotangents[0], ctx.saved[0], **window), None


MAX_POOL_SCATTER = Primitive(
    "max_pool_scatter",
    operands=("g", "index"),
    effects={Effect.RAISES},
    shape=_max_pool_scatter_shape,
    vjp=_max_pool_scatter_vjp,
    jvp=Linearity.JOINT,
    saves={"index": ("g",)},
    flops=_flops_per_window,
)


def _max_pool_gather_shape(x: TensorType, index: TensorType, *, kernel: Ints, stride: Ints, padding: Ints) -> Types:
    require_integer(index, "index")
    out = _pooled(x, "x", kernel, stride, padding)
    require_shape(index, "index", out.shape)
    return (out,)


def _max_pool_gather_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, **window: Any) -> Some[R]:
    spatial = ctx.inputs[0].shape[-len(window["kernel"]) :]
    return ops.max_pool_scatter(cotangents[0], ctx.saved[0], shape=spatial, **window), None


MAX_POOL_GATHER = Primitive(
    "max_pool_gather",
    operands=("x", "index"),
    effects={Effect.RAISES},
    shape=_max_pool_gather_shape,
    vjp=_max_pool_gather_vjp,
    jvp=Linearity.JOINT,
    saves={"index": ("x",)},
    flops=_flops_per_window,
)

# Mean ---------------------------------------------------------------------------------------------------------------


def _avg_pool_shape(x: TensorType, *, kernel: Ints, stride: Ints, padding: Ints, count_include_pad: bool) -> Types:
    return (_pooled(x, "x", kernel, stride, padding),)


def _avg_pool_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, **static: Any) -> Some[R]:
    spatial = ctx.inputs[0].shape[-len(static["kernel"]) :]
    return (ops.avg_pool_grad(cotangents[0], shape=spatial, **static),)


AVG_POOL = Primitive(
    "avg_pool",
    operands=("x",),
    shape=_avg_pool_shape,
    vjp=_avg_pool_vjp,
    jvp=Linearity.JOINT,
    flops=_flops_per_window_cell,
)


def _avg_pool_grad_shape(
    g: TensorType, *, shape: Shape, kernel: Ints, stride: Ints, padding: Ints, count_include_pad: bool
) -> Types:
    require_float(g, "g")
    return (_require_windows(g, "g", shape, kernel, stride, padding),)


def _avg_pool_grad_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, shape: Shape, **static: Any) -> Some[R]:
    return (ops.avg_pool(cotangents[0], **static),)


AVG_POOL_GRAD = Primitive(
    "avg_pool_grad",
    operands=("g",),
    shape=_avg_pool_grad_shape,
    vjp=_avg_pool_grad_vjp,
    jvp=Linearity.JOINT,
    flops=_flops_of_adjoint,
)

# Smooth maximum -----------------------------------------------------------------------------------------------------


def _require_beta(beta: Number) -> None:
    number = isinstance(beta, (int, float, Fraction))
    if not number and not isinstance(beta, DimFloat):
        raise ShapeError(f"beta must be a number but is {beta!r}")
    if number and (beta == 0 or not math.isfinite(beta)):
        raise ShapeError(
            f"beta must be finite and not 0 but is {beta}; a large beta approaches max_pool, one near 0 a mean plus "
            "log(cells)/beta"
        )


def _smooth_max_pool_shape(x: TensorType, *, kernel: Ints, stride: Ints, padding: Ints, beta: Number) -> Types:
    _require_beta(beta)
    return (_pooled(x, "x", kernel, stride, padding),)


def _smooth_max_pool_decomposition(
    ops: Ops[R], x: R, /, *, kernel: Ints, stride: Ints, padding: Ints, beta: Number
) -> Row[R]:
    _require_beta(beta)
    falls = isinstance(beta, (int, float, Fraction)) and beta < 0
    z, slope = (ops.neg(x), -beta) if falls else (x, beta)
    # Any shift of a window gives the same value, so it is not differentiated; the maximum keeps all exponents <= 0.
    pivot = ops.detach(ops.max_pool(z, kernel=kernel, stride=stride, padding=padding))
    infinity = full_like(ops, pivot, math.inf)
    pivot = ops.select(ops.less(ops.abs(pivot), infinity), pivot, zeros_like(ops, pivot))
    cells = [_with_padding(ops, z, padding)]
    leading = len(x.shape) - len(kernel)
    for axis, (k, s) in enumerate(zip(kernel, stride), leading):
        cells = [
            ops.slice(part, axis=axis, start=start, length=pivot.shape[axis], step=s)
            for part in cells
            for start in range(k)
        ]
    total, *terms = [ops.exp(ops.scale(ops.sub(cell, pivot), c=slope)) for cell in cells]
    for term in terms:
        total = ops.add(total, term)
    out = ops.add(pivot, ops.scale(ops.log(total), c=1 / slope))
    return (ops.neg(out) if falls else out,)


def _with_padding(ops: Ops[R], z: R, padding: Ints) -> R:
    """Pad z with cells of -inf, which add e^-inf = 0 to a sum of exponentials."""
    if not any(padding):
        return z
    leading = len(z.shape) - len(padding)
    return ops.pad(z, padding=[(0, 0)] * leading + [(p, p) for p in padding], value=-math.inf)


SMOOTH_MAX_POOL = Primitive(
    "smooth_max_pool",
    operands=("x",),
    shape=_smooth_max_pool_shape,
    decomposition=_smooth_max_pool_decomposition,
    flops=lambda inputs, outputs, /, *, kernel, **static: 3 * outputs[0].size * prod(kernel),
)


# The methods of Ops ------------------------------------------------------------------------------------------


def _window(op: str, kernel: Any, stride: Any, padding: Any) -> dict[str, Any]:
    """Return the static parameters with an entry for each spatial axis; an invalid kernel is passed on."""
    if isinstance(kernel, InvalidStatic):
        return {"kernel": kernel, "stride": kernel, "padding": kernel}
    kernel = plain_sequence(kernel)
    rank = len(kernel) if isinstance(kernel, (tuple, list)) else 1
    sizes = per_axis(op, "kernel", kernel, rank, least=1)
    return {
        "kernel": sizes,
        "stride": sizes if stride is None else per_axis(op, "stride", stride, rank, least=1),
        "padding": per_axis(op, "padding", padding, rank, least=0),
    }


class PoolingOps(Calls[R]):
    __slots__ = ()

    def max_pool(
        self, x: R, /, *, kernel: tuple[int, ...], stride: IntOrTuple | None = None, padding: IntOrTuple = 0
    ) -> R:
        """Return the maximum over windows; the first maximum gets the gradient. PyTorch: torch.nn.functional.max_pool1d
        … 3d.

        x ([N,] C, *S) gives ([N,] C, *O), O = floor((S + 2·padding - kernel) / stride) + 1; the stride defaults to
        the kernel, and padding is at most half of it. Padding is ignored, and nan counts as larger than every number.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: kernel and shape of other spatial axes; an invalid argument; windows do not fit; x of another
                shape.
        """
        return self._call(MAX_POOL, (x,), _window("max_pool", kernel, stride, padding))

    def max_pool_scatter(
        self,
        g: R,
        index: R,
        /,
        *,
        shape: tuple[Dim, ...],
        kernel: tuple[int, ...],
        stride: IntOrTuple,
        padding: IntOrTuple,
    ) -> R:
        """Return window values scattered to the positions of their maxima: the cotangent of max_pool's x.

        Zeros ([N,] C, *shape) to which each window's element of g is added at flat position `index` of the channel's
        plane. The index comes from max_pool with the same windows, so it is inside its window.

        Raises:
            DtypeError: g not a float tensor; index not an integer tensor.
            RangeError: an index out of range, when it runs.
            ShapeError: kernel and shape of other spatial axes; an invalid argument; no such shape; windows do not fit;
                index, g of another shape.
        """
        static = _window("max_pool_scatter", kernel, stride, padding)
        return self._call(MAX_POOL_SCATTER, (g, index), {"shape": as_shape("max_pool_scatter", shape), **static})

    def max_pool_gather(
        self, x: R, index: R, /, *, kernel: tuple[int, ...], stride: IntOrTuple, padding: IntOrTuple
    ) -> R:
        """Return the entries of x at the positions of the window maxima: the tangent of max_pool.

        The index comes from max_pool with the same windows: a flat position in the plane of the window's channel.

        Raises:
            DtypeError: x not a float tensor; index not an integer tensor.
            RangeError: an index out of range, when it runs.
            ShapeError: an invalid argument; windows do not fit; index, x of another shape.
        """
        return self._call(MAX_POOL_GATHER, (x, index), _window("max_pool_gather", kernel, stride, padding))

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
        """Return the mean over windows, with shapes as in max_pool. PyTorch: torch.nn.functional.avg_pool1d … 3d.

        Padded cells count as 0, or are excluded if count_include_pad is False.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: kernel and shape of other spatial axes; an invalid argument; windows do not fit; x of another
                shape.
        """
        static = _window("avg_pool", kernel, stride, padding)
        counted = as_flag("avg_pool", "count_include_pad", count_include_pad)
        return self._call(AVG_POOL, (x,), static | {"count_include_pad": counted})

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
        """Return the adjoint of avg_pool.

        Each window's element of g is distributed evenly over its cells; the parts of padded cells are dropped.

        Raises:
            DtypeError: g not a float tensor.
            ShapeError: kernel and shape of other spatial axes; an invalid argument; no such shape; windows do not fit;
                g of another shape.
        """
        static = _window("avg_pool_grad", kernel, stride, padding)
        counted = as_flag("avg_pool_grad", "count_include_pad", count_include_pad)
        size = as_shape("avg_pool_grad", shape)
        return self._call(AVG_POOL_GRAD, (g,), {"shape": size, **static, "count_include_pad": counted})

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
        """Return (1/beta) · log Σ e^(beta·x) over windows, shapes as in max_pool. PyTorch: torch.logsumexp, unfolded.

        Padded cells are excluded. It exceeds the maximum by at most log(cells)/beta; a negative beta gives a smooth
        minimum. Shifted by the window's maximum (minimum for a negative beta), so nothing overflows.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: kernel and shape of other spatial axes; an invalid argument; windows do not fit; x of another
                shape.
        """
        static = _window("smooth_max_pool", kernel, stride, padding)
        return self._call(SMOOTH_MAX_POOL, (x,), static | {"beta": as_number("smooth_max_pool", "beta", beta)})

    def max_pool2d(self, x: R, /, *, kernel: IntOrTuple, stride: IntOrTuple | None = None) -> R:
        """Compute `max_pool` for images ([N,] C, H, W), without padding.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument; windows do not fit; x of another shape.
        """
        return self.max_pool(x, kernel=pooled_images("max_pool2d", x, kernel), stride=stride)

    def max_pool2d_pad(
        self, x: R, /, *, kernel: IntOrTuple, stride: IntOrTuple | None = None, padding: IntOrTuple
    ) -> R:
        """Compute `max_pool` for images ([N,] C, H, W).

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument; windows do not fit; x of another shape.
        """
        return self.max_pool(x, kernel=pooled_images("max_pool2d_pad", x, kernel), stride=stride, padding=padding)

    def avg_pool2d(self, x: R, /, *, kernel: IntOrTuple, stride: IntOrTuple | None = None) -> R:
        """Compute `avg_pool` for images ([N,] C, H, W), without padding.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument; windows do not fit; x of another shape.
        """
        return self.avg_pool(x, kernel=pooled_images("avg_pool2d", x, kernel), stride=stride)

    def avg_pool2d_pad(
        self, x: R, /, *, kernel: IntOrTuple, stride: IntOrTuple | None = None, padding: IntOrTuple
    ) -> R:
        """Compute `avg_pool` for images ([N,] C, H, W).

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument; windows do not fit; x of another shape.
        """
        return self.avg_pool(x, kernel=pooled_images("avg_pool2d_pad", x, kernel), stride=stride, padding=padding)

    def smooth_max_pool2d(self, x: R, /, *, kernel: IntOrTuple, beta: Number, stride: IntOrTuple | None = None) -> R:
        """Compute `smooth_max_pool` for images ([N,] C, H, W).

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument; windows do not fit; x of another shape.
        """
        return self.smooth_max_pool(x, kernel=pooled_images("smooth_max_pool2d", x, kernel), beta=beta, stride=stride)
