"""Operators on refs: `x + y`, `2 * x`, `x @ w`, `m & n`, `x[:, 0]`, for every user-facing ref.

Operators broadcast by NumPy's rules, by inserting `broadcast_to`; named ops never do. Of two operands, the one of the
deeper interpreter (an inner derivative) determines the interpreter, and the other is lifted to it as a constant.
"""

from __future__ import annotations

import re
import sys
from abc import abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from .dims import DimExpr, DimFloat, is_one
from .errors import DtypeError, LocatedError, ProgramError, ShapeError, is_user_file
from .hints import no_such_method
from .subscript import refuse_assignment, subscript
from .tracebacks import caller
from .types import INT64, DType, Shape, TensorType, show_shape

if TYPE_CHECKING:
    from .primitive import Primitive


_NUMBERS = (int, float, Fraction, np.integer, np.floating)
_SCALARS = (*_NUMBERS, DimExpr, DimFloat)  # sizes too: numbers in a run are symbolic in a check


def broadcast_shapes(a: Shape, b: Shape) -> Shape:
    """Broadcast shapes by NumPy's rule: aligned at the last axis, 1 stretches. Mismatches are left to broadcast_to."""
    if len(a) < len(b):
        a = (1,) * (len(b) - len(a)) + a
    elif len(b) < len(a):
        b = (1,) * (len(a) - len(b)) + b
    return tuple(y if is_one(x) else x for x, y in zip(a, b))


class Infix:
    """The operators of a ref. A ref supplies `ops`, its interpreter, and `shape` and `dtype`."""

    __slots__ = ()
    __array_ufunc__: Any = None  # `ndarray * ref` must reach __rmul__
    __pandas_priority__ = 10_000  # and so must `frame * ref`; frames themselves have 4,000
    ops: Any

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """Return the ref's shape."""

    @property
    @abstractmethod
    def dtype(self) -> DType:
        """Return the ref's dtype."""

    def _pair(self, other: Any) -> tuple[Any, Any, Any]:
        """Return the interpreter, and both operands as its refs with one shape."""
        ops, x = self.ops, self
        if isinstance(other, Infix):
            y: Any = other
            if y.ops is not ops and y.ops.depth > ops.depth:
                ops = y.ops
        elif isinstance(other, _SCALARS):
            value = other.item() if isinstance(other, np.generic) else other
            return ops, x, ops.full(shape=x.shape, value=value, dtype=scalar_dtype(x.dtype, value, ops.dtype))
        else:
            y = _constant(ops, other)
        if x.shape is not y.shape:
            shape = broadcast_shapes(x.shape, y.shape)
            if not _same(x.shape, shape):
                x = ops.broadcast_to(x, shape=shape)
            if not _same(y.shape, shape):
                y = ops.broadcast_to(y, shape=shape)
        return ops, x, y

    def __add__(self, other: Any) -> Any:
        ops, x, y = self._pair(other)
        return ops.add(x, y)

    def __radd__(self, other: Any) -> Any:
        ops, y, x = self._pair(other)
        return ops.add(x, y)

    def __sub__(self, other: Any) -> Any:
        ops, x, y = self._pair(other)
        return ops.sub(x, y)

    def __rsub__(self, other: Any) -> Any:
        ops, y, x = self._pair(other)
        return ops.sub(x, y)

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, (float, Fraction, DimFloat)) and self.dtype.kind in "fO":
            return self.ops.scale(self, c=other)
        ops, x, y = self._pair(other)
        return ops.mul(x, y)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        ops, x, y = self._pair(other)
        return ops.div(x, y)

    def __rtruediv__(self, other: Any) -> Any:
        ops, y, x = self._pair(other)
        return ops.div(x, y)

    def __floordiv__(self, other: Any) -> Any:
        ops, x, y = self._pair(other)
        return ops.floor_divide(x, y)

    def __rfloordiv__(self, other: Any) -> Any:
        ops, y, x = self._pair(other)
        return ops.floor_divide(x, y)

    def __mod__(self, other: Any) -> Any:
        ops, x, y = self._pair(other)
        return ops.mod(x, y)

    def __rmod__(self, other: Any) -> Any:
        ops, y, x = self._pair(other)
        return ops.mod(x, y)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __pow__(self, other: Any) -> Any:
        if isinstance(other, _NUMBERS):
            return self.ops.pow(self, exponent=other)
        ops, x, y = self._pair(other)
        return ops.power(x, y)

    def __rpow__(self, other: Any) -> Any:
        ops, y, x = self._pair(other)
        return ops.power(x, y)

    def __neg__(self) -> Any:
        return self.ops.neg(self)

    def __abs__(self) -> Any:
        return self.ops.abs(self)

    def __matmul__(self, other: Any) -> Any:
        ops = self.ops
        y = other if isinstance(other, Infix) else _constant(ops, other)
        return product_of_stacks(y.ops if y.ops.depth > ops.depth else ops, self, y)

    def __rmatmul__(self, other: Any) -> Any:
        return product_of_stacks(self.ops, _constant(self.ops, other), self)

    def __lt__(self, other: Any) -> Any:
        ops, x, y = self._pair(other)
        return ops.less(x, y)

    def __le__(self, other: Any) -> Any:
        ops, x, y = self._pair(other)
        return ops.less_equal(x, y)

    def __gt__(self, other: Any) -> Any:
        ops, x, y = self._pair(other)
        return ops.less(y, x)

    def __ge__(self, other: Any) -> Any:
        ops, x, y = self._pair(other)
        return ops.less_equal(y, x)

    def __eq__(self, other: object) -> Any:
        ops, x, y = self._pair(other)
        return ops.equal(x, y)

    def __ne__(self, other: object) -> Any:
        ops, x, y = self._pair(other)
        return ops.logical_not(ops.equal(x, y))

    __hash__ = object.__hash__  # refs are dict keys by identity; live ones have distinct hashes, so == is not called

    def __and__(self, other: Any) -> Any:
        ops, x, y = self._masks("&", other)
        return ops.logical_and(x, y)

    __rand__ = __and__

    def __or__(self, other: Any) -> Any:
        ops, x, y = self._masks("|", other)
        return ops.logical_not(ops.logical_and(ops.logical_not(x), ops.logical_not(y)))

    __ror__ = __or__

    def __xor__(self, other: Any) -> Any:
        ops, x, y = self._masks("^", other)
        return ops.logical_not(ops.equal(x, y))

    __rxor__ = __xor__

    def __invert__(self) -> Any:
        return self.ops.logical_not(self)

    def _masks(self, symbol: str, other: Any) -> tuple[Any, Any, Any]:
        """Combine as `_pair`, for masks only: integers have no bitwise operators."""
        ops, x, y = self._pair(other)
        if x.dtype.kind != "b" or y.dtype.kind != "b":
            raise DtypeError(
                f"takes two masks but got {x.dtype} and {y.dtype}; of comparisons write (x < 1) {symbol} (y < 1): "
                f"{symbol} binds tighter than <",
                op=symbol,
            )
        return ops, x, y

    def __getitem__(self, key: Any) -> Any:
        return subscript(self, key)

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        refuse_assignment()

    def __delitem__(self, key: Any) -> NoReturn:
        refuse_assignment()

    def __bool__(self) -> NoReturn:
        raise ProgramError(
            "the truth value of a ref is not supported: a program runs the same way for all values. "
            "Choose between values with ops.select(mask, x, y); branch on shapes and static parameters only"
        )

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise ProgramError(
            "a ref is not an array: use the ops of the interpreter that made it; results leave by return"
        )

    def __round__(self, digits: int | None = None) -> Any:
        if digits is not None:
            raise ProgramError(
                f"round(x, {digits}) does not support refs: write ops.round(x * 10**{digits}) / 10**{digits}"
            )
        return self.ops.round(self)

    def __contains__(self, item: Any) -> NoReturn:
        raise ProgramError("`value in x` does not support refs: ops.reduce_any(x == value) is a mask")

    def __format__(self, form: str) -> str:
        return repr(self) if not form else format(float(self), form)

    def __float__(self) -> NoReturn:
        raise ProgramError(
            "the number of a ref is not available inside a program; return the ref, and read the number from the result"
        )

    def __len__(self) -> NoReturn:
        raise ProgramError(
            "len(…) does not support refs: x.shape[0] is the size of the first axis, len(x.shape) the rank"
        )

    def __iter__(self) -> NoReturn:
        raise ProgramError(
            "a ref cannot be iterated; take parts with x[i], ops.slice or ops.split (a list of numbers is one tensor, "
            "a tuple of them a tree)"
        )

    if not TYPE_CHECKING:  # type checkers should report unknown names

        def __getattr__(self, name):
            from .protocol import OPS

            raise no_such_method(self, name, OPS)

    def __repr__(self) -> str:
        """Show shape, dtype and, if a host array is behind the ref, its values, for debuggers."""
        held: Any = self
        while isinstance(held, Infix):
            held = getattr(held, "value", None)
        if not isinstance(held, np.ndarray):
            return f"<{type(self).__name__} {show_shape(self.shape)} {self.dtype}>"
        values = np.array2string(held, threshold=50, edgeitems=2, separator=", ")
        return f"tensor {show_shape(self.shape)} {self.dtype} {values}"


def _constant(ops: Any, value: Any) -> Any:
    if _holds_refs(value):
        raise ProgramError(
            f"a list of {len(value)} refs is not a tensor: ops.stack(xs, axis=0) makes one of them, and np.asarray(…) "
            "one of a list of numbers that is passed to the program"
        )
    return ops.const(value)


def _holds_refs(value: Any) -> bool:
    return isinstance(value, Infix) or isinstance(value, (list, tuple)) and any(map(_holds_refs, value))


def scalar_dtype(x: DType, value: Any, program: DType) -> DType:
    """Return the dtype of a number next to a ref: the ref's own if that is lossless; otherwise the op reports the
    mismatch."""
    if x.kind in "fO":
        return x
    if isinstance(value, (float, Fraction, DimFloat)):
        return program
    return INT64 if x.kind == "b" and not isinstance(value, bool) else x


def _same(a: Shape, b: Shape) -> bool:
    return len(a) == len(b) and all(x is y or (type(x) is int and type(y) is int and x == y) for x, y in zip(a, b))


def product_of_stacks(ops: Any, x: Any, y: Any) -> Any:
    """Return `x @ y` as in NumPy: vectors gain an axis and lose it again, leading axes broadcast."""
    if not len(x.shape) or not len(y.shape):
        raise ShapeError(
            f"x @ y takes tensors of rank 1 or more but x is {show_shape(x.shape)}, y is {show_shape(y.shape)}", op="@"
        )
    x_vector, y_vector = len(x.shape) == 1, len(y.shape) == 1
    if x_vector:
        x = ops.unsqueeze(x, axis=0)
    if y_vector:
        y = ops.unsqueeze(y, axis=1)
    if len(x.shape) == 2 and len(y.shape) == 2:
        out = ops.matmul(x, y)
    else:
        leading = broadcast_shapes(x.shape[:-2], y.shape[:-2])
        if not _same(x.shape[:-2], leading):
            x = ops.broadcast_to(x, shape=(*leading, *x.shape[-2:]))
        if not _same(y.shape[:-2], leading):
            y = ops.broadcast_to(y, shape=(*leading, *y.shape[-2:]))
        out = ops.bmm(x, y)
    if y_vector:
        out = ops.squeeze(out, axis=-1)
    if x_vector:
        out = ops.squeeze(out, axis=-1 if y_vector else -2)
    return out


# The operator that a user wrote, in an error of an op that implements it ----------------------------------------------

# Operators insert broadcasts, and make matrices of vectors. Errors of these ops are reported in terms of the operator
# and its operands, which are on the live stack, so correct programs pay nothing.

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
