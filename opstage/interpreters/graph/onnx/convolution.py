"""Convolution, its adjoint and its kernel gradient. Unbatched tensors temporarily get a batch axis of size 1."""

from __future__ import annotations

from typing import Any

from ....ops.catalogue import convolution
from ....ops.dims import exact_div
from ....ops.errors import UnsupportedError
from ....ops.primitive import Primitive
from ....ops.types import Shape, TensorType
from .nodes import OnnxValue
from .rules import OnnxRule
from .writer import Writer, is_empty

Ints = tuple[int, ...]
Operands = tuple[OnnxValue, ...]
Results = tuple[TensorType, ...]


def batched(writer: Writer, x: OnnxValue, rank: int) -> tuple[str, Shape]:
    """Return x as (N, C, *S)."""
    if len(x.shape) == rank + 2:
        return x.name, x.shape
    return writer.node("Unsqueeze", x, writer.ints(0)), (1, *x.shape)


def unbatched(writer: Writer, name: str, x: OnnxValue, rank: int) -> str:
    """Return a result with a batch axis only if x has one."""
    return name if len(x.shape) == rank + 2 else writer.node("Squeeze", name, writer.ints(0))


def _window(stride: Ints, padding: Ints, dilation: Ints, groups: int) -> dict[str, Any]:
    return {"strides": stride, "pads": (*padding, *padding), "dilations": dilation, "group": groups}


def _conv(writer: Writer, operands: Operands, results: Results, /, *, has_bias: bool, **window: Any) -> tuple[str, ...]:
    kernel, *bias, x = operands
    rank = len(kernel.shape) - 2
    out = writer.node("Conv", batched(writer, x, rank)[0], kernel, *bias, **_window(**window))
    return (unbatched(writer, out, x, rank),)


def _conv_transpose(
    writer: Writer, operands: Operands, results: Results, /, *, has_bias: bool, output_padding: Shape, **window: Any
) -> tuple[str, ...]:
    kernel, *bias, x = operands
    rank = len(kernel.shape) - 2
    if not all(isinstance(extra, int) for extra in output_padding):
        raise UnsupportedError(
            f"the output_padding {output_padding} of a transposed convolution is a number in ONNX, never an "
            "expression in sizes; record the program with numbers for the spatial sizes"
        )
    name, shape = batched(writer, x, rank)
    surplus = [extra // s for extra, s in zip(output_padding, window["stride"])]
    if any(surplus):  # output_padding of the stride or more equals padding x with zeros at the end
        name = writer.node("Pad", name, writer.ints(*(0,) * (len(shape) + 2), *surplus))
    rest = [extra % s for extra, s in zip(output_padding, window["stride"])]
    out = writer.node("ConvTranspose", name, kernel, *bias, output_padding=rest, **_window(**window))
    return (unbatched(writer, out, x, rank),)


def _conv_kernel_grad(
    writer: Writer,
    operands: Operands,
    results: Results,
    /,
    *,
    kernel: Shape,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
) -> tuple[str, ...]:
    """Write a convolution with batch and channels exchanged, and stride and dilation exchanged.

    x (N, G·c, *S) becomes (c, G·N, *S) and g (N, G·o, *O) becomes (G·o, N, *O), a kernel for each of the G groups; the
    result (c, G·o, *K) is transposed to (G·o, c, *K). Cells of x that no window covers make the result larger than
    *kernel; the excess is cut.
    """
    x, g = operands
    if is_empty(g.type):
        return (writer.filled(results[0].shape, 0.0, x.dtype),)
    rank = len(kernel)
    swap = (1, 0, *range(2, rank + 2))
    x_name, (n, channels, *spatial) = batched(writer, x, rank)
    g_name, _ = batched(writer, g, rank)
    if groups > 1:
        each = exact_div(channels, groups, "groups divide the channels")
        split, merged = (n, groups, each, *spatial), (each, groups * n, *spatial)
        x_name = writer.reshaped(x_name, (n, channels, *spatial), split)
        x_name = writer.node("Transpose", x_name, perm=(2, 1, 0, *range(3, rank + 3)))
        x_name = writer.reshaped(x_name, (each, groups, n, *spatial), merged)
    else:
        x_name = writer.node("Transpose", x_name, perm=swap)
    g_name = writer.node("Transpose", g_name, perm=swap)
    out = writer.node("Conv", x_name, g_name, **_window(dilation, padding, stride, groups))
    out = writer.node("Transpose", out, perm=swap)
    ends, axes = writer.dims(kernel), writer.ints(*range(2, rank + 2))
    return (writer.node("Slice", out, writer.ints(*(0,) * rank), ends, axes),)


RULES: dict[Primitive, OnnxRule] = {
    convolution.CONV: OnnxRule(_conv),
    convolution.CONV_TRANSPOSE: OnnxRule(_conv_transpose),
    convolution.CONV_KERNEL_GRAD: OnnxRule(_conv_kernel_grad),
}
