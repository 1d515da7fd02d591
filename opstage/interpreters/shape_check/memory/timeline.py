"""Allocations and releases of a run in order, and its peak: by purpose, and as a formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from ....ops.amounts import show_bytes
from ....ops.dims import Dim, DimExpr, evaluate
from ....ops.dims.polynomial import Monomial
from .formula import Formula, Kept

Rows = npt.NDArray[np.int64]


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
