"""Kernels: activation functions and their fused derivatives, by the formulas that all targets share."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....ops.catalogue.activation import (
    GELU,
    GELU_GRAD,
    RELU,
    RELU_GRAD,
    SIGMOID_GRAD,
    SILU,
    SILU_GRAD,
    TANH_GRAD,
)
from ....ops.primitive import Primitive
from ...gpu.buffer import DeviceBuffer
from ...gpu.device.interface import Device
from ...gpu.language import erf, exp
from ...scalar import activation as formulas
from .launches import Entry, Kernel, Types, binary_kernel, called, elementwise, unary_kernel

_F32 = np.float32

_GELU = {
    "tanh": unary_kernel(called("gelu_tanh", formulas.gelu_tanh(_F32, exp))),
    "none": unary_kernel(called("gelu_erf", formulas.gelu_erf(_F32, erf))),
}
_GELU_GRAD = {
    "tanh": binary_kernel(called("gelu_tanh_grad", formulas.gelu_tanh_grad(_F32, exp))),
    "none": binary_kernel(called("gelu_erf_grad", formulas.gelu_erf_grad(_F32, exp, erf))),
}


def _by_form(kernels: dict[str, Kernel]) -> Entry:
    def entry(device: Device, types: Types, *xs: DeviceBuffer, approximate: str) -> Any:
        out = device.empty(types[0])
        device.each(kernels[approximate], out.size, out, *xs)
        return (out,)

    return entry


KERNELS: dict[Primitive, Entry] = {
    RELU: elementwise(unary_kernel(called("relu", formulas.relu(_F32)))),
    RELU_GRAD: elementwise(binary_kernel(called("relu_grad", formulas.relu_grad(_F32)))),
    TANH_GRAD: elementwise(binary_kernel(called("tanh_grad", formulas.tanh_grad(_F32)))),
    SIGMOID_GRAD: elementwise(binary_kernel(called("sigmoid_grad", formulas.sigmoid_grad(_F32)))),
    SILU: elementwise(unary_kernel(called("silu", formulas.silu(_F32, exp)))),
    SILU_GRAD: elementwise(binary_kernel(called("silu_grad", formulas.silu_grad(_F32, exp)))),
    GELU: _by_form(_GELU),
    GELU_GRAD: _by_form(_GELU_GRAD),
}
