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
from .cpu.link import Linked, packed
from .cpu.optimise import optimise
from .cpu.plan import Plan
from .graph import Graph
from .replay import replay


@final
class Executor:
    """Runs a graph on arrays. Results are arrays that nobody else holds; the same memory is used for the next ones.

    A call does no more in Python than to put the addresses of inputs and results in their places. `plan` is None for
    a graph of fractions, which have no machine form: it is replayed op by op. While `seconds` is a list, each step of
    the plan is run by itself, and what it took is added to its entry.
    """

    __slots__ = ("graph", "plan", "seconds", "_eager", "_linked", "_pools")

    def __init__(self, graph: Graph, options: Options):
        self.graph = graph
        self._eager = NumpyOps(options)
        self.plan: Plan | None = None
        self.seconds: list[float] | None = None
        if graph.dtype == EXACT or any(t.dtype.kind == "O" for t in graph.body.types):
            return
        self.plan = plan = Plan(optimise(graph)[0].body)
        plan.compile()
        self._linked = Linked(plan, _aligned(plan.arena_bytes), np.zeros(1, np.int64), self._eager, graph.body.lines)
        self._pools = [_Pool(*_kind(plan, slot)) for slot in plan.results]

    def run(self, inputs: Sequence[Array], step: int = 0) -> tuple[Array, ...]:
        """The outputs for `inputs`, at training step `step`."""
        plan = self.plan
        if plan is None:
            return replay(self._eager, self.graph, inputs, step)
        moving = [packed(x) for x in inputs]
        if len(moving) < len(plan.legal.body.inputs):
            moving.append(np.asarray(step, np.int64))
        moving += [pool.take() for pool in self._pools]
        linked, raised = self._linked, None
        linked.error[0] = 0  # it may stand from a call that was broken off
        try:
            if self.seconds is None:
                linked.run(moving)
            else:
                linked.run_timed(moving, self.seconds)
        except LocatedError as error:
            raised = error
        if raised is not None or linked.error[0]:
            replay(self._eager, self.graph, inputs, step)  # raises the first error of the program, and says where
            raise AssertionError("an index is out of range that in the program itself is not") from raised
        return tuple([self._output(plan, slot, moving) for slot in plan.legal.outputs])

    def _output(self, plan: Plan, slot: int, moving: Sequence[Array]) -> Array:
        legal = plan.legal
        if slot not in legal.literals:
            view = legal.views[slot]
            at = self._linked.moving.get(view.root)
            if at is not None:
                return moving[at].reshape(view.shape)
        return np.array(self._linked.value(slot, moving))


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
        if len(self._arrays) < _MOST_ARRAYS:
            self._arrays.append(made)
        return made


_MOST_ARRAYS = 3


def _references_of_a_listed_array() -> int:
    arrays = [np.empty(0)]
    return sys.getrefcount(arrays[0])


_ALONE = _references_of_a_listed_array()


def _kind(plan: Plan, slot: int) -> tuple[tuple[int, ...], Any]:
    type_ = plan.legal.types[slot]
    shape: Any = type_.shape
    return tuple(shape), type_.dtype


def _aligned(nbytes: int) -> Array:
    whole = np.empty(nbytes + 64, np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + nbytes]
