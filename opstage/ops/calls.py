"""`Calls`: turns methods of `Ops` into calls of `bind`."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, final

from .dims import DimExpr, DimFloat
from .invalid_static import InvalidStatic
from .numbers import plain
from .primitive import NO_STATIC, Primitive, R, Static
from .structure import Structure
from .untrusted import brief

NUMERIC: set[str] = set()
"""Static parameters that are numbers, by the annotations of the methods."""

FLAGS: set[str] = set()
"""Static parameters that are booleans, likewise."""

_PLAIN = frozenset((int, float, bool, tuple))


class Calls(Structure[R]):
    """Connects user-level ops to `bind`: counts the op on the cursor, unless a rule is running, and binds it.

    `bind1`, `bind2`, `bind3` are for ops of fixed arity with one output and no residuals or static parameters. They
    default to `bind`; performance-critical interpreters override them.
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if Calls in cls.__bases__:  # a family of methods
            for method in vars(cls).values():
                for name, annotation in getattr(method, "__annotations__", {}).items():
                    if annotation in ("Number", "float"):
                        NUMERIC.add(name)
                    elif annotation == "bool":
                        FLAGS.add(name)

    def bind1(self, primitive: Primitive, x: R, /) -> R:
        return self.bind(primitive, (x,), NO_STATIC)[0]

    def bind2(self, primitive: Primitive, x: R, y: R, /) -> R:
        return self.bind(primitive, (x, y), NO_STATIC)[0]

    def bind3(self, primitive: Primitive, x: R, y: R, z: R, /) -> R:
        return self.bind(primitive, (x, y, z), NO_STATIC)[0]

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
