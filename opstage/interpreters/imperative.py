"""A base interpreter for code that is not a program: ops come one by one, whenever a user's own code calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, final

import numpy as np
from typing_extensions import override

from ..ops.errors import SourceLine, UsageError, user_frame
from ..ops.primitive import NO_STATIC, Primitive, R, Static
from ..ops.spec import Spec
from ..ops.types import DType
from .anomaly import AnomalyError
from .interpreter import BaseInterpreter, Interpreter

F = TypeVar("F", bound=Callable[..., Any])


def _without_warnings(method: F) -> F:
    """log 0 is -inf and sqrt -1 is nan, without a warning, as `execute` has it for programs."""
    return np.errstate(all="ignore")(method)


@final
class Imperative(Interpreter[R]):
    """Stands between `inner` and a user who calls ops one by one, and gives what `execute` gives to a program.

    NumPy's warnings stay inside. Arrays are copied on the way in, since the user may write to them before they are
    read again, in a backward pass, say. With `lines`, the user's line is remembered for every op: there is no program
    that could be run again to find where an anomaly comes from. The refs are those of `inner`.
    """

    __slots__ = ("inner", "_lines")

    def __init__(self, inner: BaseInterpreter[R], *, lines: bool = False):
        super().__init__(inner.cursor, inner.dtype, inner.seed, inner.depth, inner.differentiates)
        self.inner = inner
        self._lines: dict[int, SourceLine | None] | None = {} if lines else None

    def put(self, value: Any, /) -> R:
        """A value from what the user gave; a Spec is taken by the shape checker alone."""
        return self.inner.put(value if isinstance(value, Spec) else own_array(value))

    @override
    def adopt(self, ref: Any, /) -> R:
        return self.inner.adopt(ref)

    @override
    def const(self, value: Any, /, *, dtype: str | DType | None = None) -> R:
        return self.inner.const(own_array(value), dtype=dtype)

    @override
    def step(self) -> R:
        return self.inner.step()

    @override
    @_without_warnings
    def bind1(self, primitive: Primitive, x: R, /) -> R:
        if self._lines is not None:
            return self._traced(primitive, (x,), NO_STATIC)[0]
        return self.inner.bind1(primitive, x)

    @override
    @_without_warnings
    def bind2(self, primitive: Primitive, x: R, y: R, /) -> R:
        if self._lines is not None:
            return self._traced(primitive, (x, y), NO_STATIC)[0]
        return self.inner.bind2(primitive, x, y)

    @override
    @_without_warnings
    def bind(self, primitive: Primitive, refs: tuple[R, ...], static: Static, /) -> tuple[R, ...]:
        if self._lines is not None:
            return self._traced(primitive, refs, static)
        return self.inner.bind(primitive, refs, static)

    def _traced(self, primitive: Primitive, refs: tuple[R, ...], static: Static) -> tuple[R, ...]:
        """Bind, and place an anomaly at the line of the op that this one serves, perhaps in its backward pass."""
        assert self._lines is not None
        ordinal = self.cursor.ordinal
        if ordinal not in self._lines:
            self._lines[ordinal] = user_frame()
        try:
            return self.inner.bind(primitive, refs, static)
        except AnomalyError as error:
            if error.source is None:
                error.source = self._lines[ordinal]
            raise


def own_array(value: Any) -> np.ndarray[Any, Any]:
    """A copy of `value` as an array; a UsageError for what is none."""
    try:
        return np.array(value)
    except ValueError as error:
        raise UsageError(f"not an array: {error}") from None
