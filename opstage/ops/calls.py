"""`Calls`: turns methods of `Ops` into calls of `bind`."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, cast, final

from .arguments import Number
from .dims import DimExpr, DimFloat
from .invalid_static import InvalidStatic
from .numbers import plain
from .operands import NUMBERS, with_numbers
from .primitive import NO_STATIC, Primitive, R, Static
from .structure import Structure
from .untrusted import brief


class Calls(Structure[R]):
    """Connects user-level ops to `bind`: counts the op on the cursor, unless a rule is running, and binds it.

    `bind1`, `bind2`, `bind3` are for ops of fixed arity with one output and no residuals or static parameters. They
    default to `bind`; performance-critical interpreters override them.
    """

    __slots__ = ()

    def bind1(self, primitive: Primitive, x: R, /) -> R:
        return self.bind(primitive, (x,), NO_STATIC)[0]

    def bind2(self, primitive: Primitive, x: R, y: R, /) -> R:
        return self.bind(primitive, (x, y), NO_STATIC)[0]

    def bind3(self, primitive: Primitive, x: R, y: R, z: R, /) -> R:
        return self.bind(primitive, (x, y, z), NO_STATIC)[0]

    @final
    def _call1(self, primitive: Primitive, x: R) -> R:
        cursor = self.cursor
        if not cursor.quiet:
            cursor.ordinal += 1
        return self.bind1(primitive, x)

    @final
    def _call2(self, primitive: Primitive, x: R, y: R) -> R:
        cursor = self.cursor
        if not cursor.quiet:
            cursor.ordinal += 1
        return self.bind2(primitive, x, y)

    @final
    def _pointwise2(self, primitive: Primitive, x: R | Number, y: R | Number) -> R:
        """Call an op on two tensors of one shape, either of which may be a number."""
        if type(x) in NUMBERS or type(y) in NUMBERS:
            x, y = with_numbers(self, primitive.name, primitive.operands, (x, y))
        cursor = self.cursor
        if not cursor.quiet:
            cursor.ordinal += 1
        return self.bind2(primitive, cast("R", x), cast("R", y))

    @final
    def _call3(self, primitive: Primitive, x: R, y: R, z: R) -> R:
        cursor = self.cursor
        if not cursor.quiet:
            cursor.ordinal += 1
        return self.bind3(primitive, x, y, z)

    @final
    def _call(self, primitive: Primitive, refs: tuple[R, ...], static: Static) -> R:
        cursor = self.cursor
        if not cursor.quiet:
            cursor.ordinal += 1
            for name, value in static.items():
                kind = type(value)
                if kind is not bool and (kind not in _PLAIN or name in FLAGS or (kind is tuple and name in NUMERIC)):
                    static = _plainly(static, primitive.name)
                    break
        return self.bind(primitive, refs, static)[0]

    @final
    def _call_many(self, primitive: Primitive, refs: tuple[R, ...], static: Static) -> tuple[R, ...]:
        """Return all outputs, without residuals."""
        cursor = self.cursor
        if not cursor.quiet:
            cursor.ordinal += 1
            for name, value in static.items():
                kind = type(value)
                if kind is not bool and (kind not in _PLAIN or name in FLAGS or (kind is tuple and name in NUMERIC)):
                    static = _plainly(static, primitive.name)
                    break
        return self.bind(primitive, refs, static)[: len(primitive.outputs)]


NUMERIC = frozenset(
    (
        *("c", "exponent", "lo", "hi", "eps", "value", "alpha", "beta", "negative_slope", "width", "threshold"),
        *("label_smoothing", "momentum", "weight_decay", "beta1", "beta2", "rho"),
    )
)
"""Static parameters of any op that are numbers."""

FLAGS = frozenset(
    (
        *("keepdims", "exclusive", "reverse", "descending", "lower", "transpose", "count_include_pad", "causal"),
        *("nesterov", "replicated"),
    )
)
"""Static parameters of any op that are booleans."""

_PLAIN = frozenset((int, float, bool, tuple))


def _plainly(static: Static, op: str) -> Static:
    """Convert NumPy numbers in the static parameters of a user's call; values of a wrong type become invalid."""
    return {name: _checked(plain(value), name, op) for name, value in static.items()}


def _checked(value: Any, name: str, op: str) -> Any:
    if name in NUMERIC:
        return _number(value, name, op)
    if name in FLAGS:
        return _flag(value, name, op)
    try:
        hash(value)  # interpreters cache calls by static parameters
    except TypeError:
        return InvalidStatic(f"{name} must be a value that never changes but is {brief(value)}", op)
    return value


def _flag(value: Any, name: str, op: str) -> Any:
    if isinstance(value, InvalidStatic):
        return value
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    return InvalidStatic(f"{name} must be True or False but is {brief(value)}", op)


def _number(value: Any, name: str, op: str) -> Any:
    if isinstance(value, (int, float, Fraction, DimExpr, DimFloat, InvalidStatic)):
        return value
    if hasattr(value, "shape"):
        return InvalidStatic(
            f"{name} is a tensor, and must be a number: it is part of the program, not of its data", op
        )
    return InvalidStatic(f"{name} must be a number but is {value!r}", op)
