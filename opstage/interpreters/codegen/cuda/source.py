"""The kernel of a cluster, in the language of `gpu`: its text, and what it is called with.

There are three forms. Without sums a thread steps through elements. With sums along rows the lanes of a row step
through it, as often as a sum must be complete before it is used; what an earlier pass has made is made again, which
takes less than to fetch it. With sums over rows a thread goes down a column, or a part of one; the parts are added up
after it.

The text depends on the ops, the dtypes and which strides are 0 or 1; sizes are arguments. So layers that are alike,
and other batches, share a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from ....ops.closed import Equation
from ....ops.types import dtype_name
from ..axes import as_written, fewest_axes
from ..clusters import Cluster, Level, staged
from ..formulas import FORMULAS
from ..lowered import Lowered
from ..primitives import COLUMN_SUM, INDEX_CHECK, ROW_MAX, ROW_SUM
from ..recompute import CHEAP
from ..views import View
from .generated import Argument, Form, Generated, Partial, Pointer, Watching
from .numbers import Numbers
from .texts import Text, indented, load, store

SHORTEST, THREADS = 16, 1 << 17
"""Rows of a part of a column, at least; and with how many threads a GPU is busy, so that columns are cut no further."""

WHOLE = 64
"""Rows that one thread goes down as fast as another launch would join parts of them."""

BLOCK = 128
"""Rows of a part that are added in one running sum; the sums of blocks are added in turn."""


def cluster_kernel(cluster: Cluster, equations: Sequence[Equation], stored: Collection[int]) -> Generated:
    """The kernel of a cluster that leaves the values of `stored` in memory."""
    return _Writer(cluster, equations, stored).kernel()


class _Operand(NamedTuple):
    name: str
    level: Level
    view: View


@final
class _Writer:
    def __init__(self, cluster: Cluster, equations: Sequence[Equation], stored: Collection[int]):
        self.cluster = cluster
        self.lowered: Lowered = cluster.lowered
        self.equations = equations
        self.made = {e.outputs[0]: e for e in equations}
        self.columns = [e for e in equations if e.primitive is COLUMN_SUM]
        self.form = (
            Form.COLUMNS if self.columns else Form.ROWS if Level.ROW in cluster.levels.values() else Form.ELEMENTS
        )
        self.extent = cluster.size if self.form is Form.ELEMENTS else cluster.extent or 1
        self.rows = cluster.size // self.extent
        self.parts = 1
        if self.form is Form.COLUMNS:
            most = min(-(-self.rows // SHORTEST), max(1, THREADS // self.extent))
            self.parts = -(-self.rows // -(-self.rows // most)) if self.rows > WHOLE else 1
        self.constants = Numbers(self.number)
        self.pointers: dict[Pointer | Partial | Watching, str] = {}
        self.arguments: dict[str, Argument] = {}
        self.waits = True  # whether a loop does little but read
        self.local = {slot: i for i, slot in enumerate(cluster.levels)}
        self.reads = {
            (view, level): _Operand(f"x{i}", level, self.lowered.in_memory(view))
            for i, (view, level) in enumerate(cluster.operands)
        }
        written = [s for s, level in cluster.levels.items() if s in stored and level is not Level.COLUMN]
        self.writes = {
            slot: _Operand(f"y{i}", cluster.levels[slot], self.lowered.in_memory(self.lowered.views[slot]))
            for i, slot in enumerate(written)
        }

    # Arguments ------------------------------------------------------------------------------------------------------

    def pointer(self, argument: Pointer | Partial | Watching) -> str:
        name = self.pointers.get(argument)
        if name is None:
            name = self.pointers[argument] = f"p{len(self.arguments)}"
            self.arguments[name] = argument
        return name

    def number(self, value: Any) -> str:
        """A size, a stride or a number of a formula, an argument each: so the text does not tell which are equal."""
        name = f"n{len(self.arguments)}"
        self.arguments[name] = np.int32(value) if type(value) is int else value
        return name

    # Text -----------------------------------------------------------------------------------------------------------

    def kernel(self) -> Generated:
        self.sizes, self.table, self.outer = fewest_axes(self.cluster, [*self.reads.values()], [*self.writes.values()])
        if self.form is Form.ELEMENTS and self.writes:
            self.sizes, self.table = as_written(self.sizes, self.table, next(iter(self.writes.values())).name)
        lines = {Form.ELEMENTS: self._by_element, Form.ROWS: self._by_row, Form.COLUMNS: self._by_column}[self.form]()
        first = ["rows", "lanes"] if self.form is Form.ROWS else ["count"]
        head = f"def kernel({', '.join([*first, *self.arguments])}):"
        name = "_".join(dict.fromkeys(e.primitive.name for e in self.equations))
        text = Text(name[:60], "\n".join(self.constants.definitions), "\n".join([head, *indented(lines)]))
        return Generated(
            text, self.form, self.rows, self.extent, self.parts, self._neighbours(), tuple(self.arguments.values())
        )

    def _neighbours(self) -> bool:
        every = [o for o in (*self.reads.values(), *self.writes.values()) if o.level is Level.ELEMENT]
        steps = [self.table[o.name] for o in every if o.view.root not in self.lowered.counted]
        return any(s[-1] == 1 for s in steps) or not any(s[: self.outer][-1:] == [1] for s in steps)

    def _coordinates(self, of: str, sizes: Sequence[int], name: str = "i") -> tuple[list[str], list[str]]:
        """Lines that say where `of` stands along axes of these sizes, and the names of the places."""
        if len(sizes) <= 1:
            return [], [of] * len(sizes)
        lines, rest = [], of
        places = [f"{name}{a}" for a in range(len(sizes))]
        for a in range(len(sizes) - 1, 0, -1):
            size = self.number(sizes[a])
            lines.append(f"{name}{a} = remainder({rest}, {size})")
            lines.append(f"{'rest' if a > 1 else places[0]} = quotient({rest}, {size})")
            rest = "rest"
        return lines, places

    def _index(self, operand: _Operand, places: Sequence[str], strides: Sequence[int]) -> list[str]:
        """The terms of an element's place in memory."""
        terms = [self.number(operand.view.offset)] if operand.view.offset else []
        return terms + self._terms(places, strides)

    def _terms(self, places: Sequence[str], strides: Sequence[int]) -> list[str]:
        return [p if n == 1 else f"{p} * {self.number(n)}" for p, n in zip(places, strides) if n]

    def _within(self, operand: _Operand) -> str:
        """Where an element of a row lies."""
        self.split |= operand.name in self.broken
        return self.inner[operand.name]

    def _load(self, operand: _Operand, index: str) -> str:
        root = operand.view.root
        if root in self.lowered.counted:
            return f"{dtype_name(self.lowered.types[root].dtype)}({index})"
        return load(f"{self.pointer(Pointer(root))}[{index}]", self.lowered.types[root].dtype)

    def _store(self, operand: _Operand, index: str, value: str) -> str:
        root = operand.view.root
        return store(f"{self.pointer(Pointer(root))}[{index}]", value, self.lowered.types[root].dtype)

    def _lines(self, e: Equation, args: tuple[str, ...]) -> list[str]:
        """The statements that compute a value and bind it to its name."""
        name = self._name(e.outputs[0])
        self.waits &= e.primitive in CHEAP
        if e.primitive is INDEX_CHECK:
            (index, value), flag = args, self.pointer(Watching.FLAG)
            return [
                f"if ({index} < 0 or {index} >= {self.number(e.static['size'])}) and {flag}[0] == 0:",
                f"    {flag}[0] = {self.pointer(Watching.ASKED)}",
                f"{name} = {value}",
            ]
        ins = tuple([self.lowered.types[slot] for slot in e.inputs])
        return [
            f"{name} = {FORMULAS[e.primitive](self.constants, self.lowered.types[e.outputs[0]], ins, args, e.static)}"
        ]

    def _literal(self, slot: int) -> str | None:
        lowered = self.lowered
        return self.constants(lowered.literals[slot], lowered.types[slot].dtype) if slot in lowered.literals else None

    def _name(self, slot: int) -> str:
        return f"v{self.local[slot]}"

    # A thread for each element --------------------------------------------------------------------------------------

    def _by_element(self) -> list[str]:
        lines, places = self._coordinates("i", self.sizes)
        index = {
            operand.name: " + ".join(self._index(operand, places, self.table[operand.name])) or "0"
            for operand in (*self.reads.values(), *self.writes.values())
        }
        for operand in self.reads.values():
            lines.append(f"{operand.name} = {self._load(operand, index[operand.name])}")
        for e in self.equations:
            args = tuple([self._element(slot) for slot in e.inputs])
            lines += self._lines(e, args)
        for slot, operand in self.writes.items():
            lines.append(self._store(operand, index[operand.name], self._name(slot)))
        return ["for i in steps(cuda.grid(1), count, cuda.gridsize(1)):", *indented(lines)]

    def _element(self, slot: int) -> str:
        """An operand of an equation of elements, in a kernel where all of them are."""
        literal = self._literal(slot)
        if literal is not None:
            return literal
        view = self.lowered.views[slot]
        return self._name(view.root) if view.root in self.made else self.reads[view, Level.ELEMENT].name

    # Lanes for each row ---------------------------------------------------------------------------------------------

    def _by_row(self) -> list[str]:
        lines, places = self._coordinates("row", self.sizes[: self.outer])
        count, inner = self.number(math.prod(self.sizes[self.outer :])), self.sizes[self.outer :]
        self.along: list[str] = []  # where an element stands along a row's axes
        self.inner: dict[str, str] = {}
        self.broken: set[str] = set()  # operands of several strides along a row
        for operand in (*self.reads.values(), *self.writes.values()):
            strides = self.table[operand.name]
            terms = self._index(operand, places, strides[: self.outer])
            lines.append(f"{operand.name}_at = {' + '.join(terms) or '0'}")
            steps = strides[self.outer :]
            if all(s == t * n for s, t, n in zip(steps, steps[1:], inner[1:])):
                within = self._terms(["j"], steps[-1:])
            else:
                if not self.along:
                    self.along, coordinates = self._coordinates("j", inner, "j")
                within = self._terms(coordinates, steps)
                self.broken.add(operand.name)
            self.inner[operand.name] = " + ".join([f"{operand.name}_at", *within])
        self.done: set[str] = set()  # what is known of a row
        for operand in self.reads.values():
            if not any(self.table[operand.name][self.outer :]):
                lines.append(f"{operand.name} = {self._load(operand, self.inner[operand.name])}")
                self.done.add(operand.name)
        kinds = {dtype_name(self.lowered.types[e.outputs[0]].dtype) for e in self.equations if _reduces(e)}
        shared = [f"shared_{kind} = cuda.shared.array(MOST_WARPS, {kind})" for kind in sorted(kinds)]
        stage = staged(self.cluster, self.equations)
        for at in range(max(stage.values(), default=0) + 1):
            lines += self._pass(at, stage, count)
        head = [*shared, "lane = remainder(cuda.threadIdx.x, lanes)"]
        turns = "steps(quotient(cuda.grid(1), lanes), rows, quotient(cuda.gridsize(1), lanes))"
        return [*head, f"for row in {turns}:", *indented(lines)]

    def _pass(self, at: int, stage: dict[int, int], count: str) -> list[str]:
        """The source of one pass over a row: values of the row that the pass before completes, then its elements."""
        before: list[str] = []
        inside: list[str] = []
        after: list[str] = []
        own: set[str] = set()
        self.waits, stores = True, False
        self.split = False  # whether this pass asks where along a row's axes an element stands
        for e in self.equations:
            (out,) = e.outputs
            name, row = self._name(out), self.cluster.levels[out] is Level.ROW
            if _reduces(e) and stage[out] == at + 1:
                value = self._needed(e.inputs[0], Level.ELEMENT, inside, own)
                kind = dtype_name(self.lowered.types[out].dtype)
                if e.primitive is ROW_SUM:
                    before.append(f"{name} = {self.constants(0, self.lowered.types[out].dtype)}")
                    inside.append(f"{name} += {value}")
                else:
                    before.append(f"{name} = {self.constants(float('-inf'), self.lowered.types[out].dtype)}")
                    inside.append(f"{name} = {value} if {value} > {name} or {value} != {value} else {name}")
                joined = "joined_sum" if e.primitive is ROW_SUM else "joined_max"
                after.append(f"{name} = {joined}({name}, shared_{kind}, cuda.threadIdx.x, lanes)")
            elif stage[out] != at:
                continue
            elif row:
                if not _reduces(e):
                    args = tuple([self._needed(slot, Level.ROW, before, self.done) for slot in e.inputs])
                    before += self._lines(e, args)
                self.done.add(name)
                if out in self.writes:
                    operand = self.writes[out]
                    before += ["if lane == 0:", *indented([self._store(operand, self.inner[operand.name], name)])]
            elif out in self.writes:
                self._needed(out, Level.ELEMENT, inside, own)
                operand, stores = self.writes[out], True
                inside.append(self._store(operand, self._within(operand), name))
        if self.split:
            inside = [*self.along, *inside]
        loop = [f"for j in {self._steps(stores)}(lane, {count}, lanes):", *indented(inside)] if inside else []
        return [*before, *loop, *after]

    def _steps(self, stores: bool) -> str:
        """How to go through a loop: several elements at a time where most of the time is spent waiting for them."""
        return "unrolled_steps" if self.waits and not stores else "steps"

    def _needed(self, slot: int, level: Level, lines: list[str], own: set[str]) -> str:
        """The name of a value, made or read in `lines` unless that was done already."""
        literal = self._literal(slot)
        if literal is not None:
            return literal
        view = self.lowered.views[slot]
        e = self.made.get(view.root)
        if e is None:
            operand = self.reads[view, level]
            if operand.name not in own and operand.name not in self.done:
                own.add(operand.name)
                lines.append(f"{operand.name} = {self._load(operand, self._within(operand))}")
            return operand.name
        name = self._name(view.root)
        if self.cluster.levels[view.root] is Level.ELEMENT and name not in own:
            args = tuple([self._needed(s, Level.ELEMENT, lines, own) for s in e.inputs])
            own.add(name)
            lines += self._lines(e, args)
        return name

    # A thread for each column ---------------------------------------------------------------------------------------

    def _by_column(self) -> list[str]:
        inside, places = self._coordinates("row", self.sizes[:-1])
        extent, length, rows = (self.number(n) for n in (self.extent, -(-self.rows // self.parts), self.rows))
        index = {}
        for operand in (*self.reads.values(), *self.writes.values()):
            terms = self._index(operand, [*places, "j"], self.table[operand.name])
            index[operand.name] = " + ".join(terms) or "0"
        for operand in self.reads.values():
            inside.append(f"{operand.name} = {self._load(operand, index[operand.name])}")
        before: list[str] = []
        after: list[str] = []
        blocks = -(-self.rows // self.parts) > 2 * BLOCK
        begin, end = [], []
        for e in self.equations:
            (out,), args = e.outputs, tuple([self._element(slot) for slot in e.inputs])
            name = self._name(out)
            if e.primitive is COLUMN_SUM and blocks:
                zero = self.constants(0, self.lowered.types[out].dtype)
                before.append(f"total{name} = {zero}")
                begin.append(f"{name} = {zero}")
                inside.append(f"{name} += {args[0]}")
                end.append(f"total{name} += {name}")
                after.append(f"{self.pointer(Partial(out))}[task] = total{name}")
            elif e.primitive is COLUMN_SUM:
                before.append(f"{name} = {self.constants(0, self.lowered.types[out].dtype)}")
                inside.append(f"{name} += {args[0]}")
                after.append(f"{self.pointer(Partial(out))}[task] = {name}")
            else:
                inside += self._lines(e, args)
        for slot, operand in self.writes.items():
            inside.append(self._store(operand, index[operand.name], self._name(slot)))
        going = self._steps(bool(self.writes))
        through = [f"for row in {going}(part * {length}, last, 1):", *indented(inside)]
        if begin:
            span = self.number(BLOCK)
            through = [f"for row in {going}(block, min(last, block + {span}), 1):", *indented(inside)]
            through = [f"for block in steps(part * {length}, last, {span}):", *indented([*begin, *through, *end])]
        lines = [
            f"part = quotient(task, {extent})",
            f"j = task - part * {extent}",
            f"last = min({rows}, (part + 1) * {length})",
            *before,
            *through,
            *after,
        ]
        return ["for task in steps(cuda.grid(1), count, cuda.gridsize(1)):", *indented(lines)]


def _reduces(e: Equation) -> bool:
    return e.primitive in (ROW_SUM, ROW_MAX)
