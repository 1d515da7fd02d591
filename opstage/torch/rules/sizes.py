"""Arithmetic on sizes and other numbers that are known before a run, as dims."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from ...imported import exact
from ...ops import dims
from ...ops.dims import DimExpr, DimFloat


def _size(x: Any, axis: int) -> Any:
    return x.shape[axis]


SIZES: dict[str, Callable[..., Any]] = {
    "aten.sym_size.int": _size,
    "aten.sym_numel.default": lambda x: dims.prod(x.shape),
    "operator.getitem": operator.getitem,
    "operator.add": operator.add,
    "operator.sub": operator.sub,
    "operator.mul": operator.mul,
    "operator.neg": operator.neg,
    "operator.floordiv": exact.floor_divide,
    "operator.mod": operator.mod,
    "operator.truediv": exact.ratio,
    "operator.pow": operator.pow,
    "operator.eq": operator.eq,
    "operator.ne": operator.ne,
    "operator.lt": operator.lt,
    "operator.le": operator.le,
    "operator.gt": operator.gt,
    "operator.ge": operator.ge,
    "operator.and_": lambda a, b: a and b,
    "operator.or_": lambda a, b: a or b,
    "math.floor": exact.floor,
    "math.ceil": exact.ceil,
    "math.trunc": exact.truncated,
    "torch.sym_max": exact.maximum,
    "torch.sym_min": exact.minimum,
    "torch.sym_not": operator.not_,
    "torch.sym_float": lambda x: x if isinstance(x, (DimExpr, DimFloat)) else float(x),
    "torch.sym_int": exact.truncated,
    "torch.sym_ite": lambda condition, a, b: a if condition else b,
    "torch._sym_sqrt": lambda x: x**0.5,
}
"""Maps functions to their meaning on numbers and dims; getitem selects one of several results."""
