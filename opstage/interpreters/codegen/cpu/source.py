"""A loop as the text of a kernel for the CPU.

It depends on the ops, the dtypes and which strides are 0 or 1, not on sizes, which are arguments, but for whether
a row that is summed is long. So clusters that look alike, in the layers of a model or for another batch, share one
kernel.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple, final

from typing_extensions import override

from ....ops.closed import Equation
from ....ops.types import dtype_name
from ...native import access
from ..axes import space_of
from ..clusters import Cluster, Level
from ..formulas import Constants
from ..loop import Accumulator, IterationSpace, Local, LoopNest, LoopOperand, Pass, Place
from ..primitives import COLUMN_SUM, INDEX_CHECK, ROW_SUM
from ..printing import LoopPrinter, indented
from ..schedule import Scheduling, schedule
from .texts import LoopSource
from .words import Address, ErrorFlag, LoweredLoop, Word, WorkerScratch

_BLOCK = 32
"""Rows that are added in a running sum of their own dtype, column by column. The sums of blocks are added in float64:
else a sum over n rows would be rounded n times in a row."""

_RUN, _STRIDED_RUN = 1024, 64
"""Elements of a row that are added in running sums, many of them at a time; the sums of runs are added in float64.
Where a row's elements are not neighbours there are no vector instructions, and so one running sum alone."""

_LANES = 64
"""Rows that are gone through side by side where their first elements are neighbours, and so on, but not their own."""


def cluster_loop(cluster: Cluster, equations: Sequence[Equation], stored: Collection[int]) -> LoweredLoop:
    """The kernel of a cluster that leaves the values of `stored` in memory."""
    space = space_of(cluster, stored)
    lanes = cluster.extent is not None and _side_by_side(space, cluster, equations)
    return _CpuPrinter(schedule(cluster, equations, space, Scheduling(lanes=lanes)), cluster.extent, lanes).kernel()


def _side_by_side(space: IterationSpace, cluster: Cluster, equations: Sequence[Equation]) -> bool:
    """Whether neighbouring rows have their elements beside one another, as those along an inner axis have."""
    if len(space.sizes) < 2 or space.sizes[-2] < 8 or Level.COLUMN in cluster.levels.values():
        return False
    if any(e.primitive is INDEX_CHECK for e in equations):
        return False
    along = [o.strides for o in space.operands if o.local.level is Level.ELEMENT]
    return all(s[-1] != 1 and s[-2] in (0, 1) for s in along) and any(s[-2] == 1 for s in along)


class _Memory(NamedTuple):
    """Elements of one scope, at `element` from the address `name`_at on."""

    name: str
    dtype: str
    scope: str
    element: str


@final
class _CpuPrinter(LoopPrinter):
    """`extent` is None where there are no rows; `lanes` is whether `_LANES` of them are gone through side by side, lane
    l of them in an inner loop.
    """

    def __init__(self, loop: LoopNest, extent: int | None, lanes: bool):
        super().__init__(Constants())
        self.loop, self.extent, self.lanes = loop, extent, lanes
        self.words: list[Word] = []
        self.scopes = 0
        self.accesses: dict[str, tuple[str, str, str]] = {}
        self.memory: dict[str, _Memory] = {}  # of operands, of kept rows, and of a row's locals in lanes
        self.head: list[str] = []  # what is done once
        self.totals: list[tuple[WorkerScratch, int]] = []
        *self.outer, self.inner = loop.space.sizes
        self.flat = not self.outer and extent is None
        strides = [o.strides for o in loop.space.reads.values()]
        near = all((s[-1], s[-2] if lanes else 0) in ((0, 0), (1, 0)) for s in strides)
        self.run = _RUN if near else _STRIDED_RUN

    def kernel(self) -> LoweredLoop:
        if not self.flat:
            self.head.append(f"n = {self.number(self.inner)}")
        turns = [*self.outer[:-1], -(-self.outer[-1] // _LANES)] if self.lanes else self.outer
        body, places = self.coordinates("row", turns)
        if self.lanes:
            body.append(f"first = {places[-1]} * {_LANES}")
            body.append(f"wide = min({_LANES}, {self.number(self.outer[-1])} - first)")
            places[-1] = "first"
        for operand in self.loop.space.operands:
            self._place(operand, places, body)
        columns = [self._column(accumulator) for accumulator in self.loop.columns]
        body += self._passes("hi - lo" if self.flat else "n")
        words = f"w = int64s(arguments, {len(self.words)})"
        lines = ["def kernel(lo, hi, worker, arguments):", *indented([words, *self.head])]
        if self.flat:
            lines += indented(body)
        else:
            lines += indented(["for row in range(lo, hi):", *indented(body)])
            for moved, _ in columns:
                lines += indented([f"if (row - lo) % {_BLOCK} == {_BLOCK - 1}:", *indented(moved)], 2)
            for _, whole in columns:
                lines += indented(whole)
        accesses = tuple([(name, *of) for name, of in sorted(self.accesses.items())])
        text = LoopSource(self.loop.name, "\n".join(self.constants.definitions), "\n".join(lines), accesses)
        return LoweredLoop(text, self.inner if self.flat else math.prod(turns), tuple(self.words), tuple(self.totals))

    # Memory ---------------------------------------------------------------------------------------------------------

    def word(self, value: Word) -> str:
        self.words.append(value)
        return f"w[{len(self.words) - 1}]"

    def _scope(self) -> str:
        self.scopes += 1
        return access.written(self.scopes - 1)

    def _place(self, operand: LoopOperand, places: Sequence[str], body: list[str]) -> None:
        """Say where an operand is: its address for a row in `body`, or once for all rows, and element j of row l."""
        nbytes, name = operand.local.dtype.itemsize, operand.name
        *along, step = operand.strides
        terms = [self.word(Address(operand.view.root, operand.view.offset * nbytes))]
        terms += [f"{place} * {self.word(s * nbytes)}" for place, s in zip(places, along) if s]
        if self.flat and step:
            terms.append(f"lo * {nbytes}" if step == 1 else f"lo * {self.word(step * nbytes)}")
        (body if len(terms) > 1 and not self.flat else self.head).append(f"{name}_at = {' + '.join(terms)}")
        index = " + ".join(self.terms(("j", "l"), (step, along[-1] if self.lanes else 0))) or "0"
        written = operand in self.loop.space.writes.values()
        self.memory[name] = _Memory(
            name, dtype_name(operand.local.dtype), self._scope() if written else access.READ, index
        )

    def _room(self, name: str, dtype: str, nbytes: int, index: str) -> _Memory:
        """Memory of the worker's own."""
        nbytes = _rounded(nbytes)
        self.head.append(f"{name}_at = {self.word(WorkerScratch(name, nbytes))} + worker * {self.word(nbytes)}")
        return _Memory(name, dtype, self._scope(), index)

    def _of(self, place: Place) -> _Memory:
        """The memory of a place."""
        if isinstance(place, LoopOperand):
            return self.memory[place.name]
        name, dtype = f"t{place.local.name}", place.local.dtype
        if name not in self.memory:
            assert self.extent is not None
            nbytes = self.extent * dtype.itemsize * (_LANES if self.lanes else 1)
            self.memory[name] = self._room(name, dtype_name(dtype), nbytes, f"j * {_LANES} + l" if self.lanes else "j")
        return self.memory[name]

    def _access(self, kind: str, memory: _Memory) -> str:
        name = f"{kind}_{memory.dtype}_{memory.scope.replace(' ', '_')}"
        self.accesses[name] = (kind, memory.dtype, memory.scope)
        return name

    def _load(self, memory: _Memory) -> str:
        text = f"{self._access('load', memory)}({memory.name}_at, {memory.element})"
        return f"({text} != 0)" if memory.dtype == "bool" else text

    def _store(self, memory: _Memory, value: str) -> str:
        value = f"uint8(1 if {value} else 0)" if memory.dtype == "bool" else value
        return f"{self._access('store', memory)}({memory.name}_at, {memory.element}, {value})"

    # Statements -----------------------------------------------------------------------------------------------------

    @override
    def number(self, value: int) -> str:
        return self.word(value)

    @override
    def divided(self, dividend: str, divisor: str) -> tuple[str, str]:
        return f"{dividend} // {divisor}", f"{dividend} % {divisor}"

    @override
    def get(self, local: Local) -> str:
        return local.name if local.level is Level.ELEMENT else self._get(local.name)

    @override
    def set(self, local: Local, value: str) -> str:
        if local.level is Level.ELEMENT:
            return f"{local.name} = {value}"
        return self._set(local.name, dtype_name(local.dtype), value)

    def _get(self, name: str) -> str:
        return self._load(self.memory[name]) if self.lanes else name

    def _set(self, name: str, dtype: str, value: str) -> str:
        """A line that gives a row's local a value; those of the rows in lanes stand in memory side by side."""
        if not self.lanes:
            return f"{name} = {value}"
        if name not in self.memory:
            self.memory[name] = self._room(f"{name}s", dtype, 8 * _LANES, "l")
        return self._store(self.memory[name], value)

    @override
    def load(self, place: Place) -> str:
        return self._load(self._of(place))

    @override
    def store(self, place: Place, value: str) -> list[str]:
        return [self._store(self._of(place), value)]

    @override
    def out_of_range(self, index: str, size: str) -> list[str]:
        flag = self._access("store", _Memory("", "int64", self._scope(), "0"))
        return [f"if {index} < 0 or {index} >= {size}:", f"    {flag}({self.word(ErrorFlag())}, 0, 1)"]

    # Passes ---------------------------------------------------------------------------------------------------------

    def _passes(self, count: str) -> list[str]:
        lines: list[str] = []
        complete: list[str] = []
        for each in self.loop.passes:
            before = [*complete, *self.lines(each.before)]
            for accumulator in each.row:
                before += self._begun(accumulator)
            lines += self._each_row(before)
            lines += self._elements(each, count)
            complete = [line for accumulator in each.row for line in self._complete(accumulator)]
        return lines

    def _elements(self, each: Pass, count: str) -> list[str]:
        """The loop over a row's elements, in runs where sums are taken in runs."""
        sums = [a.local for a in each.row if self._in_runs(a)]
        begin = [self._set(f"r{v.name}", dtype_name(v.dtype), self.constants(0, v.dtype)) for v in sums]
        inside = self._each_row(self.lines(each.inside))
        if not sums:
            return [f"for j in range({count}):", *indented(inside)] if inside else []
        totals = [(f"s{v.name}", f"{self._get(f's{v.name}')} + {self._get(f'r{v.name}')}") for v in sums]
        end = [self._set(total, "float64", more) for total, more in totals]
        return [
            f"for run in range(0, {count}, {self.run}):",
            *indented(self._each_row(begin)),
            f"    for j in range(run, min({count}, run + {self.run})):",
            *indented(inside, 2),
            *indented(self._each_row(end)),
        ]

    def _each_row(self, lines: list[str]) -> list[str]:
        return ["for l in range(wide):", *indented(lines)] if self.lanes and lines else lines

    # Accumulators ---------------------------------------------------------------------------------------------------

    def _in_runs(self, accumulator: Accumulator) -> bool:
        return accumulator.primitive is ROW_SUM and self.extent is not None and self.extent > 2 * self.run

    def _begun(self, accumulator: Accumulator) -> list[str]:
        name, dtype = accumulator.local.name, accumulator.local.dtype
        kind = dtype_name(dtype)
        if self._in_runs(accumulator):
            return [self._set(f"s{name}", "float64", "0.0")]
        if accumulator.primitive is ROW_SUM:
            return [self._set(name, kind, self.constants(0, dtype))]
        return [
            self._set(f"m{name}", _ORDER[kind], f"least_{kind}"),
            self._set(f"b{name}", "int64", "int64(0)"),
        ]

    @override
    def accumulate(self, accumulator: Accumulator, value: str) -> list[str]:
        name, kind = accumulator.local.name, dtype_name(accumulator.local.dtype)
        if accumulator.primitive is COLUMN_SUM:
            part = self.memory[f"c{name}"]
            return [self._store(part, f"({self._load(part)} + {value})")]
        if accumulator.primitive is ROW_SUM:
            total = f"r{name}" if self._in_runs(accumulator) else name
            return [self._set(total, kind, f"add({self._get(total)}, {value})")]
        greatest, unknown = self._get(f"m{name}"), self._get(f"b{name}")
        return [
            f"o{name} = ordered_{kind}({value})",
            self._set(f"m{name}", _ORDER[kind], f"o{name} if o{name} > {greatest} else {greatest}"),
            self._set(f"b{name}", "int64", f"{unknown} | int64({value} != {value})"),
        ]

    def _complete(self, accumulator: Accumulator) -> list[str]:
        name, kind = accumulator.local.name, dtype_name(accumulator.local.dtype)
        if self._in_runs(accumulator):
            return [self._set(name, kind, f"{kind}({self._get(f's{name}')})")]
        if accumulator.primitive is ROW_SUM:
            return []
        greatest, unknown = self._get(f"m{name}"), self._get(f"b{name}")
        return [self._set(name, kind, f"unordered_{kind}({greatest}) if {unknown} == 0 else nan_{kind}")]

    def _column(self, accumulator: Accumulator) -> tuple[list[str], list[str]]:
        """Begin a sum over rows: in a row of the worker's own, and that of its blocks in one of float64 beside it.

        What is done after each block, and after all rows.
        """
        name, dtype = accumulator.local.name, accumulator.local.dtype
        kind, zero = dtype_name(dtype), self.constants(0, dtype)
        assert self.extent is not None
        nbytes = _rounded(self.extent * dtype.itemsize)
        room = WorkerScratch(f"c{name}", nbytes + _rounded(self.extent * 8))
        self.totals.append((room, accumulator.slot))
        part = self.memory[f"c{name}"] = self._room(room.key, kind, room.nbytes, "j")
        whole = _Memory(f"d{name}", "float64", self._scope(), "j")
        total = f"({self._load(whole)} + {self._load(part)})"
        self.head.append(f"d{name}_at = c{name}_at + {self.word(nbytes)}")
        self.head += _each([self._store(part, zero), self._store(whole, "0.0")])
        return _each([self._store(whole, total), self._store(part, zero)]), _each([self._store(part, f"{kind}{total}")])


_ORDER = {"float32": "int32", "float64": "int64"}
"""Integers of the order of floats, see `namespace.py`."""


def _each(lines: list[str]) -> list[str]:
    return ["for j in range(n):", *indented(lines)]


def _rounded(nbytes: int) -> int:
    """To whole lines of the cache, so that workers write none in common."""
    return -(-nbytes // 64) * 64
