"""Finds the op that first produced a non-finite value (`Options.detect_anomaly`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
from typing_extensions import override

from ..ops.errors import LocatedError, SourceLine, user_frame
from ..ops.primitive import Primitive, R, Static
from ..ops.spec import Spec, as_specs
from ..options import Options
from .control_flow import CONTROL
from .interpreter import BaseInterpreter
from .remat import REMAT
from .transparent import Transparent


class AnomalyError(LocatedError, ArithmeticError):
    """An op returned nan or inf for finite operands."""


@final
class AnomalyWatch(Transparent[R]):
    """A base interpreter that checks every result of another one, and stops at the first that is not finite.

    It shares the refs of `inner`. Ops that contain an infinity on purpose (a mask's -inf as a static number) are
    allowed, and so are results whose operands were already non-finite.
    """

    __slots__ = ("_options", "_found_at")

    def __init__(self, inner: BaseInterpreter[R], options: Options | None = None):
        """`options` are those with which a program runs on shapes to find the line of an op."""
        super().__init__(inner)
        self._options = options
        self._found_at: int | None = None

    @override
    def execute(self, program: Callable[..., tuple[R, ...]], refs: tuple[R, ...], step: int = 0) -> tuple[R, ...]:
        """Give an anomaly in a backward pass the line of its forward op."""
        try:
            return super().execute(program, refs, step)
        except AnomalyError as error:
            if error.source is None and self._options is not None:
                specs = [as_specs(np.broadcast_to(np.zeros((), ref.dtype), ref.shape)) for ref in refs]
                error.source = find_source(program, specs, self._options, self._found_at or 0)
            raise

    @override
    def bind(self, primitive: Primitive, refs: tuple[R, ...], static: Static, /) -> tuple[R, ...]:
        if primitive in (*CONTROL, REMAT) and primitive.decomposition is not None:  # to see the ops of its body
            return primitive.decomposition(self, *refs, **static)
        outs = self.inner.bind(primitive, refs, static)
        finite = [self._finite(out) for out in outs]
        if all(finite) or _requests_infinity(static) or not all(self._finite(ref) for ref in refs):
            return outs
        cursor = self.cursor
        bad = np.asarray(self.inner.get(outs[finite.index(False)]))
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(bad))[0])
        phase = "the backward pass of the op" if cursor.quiet or cursor.backward else "the op"
        self._found_at = cursor.ordinal if cursor.quiet else None
        error = AnomalyError(
            f"{primitive} gave {bad[where]} at index {where} from finite operands, "
            f"in {phase} numbered {cursor.ordinal}",
            op=primitive.name,
            region=cursor.region.name,
        )
        if cursor.quiet:
            error.source = None
        raise error

    def _finite(self, ref: R) -> bool:
        value = np.asarray(self.inner.get(ref))
        return value.dtype.kind != "f" or bool(np.isfinite(value).all())


def watched(base: BaseInterpreter[R], options: Options) -> BaseInterpreter[R]:
    """Return `base`, wrapped in an AnomalyWatch if the options request it and `base` has values to check."""
    return AnomalyWatch(base, options) if options.detect_anomaly and base.executes else base


def _requests_infinity(static: Static) -> bool:
    return any(isinstance(value, float) and not math.isfinite(value) for value in static.values())


class _Found(Exception):
    pass


def find_source(
    program: Callable[..., Any], specs: Sequence[Spec], options: Options, ordinal: int
) -> SourceLine | None:
    """Return the line of the user's op numbered `ordinal`, found by running the program again on shapes only."""
    from ..interpreters.shape_check.interpreter import ShapeOps

    ops = ShapeOps(options)
    line: list[SourceLine | None] = []
    bind = ops.bind

    @final
    class LineFinder(BaseInterpreter[Any]):
        """Runs on shapes up to the op."""

        adopt = staticmethod(ops.adopt)
        const = staticmethod(ops.const)
        put = staticmethod(ops.put)
        get = staticmethod(ops.get)

        def bind(self, primitive: Primitive, refs: tuple[Any, ...], static: Static, /) -> tuple[Any, ...]:
            if not self.cursor.quiet and self.cursor.ordinal == ordinal:
                line.append(user_frame())
                raise _Found
            return bind(primitive, refs, static)

    finder = LineFinder(ops.dtype, ops.seed, ops.cursor)
    try:
        program(finder, *ops.declare(specs, [""] * len(specs)))
    except _Found:
        return line[0]
    return None
