"""Windows over up to three spatial axes, in numbers that kernels read: what convolutions and pools share."""

from __future__ import annotations

import math
from typing import NamedTuple

from ....ops.errors import UnsupportedError
from ..buffer import DeviceBuffer
from ..device.interface import Device

MOST_AXES = 3

# Where each number stands, for each of the three axes in turn.
SIZE, COUNT, KERNEL, STRIDE, PADDING, DILATION = 0, 3, 6, 9, 12, 15


class Windows(NamedTuple):
    """Of x (images, channels, *sizes): how many there are along each axis, and how they lie.

    numbers     on the device: sizes, counts, kernel, stride, padding, dilation, three of each, by the offsets above
    plane       elements of x in one channel of one image
    places      windows in one channel of one image
    cells       of one window
    """

    numbers: DeviceBuffer
    plane: int
    places: int
    cells: int


def windows(
    device: Device,
    sizes: tuple[int, ...],
    counts: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Windows:
    """Raises UnsupportedError for more than three spatial axes."""
    rank = len(kernel)
    if rank > MOST_AXES:
        raise UnsupportedError(
            f"windows over {rank} spatial axes are not computed on a GPU, only over up to {MOST_AXES}"
        )
    more = MOST_AXES - rank
    ones, none = (1,) * more, (0,) * more
    parts = (ones + tuple(sizes), ones + tuple(counts), ones + tuple(kernel))
    steps = (ones + tuple(stride), none + tuple(padding), ones + tuple(dilation))
    numbers = device.numbers(*(number for part in (*parts, *steps) for number in part))
    return Windows(numbers, math.prod(sizes), math.prod(counts), math.prod(kernel))
