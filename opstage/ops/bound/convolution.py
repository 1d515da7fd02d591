"""Convolutions of any spatial rank, which the kernel's rank gives."""

from __future__ import annotations

from typing import Any, final

from ..arguments import per_axis
from ..catalogue.convolution import CONV, CONV_KERNEL_GRAD, CONV_TRANSPOSE
from ..dims import Dim
from ..errors import ShapeError
from ..protocol import IntOrTuple, R
from .calls import Calls


def _window(op: str, rank: int, stride: Any, padding: Any, dilation: Any) -> dict[str, Any]:
    return {
        "stride": per_axis(op, "stride", stride, rank, least=1),
        "padding": per_axis(op, "padding", padding, rank, least=0),
        "dilation": per_axis(op, "dilation", dilation, rank, least=1),
    }


def _spatial_rank(op: str, kernel: Any) -> int:
    rank = len(kernel.shape) - 2
    if rank < 1:
        raise ShapeError(
            f"kernel must have at least one spatial axis after its two channel axes but is {kernel.shape}", op=op
        )
    return rank


class ConvolutionOps(Calls[R]):
    __slots__ = ()

    @final
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
        static = _window("conv", _spatial_rank("conv", kernel), stride, padding, dilation)
        static |= {"groups": groups, "has_bias": bias is not None}
        return self._call(CONV, (kernel, x) if bias is None else (kernel, bias, x), static)

    @final
    def conv_transpose(
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
        rank = _spatial_rank("conv_transpose", kernel)
        static = _window("conv_transpose", rank, stride, padding, dilation)
        if isinstance(output_padding, int):
            output_padding = (output_padding,) * rank
        static |= {"output_padding": tuple(output_padding), "groups": groups, "has_bias": bias is not None}
        return self._call(CONV_TRANSPOSE, (kernel, x) if bias is None else (kernel, bias, x), static)

    @final
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
        static = _window("conv_kernel_grad", len(kernel), stride, padding, dilation)
        return self._call(CONV_KERNEL_GRAD, (x, g), {"kernel": tuple(kernel), **static, "groups": groups})

    @final
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
        _require_2d("conv2d", kernel)
        return self.conv(kernel, bias, x, stride=stride, padding=padding, dilation=dilation, groups=groups)

    @final
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
        _require_2d("conv_transpose2d", kernel)
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


def _require_2d(op: str, kernel: Any) -> None:
    if len(kernel.shape) != 4:
        raise ShapeError(f"kernel must have rank 4 (two channel axes, height, width) but is {kernel.shape}", op=op)
