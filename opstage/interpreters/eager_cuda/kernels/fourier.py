"""Kernels: discrete Fourier transforms as sums, one thread per entry. Angles are reduced exactly, as integers.

So a transform of n elements takes n² steps, and n is at most 65535. `x - x` is nan if x is nan or infinite.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....ops.catalogue.fourier import FFT, IRFFT, RFFT
from ....ops.errors import UnsupportedError
from ....ops.primitive import Primitive
from ...gpu.buffer import DeviceBuffer
from ...gpu.counting import quotient, remainder, steps
from ...gpu.device.interface import Device
from ...gpu.language import cos_pi, cuda
from .launches import Entry, Types

HALF, ONE, TWO, ZERO = (np.float32(x) for x in (0.5, 1, 2, 0))


def transform_kernel(
    count: Any,
    out: Any,
    x: Any,
    n: Any,
    entries: Any,
    results: Any,
    inner: Any,
    parts: Any,
    whole: Any,
    sign: Any,
    factor: Any,
    zero: Any,
    half: Any,
    one: Any,
    two: Any,
) -> None:
    """Transform lines of `entries` elements with 1 or 2 `parts` to `results` with 2, or with 1 if x is half of the
    transform of real lines, whose entries count twice (`whole` is 0)."""
    for cell in steps(cuda.grid(1), count, cuda.gridsize(1)):
        rest = quotient(cell, inner)
        i = cell - rest * inner
        outer = quotient(rest, results)
        k = rest - outer * results
        real, imaginary, check = zero, zero, zero
        for j in range(entries):
            place = ((outer * entries + j) * inner + i) * parts
            r = remainder(j * k, n)
            turn = two * np.float32(r) / np.float32(n)
            c, s = cos_pi(turn), cos_pi(turn - half)
            if r == 0 or 2 * r == n:
                s = zero
            if 4 * r == n or 4 * r == 3 * n:
                c = zero
            s *= sign
            a = x[place]
            b = x[place + 1] if parts == 2 else zero
            check += (a - a) + (b - b)
            weight = one
            if not whole and j > 0 and 2 * j < n:
                weight = two
            if not whole and weight == one:
                b = zero
            real += weight * (a * c - b * s)
            imaginary += weight * (a * s + b * c)
        if whole:
            out[2 * cell] = real * factor + check
            out[2 * cell + 1] = imaginary * factor + check
        else:
            out[cell] = real * factor + check


def _launch(
    device: Device, types: Types, x: DeviceBuffer, n: int, axis: int, inverse: bool, norm: str, real: tuple[bool, bool]
) -> tuple[DeviceBuffer, ...]:
    """`real` says whether operand and result are real."""
    if n > 65535:
        raise UnsupportedError(f"a Fourier transform of {n} elements: on device 'cuda' there may be 65535")
    out = device.empty(types[0])
    lengths = (n, x.shape[axis], out.shape[axis])
    inner = math.prod(x.shape[axis + 1 : len(x.shape) - (not real[0])])
    flags = (1 if real[0] else 2, int(not real[1]))
    power = {"backward": int(inverse), "forward": int(not inverse), "ortho": 0.5}[norm]
    numbers = [np.int32(v) for v in (*lengths, inner, *flags)]
    floats = [np.float32(1 if inverse else -1), np.float32(float(n) ** -power), ZERO, HALF, ONE, TWO]
    device.each(transform_kernel, math.prod(out.shape) // (1 if real[1] else 2), out, x, *numbers, *floats)
    return (out,)


def fft(device: Device, types: Types, x: DeviceBuffer, axis: int, inverse: bool, norm: str) -> tuple[DeviceBuffer, ...]:
    return _launch(device, types, x, x.shape[axis], axis, inverse, norm, (False, False))


def rfft(device: Device, types: Types, x: DeviceBuffer, axis: int, norm: str) -> tuple[DeviceBuffer, ...]:
    return _launch(device, types, x, x.shape[axis], axis, False, norm, (True, False))


def irfft(device: Device, types: Types, x: DeviceBuffer, n: int, axis: int, norm: str) -> tuple[DeviceBuffer, ...]:
    return _launch(device, types, x, n, axis, True, norm, (False, True))


KERNELS: dict[Primitive, Entry] = {FFT: fft, RFFT: rfft, IRFFT: irfft}
