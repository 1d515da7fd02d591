"""Products of matrices, by what the device has for them."""

from __future__ import annotations

import numpy as np

from ....ops.catalogue.linalg import BMM, MATMUL
from ....ops.primitive import Primitive
from ..buffer import DeviceBuffer
from ..device.interface import Device
from .launches import Entry, Types
from .logic import fill_kernel


def product(device: Device, types: Types, x: DeviceBuffer, y: DeviceBuffer) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    if not x.shape[-1]:
        device.each(fill_kernel, out.size, out, np.float32(0))
    elif out.size:
        device.product(out, x, y)
    return (out,)


KERNELS: dict[Primitive, Entry] = {MATMUL: product, BMM: product}
