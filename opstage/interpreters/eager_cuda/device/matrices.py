"""Where the matrices of a stack stand in memory."""

from __future__ import annotations

from typing import NamedTuple

from ..buffer import DeviceBuffer


class Steps(NamedTuple):
    """In elements.

    row       from one row, as it lies in memory, to the next
    matrix    from one matrix to the next
    """

    row: int
    matrix: int


def steps_of(operand: DeviceBuffer, given: Steps | None) -> Steps:
    """Those given, or those of matrices that lie one after the other."""
    if given is not None:
        return given
    rows, columns = operand.shape[-2:]
    return Steps(columns, rows * columns)
