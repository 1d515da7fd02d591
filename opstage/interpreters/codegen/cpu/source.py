"""The text of a cluster's kernel.

It depends on the ops, the dtypes and which strides are 0 or 1, not on sizes, which are arguments, but for whether
a row that is summed is long. So clusters that look alike, in the layers of a model or for another batch, share one
kernel.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, final

from ....ops.closed import Equation
from ....ops.types import dtype_name
from ...native import access
from ..axes import fewest_axes
from ..clusters import Cluster, Level, staged
from ..formulas import FORMULAS, Constants
from ..lowered import Lowered
from ..primitives import COLUMN_SUM, INDEX_CHECK, ROW_MAX, ROW_SUM
from ..views import View
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


def cluster_loop(cluster: Cluster, equations: list[Equation], stored: Collection[int]) -> LoweredLoop:
    """The kernel of a cluster that leaves the values of `stored` in memory."""
    return _LoopWriter(cluster, equations, stored).loop()


_NO_VIEW = View(-1, 0, (), ())


class _CpuOperand(NamedTuple):
    name: str
    dtype: str
    level: Level
    scope: str
    view: View
    written: bool


class _Runs(NamedTuple):
    """Statements before and after each chunk of a row's elements, where a pass goes through them in chunks."""

    begin: list[str]
    end: list[str]


@final
class _LoopWriter:
    def __init__(self, cluster: Cluster, equations: list[Equation], stored: Collection[int]):
        self.cluster = cluster
        self.lowered: Lowered = cluster.lowered
        self.equations = equations
        self.extent = cluster.extent
        self.constants = Constants()
        self.words: list[Word] = []
        self.scopes = 0
        self.names: dict[str, tuple[str, str, str]] = {}
        self.rooms: list[tuple[WorkerScratch, int]] = []
        self.panel = False  # whether `_LANES` rows are gone through side by side, lane l of them in an inner loop
        self.head: list[str] = []  # what is done once
        self.after_row: list[str] = []
        self.after_rows: list[str] = []
        self.lanes: dict[str, _CpuOperand] = {}
        self.local = {slot: i for i, slot in enumerate(cluster.levels)}  # names do not tell one program from another
        self.reads = {
            (view, level): _CpuOperand(
                f"x{i}", dtype_name(self.lowered.types[view.root].dtype), level, access.READ, view, False
            )
            for i, (view, level) in enumerate(cluster.operands)
        }
        self.writes = {
            slot: _CpuOperand(
                f"y{i}",
                dtype_name(self.lowered.types[slot].dtype),
                cluster.levels[slot],
                self._scope(),
                self._target(slot),
                True,
            )
            for i, slot in enumerate(s for s in cluster.levels if s in stored and cluster.levels[s] is not Level.COLUMN)
        }

    def _scope(self) -> str:
        self.scopes += 1
        return access.written(self.scopes - 1)

    def _target(self, slot: int) -> View:
        return self.lowered.in_memory(self.lowered.views[slot])

    def word(self, value: Word) -> str:
        self.words.append(value)
        return f"w[{len(self.words) - 1}]"

    # Text -----------------------------------------------------------------------------------------------------------

    def loop(self) -> LoweredLoop:
        sizes, table, _ = fewest_axes(self.cluster, [*self.reads.values()], [*self.writes.values()])
        *outer, inner = sizes
        flat = not outer and self.extent is None
        self.panel = self._side_by_side(sizes, table)
        head = self.head
        if not flat:
            head.append(f"n = {self.word(inner)}")
        body: list[str] = []
        places: list[str] = []
        turns = [*outer[:-1], -(-outer[-1] // _LANES)] if self.panel else outer
        for i in range(len(turns) - 1, 0, -1):
            size = self.word(turns[i])
            body += [f"i{i} = rest % {size}", f"rest = rest // {size}"]
        if len(turns) > 1:
            body.insert(0, "rest = row")
            body.append("i0 = rest")
            places = [f"i{i}" for i in range(len(turns))]
        elif turns:
            places = ["row"]
        if self.panel:
            body += [f"first = {places[-1]} * {_LANES}", f"wide = min({_LANES}, {self.word(outer[-1])} - first)"]
            places[-1] = "first"
        self.inner: dict[str, str] = {}
        for operand in [*self.reads.values(), *self.writes.values()]:
            nbytes = self.lowered.types[operand.view.root].dtype.itemsize
            *along, step = table[operand.name]
            terms = [self.word(Address(operand.view.root, operand.view.offset * nbytes))]
            terms += [f"{place} * {self.word(s * nbytes)}" for place, s in zip(places, along) if s]
            if flat and step:
                terms.append(f"lo * {nbytes}" if step == 1 else f"lo * {self.word(step * nbytes)}")
            base = f"{operand.name}_at = {' + '.join(terms)}"
            (body if len(terms) > 1 and not flat else head).append(base)
            self.inner[operand.name] = self._index(step, along[-1] if self.panel else 0)
        indices = [self.inner[operand.name] for operand in self.reads.values()]
        self.run = _RUN if all(index in ("0", "j") for index in indices) else _STRIDED_RUN
        body += self._stages("hi - lo" if flat else "n")
        words = f"w = int64s(arguments, {len(self.words)})"
        if flat:
            lines = ["def kernel(lo, hi, worker, arguments):", *_in(1, [words, *head, *body])]
        else:
            lines = [
                "def kernel(lo, hi, worker, arguments):",
                *_in(1, [words, *head, "for row in range(lo, hi):"]),
                *_in(2, [*body, *self.after_row]),
                *_in(1, self.after_rows),
            ]
        tasks = inner if flat else math.prod(turns)
        return LoweredLoop(self._text(lines), tasks, tuple(self.words), tuple(self.rooms))

    def _side_by_side(self, sizes: Sequence[int], table: Mapping[str, Sequence[int]]) -> bool:
        """Whether neighbouring rows have their elements beside one another, as those along an inner axis have."""
        if self.extent is None or len(sizes) < 2 or sizes[-2] < 8 or Level.COLUMN in self.cluster.levels.values():
            return False
        if any(e.primitive is INDEX_CHECK for e in self.equations):
            return False
        along = [table[o.name] for o in (*self.reads.values(), *self.writes.values()) if o.level is Level.ELEMENT]
        return all(s[-1] != 1 and s[-2] in (0, 1) for s in along) and any(s[-2] == 1 for s in along)

    def _index(self, step: int, lane: int) -> str:
        """Where an operand's element j of a row is, of row l of a panel."""
        terms = [(step, "j"), (lane, "l")]
        return " + ".join(name if n == 1 else f"{name} * {self.word(n)}" for n, name in terms if n) or "0"

    def _room(self, name: str, dtype: str, nbytes: int) -> _CpuOperand:
        """Memory of the worker's own."""
        nbytes = -(-nbytes // 64) * 64
        room = _CpuOperand(name, dtype, Level.ROW, self._scope(), _NO_VIEW, True)
        self.head.append(f"{name}_at = {self.word(WorkerScratch(name, nbytes))} + worker * {self.word(nbytes)}")
        return room

    def _set(self, name: str, dtype: str, value: str) -> str:
        """A line that gives a row's variable a value; those of the rows of a panel stand in memory side by side."""
        if not self.panel:
            return f"{name} = {value}"
        if name not in self.lanes:
            self.lanes[name] = self._room(f"{name}s", dtype, 8 * _LANES)
        return self._store(self.lanes[name], "l", value)

    def _get(self, name: str) -> str:
        return self._load(self.lanes[name], "l") if self.panel else name

    def _each_row(self, lines: list[str]) -> list[str]:
        return ["for l in range(wide):", *_in(1, lines)] if self.panel and lines else lines

    def _text(self, lines: list[str]) -> LoopSource:
        name = "_".join(dict.fromkeys(e.primitive.name for e in self.equations))
        accesses = tuple([(name, *of) for name, of in sorted(self.names.items())])
        return LoopSource(name[:60], "\n".join(self.constants.definitions), "\n".join(lines), accesses)

    def _access(self, kind: str, dtype: str, scope: str) -> str:
        name = f"{kind}_{dtype}_{scope.replace(' ', '_')}"
        self.names[name] = (kind, dtype, scope)
        return name

    def _load(self, operand: _CpuOperand, index: str) -> str:
        text = f"{self._access('load', operand.dtype, operand.scope)}({operand.name}_at, {index})"
        return f"({text} != 0)" if operand.dtype == "bool" else text

    def _store(self, operand: _CpuOperand, index: str, value: str) -> str:
        value = f"uint8(1 if {value} else 0)" if operand.dtype == "bool" else value
        return f"{self._access('store', operand.dtype, operand.scope)}({operand.name}_at, {index}, {value})"

    def _stages(self, count: str) -> list[str]:
        """The passes over a row."""
        stage = staged(self.cluster, self.equations)
        levels = max(stage.values(), default=0) + 1
        before: list[list[str]] = [[] for _ in range(levels)]
        inside: list[list[str]] = [[] for _ in range(levels)]
        loaded: list[set[str]] = [set() for _ in range(levels)]
        runs = [_Runs([], []) for _ in range(levels)]
        kept: dict[int, _CpuOperand] = {}
        made_at: dict[int, int] = {}

        for operand in self.reads.values():
            if not self.panel and (operand.level is Level.ROW or self.inner[operand.name] == "0"):
                before[0].append(f"{operand.name} = {self._load(operand, '0')}")

        def value(slot: int, level: Level, at: int) -> str:
            lowered = self.lowered
            if slot in lowered.literals:
                return self.constants(lowered.literals[slot], lowered.types[slot].dtype)
            view = lowered.views[slot]
            made = self.cluster.levels.get(view.root)
            if made is Level.ROW:
                return self._get(f"v{self.local[view.root]}")
            if made is Level.ELEMENT:
                if made_at[view.root] != at and f"v{self.local[view.root]}" not in loaded[at]:
                    loaded[at].add(f"v{self.local[view.root]}")
                    inside[at].append(
                        f"v{self.local[view.root]} = {self._again(view.root, made_at[view.root], kept, inside)}"
                    )
                return f"v{self.local[view.root]}"
            operand = self.reads[view, level]
            if self.panel and operand.level is Level.ROW:
                return self._load(operand, self.inner[operand.name])
            if operand.level is Level.ELEMENT and self._moves(operand) and operand.name not in loaded[at]:
                loaded[at].add(operand.name)
                inside[at].append(f"{operand.name} = {self._load(operand, self.inner[operand.name])}")
            return operand.name

        for e in self.equations:
            (out,) = e.outputs
            name = self.local[out]
            level, at = self.cluster.levels[out], stage[out]
            type_ = self.lowered.types[out]
            if e.primitive is COLUMN_SUM:
                self._column(e, value(e.inputs[0], Level.ELEMENT, at), inside[at])
            elif e.primitive in (ROW_SUM, ROW_MAX):
                self._row(e, value(e.inputs[0], Level.ELEMENT, at - 1), before, inside, runs, at)
            else:
                lines = inside[at] if level is Level.ELEMENT else before[at]
                args = tuple(value(slot, level, at) for slot in e.inputs)
                if e.primitive is INDEX_CHECK:
                    lines += self._check(args[0], e.static["size"])
                    text = args[1]
                else:
                    ins = tuple(self.lowered.types[slot] for slot in e.inputs)
                    text = FORMULAS[e.primitive](self.constants, type_, ins, args, e.static)
                lines.append(
                    f"v{name} = {text}"
                    if level is Level.ELEMENT
                    else self._set(f"v{name}", dtype_name(type_.dtype), text)
                )
            if level is Level.ELEMENT:
                made_at[out] = at
                loaded[at].add(f"v{name}")
            if out in self.writes:
                operand = self.writes[out]
                if level is Level.ELEMENT:
                    inside[at].append(self._store(operand, self.inner[operand.name], f"v{name}"))
                else:
                    before[at].append(self._store(operand, self.inner[operand.name], self._get(f"v{name}")))
        lines = []
        for first, each, run in zip(before, inside, runs):
            lines += self._each_row(first)
            each = self._each_row(each)
            if run.begin:
                lines.append(f"for run in range(0, {count}, {self.run}):")
                each = [f"for j in range(run, min({count}, run + {self.run})):", *_in(1, each)]
                lines += _in(1, [*self._each_row(run.begin), *each, *self._each_row(run.end)])
            elif each:
                lines += [f"for j in range({count}):", *_in(1, each)]
        return lines

    def _moves(self, operand: _CpuOperand) -> bool:
        """Whether it has more than one element for a row, or a panel."""
        return self.panel or self.inner[operand.name] != "0"

    def _again(self, slot: int, made: int, kept: dict[int, _CpuOperand], inside: list[list[str]]) -> str:
        """A value of an earlier pass: from where it was stored, or from a row of the worker's own."""
        stored = self.writes.get(slot)
        if stored is not None and (self.panel or self.inner[stored.name] == "j"):
            return self._load(stored, self.inner[stored.name])
        operand, name = kept.get(slot), self.local[slot]
        index = f"j * {_LANES} + l" if self.panel else "j"
        if operand is None:
            dtype = self.lowered.types[slot].dtype
            assert self.extent is not None
            nbytes = self.extent * dtype.itemsize * (_LANES if self.panel else 1)
            operand = kept[slot] = self._room(f"t{name}", dtype_name(dtype), nbytes)
            inside[made].append(self._store(operand, index, f"v{name}"))
        return self._load(operand, index)

    def _column(self, e: Equation, value: str, lines: list[str]) -> None:
        """A sum over rows, in a row of the worker's own, and that of its blocks in one of float64 beside it."""
        (out,) = e.outputs
        name, head = self.local[out], self.head
        dtype = self.lowered.types[out].dtype
        kind, view, zero = dtype_name(dtype), self.lowered.views[out], self.constants(0, dtype)
        assert self.extent is not None
        nbytes = -(-self.extent * dtype.itemsize // 64) * 64
        room = WorkerScratch(f"c{name}", nbytes + -(-self.extent * 8 // 64) * 64)
        part = _CpuOperand(f"c{name}", kind, Level.COLUMN, self._scope(), view, True)
        whole = _CpuOperand(f"d{name}", "float64", Level.COLUMN, self._scope(), view, True)
        total = f"({self._load(whole, 'j')} + {self._load(part, 'j')})"
        head.append(f"c{name}_at = {self.word(room)} + worker * {self.word(room.nbytes)}")
        head.append(f"d{name}_at = c{name}_at + {self.word(nbytes)}")
        head += ["for j in range(n):", *_in(1, [self._store(part, "j", zero), self._store(whole, "j", "0.0")])]
        lines.append(self._store(part, "j", f"({self._load(part, 'j')} + {value})"))
        moved = [self._store(whole, "j", total), self._store(part, "j", zero)]
        self.after_row.append(f"if (row - lo) % {_BLOCK} == {_BLOCK - 1}:")
        self.after_row += _in(1, ["for j in range(n):", *_in(1, moved)])
        self.after_rows += ["for j in range(n):", *_in(1, [self._store(part, "j", f"{kind}{total}")])]
        self.rooms.append((room, out))

    def _row(
        self,
        e: Equation,
        value: str,
        before: list[list[str]],
        inside: list[list[str]],
        runs: list[_Runs],
        at: int,
    ) -> None:
        (out,) = e.outputs
        name = self.local[out]
        dtype = self.lowered.types[out].dtype
        assert self.extent is not None
        kind, zero = dtype_name(dtype), self.constants(0, dtype)
        if e.primitive is ROW_SUM and self.extent > 2 * self.run:
            before[at - 1].append(self._set(f"s{name}", "float64", "0.0"))
            runs[at - 1].begin.append(self._set(f"r{name}", kind, zero))
            inside[at - 1].append(self._set(f"r{name}", kind, f"add({self._get(f'r{name}')}, {value})"))
            runs[at - 1].end.append(
                self._set(f"s{name}", "float64", f"{self._get(f's{name}')} + {self._get(f'r{name}')}")
            )
            before[at].append(self._set(f"v{name}", kind, f"{kind}({self._get(f's{name}')})"))
            return
        if e.primitive is ROW_SUM:
            before[at - 1].append(self._set(f"v{name}", kind, zero))
            inside[at - 1].append(self._set(f"v{name}", kind, f"add({self._get(f'v{name}')}, {value})"))
            return
        order = "int32" if kind == "float32" else "int64"
        before[at - 1] += [
            self._set(f"m{name}", order, f"least_{kind}"),
            self._set(f"b{name}", "int64", "int64(0)"),
        ]
        greatest = self._get(f"m{name}")
        inside[at - 1] += [
            f"o{name} = ordered_{kind}({value})",
            self._set(f"m{name}", order, f"o{name} if o{name} > {greatest} else {greatest}"),
            self._set(f"b{name}", "int64", f"{self._get(f'b{name}')} | int64({value} != {value})"),
        ]
        found = f"unordered_{kind}({self._get(f'm{name}')}) if {self._get(f'b{name}')} == 0 else nan_{kind}"
        before[at].append(self._set(f"v{name}", kind, found))

    def _check(self, index: str, size: int) -> list[str]:
        store = self._access("store", "int64", self._scope())
        return [
            f"if {index} < 0 or {index} >= {self.word(size)}:",
            *_in(1, [f"{store}({self.word(ErrorFlag())}, 0, 1)"]),
        ]


def _in(depth: int, lines: list[str]) -> list[str]:
    return ["    " * depth + line for line in lines]
