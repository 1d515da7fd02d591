"""The interpreter whose refs are pairs: a lower and an upper bound of every value that a program may give.

A ref contains the exact real value and the value of a run in floating point, for every input in the box. Parameters,
constants and what ops like `maximum` choose among them are *points*: both ends are one ref. An end that is nan says
that nothing is known, not even that the value is a number; nan spreads by itself through what is computed from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, final

from typing_extensions import override

from ...ops.catalogue.logic import CAST
from ...ops.cursor import Quietly
from ...ops.errors import ProgramError, UnsupportedError
from ...ops.infix import Infix
from ...ops.kinds import Effect, Kind
from ...ops.primitive import Primitive, R, Static
from ...ops.types import DType, Shape, TensorType, is_float
from ..interpreter import Interpreter, Wrapper
from .rounding import eps_of
from .whole import bounds_at_once


@final
class Interval(Infix, Generic[R]):
    """A ref of `Intervals`: two refs of the inner interpreter, of one type; of masks False is below True."""

    __slots__ = ("lower", "upper", "ops")

    def __init__(self, lower: R, upper: R, ops: Intervals[R]):
        self.lower = lower
        self.upper = upper
        self.ops = ops

    @property
    @override
    def shape(self) -> Shape:
        shape: Shape = self.lower.shape
        return shape

    @property
    @override
    def dtype(self) -> DType:
        dtype: DType = self.lower.dtype
        return dtype

    @property
    def point(self) -> bool:
        """Whether the value is known exactly."""
        return self.lower is self.upper


@final
class Intervals(Wrapper[Interval[R], R]):
    """Bounds by interval arithmetic with outward rounding; what it computes are programs of the inner interpreter.

    Raises UnsupportedError at an op for which there is neither a rule nor a decomposition.
    """

    __slots__ = ()
    ref_type = Interval
    misplaced = "a ref of bounds was used outside of them; return it from the bounded function instead"

    def __init__(self, inner: Interpreter[R]):
        super().__init__(inner, differentiates=False)
        eps_of(inner.dtype)

    @override
    def wrap(self, value: R, /) -> Interval[R]:
        return Interval(value, value, self)

    def between(self, lower: R, upper: R) -> Interval[R]:
        """A ref that may be anything from `lower` to `upper`."""
        return Interval(lower, upper, self)

    def unknown(self, type: TensorType) -> Interval[R]:
        """A ref of which nothing is known."""
        nan = self.inner.full(shape=type.shape, value=float("nan"), dtype=type.dtype)
        return self.between(nan, self.inner.neg(nan))

    @override
    def bind(self, primitive: Primitive, refs: tuple[Interval[R], ...], static: Static, /) -> tuple[Interval[R], ...]:
        if self.closed:
            raise ProgramError(self.closed)
        refs = tuple([r if type(r) is Interval and r.ops is self else self.adopt(r) for r in refs])
        if not self.cursor.quiet:
            self.infer(primitive, tuple([TensorType(r.shape, r.dtype) for r in refs]), static)
        from .rules import EXACT, OPEN_INTEGERS, RULES

        points = all(r.point for r in refs)
        layout = primitive.kind is Kind.LAYOUT
        whole = primitive.core and primitive is not CAST and not any(is_float(r.dtype) for r in refs)
        exact = primitive in EXACT or layout or whole
        with Quietly(self.cursor):
            if points and exact:
                lower = self.inner.bind(primitive, tuple([r.lower for r in refs]), static)
                return tuple([self.wrap(value) for value in lower])
            if not layout and primitive not in OPEN_INTEGERS:
                for r in refs:
                    if not r.point and not is_float(r.dtype):
                        raise self.refusal(primitive, f"an operand of dtype {r.dtype} that the box leaves open")
            rule = RULES.get(primitive)
            if rule is not None:
                found: Sequence[Interval[R]] | None = bounds_at_once(self, primitive, refs, static, rule)
                return tuple(rule(self, refs, static) if found is None else found)
            if layout:
                lowers = self.inner.bind(primitive, tuple([r.lower for r in refs]), static)
                uppers = self.inner.bind(primitive, tuple([r.upper for r in refs]), static)
                return tuple([self.between(low, high) for low, high in zip(lowers, uppers)])
        if primitive.decomposition is None or Effect.EXTERNAL in primitive.effects:
            raise self.refusal(primitive, "it")

        def by_parts(bounds: Intervals[R], refs: tuple[Interval[R], ...], static: Static) -> tuple[Interval[R], ...]:
            return bounds.decompose(primitive, refs, static)

        with Quietly(self.cursor):
            fused = bounds_at_once(self, primitive, refs, static, by_parts)
        return self.decompose(primitive, refs, static) if fused is None else fused

    def refusal(self, primitive: Primitive, what: str) -> UnsupportedError:
        """The error for an op, or for one on `what`, that has no bounds."""
        return UnsupportedError(
            f"there are no bounds of {primitive} for {what}: it has no rule in interpreters/intervals, and is made of "
            "no ops that have; bound the part of the program before it",
            op=primitive.name,
            region=self.cursor.region.name,
        )
