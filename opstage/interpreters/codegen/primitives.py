"""Ops that only lowering creates: what kernels compute in place of layout ops, reductions and index checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...ops.catalogue.linalg import BMM, MATMUL
from ...ops.dims import Dim
from ...ops.kinds import Effect, Kind
from ...ops.primitive import Primitive, no_flops
from ...ops.types import TensorType


def _internal(name: str, kind: Kind, flops: Callable[..., Dim] | None = None, *effects: Effect) -> Primitive:
    def shape(*operands: TensorType, **static: Any) -> tuple[TensorType, ...]:
        raise AssertionError(f"{name} is made by the planner, which knows its type")

    return Primitive(
        name, operands=("*xs",), shape=shape, differentiable=False, kind=kind, flops=flops, effects=effects
    )


def _one_per_term(inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...], /, **static: Any) -> Dim:
    return inputs[0].size


CONTIGUOUS = _internal("contiguous", Kind.LAYOUT)
"""A copy in row-major order."""
ROW_SUM = _internal("row_sum", Kind.REDUCTION, _one_per_term)
"""Sums over the last `extent` elements (the trailing axes)."""
ROW_MAX = _internal("row_max", Kind.REDUCTION, _one_per_term)
"""Maxima over the last `extent` elements (the trailing axes); nan if there is one."""
COLUMN_SUM = _internal("column_sum", Kind.REDUCTION, _one_per_term)
"""Sums over the leading axes; `extent` elements remain."""
ASSEMBLE = _internal("assemble", Kind.LAYOUT)
"""Memory whose parts are written by other equations."""
INDEX_CHECK = _internal("index_check", Kind.POINTWISE, no_flops, Effect.RAISES)
"""x where 0 <= index < `size`; otherwise an index is out of range."""

REDUCTIONS = frozenset({ROW_SUM, ROW_MAX, COLUMN_SUM})
PRODUCTS = frozenset({MATMUL, BMM})
"""Ops computed by a BLAS, or by a matrix product kernel."""
