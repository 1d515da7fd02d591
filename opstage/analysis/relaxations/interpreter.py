"""CROWN: linear relaxations, carried backward from a result to the boxes (Zhang et al., NeurIPS 2018).

A ref has an interval and, if it depends on a box, a `Relaxation`: linear functions of its sources below and above it.
The bound of a result follows by substituting relaxations from the last to the first, until only boxes remain. For a
linear op this is its vjp rule. An op without lines contributes its interval, which is also a valid bound.

Phases. Every run of a network has its own phases of relus, so a proof for all regions holds for it. A region cuts the
interval of a relu's operand at 0, which makes that relu linear. A constraint z >= 0 also has a price b >= 0: for every
b, f(x) - b·z is at most f(x) there, so its lower bound is one of f (Wang et al., Beta-CROWN, NeurIPS 2021). Each slope
from 0 to 1 gives a line below an undecided relu (Xu et al., Fast and Complete, ICLR 2021). So slopes and prices change
the tightness of bounds, and never their validity.

Samples. A tensor is *separate* if the elements of sample b are the b-th of as many equal parts of it, in row-major
order. Inputs with the batch along their leading axis are separate, and each op in `stays_separate` preserves this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, final

from typing_extensions import override

from ...ops.convolution import CONV, CONV_TRANSPOSE
from ...ops.dims import prod
from ...ops.dispatch import Quietly
from ...ops.errors import ProgramError
from ...ops.infix import Infix
from ...ops.layout import BROADCAST_TO, PERMUTE, RESHAPE
from ...ops.matmul import BMM, LINEAR, MATMUL
from ...ops.pooling import AVG_POOL, MAX_POOL, SMOOTH_MAX_POOL
from ...ops.primitive import Kind, Primitive, R, Static
from ...ops.reduction import LOG_SOFTMAX, REDUCE_MAX, REDUCE_MIN, REDUCE_SUM, SOFTMAX
from ...ops.slicing import CONCAT, PAD, SLICE, STACK
from ...ops.types import BOOL, FLOAT64, DType, Shape, TensorType, is_float
from ...transforms.interpreter import Interpreter, Wrapper
from ..intervals.interpreter import TINY, Interval, Intervals, down, epsilon, gamma, overflow


class Relaxation(NamedTuple):
    """Lines below and above a ref y: for values x of the sources, y >= L(x) + below and y <= U(x) + above.

    sources   refs from which y was computed
    pull      (ops, A) -> for each source the coefficients of A⁺·L + A⁻·U
    below     constants that include all rounding errors; None for 0
    above
    centre    a value of the only source, for lines in the distance from it: y >= L(x - centre) + below
    """

    sources: tuple[Any, ...]
    pull: Callable[[Any, Any], Sequence[Any]]
    below: Any
    above: Any
    centre: Any = None


@final
class Related(Infix, Generic[R]):
    """A ref of `Relaxed`: an interval, and the relation to its sources; None for a leaf."""

    __slots__ = ("interval", "relation", "ops", "tight", "serial")

    def __init__(self, interval: Interval[R], ops: Relaxed[R], relation: Relaxation | None = None):
        self.interval = interval
        self.relation = relation
        self.ops = ops
        self.tight = relation is None
        self.serial = ops.serial = ops.serial + 1

    @property
    @override
    def shape(self) -> Shape:
        return self.interval.shape

    @property
    @override
    def dtype(self) -> DType:
        return self.interval.dtype


@final
class Relaxed(Wrapper[Related[R], R]):
    """Bounds by linear relaxations, intersected with intervals, so that they are never looser than either.

    samples   the number of boxes along the leading axis of every input, each with separate bounds; 1 for one box
    most      the most elements of a sample for which relaxations bound the inputs of an activation too; beyond it
              intervals alone bound them
    phases    the region of each box in which bounds hold, if that is not all of it

    Raises:
        NotSeparate: the program mixes samples.
    """

    __slots__ = ("intervals", "samples", "most", "serial", "phases")
    ref_type = Related
    misplaced = "a ref of bounds was used outside of them; return it from the bounded function instead"

    def __init__(self, inner: Interpreter[R], samples: int, most: int, phases: Phases | None = None):
        super().__init__(inner, differentiates=False)
        self.intervals: Intervals[R] = Intervals(inner)
        self.samples = samples
        self.most = most
        self.serial = 0
        self.phases = phases

    @override
    def wrap(self, value: R, /) -> Related[R]:
        return Related(self.intervals.wrap(value), self)

    def related(
        self,
        interval: Interval[R],
        sources: Sequence[Related[R]],
        pull: Callable[[Any, Any], Sequence[Any]],
        below: R | None,
        above: R | None,
        centre: R | None = None,
    ) -> Related[R]:
        """Return a ref with a relation to its sources."""
        return Related(interval, self, Relaxation(tuple(sources), pull, below, above, centre))

    def intersect(self, ref: Related[R], own: Interval[R]) -> Related[R]:
        """Intersect the ref of a decomposition with the op's own interval.

        If that interval is not finite, nothing is known, since the parts do not show whether the op overflows.
        """
        ops, known = self.inner, ref.interval
        ends = []
        for end, before, choose in ((own.lower, known.lower, ops.maximum), (own.upper, known.upper, ops.minimum)):
            both = ops.select(ops.equal(before, before), choose(before, end), end)
            ends.append(ops.add(both, overflow(ops, end)))
        ref.interval = self.intervals.between(*ends)
        return ref

    def tighten(self, ref: Related[R]) -> Interval[R]:
        """Return the interval of a ref, tightened by its relations if it does not have too many elements."""
        if not ref.tight:
            ref.tight = True
            if (
                ref.interval.lower is not ref.interval.upper
                and math.prod(map(int, ref.shape)) // self.samples <= self.most
            ):
                ref.interval = substituted(self, ref)
        return ref.interval

    @override
    def bind(self, primitive: Primitive, refs: tuple[Related[R], ...], static: Static, /) -> tuple[Related[R], ...]:
        if self.closed:
            raise ProgramError(self.closed)
        refs = tuple([r if type(r) is Related and r.ops is self else self.adopt(r) for r in refs])
        if not self.cursor.quiet:
            self.infer(primitive, tuple([TensorType(r.shape, r.dtype) for r in refs]), static)
        from ..intervals import RULES as INTERVAL_RULES
        from . import RULES

        depends = any(r.relation is not None or not r.interval.point for r in refs)
        rule = RULES.get(primitive)
        floats = all(r.interval.point or is_float(r.dtype) for r in refs)
        opens = primitive not in INTERVAL_RULES or primitive.kind is Kind.LAYOUT
        if depends and floats and opens and rule is None and primitive.decomposition is not None:
            return self.decompose(primitive, refs, static)
        with Quietly(self.cursor):
            intervals = self.intervals.bind(primitive, tuple([r.interval for r in refs]), static)
            if depends and rule is not None and floats:
                found = rule(self, refs, static, intervals)
                if found is not None:
                    if self.samples > 1:
                        stays_separate(self.samples, primitive, refs, static, found[0].shape)
                    return (*found, *[Related(x, self) for x in intervals[len(found) :]])
        if depends and self.samples > 1:
            stays_separate(self.samples, primitive, refs, static, intervals[0].shape)
        return tuple([Related(x, self) for x in intervals])


# The backward pass: substitutes relations, from a result to the boxes -------------------------------------------------


def substituted(relaxed: Relaxed[Any], ref: Related[Any]) -> Interval[Any]:
    """Return the interval of a ref by its relations, no looser than before: one row of coefficients for each
    element.
    """
    ops = relaxed.inner
    samples, shape = relaxed.samples, tuple(int(size) for size in ref.shape)
    count = math.prod(shape) // samples
    if not count:
        return ref.interval
    interval = ref.interval

    def row(ops: Any, carry: Any, number: Any) -> Any:
        """Return the lower bounds of one element of each sample, and of its negative: its upper bound."""
        own = ops.equal(
            ops.iota(shape=(samples, count), axis=1),
            ops.broadcast_to(ops.reshape(number, shape=(1, 1)), shape=(samples, count)),
        )
        own = ops.reshape(own, shape=shape)
        one = ops.full(shape=shape, value=1.0, dtype=ref.dtype)
        chosen = ops.select(own, one, ops.full(shape=shape, value=0.0, dtype=ref.dtype))
        return carry, (lower_bound(ops, samples, ref, chosen), lower_bound(ops, samples, ref, ops.neg(chosen)))

    none = ops.full(shape=(), value=False, dtype=BOOL)
    _, (lower, upper) = ops.scan(row, none, ops.iota(shape=(count,)))
    ends, zero = [], ops.full(shape=shape, value=0.0, dtype=ref.dtype)
    for found, before, choose in ((lower, interval.lower, ops.maximum), (ops.neg(upper), interval.upper, ops.minimum)):
        end = ops.reshape(ops.transpose2d(found), shape=shape)
        finite = ops.equal(overflow(ops, before), zero)  # otherwise a run may overflow on the way
        ends.append(ops.select(ops.logical_and(finite, ops.equal(end, end)), choose(before, end), before))
    return Interval(ends[0], ends[1], interval.ops)


def lower_bound(ops: Any, samples: int, ref: Related[Any], coefficients: Any) -> Any:
    """Return a lower bound of the sum of coefficients times elements of `ref`, for each sample, rounded down."""
    arrived: dict[int, tuple[Any, Any]] = {}
    leaves: list[tuple[Any, Any]] = []
    terms: list[Any] = []

    def deposit(node: Any, a: Any) -> None:
        key = node.serial
        if key in arrived:
            before = arrived[key][1]
            size = ops.clamp(ops.add(ops.abs(before), ops.abs(a)), lo=TINY[a.dtype], hi=float("inf"))
            size = ops.mul(double(ops, size), double(ops, magnitude(ops, node.interval)))
            terms.append(_summed(ops, samples, ops.scale(size, c=-2 * epsilon(a.dtype)), a.dtype))
            a = ops.add(before, a)
        arrived[key] = node, a

    deposit(ref, coefficients)
    while arrived:
        node, a = arrived.pop(max(arrived))
        relation = node.relation
        if relation is None:
            leaves.append((node, a))
            continue
        if relation.below is not None:
            terms.append(_summed(ops, samples, _line_terms(ops, a, relation.below, relation.above), a.dtype))
        underflow = 0.0 if relation.below is None else TINY[a.dtype] * math.prod(a.shape) / samples
        for source, found in zip(relation.sources, relation.pull(ops, a)):
            if found is not None:
                if underflow:
                    size = double(ops, magnitude(ops, source.interval))
                    terms.append(_summed(ops, samples, ops.scale(size, c=-underflow), a.dtype))
                if relation.centre is not None:
                    shift = ops.mul(double(ops, ops.neg(found)), double(ops, relation.centre))
                    terms.append(_summed(ops, samples, shift, found.dtype))
                deposit(source, found)
    for node, a in leaves:
        terms.append(_summed(ops, samples, _line_terms(ops, a, node.interval.lower, node.interval.upper), a.dtype))
    total = terms[0]
    for term in terms[1:]:
        total = down(ops, ops.add(total, term), underflows=False)
    if total.dtype == coefficients.dtype:
        return total
    return down(ops, ops.cast(total, dtype=coefficients.dtype), 0)


def by_sign(ops: Any, a: Any, below: Any, above: Any) -> Any:
    """Return `below` where a coefficient is positive, else `above`."""
    return ops.select(ops.less(ops.full(shape=a.shape, value=0.0, dtype=a.dtype), a), below, above)


def _line_terms(ops: Any, a: Any, below: Any, above: Any) -> Any:
    """Return `a` times `below` where a is positive, else times `above`, in float64; keep nan in either."""
    return ops.mul(double(ops, a), double(ops, by_sign(ops, a, below, above)))


def double(ops: Any, x: Any) -> Any:
    """Return x in float64, which represents numbers of float32 exactly."""
    return x if x.dtype == FLOAT64 else ops.cast(x, dtype=FLOAT64)


def _summed(ops: Any, samples: int, x: Any, dtype: DType) -> Any:
    """Return the sum of a sample's elements, rounded down: axis by axis, to limit consecutive roundings.

    x is in float64. The error of an element is its last digit, as for a product of such numbers, and the underflow of a
    number in `dtype`. Products of numbers in float32 are exact there, so their sum loses almost nothing.
    """
    shape = tuple(int(size) for size in x.shape)
    count = math.prod(shape) // samples
    rows = max(1, round(count**0.5))
    while count % rows:
        rows -= 1
    x = ops.reshape(x, shape=(samples, rows, count // rows))
    g = gamma(x.dtype, rows + count // rows)
    error = ops.scale(ops.abs(x), c=g * (1 + g) + 2 * epsilon(x.dtype))
    x = ops.sub(x, ops.add(error, TINY[dtype]))
    return ops.reduce_sum(ops.reduce_sum(x, axis=2), axis=1)


# Rounding of relations: the errors of coefficients and constants, added to the constants ------------------------------


def magnitude(ops: Any, x: Interval[Any]) -> Any:
    """Return the greatest absolute value."""
    if x.point:
        return ops.abs(x.lower)
    return ops.maximum(ops.abs(x.lower), ops.abs(x.upper))


def rounded(ops: Any, below: Any, above: Any, size: Any, error: float) -> tuple[Any, Any]:
    """Return constants moved apart by `error` times `size`, the sum of magnitudes of all terms of a line.

    `error` is the relative error of the value of a run, of the constants as computed here and of the coefficients of
    the backward pass, together. Products of those with these constants round too, and so do `size` and this, which
    costs 4 eps more.
    """
    dtype = size.dtype
    lost = ops.add(ops.scale(size, c=error + 4 * epsilon(dtype)), TINY[dtype])
    if below is None:
        return ops.neg(lost), lost
    return ops.sub(below, lost), ops.add(above, lost)


# Regions of a box by the phases of relus: operands assumed to be at least 0, or at most 0 -----------------------------


class PhaseArrays(NamedTuple):
    """One number for each sample and each relu's element, relus in the order in which the program reaches them.

    sign           1: the operand is assumed to be >= 0; -1: to be <= 0; 0: to be anything
    lower, upper   known bounds of the operand
    slope          of the line below, where the phase is open
    price          of the constraint, where the phase is set
    """

    sign: Any
    lower: Any
    upper: Any
    slope: Any = None
    price: Any = None


class ReluRegion(NamedTuple):
    """One relu's part of a region: the slope of the line below, None for the closer one; and sign times price."""

    slope: Any
    signed_price: Any


@final
class Phases:
    """The phases of one run of a program: assigned to its relus in turn, and the intervals of their operands.

    Without `arrays` only the intervals are collected. Slopes and prices come with the bounds of operands in `arrays`,
    which are not computed again then.
    """

    def __init__(self, arrays: PhaseArrays | None):
        self.arrays = arrays
        self.lowers: list[Any] = []
        self.uppers: list[Any] = []
        self.count = 0

    def restrict(self, relaxed: Relaxed[Any], x: Related[Any]) -> ReluRegion:
        """Narrow the interval of the next relu's operand to the region."""
        ops, arrays, samples = relaxed.inner, self.arrays, relaxed.samples
        count = int(prod(x.shape)) // samples
        start, self.count = self.count, self.count + count
        region = ReluRegion(None, None)

        def part(array: Any) -> Any:
            return ops.reshape(ops.slice(array, axis=1, start=start, length=count), shape=x.shape)

        if arrays is None or arrays.slope is None:
            relaxed.tighten(x)
        if arrays is not None:
            sign = part(arrays.sign)
            zero = ops.full(shape=sign.shape, value=0.0, dtype=sign.dtype)
            lower = ops.maximum(x.interval.lower, part(arrays.lower))
            upper = ops.minimum(x.interval.upper, part(arrays.upper))
            lower = ops.select(ops.less(zero, sign), ops.maximum(lower, zero), lower)
            upper = ops.select(ops.less(sign, zero), ops.minimum(upper, zero), upper)
            x.interval = Interval(lower, upper, x.interval.ops)
            if arrays.slope is not None:
                price = ops.clamp(part(arrays.price), lo=0.0, hi=float("inf"))
                region = ReluRegion(part(arrays.slope), ops.mul(sign, price))
        for ends, end in ((self.lowers, x.interval.lower), (self.uppers, x.interval.upper)):
            ends.append(ops.reshape(end, shape=(samples, count)))
        return region


# Separation of the samples of a batch: if they stay separate, one backward pass bounds each of them -------------------


_PADDED = {CONV, CONV_TRANSPOSE}
_POOLS = {AVG_POOL, MAX_POOL, SMOOTH_MAX_POOL}
_REDUCTIONS = {REDUCE_SUM, REDUCE_MAX, REDUCE_MIN}
_ALONG = {SOFTMAX, LOG_SOFTMAX, CONCAT, SLICE, STACK}


class NotSeparate(Exception):
    """An op that mixes the samples of a batch, or may mix them."""


def stays_separate(samples: int, primitive: Primitive, refs: Sequence[Any], static: Static, shape: Shape) -> None:
    """Raise NotSeparate unless the result of an op is separate where its operands that depend on boxes are."""
    depends = [ref for ref in refs if ref.relation is not None or not ref.interval.point]
    if not _keeps(primitive, refs, depends, static, shape) or not shape or int(shape[0]) % samples:
        raise NotSeparate(f"{primitive} may mix the samples of a batch")


def _only(refs: Sequence[Any], ref: Any) -> bool:
    return len(refs) == 1 and refs[0] is ref


def _keeps(primitive: Primitive, refs: Sequence[Any], depends: Sequence[Any], static: Static, shape: Shape) -> bool:
    first = depends[0].shape
    if primitive.kind is Kind.POINTWISE or primitive is RESHAPE:
        return True
    if primitive is LINEAR:
        return _only(depends, refs[-1]) and len(first) > 1
    if primitive is MATMUL:
        return _only(depends, refs[0])
    if primitive is BMM:
        return len(first) > 2 or _only(depends, refs[0])
    if primitive in _PADDED:
        return _only(depends, refs[-1]) and len(first) == len(refs[0].shape)
    if primitive in _POOLS:
        return len(first) == len(static["kernel"]) + 2
    if primitive in _REDUCTIONS:
        return 0 not in static["axes"]
    if primitive in _ALONG:
        return bool(static["axis"] != 0)
    if primitive is PERMUTE:
        return bool(static["axes"][0] == 0)
    if primitive is PAD:
        return tuple(static["padding"][0]) == (0, 0) and not static["interior"][0]
    if primitive is BROADCAST_TO:
        return len(shape) == len(first) and shape[0] == first[0]
    return False
