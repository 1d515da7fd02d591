"""Ops that only lowering writes: what generated kernels do in place of layout ops, reductions and checked indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...ops.catalogue.linalg import BMM, MATMUL
from ...ops.dims import Dim
from ...ops.kinds import Effect, Kind
from ...ops.primitive import Primitive, no_flops
from ...ops.types import TensorType


def _internal(name: str, doc: str, kind: Kind, flops: Callable[..., Dim] | None = None, *effects: Effect) -> Primitive:
    def shape(*operands: TensorType, **static: Any) -> tuple[TensorType, ...]:
        raise AssertionError(f"{name} is made by the planner, which knows its type")

    return Primitive(
        name, doc, operands=("*xs",), shape=shape, differentiable=False, kind=kind, flops=flops, effects=effects
    )


def _one_per_term(inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...], /, **static: Any) -> Dim:
    return inputs[0].size


CONTIGUOUS = _internal("contiguous", "A copy in row-major order.", Kind.LAYOUT)
ROW_SUM = _internal(
    "row_sum", "Sums over the last `extent` elements, the trailing axes.", Kind.REDUCTION, _one_per_term
)
ROW_MAX = _internal(
    "row_max", "Maxima over the last `extent` elements, the trailing axes; nan if there is one.", Kind.REDUCTION,
    _one_per_term,
)  # fmt: skip
COLUMN_SUM = _internal(
    "column_sum", "Sums over the leading axes; `extent` elements remain.", Kind.REDUCTION, _one_per_term
)
ASSEMBLE = _internal("assemble", "Memory whose parts other equations have written.", Kind.LAYOUT)
INDEX_CHECK = _internal(
    "index_check", "x where 0 <= index < `size`; elsewhere an index is out of range.", Kind.POINTWISE, no_flops,
    Effect.RAISES,
)  # fmt: skip

REDUCTIONS = frozenset({ROW_SUM, ROW_MAX, COLUMN_SUM})
PRODUCTS = frozenset({MATMUL, BMM})
"""What a library of products does, or a kernel of one."""
