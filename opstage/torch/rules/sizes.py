"""Arithmetic on sizes and other numbers that are known before a run, as dims."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from ...ops import dims
from ...ops.dims import DimExpr, DimFloat
from ...ops.errors import UnsupportedError


def _exact(x: Any) -> bool:
    return isinstance(x, (int, DimExpr))


def _quotient(a: Any, b: Any) -> Any:
    if not (isinstance(a, (DimExpr, DimFloat)) or isinstance(b, (DimExpr, DimFloat))):
        return a / b
    return dims.ratio(a, b) if _exact(a) and _exact(b) else a / b


def _floor(x: Any) -> Any:
    if isinstance(x, DimExpr):
        return x
    if isinstance(x, DimFloat):
        whole = x.floor() if hasattr(x, "floor") else None
        if whole is None:
            raise UnsupportedError(f"{x} rounded down is not an expression in sizes")
        return whole
    return math.floor(x)


def _whole(x: Any) -> Any:
    """Truncate a size: sizes are never negative."""
    return _floor(x) if isinstance(x, (DimExpr, DimFloat)) else int(x)


def _extremum(name: str) -> Callable[[Any, Any], Any]:
    exact: Any = dims.maximum if name == "max" else dims.minimum
    plain: Any = max if name == "max" else min

    def apply(a: Any, b: Any) -> Any:
        return exact(a, b) if _exact(a) and _exact(b) else plain(a, b)

    return apply


def _size(x: Any, axis: int) -> Any:
    return x.shape[axis]


def _not(x: Any) -> Any:
    return not x


def _power(x: Any, exponent: Any) -> Any:
    return x**exponent


SIZES: dict[str, Callable[..., Any]] = {
    "aten.sym_size.int": _size,
    "aten.sym_numel.default": lambda x: dims.prod(x.shape),
    "operator.getitem": operator.getitem,
    "operator.add": operator.add,
    "operator.sub": operator.sub,
    "operator.mul": operator.mul,
    "operator.neg": operator.neg,
    "operator.floordiv": lambda a, b: dims.floor_div(a, b) if _exact(a) and _exact(b) else a // b,
    "operator.mod": operator.mod,
    "operator.truediv": _quotient,
    "operator.pow": _power,
    "operator.eq": operator.eq,
    "operator.ne": operator.ne,
    "operator.lt": operator.lt,
    "operator.le": operator.le,
    "operator.gt": operator.gt,
    "operator.ge": operator.ge,
    "operator.and_": lambda a, b: a and b,
    "operator.or_": lambda a, b: a or b,
    "math.floor": _floor,
    "math.ceil": lambda x: -_floor(-x),
    "math.trunc": _whole,
    "torch.sym_max": _extremum("max"),
    "torch.sym_min": _extremum("min"),
    "torch.sym_not": _not,
    "torch.sym_float": lambda x: x if isinstance(x, (DimExpr, DimFloat)) else float(x),
    "torch.sym_int": _whole,
    "torch.sym_ite": lambda condition, a, b: a if condition else b,
    "torch._sym_sqrt": lambda x: x**0.5,
}
"""Maps functions to their meaning on numbers and dims; getitem selects one of several results."""
