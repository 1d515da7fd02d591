"""Functions for kernels of `device.each_tensor`, which process many tensors: the position of a row of lanes."""

from __future__ import annotations

from typing import Any

import numpy as np

from .language import device_function

FIRST = np.int32(0)


@device_function
def going(rows: Any, stop: Any) -> Any:
    """Return the rows to process: none after an index was out of range, so that nothing changes before the error."""
    return rows if stop[0] == 0 else FIRST


@device_function
def part_of(row: Any, part: Any, table: Any) -> Any:
    """Return the tensor of a row, with the range of its elements.

    The number of tensors is read for each row, so that the compiler cannot specialise the loop for one tensor with
    different rounding.
    """
    count = table[0]
    tensor, above = FIRST, count
    while above - tensor > 1:
        middle = (tensor + above) >> 1
        if table[1 + middle] <= row:
            tensor = middle
        else:
            above = middle
    begin = (row - table[1 + tensor]) * part
    end, size = begin + part, table[1 + count + tensor]
    return tensor, begin, end if end < size else size
