"""Kernels of `device.each_tensor`, which go through many tensors: where a row of lanes stands."""

from __future__ import annotations

from typing import Any

import numpy as np

from .language import device_function

FIRST = np.int32(0)


@device_function
def going(rows: Any, stop: Any) -> Any:
    """The rows to go through: none once an index was out of range, so nothing has changed when that is reported."""
    return rows if stop[0] == 0 else FIRST


@device_function
def part_of(row: Any, part: Any, table: Any) -> Any:
    """Which of the tensors a row is part of, and where in that it begins and ends.

    Their number is read for each row, so that the compiler makes no second loop of other rounding for one tensor alone.
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
