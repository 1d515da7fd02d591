"""The memory layout of the matrices in a stack."""

from __future__ import annotations

from typing import NamedTuple

from ..buffer import DeviceBuffer


class MatrixLayout(NamedTuple):
    """rows, columns    of one matrix as stored
    row, matrix      elements from one row to the next, and from one matrix to the next
    first            elements before the first matrix
    """

    rows: int
    columns: int
    row: int
    matrix: int
    first: int = 0


def layout_of(operand: DeviceBuffer, given: MatrixLayout | None) -> MatrixLayout:
    """Return the given layout, or that of contiguous matrices."""
    if given is not None:
        return given
    rows, columns = operand.shape[-2:]
    return MatrixLayout(rows, columns, columns, rows * columns)
