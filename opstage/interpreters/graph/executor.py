"""What runs a graph on the CPU: a plan with its memory, its machine code, and what goes in and out."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, final

import numpy as np

from ...ops.errors import LocatedError, UsageError
from ...ops.types import EXACT
from ...options import Options
from ..eager_cpu.interpreter import Array, NumpyOps
from ..eager_cpu.memory import give_back_freed_memory
from .cpu.link import Linked, packed
from .cpu.optimise import optimise
from .cpu.plan import Plan
from .graph import Graph
from .replay import replay

Finish = Callable[[], None]

_MUCH = 1 << 20
"""Bytes of an arena."""


@final
class Executor:
    """Runs a graph on arrays. Results are arrays that nobody else holds; the same memory is used for the next ones.

    A call does no more in Python than to put the addresses of inputs and results in their places. `plan` is None for
    a graph of fractions, which have no machine form: it is replayed op by op. While `seconds` is a list, each step of
    the plan is run by itself, and what it took is added to its entry.

    Inputs at the positions `spare` may be written over by results; see `start`.
    """

    __slots__ = ("graph", "plan", "seconds", "_eager", "_linked", "_pools", "_begun")

    def __init__(self, graph: Graph, options: Options, spare: Collection[int] = ()):
        self.graph = graph
        self._eager = NumpyOps(options)
        self._begun = 0  # how many runs
        self.plan: Plan | None = None
        self.seconds: list[float] | None = None
        if graph.dtype == EXACT or any(t.dtype.kind == "O" for t in graph.body.types):
            return
        self.plan = plan = Plan(optimise(graph)[0].body, spare=spare)
        plan.compile()
        if plan.arena_bytes >= _MUCH:
            give_back_freed_memory()
        self._linked = Linked(plan, _aligned(plan.arena_bytes), np.zeros(1, np.int64), self._eager, graph.body.lines)
        self._pools = [_Pool(*_kind(plan, slot)) for slot in plan.results]

    def run(self, inputs: Sequence[Array], step: int = 0) -> tuple[Array, ...]:
        """The outputs for `inputs`, at training step `step`. No input is written over."""
        outputs, finish = self.start(inputs, step)
        finish()
        return outputs

    def start(
        self, inputs: Sequence[Array], step: int = 0, free: Collection[int] = ()
    ) -> tuple[tuple[Array, ...], Finish]:
        """The outputs, and a function that completes them: only then is anything in them, and nothing fails any more.

        Inputs at the positions `free` are written over by it if the plan has a result for them; until it is called they
        are as they were, also where `start` raised. Of any other input a copy takes its place.
        """
        plan = self.plan
        if plan is None:
            return replay(self._eager, self.graph, inputs, step), _nothing
        moving = [packed(x) for x in inputs]
        if len(moving) < len(plan.legal.body.inputs):
            moving.append(np.asarray(step, np.int64))
        self._take_results(plan, moving, {at for at in free if moving[at] is inputs[at]})
        self._begun += 1
        linked, raised = self._linked, None
        linked.error[0] = 0  # it may stand from a call that was broken off
        try:
            linked.begin(moving, self.seconds)
        except LocatedError as error:
            raised = error
        if raised is not None or linked.error[0]:
            replay(self._eager, self.graph, inputs, step)  # raises the first error of the program, and says where
            raise AssertionError("an index is out of range that in the program itself is not") from raised
        outputs = [self._output(plan, slot, moving) for slot in plan.legal.outputs]
        if not plan.over:  # then it is done
            self._fill(plan, outputs, moving)
            return tuple(outputs), _nothing
        begun = self._begun

        def finish() -> None:
            if begun != self._begun:
                raise UsageError("another run of this program has begun; what the earlier one computed is gone")
            linked.end(moving, self.seconds)
            self._fill(plan, outputs, moving)

        return tuple(outputs), finish

    def _take_results(self, plan: Plan, moving: list[Array], free: Collection[int]) -> None:
        """Add an array for each result to `moving`: a fresh one, or an input of it."""
        inputs = Counter(map(_owner, moving))
        for slot, pool in zip(plan.results, self._pools):
            over = plan.over.get(slot)
            at = -1 if over is None else self._linked.moving[over]
            if at not in free or inputs[_owner(moving[at])] > 1 or not moving[at].flags.writeable:
                made = pool.take()
                if over is not None:
                    np.copyto(made, moving[at])
                    moving[at] = made
            moving.append(made if over is None else moving[at])

    def _output(self, plan: Plan, slot: int, moving: Sequence[Array]) -> Array:
        """A result itself; what is a part of others, or a constant, is still to be filled in."""
        legal = plan.legal
        if slot not in legal.literals:
            view = legal.views[slot]
            at = self._linked.moving.get(view.root)
            if at is not None:
                return moving[at].reshape(view.shape)
        return np.empty(*_kind(plan, slot))

    def _fill(self, plan: Plan, outputs: Sequence[Array], moving: Sequence[Array]) -> None:
        legal = plan.legal
        for slot, out in zip(legal.outputs, outputs):
            if slot in legal.literals or legal.views[slot].root not in self._linked.moving:
                np.copyto(out, self._linked.value(slot, moving))


def _nothing() -> None:
    """What is left of a run that is done."""


def _owner(x: Array) -> int:
    """Tells apart arrays that have no memory in common."""
    return id(x if x.base is None else x.base)


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
