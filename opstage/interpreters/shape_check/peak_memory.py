"""The memory of a run: allocations and releases in order, and the peak, by purpose and as a formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt

from ...ops.dims import Dim, DimExpr, DimScope, evaluate
from ...ops.dims.polynomial import Monomial, iterate_names
from ...ops.readable_amounts import show_bytes

Rows = npt.NDArray[np.int64]

Kept: TypeAlias = Callable[[Mapping[str, int]], int]
"""Returns the bytes of the workspace kept between kernels, at given sizes."""


@final
class Formula:
    """The maximum of polynomials in named dims, plus the kept workspace, which depends on caches and threads.

    `str` shows the workspace at moderate sizes; a call with sizes returns the number for those.
    """

    __slots__ = ("terms", "_kept", "_usually_kept")

    def __init__(self, terms: Sequence[Dim], kept: Kept = lambda sizes: 0, usually_kept: int = 0):
        self.terms = tuple(terms)
        self._kept = kept
        self._usually_kept = usually_kept

    @classmethod
    def greatest(cls, rows: Rows, monomials: Sequence[Monomial], scope: Any, kept: Kept, usually_kept: int) -> Formula:
        """Build from polynomials, given as rows of coefficients, those that are the maximum somewhere.

        A polynomial is dropped if it never exceeds another one, or a mean of two others; names are nonnegative.
        """
        terms: list[Dim] = []
        for row in _upper(rows).tolist():
            polynomial = {monomial: value for monomial, value in zip(monomials, row) if value}
            terms.append(row[0] if scope is None else scope.intern(polynomial))
        return cls(terms, kept, usually_kept)

    @property
    def names(self) -> tuple[str, ...]:
        """The named dims in it."""
        found: dict[str, None] = {}
        for term in self.terms:
            if isinstance(term, DimExpr):
                found.update(dict.fromkeys(name.text for name in iterate_names(term.polynomial)))
        return tuple(found)

    def __call__(self, sizes: Mapping[str, int]) -> int:
        """Return the number of bytes at given sizes; raises MissingSizeError for a name without one."""
        return max(evaluate(term, sizes) for term in self.terms) + self._kept(sizes)

    def __str__(self) -> str:
        texts = [f"{term:,}" if isinstance(term, int) else str(term) for term in self.terms]
        text = texts[0] if len(texts) == 1 else f"max({', '.join(texts)})"
        return f"{text} + {self._usually_kept:,}" if self._usually_kept else text

    __repr__ = __str__


def _upper(rows: Rows) -> Rows:
    """Return the rows that are not dominated, in every column, by another row or by a mean of two other rows."""
    rows = _undominated(rows)
    first = _greatest_somewhere(rows)
    rows = np.concatenate([rows[first], rows[~first & ~_under_a_mean(rows, rows[first])]])
    i = int(first.sum())
    while i < len(rows):  # only few are left
        others = np.delete(rows, i, axis=0)
        if _under_a_mean(rows[i : i + 1], others)[0]:
            rows = others
        else:
            i += 1
    return rows


def _undominated(rows: Rows) -> Rows:
    """Return the rows that are not dominated in every column by another one."""
    rows = np.unique(rows, axis=0)
    rows = rows[np.argsort(-rows.sum(axis=1, dtype=np.float64), kind="stable")]
    kept = []
    while len(rows):
        kept.append(rows[0])
        rows = rows[(rows > rows[0]).any(axis=1)]
    return np.array(kept)


def _greatest_somewhere(rows: Rows) -> npt.NDArray[np.bool_]:
    """Mark rows that are the maximum for one of some weights of the columns; a sufficient test only."""
    scale = rows.max(axis=0).astype(np.float64)
    weights = np.exp(np.random.default_rng(0).normal(0, 3, (_TRIALS, rows.shape[1]))) / np.maximum(scale, 1)
    found = np.zeros(len(rows), np.bool_)
    found[np.argmax(rows @ weights.T, axis=0)] = True
    return found


_TRIALS = 64


def _under_a_mean(rows: Rows, others: Rows) -> npt.NDArray[np.bool_]:
    """For each row, whether s·p + (1 - s)·q dominates it in every column, for two of the others and an s in [0, 1]."""
    found = np.zeros(len(rows), np.bool_)
    for i, q in enumerate(others):
        slope = (others[:i] - q)[:, None].astype(np.float64)  # s·(p - q) ≥ row - q, in every column
        wanted = (rows - q)[None].astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            bound = wanted / slope
        least = np.max(bound, axis=2, initial=0.0, where=slope > 0)
        most = np.min(bound, axis=2, initial=1.0, where=slope < 0)
        possible = ((slope != 0) | (wanted <= 0)).all(axis=2)
        found |= (possible & (least <= most)).any(axis=0)
    return found


# Fitting --------------------------------------------------------------------------------------------------------------


def fitted(values: Sequence[int], samples: Sequence[Mapping[str, int]], parts: Sequence[Dim], scope: DimScope) -> Dim:
    """Return the polynomial of the monomials in `parts` with these values at the samples.

    Returns the first value if there is no such polynomial.
    """
    if all(value == values[0] for value in values):
        return values[0]
    for part in parts:
        if [evaluate(part, sizes) for sizes in samples] == list(values):
            return part
    monomials: dict[Monomial, None] = {(): None}
    for part in parts:
        if isinstance(part, DimExpr):
            monomials.update(dict.fromkeys(part.polynomial))
    if len(samples) <= len(monomials):
        return values[0]
    terms = [scope.intern({monomial: 1}) if monomial else 1 for monomial in monomials]
    table = np.array([[evaluate(term, sizes) for term in terms] for sizes in samples], np.float64)
    coefficients = np.rint(np.linalg.lstsq(table, np.array(values, np.float64), rcond=None)[0])
    polynomial = {monomial: int(c) for monomial, c in zip(monomials, coefficients) if c}
    found: Dim = scope.intern(polynomial)
    return found if [evaluate(found, sizes) for sizes in samples] == list(values) else values[0]


# Timeline -------------------------------------------------------------------------------------------------------------


class MemoryKind(IntEnum):
    """The purpose of memory."""

    PARAMETERS = 0
    OPTIMIZER = 1
    STATE = 2
    BATCH = 3
    ACTIVATIONS = 4
    """Results of the forward pass that the backward pass reads."""
    GRADIENTS = 5
    """Results of the backward pass: cotangents, of parameters and in between."""
    RESULTS = 6
    """New parameters and slots, next to the old ones."""
    WORKSPACE = 7
    """Workspaces of kernels."""


class Moment(NamedTuple):
    """The memory at one time, in bytes, in total and by kind."""

    total: int
    of: Mapping[MemoryKind, int]


@final
class Buffer:
    """An allocation: recorded when created, and released when the last reference is gone."""

    __slots__ = ("_events", "_code")

    def __init__(self, events: list[int], code: int):
        self._events = events
        self._code = code
        events.append(code)

    def __del__(self) -> None:
        self._events.append(-self._code)


@final
class Timeline:
    """Allocations and releases, in order.

    CPython frees an object as soon as the last reference is gone. The interpreters on top hold buffers instead of
    arrays, so buffers live exactly as long as the arrays would.
    """

    __slots__ = ("_events", "_sizes", "_number")

    def __init__(self) -> None:
        self._events: list[int] = []
        self._sizes: list[Dim] = []
        self._number: dict[Dim, int] = {}

    def take(self, nbytes: Dim, kind: MemoryKind) -> Buffer:
        """Allocate memory that lives as long as the result."""
        return Buffer(self._events, self._code(nbytes, kind))

    def work_in(self, nbytes: Dim) -> None:
        """Record memory that is allocated and freed at once."""
        if not isinstance(nbytes, int) or nbytes:
            code = self._code(nbytes, MemoryKind.WORKSPACE)
            self._events += (code, -code)

    def _code(self, nbytes: Dim, kind: MemoryKind) -> int:
        number = self._number.get(nbytes)
        if number is None:
            number = self._number[nbytes] = len(self._sizes)
            self._sizes.append(nbytes)
        return number * len(MemoryKind) + kind + 1

    def close(self, kept: Kept) -> AllocationTrace:
        """Return the trace so far, frozen; `kept` is allocated all the time."""
        return AllocationTrace(np.array(self._events, np.int64), tuple(self._sizes), kept)


@final
class AllocationTrace:
    """The events of a run, their sizes in named dims or numbers, and the workspace kept between kernels."""

    __slots__ = ("_number", "_kind", "_sign", "_sizes", "_kept")

    def __init__(self, events: Rows, sizes: tuple[Dim, ...], kept: Kept):
        which = np.abs(events) - 1
        self._number, self._kind = which // len(MemoryKind), which % len(MemoryKind)
        self._sign = np.sign(events)
        self._sizes = sizes
        self._kept = kept

    def peak(self, sizes: Mapping[str, int]) -> Moment:
        """Return the moment with the most memory, the first of them."""
        value = np.array([evaluate(size, sizes) for size in self._sizes], np.int64)
        change = self._sign * value[self._number]
        at = int(np.argmax(np.cumsum(change))) + 1
        of = {kind: int(change[:at][self._kind[:at] == kind].sum()) for kind in MemoryKind}
        of[MemoryKind.WORKSPACE] += self._kept(sizes)
        return Moment(sum(of.values()), of)

    def formula(self, sample: Mapping[str, int]) -> Formula:
        """Return the peak as the maximum of polynomials in the named dims; its text has the kept workspace at a
        `sample`."""
        monomials: dict[Monomial, int] = {(): 0}
        terms: list[tuple[int, int, int]] = []
        scope: Any = None
        for row, size in enumerate(self._sizes):
            if isinstance(size, DimExpr):
                scope = size.scope
                terms += [(row, monomials.setdefault(m, len(monomials)), c) for m, c in size.polynomial.items()]
            else:
                terms.append((row, 0, size))
        table = np.zeros((len(self._sizes), len(monomials)), np.int64)
        for row, column, coefficient in terms:
            table[row, column] = coefficient
        levels = np.cumsum(self._sign[:, None] * table[self._number], axis=0)
        tops = np.flatnonzero((self._sign > 0) & (np.append(self._sign[1:], -1) < 0))  # just before a release
        return Formula.greatest(levels[tops], tuple(monomials), scope, self._kept, self._kept(sample))


# Peak memory ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PeakMemory:
    """Bytes of tensors at the peak of a step, in steady state.

    parameters    the values from which the step starts
    optimizer     moments and the like, before the step
    state         the program's own state, such as running statistics
    batch         inputs from outside
    activations   live results of the forward pass
    gradients     live results of the backward pass
    results       new parameters and moments, if they coexist with the old ones until the step is committed
    workspace     workspace of kernels; for the compiled interpreter constants, and the addresses of arguments
    arena         for the compiled interpreter: activations, gradients and workspace, in one block
    blocks        on a device, not part of the peak: the allocated blocks that contain all this, with rounded sizes, and
    the workspace of its library
    """

    parameters: int = 0
    optimizer: int = 0
    state: int = 0
    batch: int = 0
    activations: int = 0
    gradients: int = 0
    results: int = 0
    workspace: int = 0
    arena: int = 0
    blocks: int = 0

    @classmethod
    def of(cls, moment: Moment) -> PeakMemory:
        """Return the memory at one moment of an eager step."""
        return cls(**{kind.name.lower(): nbytes for kind, nbytes in moment.of.items()})

    @property
    def peak(self) -> int:
        """The sum of all parts."""
        return sum(self._parts().values())

    @property
    def needed(self) -> int:
        """The bytes that must be free: the peak, or on a device its blocks."""
        return max(self.peak, self.blocks)

    def _parts(self) -> dict[str, int]:
        return {name: nbytes for name, nbytes in asdict(self).items() if name != "blocks"}

    def __str__(self) -> str:
        rows = [(name, nbytes) for name, nbytes in self._parts().items() if nbytes]
        lines = [f"{'peak of tensor memory':24} {show_bytes(self.peak):>10}"]
        lines += [f"  {name:22} {show_bytes(nbytes):>10}" for name, nbytes in rows]
        if self.blocks:
            lines.append(f"{'in blocks of the device':24} {show_bytes(self.blocks):>10}")
        return "\n".join(lines)
