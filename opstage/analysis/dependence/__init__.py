"""The dependence domain: which indices of a named dim of the inputs an element of a tensor may read."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from ...ops.body import BodyConstant
from ...ops.convolution import CONV, CONV_TRANSPOSE
from ...ops.dims import Dim, DimExpr
from ...ops.dims.polynomial import iterate_names
from ...ops.factorization import EIGH, QR, SVD
from ...ops.fourier import FFT, IRFFT, RFFT
from ...ops.indexing import GATHER_ROWS, SCATTER_ADD_ROWS
from ...ops.layout import BROADCAST_TO, PERMUTE, RESHAPE
from ...ops.linalg import CHOLESKY, COFACTOR, DET, SLOGDET, SOLVE, TRIANGULAR_SOLVE
from ...ops.logic import DETACH, FULL, IOTA
from ...ops.matmul import BMM, MATMUL
from ...ops.pooling import AVG_POOL, AVG_POOL_GRAD, MAX_POOL, MAX_POOL_GATHER, MAX_POOL_SCATTER
from ...ops.primitive import Kind, Primitive
from ...ops.random import RAND_NORMAL, RAND_UNIFORM
from ...ops.reduction import ARGMAX, REDUCE_MAX, REDUCE_SUM
from ...ops.sequence import ARGSORT, CUMSUM, LINEAR_RECURRENCE
from ...ops.slicing import CONCAT, PAD, SLICE
from ...ops.types import DType, Shape, TensorType, dtype_name
from ..domain import Domain, OpCall, Rule
from ..ranges.fact import FloatLimits, ValueRange, float_limits
from .cuts import align, recut
from .elementwise import pointwise
from .fact import (
    NAN,
    Affine,
    Fact,
    Span,
    Value,
    hull,
    lift,
    merge_outside,
    merge_reads,
    normalize,
    plain,
    reading,
    reduce_indices,
    renumber_fact,
    shift_span,
)
from .layout import (
    broadcast_to,
    concat,
    draw,
    full,
    gather_rows,
    iota,
    pad,
    permute,
    reshape,
    scatter_add_rows,
    slice_,
    unchanged,
)
from .masks import Level, misses_a_row
from .reduction import convolve, mixes, multiplied, order, pool, reduce, running
from .regions import ANYWHERE, NONE, NOWHERE, Difference, Region, alike, as_size, equal_proved, region, same

__all__ = ["FINITE_MASK", "MASKED_ROW", "Dependence", "Fact"]

MASKED_ROW = "masked-row"
FINITE_MASK = "finite-mask"
_MASKING = -16.0  # a number at and below this is meant as a mask


class Nested(Domain[Fact]):
    """A domain that follows the loops around a run.

    outer   the lengths of these loops, from the outermost to the innermost
    """

    def __init__(self) -> None:
        self.outer: Shape = ()

    @property
    @override
    def context(self) -> Shape:
        return self.outer

    @override
    def enter(self, length: Dim) -> None:
        self.outer = (*self.outer, length)

    @override
    def leave(self) -> None:
        self.outer = self.outer[:-1]

    def within(self, fact: Fact) -> Fact:
        """Return the fact of the same tensor inside the loops, equal in all their iterations."""
        return lift(fact, self.outer)

    @override
    def invariant(self, fact: Fact, length: Dim) -> Fact:
        return self.within(fact)


class Dependence(Nested):
    """Reads along the named dim `dim`.

    names         of the inputs, in order; each has a bit in `Fact.inputs`
    sources       the inputs whose indices count; None for all that have the dim
    dtype_limits  the limits of numbers in a float dtype, by default its own; a program may be checked in a coarser
                  dtype
    assumptions   what the facts assume about values
    remarks       findings of the run: fully masked rows, finite masks
    """

    name = "dependence"
    asks = ("levels", "ranges")
    rules: ClassVar[Mapping[Primitive, Rule]]
    kinds: ClassVar = {Kind.POINTWISE: pointwise}

    def __init__(
        self,
        dim: Dim | None,
        names: Sequence[str] = (),
        sources: Collection[str] | None = None,
        dtype_limits: Callable[[DType], FloatLimits] | None = None,
    ):
        super().__init__()
        self.dtype_limits = dtype_limits or _own_limits
        self.dim = dim
        self.names = tuple(names)
        self.sources = sources
        self.assumptions: dict[str, None] = {}
        self.remarks: list[tuple[str, str]] = []
        self._bits = {name: 1 << i for i, name in enumerate(self.names)}

    # Initial facts ----------------------------------------------------------------------------------------------------

    @override
    def source(self, name: str, type: TensorType) -> Fact:
        fact = plain(type.shape)._replace(inputs=self._bits.get(name, 0))
        dim = self.dim
        if dim is None or (self.sources is not None and name not in self.sources):
            return fact
        entries: list[tuple[int, Span]] = []
        for axis, size in enumerate(type.shape):
            if not _is_tied(size, dim):
                continue
            if not isinstance(size - dim, int) and not equal_proved(size, dim):
                return fact._replace(whole=True)
            entries.append((fact.at(axis), Span(1, 0, 0)))
        return reading(fact, hull(entries))

    @override
    def constant(self, constant: BodyConstant) -> Fact:
        fact = plain(constant.type.shape, self.outer)
        outside = known_numbers(constant.value, len(self.outer))
        if constant.type.dtype.kind == "f":
            limits = self.dtype_limits(constant.type.dtype)
            outside = tuple([(limits.nearest(float(v)) if v is not NAN else v, where) for v, where in outside])
        alone = next((value for value, where in outside if where == NOWHERE and type(value) is not bool), None)
        size = None if alone is None else as_size(alone)
        value = None if size is None else Affine(size, ())
        return normalize(fact._replace(outside=outside, value=value))

    @override
    def top(self, type: TensorType, operands: Sequence[Fact]) -> Fact:
        inputs = 0
        for fact in operands:
            inputs |= fact.inputs
        return plain(type.shape, self.outer)._replace(whole=any(not fact.idle for fact in operands), inputs=inputs)

    @override
    def anything(self, type: TensorType) -> Fact:
        return plain(type.shape, self.outer)._replace(whole=True, inputs=(1 << len(self.names)) - 1)

    # Order ------------------------------------------------------------------------------------------------------------

    @override
    def join(self, a: Fact, b: Fact) -> Fact:
        return self._merge(a, b, widen=False)

    @override
    def widen(self, before: Fact, after: Fact) -> Fact:
        return self._merge(before, after, widen=True)

    @override
    def leq(self, a: Fact, b: Fact) -> bool:
        return alike(self.join(a, b), b)

    def _merge(self, a: Fact, b: Fact, widen: bool) -> Fact:
        if alike(a, b):
            return b
        b, a = align([b, a])
        reads = hull([*a.reads, *b.reads])
        if widen and reads is not None:
            before = dict(a.reads)
            for index, span in reads.items():
                old = before.get(index)
                if old is not None and not alike(old, span):
                    reads[index] = Span(span.by, _unmoved(old.low, span.low), _unmoved(old.high, span.high))
            if any(span.low is None and span.high is None for span in reads.values()):
                reads = None
        outside = merge_outside([b, a])
        if widen:
            outside = tuple([(v, w) for v, w in outside if alike(w, a.region(v))])
        value = b.value if alike(a.value, b.value) else None
        joined = b._replace(
            reads=(),
            whole=a.whole or b.whole or reads is None,
            inputs=a.inputs | b.inputs,
            outside=outside,
            value=value,
        )
        return reading(joined, reads)

    # Loops ------------------------------------------------------------------------------------------------------------

    @override
    def entry(self, fact: Fact, type: TensorType, length: Dim) -> Fact:
        """Return the fact of a slice: the leading axis becomes the index of the iteration."""
        fact = lift(fact, self.outer[:-1])
        fact = recut(fact, ((type.shape[0],), *fact.axes[1:]))
        return fact._replace(outer=self.outer, axes=fact.axes[1:])

    @override
    def next_carry(self, fact: Fact, length: Dim, reverse: bool) -> Fact:
        """Return the fact by the index of the next iteration, without values of elements."""
        fact, index = self.within(fact), len(self.outer) - 1
        reads = {i: shift_span(span, -1 if reverse else 1) if i == index else span for i, span in fact.reads}
        return reading(fact._replace(reads=(), outside=(), value=None), None if fact.whole else reads)

    @override
    def last(self, fact: Fact, length: Dim) -> Fact:
        fact = lift(fact, (*self.outer, length))
        index = len(self.outer)
        number = {i: i if i < index else i - 1 for i in range(len(fact.sizes)) if i != index}
        return renumber_fact(reduce_indices(fact, [index]), self.outer, fact.axes, number)

    @override
    def stacked(self, fact: Fact, length: Dim) -> Fact:
        fact = lift(fact, (*self.outer, length))
        return fact._replace(outer=self.outer, axes=((length,), *fact.axes))

    @override
    def influence(self, fact: Fact, by: Fact) -> Fact:
        fact = self.within(fact)
        return merge_reads(fact, [fact, self.within(by)])

    # Remarks ----------------------------------------------------------------------------------------------------------

    def assume(self, text: str) -> None:
        """Record an assumption of a rule."""
        self.assumptions[text] = None

    def reducing(self, call: OpCall, fact: Fact, levels: Sequence[Level], axes: Sequence[int]) -> None:
        """Inspect the operand of a reduction over axes: for fully masked rows, and for finite masks in place of
        -inf.
        """
        gone = [i for axis in axes for i in fact.indices(axis)]
        for level, where in levels:
            masked = level.high <= _MASKING and not level.nan and where != ANYWHERE
            if masked and call.primitive is REDUCE_MAX and misses_a_row(fact.sizes, where, gone):
                self.remarks.append((MASKED_ROW, _whole(level)))
            if (
                masked
                and level.low == level.high > -math.inf
                and any(i in d[:2] for i in gone for p in where for d in p)
            ):
                self.finite_mask(level.high, call)

    def shifting(self, call: OpCall, facts: Sequence[Fact]) -> None:
        """Inspect the operands of a sum for finite masks that are added to elements that read sources."""
        for mask, other in ((facts[0], facts[1]), (facts[1], facts[0])):
            for value, where in mask.outside:
                if abs(value) >= -_MASKING and math.isfinite(value) and where != NOWHERE and not other.idle:
                    self.finite_mask(-abs(value), call)

    def finite_mask(self, value: float, call: OpCall) -> None:
        """Record that a finite mask is not proved to hide what it masks."""
        known = "".join(f", and these are in {each}" for each in call.known.get("ranges", ()) if not each.bounded)
        text = f"a mask of {value:g} is a finite number, which hides masked scores only if the scores have bounds"
        self.remarks.append((FINITE_MASK, f"{text}{known}"))


def _unmoved(old: Dim | None, new: Dim | None) -> Dim | None:
    """Return an end of a span that an iteration leaves as it is; else None."""
    return new if old is not None and new is not None and same(old, new) else None


def _own_limits(dtype: DType) -> FloatLimits:
    """Return the limits of a float dtype; for integers and masks, which are not rounded, those of float64."""
    return float_limits(dtype_name(dtype) if dtype.kind == "f" else "float64")


def _whole(level: ValueRange) -> str:
    """Return the remark about a row that is fully masked."""
    if level.high == -math.inf:
        return "a row of the scores is entirely -inf"
    return f"a row of the scores is entirely masked, by {level.high:.6g}: its softmax weighs all positions equally"


def _is_tied(size: Dim, dim: Dim) -> bool:
    """Return whether a size shares a name with the dim, or is proved to equal it."""
    if not isinstance(size, DimExpr) or not isinstance(dim, DimExpr):
        return same(size, dim)
    names = [{atom.text for atom in iterate_names(each.polynomial)} for each in (size, dim)]
    return not names[0].isdisjoint(names[1]) or equal_proved(size, dim)


# Constant arrays: numbers that fill all but a band or a block of them, as in masks ------------------------------------

_MOST_ELEMENTS = 1 << 24
_MOST_AXES = 4


def known_numbers(array: npt.NDArray[Any], first: int) -> tuple[tuple[Value, Region], ...]:
    """Return the numbers that fill an array outside regions; its axes are the indices from `first` on."""
    if array.dtype.kind not in "fib" or not 0 < array.size <= _MOST_ELEMENTS or array.ndim > _MOST_AXES:
        return ()
    candidates: list[Value] = [False, True] if array.dtype.kind == "b" else [0, 1, -np.inf]
    corner = array.flat[0].item()
    if corner == corner and corner not in candidates:
        candidates.append(corner)
    found: list[tuple[Value, Region]] = []
    for value in candidates:
        rest = array != value
        if not rest.any():
            found.append((value, NOWHERE))
        elif array.ndim and not rest.all():
            where = _around(rest, first)
            if where is not None:
                found.append((value, where))
    return tuple(found)


def _around(mask: npt.NDArray[np.bool_], first: int) -> Region | None:
    """Return differences of indices, and bounds of each, that hold wherever the mask does; None without any."""
    places = np.nonzero(mask)
    differences: list[Difference] = []
    for a, (i, size) in enumerate(zip(places, mask.shape)):
        low, high = int(i.min()), int(i.max())
        if high < size - 1:
            differences.append(Difference(first + a, NONE, high))
        if low > 0:
            differences.append(Difference(NONE, first + a, -low))
    for a, i in enumerate(places):
        for b, j in enumerate(places[:a]):
            gap = i - j
            low, high = int(gap.min()), int(gap.max())
            if high < mask.shape[a] - 1:
                differences.append(Difference(first + a, first + b, high))
            if low > 1 - mask.shape[b]:
                differences.append(Difference(first + b, first + a, -low))
    return region(*differences) if differences else None


# Transfer rules by primitive; pointwise ops share one rule by their kind ----------------------------------------------


def _plane(call: OpCall) -> tuple[int, ...]:
    return tuple(range(-len(call.static["kernel"]), 0))


_FACTORED = (SOLVE, TRIANGULAR_SOLVE, CHOLESKY, DET, COFACTOR, SLOGDET, EIGH, QR, SVD)
Dependence.rules = {
    DETACH: unchanged,
    FULL: full,
    IOTA: iota,
    **dict.fromkeys((RAND_UNIFORM, RAND_NORMAL), draw),
    PERMUTE: permute,
    RESHAPE: reshape,
    BROADCAST_TO: broadcast_to,
    CONCAT: concat,
    SLICE: slice_,
    PAD: pad,
    **dict.fromkeys((REDUCE_SUM, REDUCE_MAX, ARGMAX), reduce),
    **dict.fromkeys((MATMUL, BMM), multiplied),
    **dict.fromkeys((CUMSUM, LINEAR_RECURRENCE), running),
    ARGSORT: order,
    GATHER_ROWS: gather_rows,
    SCATTER_ADD_ROWS: scatter_add_rows,
    CONV: convolve(transposed=False),
    CONV_TRANSPOSE: convolve(transposed=True),
    **dict.fromkeys((MAX_POOL, AVG_POOL), pool),
    **dict.fromkeys((AVG_POOL_GRAD, MAX_POOL_SCATTER, MAX_POOL_GATHER), mixes(_plane)),
    # the axis, and that of the real and imaginary parts
    **dict.fromkeys((FFT, IRFFT), mixes(lambda call: (call.static["axis"], -1))),
    RFFT: mixes(lambda call: (call.static["axis"],)),
    **dict.fromkeys(_FACTORED, mixes(lambda call: (-2, -1))),
}
