"""Errors of operators: the operator that a user wrote, if an error occurs in one of the ops that implement it.

Operators insert broadcasts, and make matrices of vectors. Errors of these ops are reported in terms of the operator and
its operands, which are on the live stack, so correct programs pay nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .errors import LocatedError, is_user_file
from .infix import Infix
from .tracebacks import caller
from .types import Shape, TensorType, show_shape

if TYPE_CHECKING:
    from .primitive import Primitive

_SYMBOLS = {
    "__add__": "+",
    "__sub__": "-",
    "__mul__": "*",
    "__truediv__": "/",
    "__floordiv__": "//",
    "__mod__": "%",
    "__pow__": "**",
    "__matmul__": "@",
    "__lt__": "<",
    "__le__": "<=",
    "__gt__": ">",
    "__ge__": ">=",
    "__eq__": "==",
    "__ne__": "!=",
    "__and__": "&",
    "__or__": "|",
    "__xor__": "^",
}
_CLASH = re.compile(r": axis (\d+) has .* is wanted; only an axis of size 1 is repeated, and (.*)", re.DOTALL)
_PRODUCT = re.compile(r"x is \([^()]*\) and y is \([^()]*\): (.*)", re.DOTALL)


class Written(NamedTuple):
    """An operator being computed, such as `x + y`, and its operands as written."""

    symbol: str
    x: Any
    y: Any

    def rewrite(self, error: LocatedError, primitive: Primitive, operands: Sequence[TensorType]) -> None:
        """Rewrite an error of a primitive to describe the operator that it implements."""
        # these import primitives, which import this module
        from .layout import BROADCAST_TO, SQUEEZE, UNSQUEEZE
        from .matmul import BMM, MATMUL

        if error.op is not None:
            return
        x, y = _shape(self.x), _shape(self.y)
        clash = _CLASH.search(error.reason) if primitive is BROADCAST_TO else None
        product = _PRODUCT.fullmatch(error.reason) if primitive in (MATMUL, BMM) else None
        if clash is not None:
            last = len(operands[0].shape) - int(clash[1])
            axis = max(len(x), len(y)) - last
            error.reason = (
                f"x is {show_shape(x)} but y is {show_shape(y)}: axis {axis} has {x[-last]} and {y[-last]}; where they "
                f"differ one must be 1, and {clash[2]}"
            )
        elif product is not None:
            error.reason = f"x is {show_shape(x)} and y is {show_shape(y)}: {product[1]}"
        elif primitive in (BROADCAST_TO, UNSQUEEZE, SQUEEZE):
            return
        error.op = self.symbol


def written() -> Written | None:
    """Return the user's operator that binds the current op; None if the user called the op directly."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        operator = _OPERATORS.get(frame.f_code)
        by = None if operator is None else caller(frame)
        if operator is not None and by is not None and is_user_file(by.f_code.co_filename):
            symbol, reflected = operator
            x, y = frame.f_locals["self"], frame.f_locals["other"]
            return Written(symbol, y, x) if reflected else Written(symbol, x, y)
        frame = frame.f_back
    return None


def _operators() -> dict[CodeType, tuple[str, bool]]:
    """Return the operators of refs by code object: the symbol, and whether the ref is the right operand."""
    found: dict[CodeType, tuple[str, bool]] = {}
    for name, symbol in _SYMBOLS.items():
        for prefix in ("", "r"):
            method = vars(Infix).get(name.replace("__", f"__{prefix}", 1))
            if method is not None:  # x * y is y * x
                found.setdefault(method.__code__, (symbol, bool(prefix)))
    return found


_OPERATORS = _operators()


def _shape(operand: Any) -> Shape:
    return tuple(operand.shape) if isinstance(operand, Infix) else np.shape(operand)
