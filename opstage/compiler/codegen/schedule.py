"""The schedule of a cluster, the pass of each statement and their order, and the base class for printing it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, final

from ...ops.body import Equation
from .clusters import Cluster, Level, staged
from .formulas import COLUMN_SUM, FORMULAS, INDEX_CHECK, ROW_MAX, ROW_SUM, Constants
from .loop import (
    Accumulation,
    Accumulator,
    Assign,
    Check,
    IterationSpace,
    KeptRow,
    Literal,
    Load,
    Local,
    LoopNest,
    LoopOperand,
    Pass,
    Place,
    Statement,
    Store,
    Value,
)

# Schedules ------------------------------------------------------------------------------------------------------------


class Scheduling(NamedTuple):
    """The differences between targets in a loop's schedule.

    recomputes      passes recompute values of earlier passes; otherwise they load them from memory
    loads_first     operands are loaded before any computation, and results are stored after it
    lanes           adjacent rows are processed side by side, so row values are not loaded once per row
    runs            elements per running sum: for rows contiguous in memory, and for others
    """

    recomputes: bool = False
    loads_first: bool = False
    lanes: bool = False
    runs: tuple[int, int] | None = None


def schedule(cluster: Cluster, equations: Sequence[Equation], space: IterationSpace, how: Scheduling) -> LoopNest:
    """Return the loop of a cluster that reads and writes the operands of `space`."""
    return _Scheduler(cluster, equations, space, how).loop()


def side_by_side(cluster: Cluster, equations: Sequence[Equation], space: IterationSpace) -> bool:
    """Return whether the elements of adjacent rows are adjacent in memory, as for a reduction over an inner axis."""
    if cluster.extent is None or len(space.sizes) < 2 or space.sizes[-2] < 8:
        return False
    if Level.COLUMN in cluster.levels.values() or any(e.primitive is INDEX_CHECK for e in equations):
        return False
    along = [o.strides for o in space.operands if o.local.level is Level.ELEMENT]
    return all(s[-1] != 1 and s[-2] in (0, 1) for s in along) and any(s[-2] == 1 for s in along)


@final
class _Scheduler:
    def __init__(self, cluster: Cluster, equations: Sequence[Equation], space: IterationSpace, how: Scheduling):
        self.lowered = cluster.lowered
        self.equations, self.space, self.how, self.extent = equations, space, how, cluster.extent
        self.maker = {e.outputs[0]: e for e in equations}
        self.stage = staged(cluster, equations)
        self.passes = [Pass([], [], []) for _ in range(max(self.stage.values(), default=0) + 1)]
        self.locals = {
            slot: Local(f"v{i}", self.lowered.types[slot].dtype, level)
            for i, (slot, level) in enumerate(cluster.levels.items())
        }
        self.columns = [self._accumulator(e) for e in equations if e.primitive is COLUMN_SUM]
        self.of_row: set[str] = set()  # operands that are loaded once per row
        self.known: list[set[str]] = [set() for _ in self.passes]  # element values available in each pass
        self.kept: dict[int, KeptRow] = {}

    def loop(self) -> LoopNest:
        self._loads()
        stores: list[Statement] = []
        for at, each in enumerate(self.passes):
            for e in self.equations:
                self._equation(e, at, each, stores if self.how.loads_first else each.inside)
        self.passes[-1].inside.extend(stores)
        name = "_".join(dict.fromkeys(e.primitive.name for e in self.equations))
        return LoopNest(name[:60], self.space, self.passes, self.columns, self.extent, self.how.lanes, self._run())

    def _run(self) -> int | None:
        """Return the number of elements of a row per running sum; None for all of them."""
        if self.how.runs is None or self.extent is None:
            return None
        steps = [(o.strides[-1], o.strides[-2] if self.how.lanes else 0) for o in self.space.reads.values()]
        run = self.how.runs[not all(step in ((0, 0), (1, 0)) for step in steps)]
        return run if self.extent > 2 * run else None

    def _loads(self) -> None:
        """Load operands with one element per row; all operands if loads come first."""
        for operand in self.space.reads.values():
            load = Load(operand.local, operand)
            if self.how.loads_first:
                self.passes[0].inside.append(load)
                self.known[0].add(operand.name)
            elif not self.how.lanes and not any(operand.strides[self.space.outer :]):
                self.passes[0].before.append(load)
                self.of_row.add(operand.name)

    def _equation(self, e: Equation, at: int, each: Pass, stores: list[Statement]) -> None:
        """Add a pass's statements for an equation."""
        (out,) = e.outputs
        local, written = self.locals[out], self.space.writes.get(out)
        reduces = e.primitive in (ROW_SUM, ROW_MAX)
        if reduces and self.stage[out] == at + 1:
            accumulator = self._accumulator(e)
            each.inside.append(Accumulation(accumulator, self._value(e.inputs[0], Level.ELEMENT, at)))
            each.row.append(accumulator)
        elif self.stage[out] != at:
            return
        elif e.primitive is COLUMN_SUM:
            (accumulator,) = [one for one in self.columns if one.slot == out]
            each.inside.append(Accumulation(accumulator, self._value(e.inputs[0], Level.ELEMENT, at)))
        elif local.level is Level.ROW:
            if not reduces:
                each.before.append(self._made(e, Level.ROW, at))
            if written is not None:
                each.before.append(Store(written, local))
        elif written is not None or not self.how.recomputes:
            self._element(out, at)
            if written is not None:
                stores.append(Store(written, local))

    def _accumulator(self, e: Equation) -> Accumulator:
        return Accumulator(self.locals[e.outputs[0]], e.outputs[0], e.primitive)

    def _made(self, e: Equation, level: Level, at: int) -> Statement:
        """Return the statement that computes an equation's output."""
        local, types = self.locals[e.outputs[0]], self.lowered.types
        args = tuple([self._value(slot, level, at) for slot in e.inputs])
        if e.primitive is INDEX_CHECK:
            position, value = args
            return Check(local, position, value, e.static["size"])
        return Assign(local, e, types[e.outputs[0]], tuple([types[slot] for slot in e.inputs]), args)

    def _value(self, slot: int, level: Level, at: int) -> Value:
        """Return an operand of an equation at this level; load or compute it in pass `at` if it is not available
        yet."""
        lowered = self.lowered
        if slot in lowered.literals:
            return Literal(lowered.literals[slot], lowered.types[slot].dtype)
        view = lowered.views[slot]
        if view.root not in self.locals:
            return self._read(self.space.reads[view, level], at)
        if self.locals[view.root].level is Level.ELEMENT:
            self._element(view.root, at)
        return self.locals[view.root]

    def _read(self, operand: LoopOperand, at: int) -> Local:
        apart = self.how.lanes and operand.local.level is Level.ROW  # each lane loads its own where it is used
        if not apart and operand.name not in self.known[at] and operand.name not in self.of_row:
            self.known[at].add(operand.name)
            self.passes[at].inside.append(Load(operand.local, operand))
        return operand.local

    def _element(self, slot: int, at: int) -> None:
        """Make an element value available in pass `at`."""
        local = self.locals[slot]
        if local.name in self.known[at]:
            return
        if self.how.recomputes or self.stage[slot] == at:
            made: Statement = self._made(self.maker[slot], Level.ELEMENT, at)
        else:
            made = Load(local, self._left(slot))
        self.known[at].add(local.name)
        self.passes[at].inside.append(made)

    def _left(self, slot: int) -> LoopOperand | KeptRow:
        """Return the memory from which later passes load a value: its result if that is fast to read, else a kept
        row."""
        stored = self.space.writes.get(slot)
        if stored is not None and (self.how.lanes or stored.strides[-1] == 1):
            return stored
        kept = self.kept.get(slot)
        if kept is None:
            kept = self.kept[slot] = KeptRow(self.locals[slot])
            self.passes[self.stage[slot]].inside.append(Store(kept, self.locals[slot]))
        return kept


# Printing -------------------------------------------------------------------------------------------------------------


def indented(lines: Sequence[str], depth: int = 1) -> list[str]:
    return ["    " * depth + line for line in lines]


def from_memory(element: str, *, mask: bool) -> str:
    """Load an element; elements of masks are bytes in memory."""
    return f"({element} != 0)" if mask else element


def to_memory(value: str, *, mask: bool) -> str:
    """Convert a value to its representation in memory."""
    return f"uint8(1 if {value} else 0)" if mask else value


class LoopPrinter(ABC):
    """Prints statements as lines. Constants of formulas are in `constants`; sizes and strides are kernel arguments."""

    def __init__(self, constants: Constants):
        self.constants = constants

    @abstractmethod
    def number(self, value: int) -> str:
        """Return the name of an argument with this value."""

    @abstractmethod
    def divided(self, dividend: str, divisor: str) -> tuple[str, str]:
        """Return the quotient and remainder of two nonnegative numbers."""

    def get(self, local: Local) -> str:
        """Return the value of a local: a variable with its name."""
        return local.name

    def set(self, local: Local, value: str) -> str:
        """Return a line that assigns to a local."""
        return f"{local.name} = {value}"

    @abstractmethod
    def load(self, place: Place) -> str:
        """Return an expression that loads an element."""

    @abstractmethod
    def store(self, place: Place, value: str) -> list[str]: ...

    @abstractmethod
    def noted(self, outside: str) -> list[str]:
        """Return lines that report an index out of range if `outside` holds."""

    @abstractmethod
    def accumulate(self, accumulator: Accumulator, value: str) -> list[str]: ...

    def value(self, value: Value) -> str:
        return self.constants(value.value, value.dtype) if isinstance(value, Literal) else self.get(value)

    def lines(self, statements: Sequence[Statement]) -> list[str]:
        found: list[str] = []
        for statement in statements:
            found += self._lines(statement)
        return found

    def _lines(self, s: Statement) -> list[str]:
        if isinstance(s, Assign):
            return [self.set(s.local, self._formula(s))]
        if isinstance(s, Load):
            return [self.set(s.local, self.load(s.place))]
        if isinstance(s, Store):
            return self.store(s.place, self.get(s.local))
        if isinstance(s, Accumulation):
            return self.accumulate(s.accumulator, self.value(s.value))
        index, size = self.value(s.position), self.number(s.size)
        return [*self.noted(f"{index} < 0 or {index} >= {size}"), self.set(s.local, self.value(s.value))]

    def _formula(self, s: Assign) -> str:
        args = tuple(map(self.value, s.args))
        return FORMULAS[s.equation.primitive](self.constants, s.out, s.ins, args, s.equation.static)

    def coordinates(self, of: str, sizes: Sequence[int], name: str = "i") -> tuple[list[str], list[str]]:
        """Return lines that decompose the index `of` into coordinates along axes of these sizes, and the coordinates'
        names."""
        if len(sizes) <= 1:
            return [], [of] * len(sizes)
        lines, rest = [], of
        places = [f"{name}{axis}" for axis in range(len(sizes))]
        for axis in range(len(sizes) - 1, 0, -1):
            quotient, remainder = self.divided(rest, self.number(sizes[axis]))
            lines.append(f"{places[axis]} = {remainder}")
            lines.append(f"{'rest' if axis > 1 else places[0]} = {quotient}")
            rest = "rest"
        return lines, places

    def terms(self, places: Sequence[str], strides: Sequence[int]) -> list[str]:
        """Return the terms of an element's offset in memory."""
        return [p if n == 1 else f"{p} * {self.number(n)}" for p, n in zip(places, strides) if n]
