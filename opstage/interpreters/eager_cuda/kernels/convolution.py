"""Kernels: convolutions, each element of the result a sum that one thread adds up in order."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....ops.catalogue.convolution import CONV, CONV_KERNEL_GRAD, CONV_TRANSPOSE
from ....ops.primitive import Primitive
from ..buffer import DeviceBuffer
from ..device.interface import Device
from ..language import cuda
from .launches import Entry, Types
from .windows import COUNT, DILATION, KERNEL, PADDING, SIZE, STRIDE, windows

ZERO = np.float32(0)


def conv_kernel(
    count: Any,
    out: Any,
    kernel: Any,
    x: Any,
    bias: Any,
    biased: Any,
    w: Any,
    places: Any,
    inputs: Any,
    outputs: Any,
    group: Any,
) -> None:
    """out[n, o, i] = bias[o] + Σ kernel[o, c, j]·x[n, c, i·stride + j·dilation - padding].

    inputs   channels that an output channel sees; `group` output channels see the same ones
    """
    k0, k1, k2 = w[KERNEL], w[KERNEL + 1], w[KERNEL + 2]
    s0, s1, s2 = w[SIZE], w[SIZE + 1], w[SIZE + 2]
    channels = outputs // group * inputs
    for cell in range(cuda.grid(1), count, cuda.gridsize(1)):
        place = cell % places
        o = cell // places % outputs
        n = cell // places // outputs
        i2 = place % w[COUNT + 2] * w[STRIDE + 2] - w[PADDING + 2]
        rest = place // w[COUNT + 2]
        i1 = rest % w[COUNT + 1] * w[STRIDE + 1] - w[PADDING + 1]
        i0 = rest // w[COUNT + 1] * w[STRIDE] - w[PADDING]
        first = n * channels + o // group * inputs
        total = bias[o] if biased else ZERO
        for c in range(inputs):
            for j0 in range(k0):
                a0 = i0 + j0 * w[DILATION]
                for j1 in range(k1):
                    a1 = i1 + j1 * w[DILATION + 1]
                    for j2 in range(k2):
                        a2 = i2 + j2 * w[DILATION + 2]
                        if a0 >= 0 and a0 < s0 and a1 >= 0 and a1 < s1 and a2 >= 0 and a2 < s2:
                            weight = kernel[(((o * inputs + c) * k0 + j0) * k1 + j1) * k2 + j2]
                            total += weight * x[((first + c) * s0 + a0) * s1 * s2 + a1 * s2 + a2]
        out[cell] = total


def conv_transpose_kernel(
    count: Any,
    out: Any,
    kernel: Any,
    x: Any,
    bias: Any,
    biased: Any,
    w: Any,
    plane: Any,
    inputs: Any,
    outputs: Any,
    group: Any,
) -> None:
    """out[n, o, a] = bias[o] + Σ kernel[c, o, j]·x[n, c, i] over all i·stride + j·dilation - padding = a.

    The windows are those of the convolution whose adjoint this is: `out` has its sizes, x its counts. `inputs` channels
    of x and `group` of out belong together, `outputs` channels of out there are in all.
    """
    k0, k1, k2 = w[KERNEL], w[KERNEL + 1], w[KERNEL + 2]
    c0, c1, c2 = w[COUNT], w[COUNT + 1], w[COUNT + 2]
    channels = outputs // group * inputs
    for cell in range(cuda.grid(1), count, cuda.gridsize(1)):
        place = cell % plane
        o = cell // plane % outputs
        n = cell // plane // outputs
        a2 = place % w[SIZE + 2] + w[PADDING + 2]
        rest = place // w[SIZE + 2]
        a1 = rest % w[SIZE + 1] + w[PADDING + 1]
        a0 = rest // w[SIZE + 1] + w[PADDING]
        first = o // group * inputs
        total = bias[o] if biased else ZERO
        for j0 in range(k0):
            b0 = a0 - j0 * w[DILATION]
            for j1 in range(k1):
                b1 = a1 - j1 * w[DILATION + 1]
                for j2 in range(k2):
                    b2 = a2 - j2 * w[DILATION + 2]
                    meets = b0 >= 0 and b1 >= 0 and b2 >= 0
                    meets = meets and b0 % w[STRIDE] == 0 and b1 % w[STRIDE + 1] == 0 and b2 % w[STRIDE + 2] == 0
                    i0, i1, i2 = b0 // w[STRIDE], b1 // w[STRIDE + 1], b2 // w[STRIDE + 2]
                    if meets and i0 < c0 and i1 < c1 and i2 < c2:
                        for c in range(inputs):
                            weight = kernel[((((first + c) * group + o % group) * k0 + j0) * k1 + j1) * k2 + j2]
                            total += weight * x[((n * channels + first + c) * c0 + i0) * c1 * c2 + i1 * c2 + i2]
        out[cell] = total


def kernel_grad_kernel(
    count: Any, out: Any, x: Any, g: Any, w: Any, cells: Any, images: Any, inputs: Any, outputs: Any, group: Any
) -> None:
    """out[o, c, j] = Σ g[n, o, i]·x[n, c, i·stride + j·dilation - padding]."""
    s0, s1, s2 = w[SIZE], w[SIZE + 1], w[SIZE + 2]
    c0, c1, c2 = w[COUNT], w[COUNT + 1], w[COUNT + 2]
    channels = outputs // group * inputs
    for cell in range(cuda.grid(1), count, cuda.gridsize(1)):
        within = cell % cells
        c = cell // cells % inputs
        o = cell // cells // inputs
        j2 = within % w[KERNEL + 2] * w[DILATION + 2] - w[PADDING + 2]
        rest = within // w[KERNEL + 2]
        j1 = rest % w[KERNEL + 1] * w[DILATION + 1] - w[PADDING + 1]
        j0 = rest // w[KERNEL + 1] * w[DILATION] - w[PADDING]
        source = o // group * inputs + c
        total = ZERO
        for n in range(images):
            for i0 in range(c0):
                a0 = i0 * w[STRIDE] + j0
                for i1 in range(c1):
                    a1 = i1 * w[STRIDE + 1] + j1
                    for i2 in range(c2):
                        a2 = i2 * w[STRIDE + 2] + j2
                        if a0 >= 0 and a0 < s0 and a1 >= 0 and a1 < s1 and a2 >= 0 and a2 < s2:
                            value = x[((n * channels + source) * s0 + a0) * s1 * s2 + a1 * s2 + a2]
                            total += value * g[((n * outputs + o) * c0 + i0) * c1 * c2 + i1 * c2 + i2]
        out[cell] = total


def conv(device: Device, types: Types, *operands: DeviceBuffer, has_bias: bool, groups: int, **steps: Any) -> Any:
    kernel, *bias, x = operands
    out, rank = device.empty(types[0]), len(kernel.shape) - 2
    w = windows(device, x.shape[-rank:], out.shape[-rank:], kernel.shape[2:], **steps)
    outputs, inputs = kernel.shape[:2]
    numbers = (w.places, inputs, outputs, outputs // groups)
    _launch(device, conv_kernel, out, kernel, x, bias, w.numbers, numbers)
    return (out,)


def conv_transpose(
    device: Device,
    types: Types,
    *operands: DeviceBuffer,
    has_bias: bool,
    groups: int,
    output_padding: Any,
    **steps: Any,
) -> Any:
    kernel, *bias, x = operands
    out, rank = device.empty(types[0]), len(kernel.shape) - 2
    w = windows(device, out.shape[-rank:], x.shape[-rank:], kernel.shape[2:], **steps)
    group = kernel.shape[1]
    numbers = (w.plane, kernel.shape[0] // groups, group * groups, group)
    _launch(device, conv_transpose_kernel, out, kernel, x, bias, w.numbers, numbers)
    return (out,)


def conv_kernel_grad(
    device: Device, types: Types, x: DeviceBuffer, g: DeviceBuffer, kernel: Any, groups: int, **steps: Any
) -> Any:
    out, rank = device.empty(types[0]), len(kernel)
    w = windows(device, x.shape[-rank:], g.shape[-rank:], tuple(kernel), **steps)
    outputs, inputs = out.shape[:2]
    images = x.shape[0] if len(x.shape) == rank + 2 else 1
    numbers = (w.cells, images, inputs, outputs, outputs // groups)
    device.each(kernel_grad_kernel, out.size, out, x, g, w.numbers, *map(np.int32, numbers))
    return (out,)


def _launch(device: Device, kernel: Any, out: Any, weight: Any, x: Any, bias: Any, w: Any, numbers: Any) -> None:
    given = bias[0] if bias else weight  # a pointer that is not read
    device.each(kernel, out.size, out, weight, x, given, np.int32(bool(bias)), w, *map(np.int32, numbers))


KERNELS: dict[Primitive, Entry] = {CONV: conv, CONV_TRANSPOSE: conv_transpose, CONV_KERNEL_GRAD: conv_kernel_grad}
