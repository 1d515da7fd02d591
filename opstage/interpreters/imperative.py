"""A base interpreter for code that is not a program: ops come one by one, whenever a user's own code calls them."""

from __future__ import annotations

from contextvars import copy_context
from typing import Any, final

import numpy as np
from typing_extensions import override

from ..ops.errors import SourceLine, UsageError, user_frame
from ..ops.primitive import NO_STATIC, Primitive, R, Static
from ..ops.types import DType
from .anomaly import AnomalyError
from .interpreter import BaseInterpreter
from .transparent import Transparent


@final
class Imperative(Transparent[R]):
    """Stands between `inner` and a user who calls ops one by one, and gives what `execute` gives to a program.

    NumPy's warnings stay inside. Arrays become constants by copy, since the user may write to them before they are
    read again, in a backward pass, say. With `lines`, the user's line is remembered for every op: there is no program
    that could be run again to find where an anomaly comes from.
    """

    __slots__ = ("_lines", "_quietly")

    def __init__(self, inner: BaseInterpreter[R], *, lines: bool = False):
        super().__init__(inner)
        self._lines: dict[int, SourceLine | None] | None = {} if lines else None
        # NumPy keeps its error state in a context variable: entering a context costs 0.05 µs, np.errstate 1 µs
        self._quietly = copy_context().run
        self._quietly(np.seterr, all="ignore")

    def begin(self, step: int) -> None:
        """Start anew, as a program does: from a fresh cursor, at training step `step`."""
        if self._lines is not None:
            self._lines = {}
        self.execute(lambda ops: (), (), step)

    @override
    def const(self, value: Any, /, *, dtype: str | DType | None = None) -> R:
        return self.inner.const(own_array(value), dtype=dtype)

    @override
    def bind1(self, primitive: Primitive, x: R, /) -> R:
        if self._lines is not None:
            return self.bind(primitive, (x,), NO_STATIC)[0]
        return self._quietly(self.inner.bind1, primitive, x)

    @override
    def bind2(self, primitive: Primitive, x: R, y: R, /) -> R:
        if self._lines is not None:
            return self.bind(primitive, (x, y), NO_STATIC)[0]
        return self._quietly(self.inner.bind2, primitive, x, y)

    @override
    def bind(self, primitive: Primitive, refs: tuple[R, ...], static: Static, /) -> tuple[R, ...]:
        return self._quietly(self.inner.bind if self._lines is None else self._traced, primitive, refs, static)

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
