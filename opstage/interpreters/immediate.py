"""Sessions whose ops run at once, and the choice between those and deferred ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any, final

import numpy as np
from typing_extensions import override

from ..ops.errors import SourceLine, user_frame
from ..ops.primitive import NO_STATIC, Primitive, R, Static
from ..ops.types import DType
from ..options import Options
from ..transforms.anomaly import AnomalyError, watched
from ..transforms.interpreter import BaseInterpreter
from ..transforms.transparent import Imperative, Moment, own_array
from .registry import make_interpreter


@final
class Immediate(Imperative[R]):
    """Runs each op at once, on `inner`.

    NumPy's warnings are suppressed. Arrays become constants by copy, since the user may write to them before they are
    read again, for example in a backward pass. With `lines`, the user's line is stored for every op: no program can run
    again to find the source of an anomaly.
    """

    __slots__ = ("_lines", "_quietly")

    def __init__(self, inner: BaseInterpreter[R], *, lines: bool = False):
        super().__init__(inner)
        self._lines: dict[int, SourceLine | None] | None = {} if lines else None
        # NumPy keeps its error state in a context variable: entering a context costs 0.05 µs, np.errstate 1 µs
        self._quietly = copy_context().run
        self._quietly(np.seterr, all="ignore")

    @property
    @override
    def store(self) -> BaseInterpreter[R]:
        return self

    @override
    def begin(self, step: int) -> None:
        if self._lines is not None:
            self._lines = {}
        self.execute(lambda ops: (), (), step)

    @override
    def lift(self, value: R) -> R:
        return value

    @override
    def live(self, read: Callable[[], Any]) -> R:
        return self.put(read())

    @override
    def fetch(self, refs: Sequence[R], moment: Moment | None = None) -> Sequence[R]:
        return refs

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
        """Bind an op, and attribute an anomaly to the user's line of the op it belongs to, also in a backward pass."""
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


def make_imperative(options: Options) -> Imperative[Any]:
    """Return the interpreter that `options` select: immediate or, with backend "compiled", deferred until a value is
    read."""
    options.require_one_rank("a session")
    own: Any = make_interpreter(options)
    base = watched(own, options)
    if options.backend == "compiled":
        from .graph.compiled import Deferred

        return Deferred(base, own.compile, options)
    return Immediate(base, lines=options.detect_anomaly and base.executes)
