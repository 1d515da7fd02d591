"""Memory: convolutions. What stays in the cache, columns and partial sums, is decided at numbers."""

from __future__ import annotations

import math
from typing import NamedTuple

from ....ops.catalogue.convolution import CONV, CONV_KERNEL_GRAD, CONV_TRANSPOSE
from ....ops.dims import Dim, prod
from ....ops.primitive import Primitive
from ...native import workers
from ..kernels.convolution import _room, _worth
from ..loops import convolution_steps as native
from ..loops.geometry import Geometry, Plan
from .allocation import Allocation, Call, Operand, Rule, fresh, packing_bytes
from .strides import Sizes, elements


class _Sizes:
    """The sizes of one convolution from x to its result, whichever of its tensors is computed."""

    def __init__(self, call: Call, x: Operand, result: Operand, kernel: Sizes, channels: int):
        rank = len(kernel)
        self.x, self.result, self.kernel, self.channels = x, result, kernel, channels
        self.images = x.shape[0] if len(x.shape) == rank + 2 else 1
        self.channels_in = x.shape[-rank - 1]
        self.cells, self.counts = x.shape[-rank:], result.shape[-rank:]
        self.stride, self.padding, self.dilation = (call.number(call.static[n]) for n in _GEOMETRY)
        self.groups: int = call.number(call.static["groups"])

    @property
    def geometry(self) -> Geometry | None:
        """For machine code; None where NumPy is used instead."""
        return _worth(
            Geometry(
                self.x.type.dtype.name, self.images, self.channels_in, self.channels, self.groups, self.cells,
                self.kernel, self.counts, self.stride, self.padding, self.dilation,
            )
        )  # fmt: skip

    @property
    def padded(self) -> Dim:
        """Bytes of x within its padding."""
        if not any(self.padding):
            return 0
        shape, rank = self.x.type.shape, len(self.kernel)
        grown = [n + 2 * p for n, p in zip(shape[-rank:], self.padding)]
        return prod((*shape[:-rank], *grown)) * self.x.type.dtype.itemsize

    def block(self, along: Sizes, kernel_bytes: int, depth: int) -> _Block:
        """The windows `along` the axes of as many images as fit, with `depth` numbers in the columns of each."""
        row = math.prod(along[1:])
        room = _room(kernel_bytes)
        bytes_each = max(1, depth * row * self.x.type.dtype.itemsize)
        images = min(self.images, max(1, room // max(1, along[0] * bytes_each)))
        rows = min(along[0], max(1, room // bytes_each))
        if rows < along[0]:
            following = images * min(rows, along[0] - rows) * row
        else:
            following = min(images, self.images - images) * rows * row
        return _Block(images, images * rows * row, following)


class _Block(NamedTuple):
    """The windows of one product, and of the `following` one: the columns of the first stay until that has its own."""

    images: int
    windows: int
    following: int


_GEOMETRY = ("stride", "padding", "dilation")


def _conv_sizes(call: Call) -> _Sizes:
    kernel, x = call.operands[0], call.operands[-1]
    return _Sizes(call, x, call.outputs[0], kernel.shape[2:], kernel.shape[0])


def _transpose_sizes(call: Call) -> _Sizes:
    """The convolution whose adjoint it is, from its result to its operand."""
    kernel, x = call.operands[0], call.operands[-1]
    return _Sizes(call, call.outputs[0], x, kernel.shape[2:], kernel.shape[0])


def _kernel_grad_sizes(call: Call) -> _Sizes:
    x, g = call.operands
    kernel = call.number(call.static["kernel"])
    return _Sizes(call, x, g, kernel, g.shape[-len(kernel) - 1])


def _conv(call: Call) -> Allocation:
    """x within its padding, the columns of a block, and their product or the columns of the next."""
    s, kernel = _conv_sizes(call), call.operands[0]
    return fresh(call, s.padded + _products(s, kernel) + packing_bytes(kernel))


def _products(s: _Sizes, kernel: Operand) -> int:
    depth = s.groups * elements(kernel.shape[1:])
    block = s.block(s.counts, kernel.sampled_nbytes, depth)
    beside = max(s.channels * block.windows, depth * block.following)
    return (depth * block.windows + beside) * s.x.type.dtype.itemsize


def _conv_transpose(call: Call) -> Allocation:
    """Without strides a convolution with the kernel turned round; else columns, and sums of them for some images."""
    s, kernel, out = _transpose_sizes(call), call.operands[0], call.outputs[0]
    border = tuple([d * (k - 1) - p for k, p, d in zip(s.kernel, s.padding, s.dilation)])
    extra = call.number(call.static["output_padding"])
    if max(s.stride) == 1 and not any(extra) and min(border) >= 0 and kernel.shape[0] <= 2 * s.channels_in:
        forward = _Sizes(call, call.operands[-1], out, s.kernel, s.channels_in)
        forward.padding = border
        turned = Operand(kernel.type, (s.channels_in, kernel.shape[0] // s.groups, *s.kernel))
        return fresh(call, forward.padded + _products(forward, turned) + kernel.nbytes)
    depth = s.groups * elements(kernel.shape[1:])
    block = s.block(s.counts, kernel.sampled_nbytes, depth)
    item = s.x.type.dtype.itemsize
    columns = (depth * (block.windows + block.following) + s.channels * block.windows) * item
    sums = (2 if block.images < s.images else 1) * block.images * elements(out.shape[-len(s.kernel) - 1 :]) * item
    return fresh(call, kernel.nbytes + columns + sums)


def _conv_kernel_grad(call: Call) -> Allocation:
    """x within its padding, the columns of a block with the cotangents of their windows, and their product or the
    columns of the next."""
    s, out = _kernel_grad_sizes(call), call.outputs[0]
    depth = s.channels_in * math.prod(s.kernel)
    block = s.block(s.counts, out.sampled_nbytes, depth)
    item = s.x.type.dtype.itemsize
    columns, following = (depth * windows * item for windows in (block.windows, block.following))
    return fresh(call, s.padded + s.channels * block.windows * item + columns + max(following, out.sampled_nbytes))


def _in_machine_code(call: Call, plan: Plan) -> Allocation:
    own = workers() * plan.workspace + plan.partial
    return fresh(call, packing_bytes(*call.operands))._replace(kept=own)


def _fast_conv(call: Call) -> Allocation:
    geometry = _conv_sizes(call).geometry
    return _conv(call) if geometry is None else _in_machine_code(call, native.conv_plan(geometry))


def _fast_conv_transpose(call: Call) -> Allocation:
    geometry = _transpose_sizes(call).geometry
    return _conv_transpose(call) if geometry is None else _in_machine_code(call, native.conv_transpose_plan(geometry))


def _fast_conv_kernel_grad(call: Call) -> Allocation:
    geometry = _kernel_grad_sizes(call).geometry
    if geometry is None:
        return _conv_kernel_grad(call)
    return _in_machine_code(call, native.conv_kernel_grad_plan(geometry))


ALLOCATIONS: dict[Primitive, Rule] = {
    CONV: _conv,
    CONV_TRANSPOSE: _conv_transpose,
    CONV_KERNEL_GRAD: _conv_kernel_grad,
}

FAST_ALLOCATIONS: dict[Primitive, Rule] = {
    CONV: _fast_conv,
    CONV_TRANSPOSE: _fast_conv_transpose,
    CONV_KERNEL_GRAD: _fast_conv_kernel_grad,
}
