"""Functions of one element: a line below and one above, over the interval of the operand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...ops.activation import GELU, LEAKY_RELU, MISH, RELU, SILU
from ...ops.elementwise import COS, ERF, EXP, INV, LOG, POW, SIGMOID, SIN, SOFTPLUS, SQRT, TANH
from ...ops.primitive import Primitive, Static
from ...ops.transcendental import ATAN
from ...ops.types import FLOAT64, DType
from ..intervals.elementwise import FACTOR_ERRORS, WAVE_ERROR, full_like, greatest, least
from ..intervals.interpreter import TINY, Interval, epsilon
from ..monotone_functions import MONOTONE
from .interpreter import Related, Relaxed, ReluRegion, by_sign, double, magnitude, rounded


class Lines(NamedTuple):
    """Lines s·x + t below and above a function."""

    slope_below: Any
    below: Any
    slope_above: Any
    above: Any


Function = Callable[[Any], Any]


def _related(
    relaxed: Relaxed[Any], x: Related[Any], lines: Lines, ulps: float, out: Interval[Any], size: Any, added: Any = None
) -> tuple[Related[Any]]:
    """Return the ref of a function between two lines, moved apart by an error of `ulps` eps of all their terms.

    The terms are the slope times the operand, the constant, and `size`. `added` to the coefficients of the operand
    lowers no sum that is bounded from below, see `phases`; the sum of both rounds where they meet.
    """
    ops = relaxed.inner
    slope = _steepest(ops, lines, x.dtype)
    constants = ops.maximum(ops.abs(lines.below), ops.abs(lines.above))
    size = ops.add(ops.add(ops.mul(slope, magnitude(ops, x.interval)), constants), size)
    below, above = rounded(ops, lines.below, lines.above, size, ulps * epsilon(x.dtype))

    def pull(ops: Any, a: Any) -> Sequence[Any]:
        own = ops.mul(a, by_sign(ops, a, lines.slope_below, lines.slope_above))
        return [own] if added is None else [own, ops.neg(added)]

    sources = [x] if added is None else [x, x]
    return (relaxed.related(out, sources, pull, below, above),)


class Curve(NamedTuple):
    """A function over an interval, in float64.

    f       (ops) -> the function of a tensor on that interpreter
    low     the ends of the interval; `high` likewise
    dtype   of the operand, in which slopes are numbers
    out     the interval of the results
    """

    f: Function
    low: Any
    high: Any
    dtype: DType
    out: Interval[Any]


class CurveLines(NamedTuple):
    """Lines below and above a curve, computed in float64, and their errors.

    ulps   the error of the lines, in eps of float64, relative to `size` and all other terms of the lines
    run    the error of a run, in eps of the operand's dtype
    """

    lines: Lines
    ulps: float
    size: Any
    run: Any


def _by_lines(primitive: Primitive, find: Callable[[Any, Curve], CurveLines]) -> Callable[..., Any]:
    """Return the rule of a function for which `find(ops, curve)` computes lines."""

    def rule(relaxed: Relaxed[Any], refs: Any, static: Static, intervals: Sequence[Interval[Any]]) -> Any:
        (x,), ops = refs, relaxed.inner
        interval = relaxed.tighten(x)
        out = relaxed.intervals.bind(primitive, (interval,), static)[0]

        def f(ops: Any) -> Function:
            return lambda x: ops.bind(primitive, (x,), static)[0]

        curve = Curve(f, double(ops, interval.lower), double(ops, interval.upper), x.dtype, out)
        return _between_lines(relaxed, x, curve, find(ops, curve))

    return rule


def _between_lines(relaxed: Relaxed[Any], x: Related[Any], curve: Curve, found: CurveLines) -> tuple[Related[Any]]:
    """Return the ref of a curve between two lines, whose slopes are rounded to the dtype of x.

    Rounding to that dtype moves a result by three errors, each relative to eps, the distance from 1 to the next number:

    - the error `run` of a run;
    - the slope times the operand, since the backward pass rounds the product of a coefficient and the slope;
    - the slope times the width of the operand's interval, since the rounded slope s' belongs to another line through
      the point p where s touches: f(t) ≥ f(p) + s·(t - p) leaves f(t) - s'·t ≥ f(p) - s'·p - |s' - s|·|t - p|.

    Constants stay in float64, in which the backward pass adds them.

    A kernel of x's dtype may overflow where one of float64 does not, so a result that is not finite has no bounds.
    """
    ops, lines, out = relaxed.inner, found.lines, curve.out
    slope = _steepest(ops, lines, x.dtype)
    leaning = ops.mul(slope, ops.maximum(ops.abs(curve.low), ops.abs(curve.high)))
    constants = ops.maximum(ops.abs(lines.below), ops.abs(lines.above))
    exactly = ops.scale(ops.add(ops.add(leaning, constants), found.size), c=(found.ulps + 4) * epsilon(FLOAT64))
    turned = ops.mul(slope, ops.sub(curve.high, curve.low))
    coarsely = ops.scale(ops.add(ops.add(leaning, turned), found.run), c=epsilon(x.dtype) * (1 + 2**-20))
    lost = ops.add(ops.add(exactly, coarsely), TINY[x.dtype])
    nothing = double(ops, ops.add(ops.sub(out.lower, out.lower), ops.sub(out.upper, out.upper)))  # 0, else nan
    below, above = ops.sub(lines.below, ops.add(lost, nothing)), ops.add(lines.above, ops.add(lost, nothing))
    slopes = [ops.cast(each, dtype=x.dtype) for each in (lines.slope_below, lines.slope_above)]

    def pull(ops: Any, a: Any) -> Sequence[Any]:
        return [ops.mul(a, by_sign(ops, a, *slopes))]

    return (relaxed.related(out, [x], pull, below, above),)


def _steepest(ops: Any, lines: Lines, dtype: DType) -> Any:
    """Return the greater of both slopes, at least a slope whose rounding equals the underflow of a slope."""
    slope = ops.maximum(ops.abs(lines.slope_below), ops.abs(lines.slope_above))
    return ops.clamp(slope, lo=TINY[dtype] / epsilon(dtype), hi=float("inf"))


def _round_slope(ops: Any, slope: Any, dtype: DType) -> Any:
    """Return a slope in float64, rounded to a number of another dtype."""
    return slope if dtype == FLOAT64 else double(ops, ops.cast(slope, dtype=dtype))


def _chord(ops: Any, low: Any, high: Any, at_low: Any, at_high: Any) -> Any:
    """Return the slope between both ends; 0 if they are equal, which suits any line through them."""
    wide = ops.less(low, high)
    width = ops.select(wide, ops.sub(high, low), full_like(ops, low, 1.0))
    slope = ops.div(ops.sub(at_high, at_low), width)
    finite = ops.less(ops.abs(slope), full_like(ops, slope, float("inf")))
    return ops.select(ops.logical_and(wide, finite), slope, full_like(ops, slope, 0.0))


def _slopes(ops: Any, f: Function, x: Any) -> Any:
    """Return the derivative by the op's own rule; the bounds hold for any slope, so its rounding does not matter."""
    _, pullback = ops.vjp_of(lambda inner, x: f(inner)(x), x)
    return pullback(full_like(ops, x, 1.0))[0]


def _piecewise(ops: Any, x: Interval[Any], slope: float, chosen: Any = None) -> Lines:
    """Return lines of max(x, slope·x), for a slope from 0 to 1: the chord above, and the nearer of its two lines below.

    Any line between those two is below as well: `chosen` is its slope where the operand may have either sign.
    """
    low, high = x.lower, x.upper
    zero, one, flat = full_like(ops, low, 0.0), full_like(ops, low, 1.0), full_like(ops, low, slope)
    at_low, at_high = ops.maximum(low, ops.scale(low, c=slope)), ops.maximum(high, ops.scale(high, c=slope))
    chord = _chord(ops, low, high, at_low, at_high)
    dead, alive = ops.less_equal(high, zero), ops.less_equal(zero, low)
    chord = ops.select(alive, one, ops.select(dead, flat, chord))
    above = greatest(ops, ops.sub(at_low, ops.mul(chord, low)), ops.sub(at_high, ops.mul(chord, high)))
    above = ops.select(ops.logical_or(dead, alive), zero, above)
    nearer = ops.select(ops.less(ops.neg(low), high), one, flat)
    if chosen is not None:
        between = ops.clamp(chosen, lo=slope, hi=1.0)
        nearer = ops.select(ops.logical_or(dead, alive), chord, between)
    return Lines(nearer, zero, chord, above)


def _relu(relaxed: Relaxed[Any], refs: Any, static: Static, intervals: Sequence[Interval[Any]]) -> Any:
    slope = float(static.get("negative_slope", 0.0))
    if not 0 <= slope <= 1:
        return None
    (x,), ops, out, region = refs, relaxed.inner, intervals[0], ReluRegion(None, None)
    if relaxed.phases is None:
        relaxed.tighten(x)
    else:
        region = relaxed.phases.restrict(relaxed, x)
        out = relaxed.intervals.bind(LEAKY_RELU if slope else RELU, (x.interval,), static)[0]
    lines = _piecewise(ops, x.interval, slope, region.slope)
    return _related(relaxed, x, lines, 4, out, full_like(ops, x.interval.lower, 0.0), region.signed_price)


def _convex(ops: Any, f: Function, low: Any, high: Any, dtype: DType) -> Lines:
    """Return the chord above, and the tangent in the middle below; slopes are numbers of the dtype."""
    middle = ops.add(ops.scale(low, c=0.5), ops.scale(high, c=0.5))
    at_low, at_high, at_middle = f(ops)(low), f(ops)(high), f(ops)(middle)
    chord = _round_slope(ops, _chord(ops, low, high, at_low, at_high), dtype)
    above = greatest(ops, ops.sub(at_low, ops.mul(chord, low)), ops.sub(at_high, ops.mul(chord, high)))
    slope = _round_slope(ops, _slopes(ops, f, middle), dtype)
    below = ops.sub(at_middle, ops.mul(slope, middle))
    return Lines(slope, below, chord, above)


def _turned(ops: Any, lines: Lines) -> Lines:
    """Return the lines of -f from those of f."""
    return Lines(*[ops.neg(each) for each in (lines.slope_above, lines.above, lines.slope_below, lines.below)])


def _curved(primitive: Primitive, sign: int, kernel: float) -> Callable[..., Any]:
    """Return the rule of a function that is convex, or with sign -1 concave, where it is defined.

    kernel   by how many eps of its result a kernel may be off
    """

    def find(ops: Any, curve: Curve) -> CurveLines:
        def f(ops: Any) -> Function:
            return lambda x: curve.f(ops)(x) if sign > 0 else ops.neg(curve.f(ops)(x))

        lines = _convex(ops, f, curve.low, curve.high, curve.dtype)
        size = double(ops, magnitude(ops, curve.out))
        return CurveLines(lines if sign > 0 else _turned(ops, lines), 64, size, ops.scale(size, c=kernel))

    return _by_lines(primitive, find)


_HALVINGS = 24


def _touching(ops: Any, f: Function, low: Any, high: Any, dtype: DType) -> tuple[Any, Any]:
    """Return a line below an odd function that is convex under 0, concave above: a tangent that meets it at `high`, or
    the chord.

    A tangent at d <= 0 that is at most the function at `high` is below it everywhere. So halving finds the last such d;
    if there is none, the chord is below. The constant is the least that the touching points allow.
    """
    zero = full_like(ops, low, 0.0)
    at_low, at_high = f(ops)(low), f(ops)(high)

    def over(d: Any) -> Any:
        return ops.less(at_high, ops.add(f(ops)(d), ops.mul(_slopes(ops, f, d), ops.sub(high, d))))

    first, last = ops.minimum(low, zero), ops.minimum(high, zero)
    steep = over(first)
    kept, lost = first, last
    for _ in range(_HALVINGS):
        middle = ops.add(ops.scale(kept, c=0.5), ops.scale(lost, c=0.5))
        high_there = over(middle)
        kept, lost = ops.select(high_there, kept, middle), ops.select(high_there, middle, lost)
    convex = ops.less_equal(high, zero)
    middle = ops.add(ops.scale(low, c=0.5), ops.scale(high, c=0.5))
    kept = ops.select(convex, middle, kept)
    by_chord = ops.logical_or(ops.less_equal(zero, low), ops.logical_and(steep, ops.logical_not(convex)))
    slope = ops.select(by_chord, _chord(ops, low, high, at_low, at_high), _slopes(ops, f, kept))
    slope = _round_slope(ops, slope, dtype)
    below = least(
        ops,
        ops.sub(at_low, ops.mul(slope, low)),
        ops.sub(at_high, ops.mul(slope, high)),
        ops.select(by_chord, ops.sub(at_low, ops.mul(slope, low)), ops.sub(f(ops)(kept), ops.mul(slope, kept))),
    )
    return slope, below


class Odd(NamedTuple):
    """An S-shaped function that is odd about (0, centre), and the error of its derivative as computed.

    off   in eps, independent of the derivative's magnitude; 12 eps of the derivative itself are allowed for in addition
    """

    centre: float = 0.0
    off: float = 0.0


ODD: dict[Primitive, Odd] = {TANH: Odd(off=12), SIGMOID: Odd(centre=0.5), ERF: Odd(off=2), ATAN: Odd()}
"""1 - y² of tanh has twice the error of y, e^(-x²) of erf that of x²; the others are products of accurate factors."""
_LINES = 12.0


def _s_shaped(primitive: Primitive, odd: Odd) -> Callable[..., Any]:
    """Return the rule of an S-shaped function.

    The lines, in float64, have these errors: that of the kernel, in the constants; of the centre, subtracted and added;
    of a tangent whose slope is off by d, d times the operand, since another point touches it; and of the products, in
    `_LINES`.
    """
    kernel = MONOTONE[primitive].ulps

    def find(ops: Any, curve: Curve) -> CurveLines:
        low, high, dtype = curve.low, curve.high, curve.dtype

        def f(ops: Any) -> Function:
            return lambda x: ops.sub(curve.f(ops)(x), full_like(ops, x, odd.centre))

        shift = full_like(ops, low, odd.centre)
        slope_below, below = _touching(ops, f, low, high, dtype)
        slope_above, above = _touching(ops, f, ops.neg(high), ops.neg(low), dtype)
        lines = Lines(slope_below, ops.add(below, shift), slope_above, ops.sub(shift, above))
        result = double(ops, magnitude(ops, curve.out))
        size = ops.scale(result, c=2 * kernel / _LINES)
        size = ops.add(size, full_like(ops, low, 4 * odd.centre / _LINES))
        if odd.off:
            size = ops.add(size, ops.scale(ops.maximum(ops.abs(low), ops.abs(high)), c=odd.off / _LINES))
        run = of_sigmoid(ops, curve.out) if primitive is SIGMOID else ops.scale(result, c=kernel)
        return CurveLines(lines, _LINES, size, run)

    return _by_lines(primitive, find)


def of_sigmoid(ops: Any, out: Interval[Any]) -> Any:
    """Return the error of a run of sigmoid, in eps: s·(1 + E·(1 - s)) for an exponential with an error of E eps.

    For 1/(1 + e^-x) and e^x/(1 + e^x), the derivative in the logarithm of the exponential is 1 - s of the result. The
    sum and the quotient round by half an eps each. s lies in `out`.
    """
    low, high = double(ops, ops.maximum(out.lower, 0.0)), double(ops, ops.minimum(out.upper, 1.0))
    one = full_like(ops, low, 1.0)
    return ops.mul(high, ops.add(one, ops.scale(ops.sub(one, low), c=MONOTONE[EXP].ulps)))


_PIECES = 32
CURVATURES = {GELU: 1.2, SILU: 0.6, MISH: 0.8, SIN: 1.0, COS: 1.0}
"""An upper bound of the second derivative's magnitude."""


def _smooth(primitive: Primitive, curvature: float) -> Callable[..., Any]:
    """Return the rule of a function whose second derivative is at most `curvature`: two lines with the chord's slope.

    Between points a distance h apart, f is within curvature·h²/8 of the line through its values there. So the extremes
    of f(x) - slope·x are those at the points, up to that distance.
    """

    def find(ops: Any, curve: Curve) -> CurveLines:
        f, low, high = curve.f(ops), curve.low, curve.high
        slope = _round_slope(ops, _chord(ops, low, high, f(low), f(high)), curve.dtype)
        below = above = ops.sub(f(low), ops.mul(slope, low))
        for k in range(1, _PIECES + 1):
            point = ops.add(ops.scale(low, c=1 - k / _PIECES), ops.scale(high, c=k / _PIECES))
            point = ops.minimum(ops.maximum(point, low), high) if k < _PIECES else high
            apart = ops.sub(f(point), ops.mul(slope, point))
            below, above = ops.minimum(below, apart), ops.maximum(above, apart)
        step = ops.scale(ops.sub(high, low), c=1.001 / _PIECES)
        bend = ops.scale(ops.mul(step, step), c=1.001 * curvature / 8)
        lines = Lines(slope, ops.sub(below, bend), slope, ops.add(above, bend))
        size, one = ops.maximum(ops.abs(low), ops.abs(high)), full_like(ops, low, 1.0)
        factor = FACTOR_ERRORS.get(primitive)
        run = ops.scale(one, c=WAVE_ERROR) if factor is None else ops.scale(size, c=factor)
        return CurveLines(lines, 32, ops.add(size, one), run)

    return _by_lines(primitive, find)


def _pow(relaxed: Relaxed[Any], refs: Any, static: Static, intervals: Sequence[Interval[Any]]) -> Any:
    """Return the rule of even whole powers, which are convex; other powers have their interval alone."""
    exponent = static["exponent"]
    if exponent != int(exponent) or exponent < 2 or int(exponent) % 2:
        return None
    return _curved(POW, 1, 16 + exponent)(relaxed, refs, static, intervals)


def square(relaxed: Relaxed[Any], x: Related[Any], intervals: Sequence[Interval[Any]]) -> Any:
    """Return the ref of x·x, which is convex."""
    return _curved(POW, 1, 18)(relaxed, (x,), {"exponent": 2}, intervals)


def _positive(of: Callable[..., Any]) -> Callable[..., Any]:
    """Return a rule for a positive operand: 1/x is convex there, and concave below 0; an interval with 0 is nan."""

    def rule(relaxed: Relaxed[Any], refs: Any, static: Static, intervals: Sequence[Interval[Any]]) -> Any:
        (x,), ops = refs, relaxed.inner
        interval = relaxed.tighten(x)
        below_zero = ops.less_equal(interval.lower, full_like(ops, interval.lower, 0.0))
        nan = full_like(ops, interval.lower, float("nan"))
        kept = x.interval
        x.interval = Interval(
            ops.select(below_zero, nan, kept.lower), ops.select(below_zero, nan, kept.upper), kept.ops
        )
        try:
            found = of(relaxed, refs, static, intervals)
        finally:
            x.interval = kept
        found[0].interval = intervals[0]
        return found

    return rule


RULES: dict[Primitive, Callable[..., Any]] = {
    RELU: _relu,
    LEAKY_RELU: _relu,
    **{p: _curved(p, 1, MONOTONE[p].ulps) for p in (EXP, SOFTPLUS)},
    **{p: _curved(p, -1, MONOTONE[p].ulps) for p in (LOG, SQRT)},
    INV: _positive(_curved(INV, 1, 1)),
    POW: _pow,
    **{primitive: _s_shaped(primitive, odd) for primitive, odd in ODD.items()},
    **{primitive: _smooth(primitive, curvature) for primitive, curvature in CURVATURES.items()},
}
