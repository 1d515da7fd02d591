"""The interpreter whose refs are pairs: a lower and an upper bound of every value that a program may compute.

A ref contains the exact real value and the value of a run in floating point, for every input in the box. Parameters,
constants and selections among them, such as by `maximum`, are *points*: both ends are one ref. An end that is nan means
that nothing is known, not even that the value is a number; nan propagates through all computations from it.

Rounding. The ends of an interval are computed on the same interpreter as the program, so they are rounded as well. Each
end moves outward by two errors: its own and that of the value in a run. The error of an elementwise op is stated in
ulps. The error of a sum of n products in any order is gamma_n = n·u / (1 - n·u) times the sum of magnitudes (Higham,
Accuracy and Stability of Numerical Algorithms, 2nd edition, section 3.1). A number below the smallest normal one may
have lost all its digits, so that much is added wherever a result may underflow. Overflow becomes nan: inf - inf in
`down` and `overflow`. Partial sums in any order are at most the sum of magnitudes. So if that sum overflows, a run may
pass through infinity or nan on the way to a finite total.

Kernels. An elementwise rule makes up to twenty passes over memory, that of a softmax as many. So a rule, or a part of
one, is traced once as a composite: an interpreter that `fuses` makes as many passes as the composite has loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeAlias, final

from typing_extensions import override

from ...ops.catalogue import own
from ...ops.dispatch import Quietly
from ...ops.errors import ProgramError, UnsupportedError
from ...ops.infix import Infix
from ...ops.logic import CAST
from ...ops.primitive import Effect, Kind, Primitive, R, Static, distinct
from ...ops.types import FLOAT32, FLOAT64, DType, Shape, TensorType, dtype_name, is_float
from ...transforms.fused_call import Program, fused_call
from ...transforms.interpreter import Interpreter, Variable, Wrapper
from ...transforms.tracer import Tracer


@final
class Interval(Infix, Generic[R]):
    """A ref of `Intervals`: two refs of the inner interpreter, of one type; for masks, False is below True."""

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
        """Return whether the value is known exactly."""
        return self.lower is self.upper


@final
class Intervals(Wrapper[Interval[R], R]):
    """Bounds by interval arithmetic with outward rounding, computed as programs of the inner interpreter.

    Raises:
        UnsupportedError: an op has neither a rule nor a decomposition.
    """

    __slots__ = ()
    ref_type = Interval
    misplaced = "a ref of bounds was used outside of them; return it from the bounded function instead"

    def __init__(self, inner: Interpreter[R]):
        super().__init__(inner, differentiates=False)
        epsilon(inner.dtype)

    @override
    def wrap(self, value: R, /) -> Interval[R]:
        return Interval(value, value, self)

    def between(self, lower: R, upper: R) -> Interval[R]:
        """Return a ref that may be anything from `lower` to `upper`."""
        return Interval(lower, upper, self)

    def unknown(self, type: TensorType) -> Interval[R]:
        """Return a ref without known bounds."""
        nan = self.inner.full(shape=type.shape, value=float("nan"), dtype=type.dtype)
        return self.between(nan, self.inner.neg(nan))

    @override
    def bind(self, primitive: Primitive, refs: tuple[Interval[R], ...], static: Static, /) -> tuple[Interval[R], ...]:
        if self.closed:
            raise ProgramError(self.closed)
        refs = tuple([r if type(r) is Interval and r.ops is self else self.adopt(r) for r in refs])
        if not self.cursor.quiet:
            self.infer(primitive, tuple([TensorType(r.shape, r.dtype) for r in refs]), static)
        from . import EXACT, OPEN_INTEGERS, RULES

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
                        raise self.refusal(primitive, f" for an operand of dtype {r.dtype} that the box leaves open")
            rule = RULES.get(primitive)
            if rule is not None:
                found: Sequence[Interval[R]] | None = bounds_at_once(self, primitive, refs, static, rule)
                return tuple(rule(self, refs, static) if found is None else found)
            if layout:
                return self.at_ends(primitive, refs, static)
        if primitive.decomposition is None or Effect.EXTERNAL in primitive.effects:
            raise self.refusal(primitive)

        def by_parts(bounds: Intervals[R], refs: tuple[Interval[R], ...], static: Static) -> tuple[Interval[R], ...]:
            return bounds.decompose(primitive, refs, static)

        with Quietly(self.cursor):
            fused = bounds_at_once(self, primitive, refs, static, by_parts)
        return self.decompose(primitive, refs, static) if fused is None else fused

    def at_ends(self, primitive: Primitive, refs: Sequence[Interval[R]], static: Static) -> tuple[Interval[R], ...]:
        """Return the results of an op that is nondecreasing in each operand: those of the ends."""
        lowers = self.inner.bind(primitive, tuple([r.lower for r in refs]), static)
        uppers = self.inner.bind(primitive, tuple([r.upper for r in refs]), static)
        return tuple([self.between(low, high) for low, high in zip(lowers, uppers)])

    def refusal(self, primitive: Primitive, what: str = "") -> UnsupportedError:
        """Return the error for an op without bounds; `what` follows its name."""
        return UnsupportedError(
            f"bounds of {primitive}{what} are not supported: neither it nor its decomposition has a rule in "
            "analysis/intervals. Bound the part of the program before it.",
            op=primitive.name,
            region=self.cursor.region.name,
        )


def rising(primitive: Primitive) -> Callable[..., tuple[Interval[Any], ...]]:
    """Return the rule of an op that is nondecreasing in each operand and does not round."""
    return lambda bounds, refs, static: bounds.at_ends(primitive, refs, static)


# Outward rounding -----------------------------------------------------------------------------------------------------


EPS = {FLOAT32: 2.0**-23, FLOAT64: 2.0**-52}
"""The distance from 1 to the next number; half of it is the unit roundoff u."""
TINY = {FLOAT32: 2.0**-124, FLOAT64: 2.0**-1020}
"""More than the smallest normal number: the loss of an underflow."""


def epsilon(dtype: DType) -> float:
    """Return the distance from 1 to the next number of a dtype.

    Raises:
        UnsupportedError: the rounding of the dtype is not known.
    """
    if dtype not in EPS:
        raise UnsupportedError(f"bounds in {dtype_name(dtype)} are not supported. Use float32 or float64.")
    return EPS[dtype]


def gamma(dtype: DType, terms: int, more: int = 4) -> float:
    """Return gamma_n for a sum of `terms` products: its error relative to the sum of magnitudes.

    more   additional roundings, of operations on the sum and on its bound

    Raises:
        UnsupportedError: the error of a sum of this many terms has no useful bound.
    """
    n = (terms + more) * epsilon(dtype) / 2
    if n >= 0.25:
        raise UnsupportedError(
            f"bounds of a sum of {terms} terms are not supported in {dtype_name(dtype)}. Use float64."
        )
    return n / (1 - n)


def slack(ops: Any, magnitude: Any, ulps: float, *, underflows: bool = True) -> Any:
    """Return the error of a number and of its bound together, each of `ulps` ulps of `magnitude`."""
    error = ops.scale(magnitude, c=(2 * ulps + 2) * epsilon(magnitude.dtype))
    return ops.clamp(error, lo=TINY[magnitude.dtype], hi=float("inf")) if underflows else error


def down(ops: Any, x: Any, ulps: float = 0.5, *, underflows: bool = True, of: Any = None) -> Any:
    """Return a lower bound of a result computed as x, within `ulps` ulps of itself or of the magnitude `of`."""
    return ops.sub(x, slack(ops, ops.abs(x) if of is None else of, ulps, underflows=underflows))


def up(ops: Any, x: Any, ulps: float = 0.5, *, underflows: bool = True, of: Any = None) -> Any:
    """Return an upper bound, likewise."""
    return ops.add(x, slack(ops, ops.abs(x) if of is None else of, ulps, underflows=underflows))


def overflow(ops: Any, size: Any, factor: float = 1.0) -> Any:
    """Return 0, or nan where `factor` times a magnitude overflows."""
    most = ops.scale(size, c=factor)
    return ops.sub(most, most)


def rounded_ends(ops: Any, lower: Any, upper: Any) -> tuple[Any, Any]:
    """Return the ends of an interval; nan for one from -inf to inf, whose value may be nan."""
    both = ops.add(ops.scale(lower, c=0.5), ops.scale(upper, c=0.5))  # nan for -inf + inf, and if an end is nan
    known = ops.equal(both, both)
    return ops.select(known, lower, both), ops.select(known, upper, both)


# Bounds by few kernels ------------------------------------------------------------------------------------------------


Rule: TypeAlias = "Callable[[Intervals[Any], tuple[Interval[Any], ...], Static], Sequence[Interval[Any]]]"

_LEAST_SIZE = 1 << 12
"""Elements of the largest operand; no interpreter fuses fewer, so nothing is traced."""


def by_one_kernel(
    ops: Interpreter[Any], key: Hashable, name: str, program: Program, refs: Sequence[Any]
) -> tuple[tuple[Any, ...], Any] | None:
    """Return the result of `fused_call` if the operands are large enough and the interpreter fuses, so sizes are
    numbers.
    """
    if not ops.fuses or max([math.prod(ref.shape) for ref in refs], default=0) < _LEAST_SIZE:
        return None
    return fused_call(ops, key, name, program, refs)


def bounds_at_once(
    bounds: Intervals[Any], primitive: Primitive, refs: Sequence[Interval[Any]], static: Static, rule: Rule
) -> tuple[Interval[Any], ...] | None:
    """Return `rule(bounds, refs, static)` by one kernel; None if the inner interpreter has none for it."""
    if not bounds.inner.fuses or primitive.kind is Kind.LAYOUT or primitive.effects or primitive not in own():
        return None
    apart = list({id(ref): ref for ref in refs}.values())
    places = {id(ref): at for at, ref in enumerate(apart)}
    operands = tuple([places[id(ref)] for ref in refs])  # a rule may compare operands by identity
    points = tuple([ref.point for ref in apart])

    def program(tracer: Tracer[Any], ends: Sequence[Variable]) -> tuple[list[Variable], tuple[bool, ...]]:
        inner, given = type(bounds)(tracer), iter(ends)
        pairs = [inner.between(low, low if point else next(given)) for point, low in zip(points, given)]
        found = rule(inner, tuple([pairs[at] for at in operands]), static)
        return _ends(found), tuple([each.point for each in found])

    key = (primitive, operands, points, bounds.dtype, *static.values(), *distinct(static))
    done = by_one_kernel(bounds.inner, key, f"{primitive.name}_bounds", program, _ends(apart))
    if done is None:
        return None
    results = iter(done[0])
    return tuple([bounds.between(low, low if point else next(results)) for point, low in zip(done[1], results)])


def _ends(refs: Sequence[Interval[Any]]) -> list[Any]:
    """Return both ends of each ref in order, one end of a point."""
    return [end for ref in refs for end in ((ref.lower,) if ref.point else (ref.lower, ref.upper))]
