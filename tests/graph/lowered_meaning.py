"""A planned graph evaluated op by op in NumPy: the oracle for lowered forms, order of groups, and places in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from typing_extensions import override

from opstage import Options
from opstage.compiler.codegen.clusters import FusionGroup, Level, staged
from opstage.compiler.codegen.formulas import ASSEMBLE, COLUMN_SUM, CONTIGUOUS, INDEX_CHECK, ROW_MAX, ROW_SUM
from opstage.compiler.codegen.lowering import Lowered
from opstage.compiler.codegen.views import View, packed
from opstage.interpreters.eager_cpu.interpreter import NumpyOps
from opstage.interpreters.graph import Graph
from opstage.interpreters.graph.cpu.plan import CpuPlan
from opstage.ops.body import Equation
from opstage.ops.types import dtype_name


class Memory:
    """A vector for each root, of garbage until it is written; which of its elements were."""

    def __init__(self, lowered: Lowered, graph: Graph, inputs: Sequence[Any], step: int = 0):
        self.lowered = lowered
        self.vectors: dict[int, Any] = {}
        self.written: dict[int, Any] = {}
        self.eager = NumpyOps(Options(dtype=dtype_name(graph.dtype), fast_kernels=False, seed=graph.seed))
        given = [*inputs, np.asarray(step, np.int64)]
        known = {**dict(zip(lowered.body.inputs, given)), **lowered.constants}
        for slot, value in known.items():
            self.vectors[slot] = np.ascontiguousarray(value).reshape(-1)
            self.written[slot] = np.ones(self.vectors[slot].size, bool)

    def begin(self, group: FusionGroup | None) -> None:
        """A group is about to be done; None: all are."""

    def order(self, group: FusionGroup) -> Sequence[Equation]:
        """In which its equations are done."""
        return group.equations

    def place(self, slot: int) -> Any:
        """Room for a root that is about to be written."""
        size = int(np.prod(self.lowered.types[slot].shape))
        return np.full(size, 77, self.lowered.types[slot].dtype)  # what nobody wrote and somebody reads is found out

    def _seen(self, view: View) -> tuple[Any, Any]:
        root, offset = view.root, view.offset
        while root in self.lowered.parts:
            part = self.lowered.parts[root]
            root, offset = part.whole, offset + part.offset
        if root not in self.vectors:
            self.vectors[root] = self.place(root)
            self.written[root] = np.zeros(self.vectors[root].size, bool)
        placed = view._replace(offset=offset)
        return seen(placed, self.vectors[root]), seen(placed, self.written[root])

    def read(self, slot: int) -> Any:
        lowered = self.lowered
        shape: Any = lowered.types[slot].shape
        if slot in lowered.literals:
            return np.full(shape, lowered.literals[slot], lowered.types[slot].dtype)
        view = lowered.views[slot]
        assert view.shape == tuple(shape)
        if not view.size:
            return np.empty(view.shape, lowered.types[slot].dtype)
        value, written = self._seen(view)
        assert written.all(), f"slot {slot} is read before it is written"
        return np.array(value)

    def write(self, slot: int, value: Any) -> None:
        if not value.size:
            return
        part = self.lowered.parts.get(slot)
        shape = self.lowered.views[slot].shape
        view = View(slot, 0, shape, packed(shape) if part is None else part.strides)
        memory, written = self._seen(view)
        assert not written.any(), f"slot {slot} is written twice"
        memory[...] = np.asarray(value).reshape(shape)
        written[...] = True

    def do(self, e: Equation) -> None:
        if e.primitive is ASSEMBLE:
            self.read(e.outputs[0])  # its parts are there
            return
        operands = [self.read(slot) for slot in e.inputs]
        for slot, value in zip(e.outputs, self._values(e, operands), strict=True):
            self.write(slot, value)

    def _values(self, e: Equation, operands: list[Any]) -> Sequence[Any]:
        if e.primitive is CONTIGUOUS:
            return operands
        if e.primitive in (ROW_SUM, ROW_MAX):
            rows = operands[0].reshape(-1, e.static["extent"])
            return [rows.sum(1) if e.primitive is ROW_SUM else rows.max(1)]
        if e.primitive is COLUMN_SUM:
            return [operands[0].reshape(-1, e.static["extent"]).sum(0)]
        if e.primitive is INDEX_CHECK:
            assert ((operands[0] >= 0) & (operands[0] < e.static["size"])).all()
            return [np.broadcast_to(operands[1].reshape(-1)[0], operands[0].shape)]

        def program(ops: NumpyOps, *refs: Any) -> tuple[Any, ...]:
            ops.cursor.region, ops.cursor.ordinal, ops.cursor.quiet = e.region, e.ordinal, True
            return ops.bind(e.primitive, refs, e.static)

        return self.eager.execute_each(program, tuple(operands))


class Arena(Memory):
    """The same, but what a plan places in the arena lies in one block of bytes there.

    That nobody's value is lost where others are written in its place shows in the results. A loop keeps what it makes,
    and reads an operand once in each of its passes: when it first needs it there.
    """

    def __init__(self, plan: CpuPlan, graph: Graph, inputs: Sequence[Any], step: int = 0):
        super().__init__(plan.lowered, graph, inputs, step)
        self.plan = plan
        self.block = np.full(plan.arena_bytes + 64, 0xAB, np.uint8)

    @override
    def place(self, slot: int) -> Any:
        offset = self.plan.offsets.get(slot)
        type_ = self.lowered.types[slot]
        size = int(np.prod(type_.shape))
        if offset is None:
            return super().place(slot)  # a result, or a value that never leaves its loop
        assert offset % 64 == 0 and offset + size * type_.dtype.itemsize <= self.plan.arena_bytes
        return self.block[offset : offset + size * type_.dtype.itemsize].view(type_.dtype)

    @override
    def begin(self, group: FusionGroup | None) -> None:
        self.at = 0
        self.passes = {} if group is None or group.cluster is None else staged(group.cluster, group.equations)
        self.loaded: dict[tuple[int, View], Any] = {}
        self.made: dict[int, Any] = {}

    @override
    def order(self, group: FusionGroup) -> Sequence[Equation]:
        """Pass by pass over a row; what a row has once comes before the pass over its elements."""
        cluster = group.cluster
        if cluster is None:
            return group.equations

        def turn(e: Equation) -> tuple[int, bool]:
            once = cluster.levels[e.outputs[0]] is Level.ROW and e.primitive not in (ROW_SUM, ROW_MAX)
            return self._pass(e), not once

        return sorted(group.equations, key=turn)

    def _pass(self, e: Equation) -> int:
        return self.passes.get(e.outputs[0], 0) - (e.primitive in (ROW_SUM, ROW_MAX))

    @override
    def do(self, e: Equation) -> None:
        self.at = self._pass(e)
        super().do(e)

    @override
    def read(self, slot: int) -> Any:
        view = self.lowered.views.get(slot)
        if slot in self.lowered.literals or view is None:
            return super().read(slot)
        if view.root in self.made:
            return seen(view, self.made[view.root])
        key = self.at, view
        if key not in self.loaded:
            self.loaded[key] = super().read(slot)
        return self.loaded[key]

    @override
    def write(self, slot: int, value: Any) -> None:
        super().write(slot, value)
        if self.passes and slot not in self.lowered.parts:
            self.made[slot] = np.ascontiguousarray(value).reshape(-1)


def seen(view: View, vector: Any) -> Any:
    strides = [s * vector.itemsize for s in view.strides]
    return np.lib.stride_tricks.as_strided(vector[view.offset :], view.shape, strides)


def run_groups(memory: Memory, groups: Sequence[FusionGroup]) -> list[Any]:
    """The outputs, groups done one after the other."""
    for group in groups:
        memory.begin(group)
        for e in memory.order(group):
            memory.do(e)
    memory.begin(None)
    return [memory.read(slot) for slot in memory.lowered.outputs]
