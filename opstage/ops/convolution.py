"""Convolution, its adjoint and its kernel gradient: three ops, bilinear, and closed under differentiation.

With conv: y[n, o, i] = Σ_c Σ_j kernel[o, c, j] · x[n, c, i·stride + j·dilation - padding] (i, j multi-indices, x zero
outside, c over the input channels of o's group), the number ⟨g, conv(kernel, x)⟩ is linear in each of g, kernel and x.
The factor of g is conv, that of x is conv_transpose, that of kernel is conv_kernel_grad; so the
cotangents of each of the three are the other two.

Sizes are named as for conv: kernel (outC, inC/groups, *k), x (N, inC, *S) or (inC, *S), result
(N, outC, *O) or (outC, *O). Dumoulin & Visin, A guide to convolution arithmetic for deep learning, 2016.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .dims import Dim, DimExpr, floor_div, is_one, is_zero, prod, require_at_most, require_divides, require_equal
from .errors import ShapeError
from .method import Calls
from .primitive import Context, Ints, Kind, Linearity, Primitive, R, Row, Some, Types
from .rule_helpers import add_all, require_rank
from .static_arguments import IntOrTuple, InvalidStatic, as_shape, per_axis
from .types import Shape, TensorType, require_float, require_same_dtype, show_shape
from .windows import convolved_images, extent, require_shape, window_counts

if TYPE_CHECKING:
    from .protocol import Ops


# Shapes -------------------------------------------------------------------------------------------------------------


def _spatial(x: TensorType, rank: int, name: str, channels: str) -> Shape:
    """Return the spatial sizes of an operand (N, C, *S) or (C, *S)."""
    if len(x.shape) not in (rank + 1, rank + 2):
        raise ShapeError(
            f"{name} must be ({channels}, *S) or (N, {channels}, *S) with {rank} spatial axes, as the kernel has, but "
            f"is {show_shape(x.shape)} of rank {len(x.shape)}"
        )
    return x.shape[-rank:]


def _kernel_sizes(kernel: TensorType, axes: str) -> Shape:
    """Return the spatial sizes of a kernel."""
    require_float(kernel, "kernel")
    if len(kernel.shape) < 3:
        raise ShapeError(
            f"kernel must be ({axes}, *k) with at least one spatial axis but is {show_shape(kernel.shape)}"
        )
    _require_sizes(kernel.shape[2:])
    return kernel.shape[2:]


def _require_sizes(sizes: Shape) -> None:
    for axis, size in enumerate(sizes):
        require_at_most(1, size, lambda: f"the kernel is empty: it has size {size} along spatial axis {axis}")


def _require_count(groups: int) -> None:
    if type(groups) is not int or groups < 1:
        raise ShapeError(f"groups must be an int that is at least 1 but is {groups!r}")


def _require_groups(groups: int, channels: Dim, what: str) -> None:
    _require_count(groups)
    require_divides(groups, channels, lambda: f"groups={groups} does not divide the {channels} {what} channels")


def _require_channels(x: TensorType, rank: int, expected: Dim, kernel: TensorType, groups: int) -> None:
    channels = x.shape[-rank - 1]
    require_equal(
        channels,
        expected,
        lambda: (
            f"x is {show_shape(x.shape)} with {channels} channel{'' if is_one(channels) else 's'} but kernel "
            f"{show_shape(kernel.shape)} with groups={groups} takes {expected}"
        ),
    )


def _require_bias(bias: list[TensorType], kernel: TensorType, channels: Dim) -> None:
    for b in bias:
        require_same_dtype(kernel, b, "kernel", "bias")
        require_rank(b, 1, "bias")
        require_equal(
            b.shape[0],
            channels,
            lambda: (
                f"bias is {show_shape(b.shape)} but there are {channels} output channels, so it must be ({channels},)"
            ),
        )


def _unreached(
    spatial: Shape, counts: Shape, kernel: Shape, *, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Shape:
    """Return the number of cells after the last window: the output_padding with which conv_transpose restores
    `spatial`.

    They are fewer than the stride, as otherwise another window would fit.
    """
    return tuple(
        n + 2 * p - extent(k, d) - (count - 1) * s
        for n, count, k, s, p, d in zip(spatial, counts, kernel, stride, padding, dilation)
    )


# Derivatives shared by conv and conv_transpose ----------------------------------------------------------------------


def _sizes(ctx: Context[R]) -> tuple[Shape, Shape]:
    """Return the spatial sizes of kernel and x."""
    sizes = ctx.inputs[0].shape[2:]
    return sizes, ctx.inputs[-1].shape[-len(sizes) :]


def _sum_to_bias(ops: Ops[R], g: R, rank: int) -> R:
    channel = len(g.shape) - rank - 1
    return ops.reduce_sum(g, axis=[axis for axis in range(len(g.shape)) if axis != channel])


def _affine_jvp(convolve: Callable[..., Any]) -> Callable[..., Any]:
    """Return the jvp: bilinear in kernel and x, plus the bias, whose tangent is added by whichever convolution runs."""

    def jvp(
        ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Some[R], /, *, has_bias: bool, **window: Any
    ) -> tuple[R | None]:
        kernel, *_, x = primals
        t_kernel, *t_biases, t_x = tangents
        t_bias = t_biases[0] if t_biases else None
        if t_kernel is None and t_x is None:
            if t_bias is None:
                return (None,)
            column = ops.reshape(t_bias, shape=(t_bias.shape[0], *(1,) * (len(kernel.shape) - 2)))
            return (ops.broadcast_to(column, shape=outputs[0].shape),)
        through_kernel = convolve(ops, t_kernel, t_bias, x, **window) if t_kernel is not None else None
        rest = t_bias if through_kernel is None else None
        through_x = convolve(ops, kernel, rest, t_x, **window) if t_x is not None else None
        return (add_all(ops, through_kernel, through_x),)

    return jvp


# conv ---------------------------------------------------------------------------------------------------------------


def _conv_shape(
    *operands: TensorType, stride: Ints, padding: Ints, dilation: Ints, groups: int, has_bias: bool
) -> Types:
    kernel, *bias, x = operands
    sizes = _kernel_sizes(kernel, "outC, inC/groups")
    require_same_dtype(kernel, x, "kernel", "x")
    rank = len(sizes)
    spatial = _spatial(x, rank, "x", "inC")
    channels_out, channels_in = kernel.shape[:2]
    _require_groups(groups, channels_out, "output")
    _require_channels(x, rank, channels_in * groups, kernel, groups)
    _require_bias(bias, kernel, channels_out)
    counts = window_counts(spatial, sizes, stride, padding, dilation)
    return (TensorType((*x.shape[: -rank - 1], channels_out, *counts), x.dtype),)


def _conv_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, has_bias: bool, **window: Any) -> Some[R]:
    (g,), (kernel, x) = cotangents, ctx.saved
    needs_kernel, *needs_bias, needs_x = ctx.needs
    sizes, spatial = _sizes(ctx)
    dkernel: R | None = None
    if needs_kernel:
        dkernel = ops.conv_kernel_grad(x, g, kernel=sizes, **window)
    dx: R | None = None
    if needs_x:
        unreached = _unreached(spatial, g.shape[-len(sizes) :], sizes, **window)
        dx = ops.conv_transpose(kernel, None, g, output_padding=unreached, **window)
    return dkernel, *(_sum_to_bias(ops, g, len(sizes)) if needed else None for needed in needs_bias), dx


def _conv_flops(inputs: Types, outputs: Types, /, **static: Any) -> Dim:
    """Count a multiplication and an addition for each element of the result and each kernel cell that it reads."""
    size = outputs[0].size
    return 2 * size * prod(inputs[0].shape[1:]) + (size if static["has_bias"] else 0)


CONV = Primitive(
    "conv",
    operands=("kernel", "bias?", "x"),
    kind=Kind.CONTRACTION,
    shape=_conv_shape,
    vjp=_conv_vjp,
    jvp=_affine_jvp(lambda ops, kernel, bias, x, **window: ops.conv(kernel, bias, x, **window)),
    saves={"kernel": ("x",), "x": ("kernel",)},
    flops=_conv_flops,
)

# conv_transpose -----------------------------------------------------------------------------------------------------


def _conv_transpose_shape(
    *operands: TensorType,
    stride: Ints,
    padding: Ints,
    output_padding: Shape,
    dilation: Ints,
    groups: int,
    has_bias: bool,
) -> Types:
    kernel, *bias, x = operands
    sizes = _kernel_sizes(kernel, "inC, outC/groups")
    require_same_dtype(kernel, x, "kernel", "x")
    rank = len(sizes)
    spatial = _spatial(x, rank, "x", "inC")
    _require_count(groups)
    channels_in, channels_out = kernel.shape[0], kernel.shape[1] * groups
    _require_groups(groups, channels_in, "input")
    _require_channels(x, rank, channels_in, kernel, groups)
    _require_bias(bias, kernel, channels_out)
    result: list[Dim] = []
    for axis, (n, k, s, p, extra, d) in enumerate(zip(spatial, sizes, stride, padding, output_padding, dilation)):
        require_at_most(1, n, lambda: f"x is {show_shape(x.shape)}: it must have a cell along spatial axis {axis}")
        require_at_most(
            extra + 1,
            max(s, d),
            lambda: (
                f"output_padding is {extra} along spatial axis {axis}; it must be smaller than the stride {s} or the "
                f"dilation {d}"
            ),
        )
        full = (n - 1) * s + extent(k, d) + extra
        require_at_most(
            2 * p,
            full,
            lambda: f"padding {p} takes {2 * p} cells away along spatial axis {axis} but there are only {full}",
        )
        result.append(full - 2 * p)
    return (TensorType((*x.shape[: -rank - 1], channels_out, *result), x.dtype),)


def _conv_transpose_vjp(
    ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, output_padding: Shape, has_bias: bool, **window: Any
) -> Some[R]:
    (g,), (kernel, x) = cotangents, ctx.saved
    needs_kernel, *needs_bias, needs_x = ctx.needs
    sizes, spatial = _sizes(ctx)
    rank = len(sizes)
    # An output_padding >= stride, possible with a larger dilation, has space for windows beyond x.
    surplus = tuple(floor_div(extra, s) for extra, s in zip(output_padding, window["stride"]))
    dkernel: R | None = None
    if needs_kernel:
        if not all(map(is_zero, surplus)):
            leading = len(ctx.inputs[-1].shape) - rank
            x = ops.pad(x, padding=[(0, 0)] * leading + [(0, extra) for extra in surplus])
        dkernel = ops.conv_kernel_grad(g, x, kernel=sizes, **window)
    dx: R | None = None
    if needs_x:
        dx = ops.conv(kernel, None, g, **window)
        for axis, extra in enumerate(surplus):
            if not is_zero(extra):
                dx = ops.slice(dx, axis=axis - rank, start=0, length=spatial[axis])
    return dkernel, *(_sum_to_bias(ops, g, rank) if needed else None for needed in needs_bias), dx


def _conv_transpose_flops(inputs: Types, outputs: Types, /, **static: Any) -> Dim:
    """Count a multiplication and an addition for each element of x and each kernel cell."""
    return 2 * inputs[-1].size * prod(inputs[0].shape[1:]) + (outputs[0].size if static["has_bias"] else 0)


CONV_TRANSPOSE = Primitive(
    "conv_transpose",
    operands=("kernel", "bias?", "x"),
    kind=Kind.CONTRACTION,
    shape=_conv_transpose_shape,
    vjp=_conv_transpose_vjp,
    jvp=_affine_jvp(lambda ops, kernel, bias, x, **window: ops.conv_transpose(kernel, bias, x, **window)),
    saves={"kernel": ("x",), "x": ("kernel",)},
    flops=_conv_transpose_flops,
)

# conv_kernel_grad ---------------------------------------------------------------------------------------------------


def _conv_kernel_grad_shape(
    x: TensorType, g: TensorType, *, kernel: Shape, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Types:
    rank = len(kernel)
    if rank < 1:
        raise ShapeError("kernel is (); it must hold a size for each spatial axis, of which there is at least one")
    require_float(x, "x")
    require_same_dtype(x, g, "x", "g")
    _require_sizes(kernel)
    spatial = _spatial(x, rank, "x", "inC")
    _spatial(g, rank, "g", "outC")
    channels_in, channels_out = x.shape[-rank - 1], g.shape[-rank - 1]
    _require_groups(groups, channels_in, "input")
    _require_groups(groups, channels_out, "output")
    counts = window_counts(spatial, kernel, stride, padding, dilation)
    require_shape(g, "g", (*x.shape[: -rank - 1], channels_out, *counts))
    return (TensorType((channels_out, floor_div(channels_in, groups), *kernel), x.dtype),)


def _conv_kernel_grad_vjp(
    ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, kernel: Shape, **window: Any
) -> Some[R]:
    (dkernel,), (x, g) = cotangents, ctx.saved
    dx: R | None = None
    if ctx.needs[0]:
        spatial, counts = (operand.shape[-len(kernel) :] for operand in ctx.inputs)
        unreached = _unreached(spatial, counts, kernel, **window)
        dx = ops.conv_transpose(dkernel, None, g, output_padding=unreached, **window)
    return dx, ops.conv(dkernel, None, x, **window) if ctx.needs[1] else None


def _conv_kernel_grad_flops(inputs: Types, outputs: Types, /, **static: Any) -> Dim:
    """Count the flops of the corresponding conv."""
    return 2 * inputs[1].size * prod(outputs[0].shape[1:])


CONV_KERNEL_GRAD = Primitive(
    "conv_kernel_grad",
    operands=("x", "g"),
    kind=Kind.CONTRACTION,
    shape=_conv_kernel_grad_shape,
    vjp=_conv_kernel_grad_vjp,
    jvp=Linearity.EACH,
    saves={"x": ("g",), "g": ("x",)},
    flops=_conv_kernel_grad_flops,
)


# The methods of Ops ------------------------------------------------------------------------------------------


def _window(op: str, kernel: Any, stride: Any, padding: Any, dilation: Any) -> dict[str, Any]:
    """Return the static parameters with an entry for each spatial axis; an invalid stride is passed on."""
    rank = len(kernel.shape) - 2
    if rank < 1:
        stride = InvalidStatic(
            f"kernel must have at least one spatial axis after its two channel axes but is {show_shape(kernel.shape)}",
            op,
        )
    return {
        "stride": stride if isinstance(stride, InvalidStatic) else per_axis(op, "stride", stride, rank, least=1),
        "padding": per_axis(op, "padding", padding, rank, least=0),
        "dilation": per_axis(op, "dilation", dilation, rank, least=1),
    }


def _output_padding(value: int | tuple[Dim, ...], rank: int) -> Any:
    """Return ints, or dims as the derivative of a conv over a symbolic size needs them."""
    if isinstance(value, tuple) and len(value) == rank and any(isinstance(entry, DimExpr) for entry in value):
        return value
    return per_axis("conv_transpose", "output_padding", value, rank, least=0)


class ConvolutionOps(Calls[R]):
    __slots__ = ()

    def conv(
        self,
        kernel: R,
        bias: R | None,
        x: R,
        /,
        *,
        stride: IntOrTuple = 1,
        padding: IntOrTuple = 0,
        dilation: IntOrTuple = 1,
        groups: int = 1,
    ) -> R:
        """Return the cross-correlation of x ([N,] inC, *S) with kernel (outC, inC/groups, *k). PyTorch:
        torch.nn.functional.conv1d … 3d.

        y[n, o, i] = bias[o] + Σ_c Σ_j kernel[o, c, j] · x[n, c, i·stride + j·dilation - padding], with zero padding;
        bias (outC), y ([N,] outC, *O), O = floor((S + 2·padding - dilation·(k - 1) - 1) / stride) + 1; any number of
        spatial axes. A kernel larger than its padded input is a ShapeError.

        Raises:
            DtypeError: kernel not a float tensor; dtypes differ.
            ShapeError: the bias has another size than the output channels; x has other channels than the kernel; groups
                do not divide the channels; an invalid argument; windows do not fit; x, kernel, bias of another shape.
        """
        static = _window("conv", kernel, stride, padding, dilation)
        static |= {"groups": groups, "has_bias": bias is not None}
        return self._call(CONV, (kernel, x) if bias is None else (kernel, bias, x), static)

    def conv_transpose(
        self,
        kernel: R,
        bias: R | None,
        x: R,
        /,
        *,
        stride: IntOrTuple = 1,
        padding: IntOrTuple = 0,
        output_padding: int | tuple[Dim, ...] = 0,
        dilation: IntOrTuple = 1,
        groups: int = 1,
    ) -> R:
        """Return the adjoint of conv in x, kernel (inC, outC/groups, *k). PyTorch: torch.nn.functional.conv_transpose1d
        … 3d.

        y[n, o, i·stride + j·dilation - padding] += kernel[c, o, j] · x[n, c, i], added to the bias (outC); x ([N,] inC,
        *S), y ([N,] outC, *O), O = (S - 1)·stride - 2·padding + dilation·(k - 1) + output_padding + 1. An
        output_padding must be smaller than the stride or the dilation.

        Raises:
            DtypeError: kernel not a float tensor; dtypes differ.
            ShapeError: the bias has another size than the output channels; x has other channels than the kernel; groups
                do not divide the channels; no output_padding below the stride or dilation; an invalid argument; windows
                do not fit; x, kernel, bias of another shape.
        """
        static = _window("conv_transpose", kernel, stride, padding, dilation)
        static |= {"output_padding": _output_padding(output_padding, len(kernel.shape) - 2)}
        static |= {"groups": groups, "has_bias": bias is not None}
        return self._call(CONV_TRANSPOSE, (kernel, x) if bias is None else (kernel, bias, x), static)

    def conv_kernel_grad(
        self,
        x: R,
        g: R,
        /,
        *,
        kernel: tuple[Dim, ...],
        stride: IntOrTuple = 1,
        padding: IntOrTuple = 0,
        dilation: IntOrTuple = 1,
        groups: int = 1,
    ) -> R:
        """Return the cotangent of conv's kernel, whose spatial sizes are `kernel`. PyTorch: torch.nn.grad.conv1d_weight
        … 3d.

        From x ([N,] inC, *S) and the cotangent g of conv's result: out[o, c, j] = Σ_n Σ_i g[n, o, i] · x[n, c, i·stride
        + j·dilation - padding], (outC, inC/groups, *kernel).

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: groups do not divide the channels; kernel and shape of other spatial axes; an invalid argument;
                no such shape; windows do not fit; x, g of another shape.
        """
        sizes = as_shape("conv_kernel_grad", kernel)
        static = {
            "kernel": sizes,
            "stride": per_axis("conv_kernel_grad", "stride", stride, len(sizes), least=1),
            "padding": per_axis("conv_kernel_grad", "padding", padding, len(sizes), least=0),
            "dilation": per_axis("conv_kernel_grad", "dilation", dilation, len(sizes), least=1),
        }
        return self._call(CONV_KERNEL_GRAD, (x, g), static | {"groups": groups})

    def conv2d(
        self,
        kernel: R,
        bias: R | None,
        x: R,
        /,
        *,
        stride: IntOrTuple = 1,
        padding: IntOrTuple = 0,
        dilation: IntOrTuple = 1,
        groups: int = 1,
    ) -> R:
        """Compute `conv` for images: x ([N,] inC, H, W).

        Raises:
            DtypeError: kernel not a float tensor; dtypes differ.
            ShapeError: the bias has another size than the output channels; x has other channels than the kernel; groups
                do not divide the channels; an invalid argument; windows do not fit; kernel, bias, x of another shape.
        """
        stride = convolved_images("conv2d", kernel, x, stride)
        return self.conv(kernel, bias, x, stride=stride, padding=padding, dilation=dilation, groups=groups)

    def conv_transpose2d(
        self,
        kernel: R,
        bias: R | None,
        x: R,
        /,
        *,
        stride: IntOrTuple = 1,
        padding: IntOrTuple = 0,
        output_padding: IntOrTuple = 0,
        dilation: IntOrTuple = 1,
        groups: int = 1,
    ) -> R:
        """Compute `conv_transpose` for images: x ([N,] inC, H, W).

        Raises:
            DtypeError: kernel not a float tensor; dtypes differ.
            ShapeError: the bias has another size than the output channels; x has other channels than the kernel; groups
                do not divide the channels; no output_padding below the stride or dilation; an invalid argument; windows
                do not fit; kernel, bias, x of another shape.
        """
        stride = convolved_images("conv_transpose2d", kernel, x, stride)
        return self.conv_transpose(
            kernel,
            bias,
            x,
            stride=stride,
            padding=padding,
            output_padding=output_padding,
            dilation=dilation,
            groups=groups,
        )
