"""Convolutions of any spatial rank, determined by the kernel's rank."""

from __future__ import annotations

from typing import Any

from ..arguments import IntOrTuple, as_shape, per_axis
from ..calls import Calls
from ..catalogue.convolution import CONV, CONV_KERNEL_GRAD, CONV_TRANSPOSE
from ..dims import Dim, DimExpr
from ..invalid_static import InvalidStatic
from ..primitive import R
from ..types import show_shape


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


def _images(op: str, kernel: Any, x: Any, stride: IntOrTuple) -> Any:
    """Return the stride of a convolution over height and width, or an `InvalidStatic`."""
    if len(kernel.shape) != 4:
        return InvalidStatic(
            f"kernel must have rank 4 (two channel axes, height, width) but is {show_shape(kernel.shape)}; "
            f"{op[:-2]} takes any number of spatial axes",
            op,
        )
    if len(x.shape) not in (3, 4):
        return InvalidStatic(f"x must be (C, H, W) or (N, C, H, W) but is {show_shape(x.shape)}", op)
    return per_axis(op, "stride", stride, 2, least=1)


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
        """Cross-correlation, kernel (outC, inC/groups, *k), x ([N,] inC, *S). PyTorch: torch.nn.functional.conv1d … 3d.

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
        """The adjoint of conv in x, kernel (inC, outC/groups, *k). PyTorch: torch.nn.functional.conv_transpose1d … 3d.

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
        """The cotangent of conv's kernel, whose spatial sizes are `kernel`. PyTorch: torch.nn.grad.conv1d_weight … 3d.

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
        """conv for images.

        Raises:
            DtypeError: kernel not a float tensor; dtypes differ.
            ShapeError: the bias has another size than the output channels; x has other channels than the kernel; groups
                do not divide the channels; an invalid argument; windows do not fit; kernel, bias, x of another shape.
        """
        stride = _images("conv2d", kernel, x, stride)
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
        """conv_transpose for images.

        Raises:
            DtypeError: kernel not a float tensor; dtypes differ.
            ShapeError: the bias has another size than the output channels; x has other channels than the kernel; groups
                do not divide the channels; no output_padding below the stride or dilation; an invalid argument; windows
                do not fit; kernel, bias, x of another shape.
        """
        stride = _images("conv_transpose2d", kernel, x, stride)
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
