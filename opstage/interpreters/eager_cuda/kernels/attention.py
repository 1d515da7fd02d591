"""Kernels: scaled dot-product attention and its fused cotangents. Multi-head attention runs by decomposition."""

from __future__ import annotations

from ....ops.catalogue.attention import SCALED_DOT_PRODUCT_ATTENTION, SCALED_DOT_PRODUCT_ATTENTION_GRAD
from ....ops.primitive import Primitive
from ..buffer import DeviceBuffer
from ..device.interface import Device
from . import attention_by_products as products
from .launches import Entry, Types


def attention(
    device: Device,
    types: Types,
    q: DeviceBuffer,
    k: DeviceBuffer,
    v: DeviceBuffer,
    *mask: DeviceBuffer,
    has_mask: bool,
    causal: bool,
) -> tuple[DeviceBuffer, ...]:
    return products.attention(device, types, q, k, v, mask, causal)


def attention_grad(
    device: Device,
    types: Types,
    q: DeviceBuffer,
    k: DeviceBuffer,
    v: DeviceBuffer,
    *rest: DeviceBuffer,
    has_mask: bool,
    causal: bool,
) -> tuple[DeviceBuffer, ...]:
    *mask, peak, total, g = rest
    return products.attention_grad(device, types, q, k, v, tuple(mask), (peak, total), g, causal)


KERNELS: dict[Primitive, Entry] = {
    SCALED_DOT_PRODUCT_ATTENTION: attention,
    SCALED_DOT_PRODUCT_ATTENTION_GRAD: attention_grad,
}
