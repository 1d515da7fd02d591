"""What runs a graph on the CPU: a plan with its memory, its machine code, and what goes in and out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from ...ops.errors import LocatedError
from ...ops.types import EXACT
from ...options import Options
from ..eager_cpu.interpreter import Array, NumpyOps
from ..native.pool import Schedule, Step
from .cpu.optimise import optimise
from .cpu.plan import HostStep, NativeStep, Plan
from .cpu.source import Address, ErrorFlag, Room
from .cpu.views import View
from .graph import Graph
from .replay import replay


@final
class Executor:
    """Runs a graph on arrays. Results are arrays that nobody else holds; the same memory is used for the next ones.

    A call does no more in Python than to put the addresses of inputs and results in their places.
    """

    __slots__ = (
        "graph",
        "plan",
        "_eager",
        "_arena",
        "_error",
        "_words",
        "_patches",
        "_offsets",
        "_sources",
        "_segments",
        "_input_slots",
        "_results",
        "_pools",
        "_fixed",
    )

    def __init__(self, graph: Graph, options: Options):
        self.graph = graph
        self._eager = NumpyOps(options)
        self.plan: Plan | None = None
        if graph.dtype == EXACT or any(t.dtype.kind == "O" for t in graph.body.types):
            return  # fractions have no machine form
        body = optimise(graph.body)
        self.plan = plan = Plan(body)
        self._input_slots = {slot: i for i, slot in enumerate(body.inputs)}
        self._arena = _aligned(plan.arena_bytes)
        self._error = np.zeros(1, np.int64)
        self._fixed: dict[int, Array] = {slot: _packed(value) for slot, value in plan.legal.constants.items()}
        self._results = list(plan.results)
        self._pools = [_Pool(*self._kind(slot)) for slot in self._results]
        self._link()

    def _kind(self, slot: int) -> tuple[tuple[int, ...], Any]:
        shape: Any = self.plan.legal.types[slot].shape  # type: ignore[union-attr]
        return tuple(shape), self.plan.legal.types[slot].dtype  # type: ignore[union-attr]

    # Addresses ------------------------------------------------------------------------------------------------------

    def _link(self) -> None:
        """All arguments of all loops in one array, and where in it the addresses of inputs and results belong."""
        plan = self.plan
        assert plan is not None
        moving = {slot: i for i, slot in enumerate([*self._input_slots, *self._results])}
        words: list[int] = []
        patches: list[tuple[int, int, int]] = []
        starts: list[int] = []
        for step in plan.steps:
            starts.append(len(words))
            if isinstance(step, HostStep):
                continue
            for word in step.loop.words:
                if isinstance(word, Address):
                    slot, offset = self._placed(word)
                    if slot in moving:
                        patches.append((len(words), moving[slot], offset))
                        words.append(0)
                    else:
                        words.append(self._address(slot) + offset)
                elif isinstance(word, Room):
                    words.append(self._arena.ctypes.data + plan.offsets[step.unit, word.key])
                elif isinstance(word, ErrorFlag):
                    words.append(self._error.ctypes.data)
                else:
                    words.append(word)
        self._words = np.array(words, np.int64).view(np.uint64)
        table = np.array(patches, np.int64).reshape(-1, 3)
        self._patches, self._sources, self._offsets = table[:, 0], table[:, 1], table[:, 2]
        self._segments: list[Schedule | HostStep] = []
        native: list[Step] = []
        for start, step in zip(starts, plan.steps):
            if isinstance(step, NativeStep):
                arguments = self._words[start : start + len(step.loop.words)]
                native.append(Step(step.loop.kernel, step.loop.tasks, arguments, step.parallel))
                continue
            if native:
                self._segments.append(Schedule(native))
                native = []
            self._segments.append(step)
        if native:
            self._segments.append(Schedule(native))

    def _placed(self, word: Address) -> tuple[int, int]:
        """A slot that has memory of its own, and the bytes from there on."""
        plan = self.plan
        assert plan is not None
        slot, offset = word
        part = plan.legal.parts.get(slot)
        while part is not None:
            slot, offset = part.whole, offset + part.offset * plan.legal.types[slot].dtype.itemsize
            part = plan.legal.parts.get(slot)
        return slot, offset

    def _address(self, slot: int) -> int:
        plan = self.plan
        assert plan is not None
        if slot in self._fixed:
            return self._fixed[slot].ctypes.data
        return int(self._arena.ctypes.data) + plan.offsets[slot]

    # Running --------------------------------------------------------------------------------------------------------

    def run(self, inputs: Sequence[Array], step: int = 0) -> tuple[Array, ...]:
        """The outputs for `inputs`, at training step `step`."""
        plan = self.plan
        if plan is None:
            return replay(self._eager, self.graph, inputs, step)
        given = [_packed(x) for x in inputs]
        if len(given) < len(self._input_slots):
            given.append(np.asarray(step, np.int64))
        made = [pool.take() for pool in self._pools]
        moving = given + made
        if len(self._patches):
            addresses = np.array([x.__array_interface__["data"][0] for x in moving], np.int64)
            self._words.view(np.int64)[self._patches] = addresses[self._sources] + self._offsets
        for segment in self._segments:
            if isinstance(segment, Schedule):
                segment.run()
            else:
                self._host(segment, moving)
        if self._error[0]:
            self._error[0] = 0
            replay(self._eager, self.graph, inputs, step)  # raises what the loops found, and says where
            raise AssertionError("a loop found an index out of range that the program itself does not")
        return tuple([self._output(slot, moving) for slot in plan.legal.outputs])

    def _memory(self, slot: int, moving: Sequence[Array]) -> Array:
        """The elements of a root as a vector."""
        plan = self.plan
        assert plan is not None
        at = self._input_slots.get(slot)
        if at is not None:
            return moving[at].reshape(-1)
        if slot in plan.results:
            return moving[len(self._input_slots) + self._results.index(slot)].reshape(-1)
        if slot in self._fixed:
            return self._fixed[slot].reshape(-1)
        type_ = plan.legal.types[slot]
        nbytes: Any = type_.nbytes
        return self._arena[plan.offsets[slot] :][:nbytes].view(type_.dtype)

    def _seen(self, view: View, moving: Sequence[Array]) -> Array:
        memory = self._memory(view.root, moving)
        size = memory.itemsize
        strides = tuple([s * size for s in view.strides])
        return np.ndarray(view.shape, memory.dtype, memory, view.offset * size, strides)

    def _value(self, slot: int, moving: Sequence[Array]) -> Array:
        plan = self.plan
        assert plan is not None
        legal = plan.legal
        if slot in legal.literals:
            shape, dtype = self._kind(slot)
            return np.full(shape, legal.literals[slot], dtype)
        view = legal.views[slot]
        if not view.size:
            return np.empty(view.shape, legal.types[slot].dtype)
        part = legal.parts.get(view.root)
        if part is not None:
            view = View(part.whole, part.offset, view.shape, part.strides)
        return self._seen(view, moving)

    def _host(self, step: HostStep, moving: Sequence[Array]) -> None:
        e, eager = step.equation, self._eager
        operands = tuple([self._value(slot, moving) for slot in e.inputs])

        def program(ops: NumpyOps, *refs: Array) -> tuple[Array, ...]:
            ops.cursor.region, ops.cursor.ordinal, ops.cursor.quiet = e.region, e.ordinal, True
            return ops.bind(e.primitive, refs, e.static)

        try:
            results = eager.execute_each(program, operands)
        except LocatedError as error:
            error.relocate(self.graph.body.lines.get(e.ordinal), e.region.name)
            raise
        for slot, result in zip(e.outputs, results):
            if result.size and (slot in self.plan.results or slot in self.plan.offsets):  # type: ignore[union-attr]
                np.copyto(self._value(slot, moving), result)

    def _output(self, slot: int, moving: Sequence[Array]) -> Array:
        plan = self.plan
        assert plan is not None
        legal = plan.legal
        shape, dtype = self._kind(slot)
        if slot in legal.literals:
            return np.full(shape, legal.literals[slot], dtype)
        view = legal.views[slot]
        if view.root in plan.results:
            return moving[len(self._input_slots) + self._results.index(view.root)].reshape(shape)
        at = self._input_slots.get(view.root)
        if at is not None:
            return moving[at].reshape(shape)
        return np.array(self._value(slot, moving))


@final
class _Pool:
    """Arrays for one result: one that nobody holds any more is given out again."""

    __slots__ = ("_shape", "_dtype", "_arrays")

    def __init__(self, shape: tuple[int, ...], dtype: Any):
        self._shape = shape
        self._dtype = dtype
        self._arrays: list[Array] = []

    def take(self) -> Array:
        for i in range(len(self._arrays)):
            if sys.getrefcount(self._arrays[i]) == _ALONE:
                return self._arrays[i]
        made = np.empty(self._shape, self._dtype)
        if len(self._arrays) < 3:
            self._arrays.append(made)
        return made


def _references_of_a_listed_array() -> int:
    arrays = [np.empty(0)]
    return sys.getrefcount(arrays[0])


_ALONE = _references_of_a_listed_array()


def _packed(x: Array) -> Array:
    return x if x.flags.c_contiguous and x.flags.aligned else np.array(x, order="C")


def _aligned(nbytes: int) -> Array:
    whole = np.empty(nbytes + 64, np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + nbytes]
