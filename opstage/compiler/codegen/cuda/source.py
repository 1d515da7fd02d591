"""A loop as the source of a GPU kernel, with its arguments.

There are three forms. Without sums, threads stride over elements. With sums along rows, the lanes of a row stride over
it, in as many passes as sums must complete before they are used; values of earlier passes are recomputed, which is
faster than loading them. With sums over rows, a thread iterates down a column, or a part of one; partial sums are added
afterwards.

The source depends on the ops, the dtypes and which strides are 0 or 1; sizes are arguments. So similar layers, and
other batch sizes, share a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from functools import cache
from types import FunctionType
from typing import Any, NamedTuple, final

import numpy as np
from typing_extensions import override

from ....ops.body import Equation
from ....ops.catalogue import CHEAP
from ....ops.types import dtype_name
from ...gpu import language
from ...gpu.language import (
    MOST_WARPS,
    cuda,
    device_function,
    going,
    max_lanes,
    part_of,
    quotient,
    remainder,
    steps,
    sum_lanes,
    unrolled_steps,
)
from ..clusters import Cluster, Level
from ..formulas import COLUMN_SUM, ROW_SUM, Constants, scalar_formulas
from ..loop import Accumulator, Assign, Check, Load, LoopNest, LoopOperand, Pass, Place, Store, as_written, space_of
from ..lowering import Target
from ..schedule import LoopPrinter, Scheduling, from_memory, indented, schedule, to_memory

# The target -----------------------------------------------------------------------------------------------------------

CUDA = Target(
    frozenset(),
    strided=False,
    batch_axes=1,
    both_sums=False,
    few_rows=256,
    counts=True,
    turns=True,
    broken_rows=True,
    joins_rows=True,
    anywhere=False,  # the summation order of a product depends on the alignment of its operands
)


# Numbers --------------------------------------------------------------------------------------------------------------


@final
class Numbers(Constants):
    """Makes constants arguments, so that other rates, bounds and exponents share a kernel, whose compilation takes a
    large part of a second.

    `argument` returns the name of a new argument with this value. Equal values are not shared, so that the source does
    not depend on which are equal.
    """

    __slots__ = ("_argument",)

    def __init__(self, argument: Callable[[Any], str]):
        super().__init__()
        self._argument = argument

    @override
    def named(self, value: Any) -> str:
        own = value == 1 or abs(value) == math.inf or (value == 0 and not math.copysign(1, value) < 0)
        return super().named(value) if own else self._argument(value)


# Source and compilation -----------------------------------------------------------------------------------------------


class Text(NamedTuple):
    """The source of a kernel.

    preamble    definitions of its constants
    body        `def kernel(count, …): …`
    """

    name: str
    preamble: str
    body: str

    def function(self) -> FunctionType:
        """Return the kernel; equal sources share a function, so that it is compiled once."""
        return _function(self)


@cache
def _function(text: Text) -> FunctionType:
    space = dict(_namespace())
    exec(text.preamble, space)
    exec(compile(text.body, f"<kernel {text.name}>", "exec"), space)
    kernel: FunctionType = space["kernel"]
    kernel.__name__ = kernel.__qualname__ = text.name
    return kernel


@cache
def _namespace() -> dict[str, Any]:
    """Return the names that the source of a kernel may refer to."""
    formulas = scalar_formulas(np.float32, language.exp, language.erf, language.fmod, language.floor)
    return {
        "cuda": cuda,
        "steps": steps,
        "unrolled_steps": unrolled_steps,
        "quotient": quotient,
        "remainder": remainder,
        "going": going,
        "part_of": part_of,
        "sum_lanes": sum_lanes,
        "max_lanes": max_lanes,
        "MOST_WARPS": MOST_WARPS,
        **{kind.__name__: kind for kind in (np.float32, np.int32, np.int64, np.uint8)},
        **{name: getattr(language, name) for name in _FUNCTIONS},
        **{f"{name}_float32": device_function(formula) for name, formula in formulas.items()},
    }


_FUNCTIONS = (
    "atan",
    "cos",
    "erf",
    "exp",
    "exp2",
    "floor",
    "log",
    "log10",
    "log1p",
    "log2",
    "power",
    "rint",
    "sin",
    "sqrt",
    "tanh",
)


# Generated kernels ----------------------------------------------------------------------------------------------------


class Form(Enum):
    """The iteration space of a kernel's threads."""

    ELEMENTS = "count"
    ROWS = "rows"
    COLUMNS = "parts of columns"


_SHORTEST, _THREADS = 16, 1 << 17
"""The smallest number of rows in a part of a column, and the number of threads that occupies a GPU, beyond which
columns are not split."""

_WHOLE = 64
"""The number of rows that one thread sums as fast as a second launch would join parts."""


def parts_of_columns(rows: int, extent: int) -> int:
    """Return the number of parts, with a thread each, into which columns of `rows` rows are split."""
    if rows <= _WHOLE:
        return 1
    most = min(-(-rows // _SHORTEST), max(1, _THREADS // extent))
    return -(-rows // -(-rows // most))


class Pointer(NamedTuple):
    """An argument: the memory of a root."""

    root: int


class Partial(NamedTuple):
    """An argument: the partial sums of the column sum `slot`, a row for each part."""

    slot: int


class Watching(Enum):
    """Arguments of a kernel that checks indices: the flag's memory, and the value it is set to."""

    FLAG = "flag"
    ASKED = "asked"


Argument = Pointer | Partial | Watching | np.generic


@final
class KernelArguments:
    """The arguments of a kernel under construction, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, Argument] = {}
        self._pointers: dict[Pointer | Partial | Watching, str] = {}

    def pointer(self, argument: Pointer | Partial | Watching) -> str:
        """Return the name of an argument, adding it once."""
        name = self._pointers.get(argument)
        if name is None:
            name = self._pointers[argument] = f"p{len(self.by_name)}"
            self.by_name[name] = argument
        return name

    def number(self, value: Any) -> str:
        """Add a number and return its name."""
        name = f"n{len(self.by_name)}"
        self.by_name[name] = value
        return name


class Generated(NamedTuple):
    """A kernel and the arguments that follow those of its form.

    rows, extent    the iteration space: rows of `extent` elements; one row for a loop over elements
    parts           the number of parts of a column
    neighbours      whether a row's elements are contiguous in memory; otherwise adjacent rows are
    """

    text: Text
    form: Form
    rows: int
    extent: int
    parts: int
    neighbours: bool
    arguments: tuple[Argument, ...]

    @property
    def roots(self) -> list[int]:
        """Return the roots whose memory it reads and writes, and its sums over rows."""
        found = (a.root if isinstance(a, Pointer) else a.slot if isinstance(a, Partial) else -1 for a in self.arguments)
        return [root for root in found if root >= 0]

    @property
    def checks(self) -> bool:
        """Return whether it checks indices."""
        return Watching.FLAG in self.arguments


# Loops ----------------------------------------------------------------------------------------------------------------

BLOCK = 128
"""Rows of a part per running sum; the block sums are added in turn."""


def cluster_kernel(cluster: Cluster, equations: Sequence[Equation], stored: Collection[int]) -> Generated:
    """Return the kernel of a cluster that stores the values of the slots `stored`."""
    levels, space = cluster.levels.values(), space_of(cluster, stored)
    form = Form.COLUMNS if Level.COLUMN in levels else Form.ROWS if Level.ROW in levels else Form.ELEMENTS
    if form is Form.ELEMENTS:
        space = as_written(space)
    by_row = form is Form.ROWS
    how = Scheduling(recomputes=by_row, loads_first=not by_row)
    extent = cluster.size if form is Form.ELEMENTS else cluster.extent or 1
    return _CudaPrinter(schedule(cluster, equations, space, how), form, cluster.size // extent, extent).kernel()


@final
class _CudaPrinter(LoopPrinter):
    def __init__(self, loop: LoopNest, form: Form, rows: int, extent: int):
        self.arguments = KernelArguments()
        super().__init__(Numbers(self.arguments.number))
        self.loop, self.space, self.form, self.rows, self.extent = loop, loop.space, form, rows, extent
        self.parts = parts_of_columns(rows, extent) if form is Form.COLUMNS else 1
        self.blocks = form is Form.COLUMNS and -(-rows // self.parts) > 2 * BLOCK
        self.index: dict[str, str] = {}  # the index expression of each operand's element
        self.along: list[str] = []  # lines that compute coordinates along a row's axes
        self.broken: set[str] = set()  # operands with several strides along a row, which need these coordinates

    def kernel(self) -> Generated:
        lines = {Form.ELEMENTS: self._by_element, Form.ROWS: self._by_row, Form.COLUMNS: self._by_column}[self.form]()
        first = ["rows", "lanes"] if self.form is Form.ROWS else ["count"]
        head = f"def kernel({', '.join([*first, *self.arguments.by_name])}):"
        text = Text(self.loop.name, "\n".join(self.constants.definitions), "\n".join([head, *indented(lines)]))
        arguments = tuple(self.arguments.by_name.values())
        return Generated(text, self.form, self.rows, self.extent, self.parts, self._neighbours(), arguments)

    def _neighbours(self) -> bool:
        steps = [o.strides for o in self.space.operands if o.local.level is Level.ELEMENT and not o.counted]
        return any(s[-1] == 1 for s in steps) or not any(s[: self.space.outer][-1:] == (1,) for s in steps)

    # Arguments and statements ---------------------------------------------------------------------------------------

    @override
    def number(self, value: int) -> str:
        """Return a new argument for each size or stride, so that the source does not depend on which are equal."""
        return self.arguments.number(np.int32(value))

    @override
    def divided(self, dividend: str, divisor: str) -> tuple[str, str]:
        return f"quotient({dividend}, {divisor})", f"remainder({dividend}, {divisor})"

    @override
    def load(self, place: Place) -> str:
        assert isinstance(place, LoopOperand), "values of earlier passes are recomputed"
        if place.counted:
            return f"{dtype_name(place.local.dtype)}({self.index[place.name]})"
        return from_memory(self._element(place), mask=place.local.dtype.kind == "b")

    @override
    def store(self, place: Place, value: str) -> list[str]:
        assert isinstance(place, LoopOperand), "values of earlier passes are recomputed"
        line = f"{self._element(place)} = {to_memory(value, mask=place.local.dtype.kind == 'b')}"
        return [line] if place.local.level is Level.ELEMENT else ["if lane == 0:", f"    {line}"]

    def _element(self, operand: LoopOperand) -> str:
        return f"{self.arguments.pointer(Pointer(operand.view.root))}[{self.index[operand.name]}]"

    @override
    def noted(self, outside: str) -> list[str]:
        flag = self.arguments.pointer(Watching.FLAG)
        value = self.arguments.pointer(Watching.ASKED)
        return [f"if ({outside}) and {flag}[0] == 0:", f"    {flag}[0] = {value}"]

    @override
    def accumulate(self, accumulator: Accumulator, value: str) -> list[str]:
        name = accumulator.local.name
        if accumulator.primitive in (ROW_SUM, COLUMN_SUM):
            return [f"{name} += {value}"]
        return [f"{name} = {value} if {value} > {name} or {value} != {value} else {name}"]

    def _begun(self, accumulator: Accumulator, prefix: str = "") -> str:
        name, dtype = accumulator.local.name, accumulator.local.dtype
        least = 0 if accumulator.primitive in (ROW_SUM, COLUMN_SUM) else float("-inf")
        return f"{prefix}{name} = {self.constants(least, dtype)}"

    def _indexed(self, operand: LoopOperand, places: Sequence[str], strides: Sequence[int]) -> str:
        offset = [self.number(operand.view.offset)] if operand.view.offset else []
        return " + ".join([*offset, *self.terms(places, strides)]) or "0"

    def _iterator(self, each: Pass) -> str:
        """Return the iterator of a loop: unrolled if most of its time is spent waiting for loads."""
        made = (*each.before, *each.inside)
        computes = any(
            isinstance(s, Check) or (isinstance(s, Assign) and s.equation.primitive not in CHEAP) for s in made
        )
        return "steps" if computes or any(isinstance(s, Store) for s in each.inside) else "unrolled_steps"

    # A thread for each element --------------------------------------------------------------------------------------

    def _by_element(self) -> list[str]:
        lines, places = self.coordinates("i", self.space.sizes)
        self.index = {o.name: self._indexed(o, places, o.strides) for o in self.space.operands}
        (only,) = self.loop.passes
        lines += self.lines(only.inside)
        return ["for i in steps(cuda.grid(1), count, cuda.gridsize(1)):", *indented(lines)]

    # Lanes for each row ---------------------------------------------------------------------------------------------

    def _by_row(self) -> list[str]:
        outer = self.space.outer
        inner = self.space.sizes[outer:]
        lines, places = self.coordinates("row", self.space.sizes[:outer])
        count = self.number(math.prod(inner))
        for operand in self.space.operands:
            lines.append(f"{operand.name}_at = {self._indexed(operand, places, operand.strides[:outer])}")
            self.index[operand.name] = " + ".join([f"{operand.name}_at", *self._within(operand, inner)])
        for each in self.loop.passes:
            lines += self._pass(each, count)
        kinds = {dtype_name(a.local.dtype) for each in self.loop.passes for a in each.row}
        shared = [f"shared_{kind} = cuda.shared.array(MOST_WARPS, {kind})" for kind in sorted(kinds)]
        head = [*shared, "lane = remainder(cuda.threadIdx.x, lanes)"]
        turns = "steps(quotient(cuda.grid(1), lanes), rows, quotient(cuda.gridsize(1), lanes))"
        return [*head, f"for row in {turns}:", *indented(lines)]

    def _within(self, operand: LoopOperand, inner: Sequence[int]) -> list[str]:
        """Return the terms of an element's offset in a row."""
        steps = operand.strides[self.space.outer :]
        if all(s == t * n for s, t, n in zip(steps, steps[1:], inner[1:])):
            return self.terms(["j"], steps[-1:])
        if not self.broken:
            self.along, self.coordinates_along = self.coordinates("j", inner, "j")
        self.broken.add(operand.name)
        return self.terms(self.coordinates_along, steps)

    def _pass(self, each: Pass, count: str) -> list[str]:
        before = [*self.lines(each.before), *map(self._begun, each.row)]
        inside = self.lines(each.inside)
        reached = [s.place for s in each.inside if isinstance(s, (Load, Store))]
        if any(isinstance(place, LoopOperand) and place.name in self.broken for place in reached):
            inside = [*self.along, *inside]
        loop = [f"for j in {self._iterator(each)}(lane, {count}, lanes):", *indented(inside)] if inside else []
        return [*before, *loop, *map(self._combine_lanes, each.row)]

    def _combine_lanes(self, accumulator: Accumulator) -> str:
        """Return a line that combines the lanes' values."""
        name, kind = accumulator.local.name, dtype_name(accumulator.local.dtype)
        join = "sum_lanes" if accumulator.primitive is ROW_SUM else "max_lanes"
        return f"{name} = {join}({name}, shared_{kind}, cuda.threadIdx.x, lanes)"

    # A thread for each column ---------------------------------------------------------------------------------------

    def _by_column(self) -> list[str]:
        lines, places = self.coordinates("row", self.space.sizes[:-1])
        extent, length, rows = (self.number(n) for n in (self.extent, -(-self.rows // self.parts), self.rows))
        self.index = {o.name: self._indexed(o, [*places, "j"], o.strides) for o in self.space.operands}
        (only,) = self.loop.passes
        inside, going, prefix = [*lines, *self.lines(only.inside)], self._iterator(only), "total" if self.blocks else ""
        through = [f"for row in {going}(part * {length}, last, 1):", *indented(inside)]
        names = [a.local.name for a in self.loop.columns]
        if self.blocks:
            span = self.number(BLOCK)
            begin, end = map(self._begun, self.loop.columns), [f"total{name} += {name}" for name in names]
            through = [f"for row in {going}(block, min(last, block + {span}), 1):", *indented(inside)]
            through = [f"for block in steps(part * {length}, last, {span}):", *indented([*begin, *through, *end])]
        return [
            "for task in steps(cuda.grid(1), count, cuda.gridsize(1)):",
            f"    part = quotient(task, {extent})",
            f"    j = task - part * {extent}",
            f"    last = min({rows}, (part + 1) * {length})",
            *indented([self._begun(a, prefix) for a in self.loop.columns]),
            *indented(through),
            *[
                f"    {self.arguments.pointer(Partial(a.slot))}[task] = {prefix}{a.local.name}"
                for a in self.loop.columns
            ],
        ]
