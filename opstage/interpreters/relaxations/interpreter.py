"""CROWN: linear relaxations, carried backward from a result to the boxes (Zhang et al., NeurIPS 2018).

A ref has an interval and, where it depends on a box, a `Relaxation`: linear functions of its sources below and above.
A bound of a result is had by putting in relaxations from the last to the first, until only boxes are left. Through an
op that is linear that is its vjp rule, and whatever has none is taken for its interval, which holds as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, final

from typing_extensions import override

from ...ops.cursor import Quietly
from ...ops.errors import ProgramError
from ...ops.infix import Infix
from ...ops.kinds import Kind
from ...ops.primitive import Primitive, R, Static
from ...ops.types import DType, Shape, TensorType, is_float
from ..interpreter import Interpreter, Wrapper
from ..intervals import Interval, Intervals
from ..intervals.rounding import overflow
from .backward import substituted
from .phases import Phases
from .separate import stays_separate


class Relaxation(NamedTuple):
    """Lines below and above a ref y: of the sources' values x, y >= L(x) + below and y <= U(x) + above.

    sources   refs that y was computed from
    pull      (ops, A) -> for each source the coefficients of A⁺·L + A⁻·U
    below     constants, with all that is lost by rounding in them; None for 0
    above
    centre    a value of the only source, where the lines are of the distance from it: y >= L(x - centre) + below
    """

    sources: tuple[Any, ...]
    pull: Callable[[Any, Any], Sequence[Any]]
    below: Any
    above: Any
    centre: Any = None


@final
class Related(Infix, Generic[R]):
    """A ref of `Relaxed`: an interval, and the relation to what it was made from; None for a leaf."""

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

    samples   the number of boxes that lie along the leading axis of every input, each bounded by itself; 1 for one box.
              NotSeparate where the program mixes them
    most      the most elements of a sample for which the inputs of an activation are bounded by relaxations too;
              beyond it by intervals alone
    phases    the region of each box that is bounded, where that is not all of it
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
        """A ref with a relation to its sources."""
        return Related(interval, self, Relaxation(tuple(sources), pull, below, above, centre))

    def met(self, ref: Related[R], own: Interval[R]) -> Related[R]:
        """The ref, made of the parts of an op, with the op's own interval; where that is not finite nothing is known,
        since the parts do not say whether the op overflows."""
        ops, known = self.inner, ref.interval
        ends = []
        for end, before, choose in ((own.lower, known.lower, ops.maximum), (own.upper, known.upper, ops.minimum)):
            both = ops.select(ops.equal(before, before), choose(before, end), end)
            ends.append(ops.add(both, overflow(ops, end)))
        ref.interval = self.intervals.between(*ends)
        return ref

    def tightened(self, ref: Related[R]) -> Interval[R]:
        """The interval of a ref, by its relations as well where it has not too many elements."""
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
        from ..intervals.rules import RULES as INTERVAL_RULES
        from .rules import RULES

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
