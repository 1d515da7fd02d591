"""Kernels: shapes, axes and the order of elements. Ops that keep the order share memory; others copy."""

from __future__ import annotations

from typing import Any

from ....ops.catalogue.layout import BROADCAST_TO, PERMUTE, RESHAPE
from ....ops.catalogue.slicing import CONCAT, PAD, SLICE
from ....ops.primitive import Primitive
from ...gpu.buffer import DeviceBuffer
from ...gpu.device.interface import Device
from .launches import Entry, Types, scalar
from .logic import fill_kernel
from .strided import copy, row_major


def broadcast_to(device: Device, types: Types, x: DeviceBuffer, shape: tuple[int, ...]) -> tuple[DeviceBuffer, ...]:
    if x.shape == tuple(shape):
        return (x,)
    out = device.empty(types[0])
    added = len(shape) - len(x.shape)
    steps = row_major(x.shape)
    strides = [0] * added + [0 if n == 1 else step for n, step in zip(x.shape, steps)]
    copy(device, out.shape, out, x, strides=strides)
    return (out,)


def reshape(device: Device, types: Types, x: DeviceBuffer, shape: Any) -> tuple[DeviceBuffer, ...]:
    return (x.reshaped(types[0].shape),)  # type: ignore[arg-type]  # an executed shape has no symbolic dims


def permute(device: Device, types: Types, x: DeviceBuffer, axes: tuple[int, ...]) -> tuple[DeviceBuffer, ...]:
    steps = row_major(x.shape)
    moved = [axis for axis in axes if x.shape[axis] != 1]
    if moved == sorted(moved):
        return (x.reshaped(types[0].shape),)  # type: ignore[arg-type]
    out = device.empty(types[0])
    copy(device, out.shape, out, x, strides=[steps[axis] for axis in axes])
    return (out,)


def concat(device: Device, types: Types, *xs: DeviceBuffer, axis: int) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    steps, at = row_major(out.shape), 0
    for x in xs:
        copy(device, x.shape, out, x, to=at * steps[axis], strides=row_major(x.shape))
        at += x.shape[axis]
    return (out,)


def take_slice(
    device: Device, types: Types, x: DeviceBuffer, axis: int, start: int, length: int, step: int
) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    strides = row_major(x.shape)
    first = start * strides[axis]
    strides[axis] *= step
    copy(device, out.shape, out, x, start=first, strides=strides)
    return (out,)


def pad(
    device: Device,
    types: Types,
    x: DeviceBuffer,
    padding: tuple[tuple[int, int], ...],
    value: Any,
    interior: tuple[int, ...],
) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    device.each(fill_kernel, out.size, out, scalar(value, out.dtype))
    steps = row_major(out.shape)
    to = sum(before * step for (before, _), step in zip(padding, steps))
    spread = [step * (between + 1) for step, between in zip(steps, interior)]
    copy(device, x.shape, out, x, to=to, out_strides=spread, strides=row_major(x.shape))
    return (out,)


KERNELS: dict[Primitive, Entry] = {
    BROADCAST_TO: broadcast_to,
    RESHAPE: reshape,
    PERMUTE: permute,
    CONCAT: concat,
    SLICE: take_slice,
    PAD: pad,
}
