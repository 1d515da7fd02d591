"""Gathering and scatter-adding at indices."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..calls import Calls
from ..catalogue.indexing import (
    GATHER_ROW,
    GATHER_ROWS,
    GATHER_SCALAR,
    GATHER_VEC,
    SCATTER_ADD_ROW,
    SCATTER_ADD_ROWS,
    SCATTER_ADD_SCALAR,
    SCATTER_ADD_VEC,
)
from ..dims import Dim, DimExpr
from ..primitive import R

_STATIC = (int, DimExpr, np.integer)


class IndexingOps(Calls[R]):
    __slots__ = ()

    def gather_scalar(self, x: R, /, *, index: Dim, mode: str = "raise") -> R:
        """x[index] of a vector (n), for a static index. PyTorch: x[index].

        Raises:
            ShapeError: an index out of range; an invalid argument; x of another shape.
        """
        return self._call(GATHER_SCALAR, (x,), {"index": _static_index(index), "mode": mode})

    def gather_row(self, x: R, /, *, index: Dim, mode: str = "raise") -> R:
        """x[index], a row, for a static index; x (n, *rest). PyTorch: x[index], torch.select.

        Raises:
            ShapeError: an index out of range; x has no first axis; an invalid argument.
        """
        return self._call(GATHER_ROW, (x,), {"index": _static_index(index), "mode": mode})

    def gather_vec(self, x: R, idx: R, /, *, mode: str = "raise") -> R:
        """x[idx] of a vector (n), for integer indices of any shape. PyTorch: x[idx], torch.take.

        Raises:
            DtypeError: idx not an integer tensor.
            RangeError: an index out of range, when it runs.
            ShapeError: an invalid argument; x of another shape.
        """
        return self._call(GATHER_VEC, (x, idx), {"mode": mode})

    def gather_rows(self, x: R, idx: R, /, *, mode: str = "raise") -> R:
        """Rows x[idx], for integer indices of any shape. PyTorch: torch.nn.functional.embedding(idx, x), x[idx].

        x (n, *rest) gives (*idx, *rest). Gradients of repeated rows are summed.

        Raises:
            DtypeError: idx not an integer tensor.
            RangeError: an index out of range, when it runs.
            ShapeError: x has no first axis; an invalid argument.
        """
        return self._call(GATHER_ROWS, (x, idx), {"mode": mode})

    def scatter_add_vec(self, x: R, v: R, index: R | Dim, /, *, mode: str = "raise") -> R:
        """The vector x (n) with v added at entries `index`. PyTorch: torch.index_add(x, 0, index, v).

        For a static index, v is a scalar. For integers of any shape, v has that shape and is added in row-major order.

        Raises:
            DtypeError: x a mask; index not an integer tensor; dtypes differ.
            RangeError: an index out of range, when it runs.
            ShapeError: an index out of range; v does not fit x and the index; an invalid argument; x of another shape.
        """
        if isinstance(index, _STATIC):
            return self._call(SCATTER_ADD_SCALAR, (x, v), {"index": _static_index(index), "mode": mode})
        return self._call(SCATTER_ADD_VEC, (x, v, index), {"mode": mode})

    def scatter_add_row(self, x: R, v: R, index: R | Dim, /, *, mode: str = "raise") -> R:
        """x (n, *rest) with v added at rows `index`. PyTorch: torch.index_add(x, 0, index, v).

        For a static index, v is (*rest). For integers of any shape, v is (*index, *rest), added in row-major order; the
        adjoint of gather_rows.

        Raises:
            DtypeError: x a mask; index not an integer tensor; dtypes differ.
            RangeError: an index out of range, when it runs.
            ShapeError: an index out of range; x has no first axis; v does not fit x and the index; an invalid argument.
        """
        if isinstance(index, _STATIC):
            return self._call(SCATTER_ADD_ROW, (x, v), {"index": _static_index(index), "mode": mode})
        return self._call(SCATTER_ADD_ROWS, (x, v, index), {"mode": mode})


def _static_index(index: Any) -> Any:
    """Convert a NumPy integer, which is not a static parameter, to a Python int."""
    return int(index) if isinstance(index, np.integer) else index
