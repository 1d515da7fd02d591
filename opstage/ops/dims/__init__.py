"""Dims: integers and symbolic integer expressions, one arithmetic for both.

A size is an int or a `DimExpr` in named dims of a `DimScope`. Shape rules are written once for both: they compute with
`+ - * // %`, `prod` and `exact_div`, compare through `require_equal`, `require_at_most` and `require_divides`, and get
real constants from `ratio` and `rsqrt`.
"""

from ..errors import MissingSizeError, SymbolicDimError, UndecidedDimError, UnknownDimError
from .arithmetic import (
    DimFloat,
    Number,
    evaluate,
    exact_div,
    floor_div,
    maximum,
    minimum,
    prod,
    ratio,
    rsqrt,
    substitute,
)
from .expression import UNKNOWN, Dim, DimExpr, Shape
from .relation import (
    Condition,
    Verdict,
    at_most,
    equal,
    is_one,
    is_zero,
    require_at_most,
    require_divides,
    require_equal,
    witness,
)
from .scope import DimScope

__all__ = [
    "UNKNOWN",
    "Condition",
    "Dim",
    "DimExpr",
    "DimFloat",
    "DimScope",
    "MissingSizeError",
    "Number",
    "Shape",
    "SymbolicDimError",
    "UndecidedDimError",
    "UnknownDimError",
    "Verdict",
    "at_most",
    "equal",
    "evaluate",
    "exact_div",
    "floor_div",
    "is_one",
    "is_zero",
    "maximum",
    "minimum",
    "prod",
    "ratio",
    "require_at_most",
    "require_divides",
    "require_equal",
    "rsqrt",
    "substitute",
    "witness",
]
__dir__ = __all__.copy
