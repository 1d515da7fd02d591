"""The executor of a graph on the CPU: its plan, machine code, inputs and outputs, and memory shared by programs."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from operator import setitem
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from ...compiler.codegen.arena import ALIGNMENT
from ...compiler.codegen.cpu.kernels import Compilation
from ...ops.errors import LocatedError, OutOfMemoryError, RankError, UsageError
from ...ops.host_arrays import Array, address_of, all_packed, packed
from ...ops.readable_amounts import show_bytes
from ...options import Options
from ...transforms.base_program import Action, Finish, at_once
from ..eager_cpu.interpreter import NumpyOps
from ..eager_cpu.memory import release_freed_memory
from .cpu.link import Linked, prepare
from .cpu.plan import CpuPlan, optimise
from .graph import Graph
from .program_cache import kept_bytes
from .rank_lowering import Hosted
from .recorder import replay

# Memory of all programs of an interpreter, for intermediate results and reused results --------------------------------


Kind = tuple[tuple[int, ...], Any]
"""Shape and dtype."""

_MUCH = 1 << 20
"""Bytes from which on a block is large."""

_ARRAYS_OF_A_RESULT = 3
"""One being computed, one of the previous run, and one still in use."""


class ScratchBlock(NamedTuple):
    """Memory for one run, aligned to `ALIGNMENT`; its content is undefined."""

    memory: Array
    address: int

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return len(self.memory)


@final
class CpuScratch:
    """The memory of all programs of an interpreter.

    A run takes a block for intermediate results and returns it at its end. So sequential runs share one block, as large
    as the largest of them needs. A concurrent run (inside an op computed by Python, in another thread, or in a signal
    handler) gets its own block, and the larger of the two is kept. No locks are used, since any call may be
    interrupted.
    """

    __slots__ = ("_free", "_arrays", "_bytes", "_most", "__weakref__")

    def __init__(self) -> None:
        self._free: list[ScratchBlock] = []  # at most one
        self._arrays: dict[Kind, deque[Array]] = {}  # by kind, ordered by last allocation
        self._bytes = 0  # of all arrays
        self._most = 0  # the limit of bytes of reused arrays

    def take(self, nbytes: int) -> ScratchBlock:
        """Take a block of at least `nbytes`. Raises OutOfMemoryError."""
        try:
            block = self._free.pop()
            if block.nbytes >= nbytes:
                return block
            del block  # release it before a larger one is allocated
        except IndexError:
            pass
        if nbytes >= _MUCH:
            release_freed_memory()
        try:
            whole = np.empty(nbytes + ALIGNMENT, np.uint8)
        except MemoryError:
            raise OutOfMemoryError(
                f"a compiled program needs {show_bytes(nbytes)} for intermediate results, and the system lacks the "
                "memory; use smaller batches, or call empty_cache() of other trainers. opstage.training.memory and "
                "opstage check --memory predict the memory of a step"
            ) from None
        at = address_of(whole)
        start = -at % ALIGNMENT
        return ScratchBlock(whole[start : start + nbytes], at + start)

    def give_back(self, block: ScratchBlock) -> None:
        """Return a block for reuse."""
        kept = self._free[:1]
        if not kept or kept[0].nbytes < block.nbytes:
            self._free[:] = [block]

    def expect(self, results: int) -> None:
        """Expect a program that allocates `results` bytes of results in a run."""
        self._most = max(self._most, _ARRAYS_OF_A_RESULT * results)

    def results(self) -> Callable[[Kind], Array]:
        """Return an allocator for one run's results: arrays that have no other owner. Call it once per result."""
        untried: dict[Kind, int] = {}

        def take(kind: Kind) -> Array:
            arrays = self._arrays.get(kind)
            if arrays is None:
                return self._allocate(kind)
            left = untried.get(kind, len(arrays))
            while left:
                left -= 1
                try:
                    array = arrays.popleft()  # popped, so that no concurrent run can take it during the check
                except IndexError:
                    break
                alone = sys.getrefcount(array) == _ALONE
                arrays.append(array)
                if alone:
                    untried[kind] = left
                    return array
            untried[kind] = 0
            return self._allocate(kind)

        return take

    def _allocate(self, kind: Kind) -> Array:
        made = np.empty(*kind)
        if made.nbytes <= self._most:
            arrays = self._arrays.pop(kind, None) or deque()
            arrays.append(made)
            self._arrays[kind] = arrays  # move the kind to the end
            self._bytes += made.nbytes
            if self._bytes > self._most:
                self._drop_oldest()
        return made

    def _drop_oldest(self) -> None:
        """Drop the kinds whose last allocation is longest ago, until the rest fits the limit."""
        sizes = {kind: sum(array.nbytes for array in list(arrays)) for kind, arrays in list(self._arrays.items())}
        kept = sum(sizes.values())
        for kind, nbytes in sizes.items():
            if kept <= self._most:
                break
            self._arrays.pop(kind, None)
            kept -= nbytes
        self._bytes = kept

    def empty_cache(self) -> None:
        """Release all unused memory; the next run allocates again."""
        self._free.clear()
        self._arrays.clear()
        self._bytes = 0


def _count_references() -> int:
    arrays = deque([np.empty(0)])
    array = arrays.popleft()
    return sys.getrefcount(array)


_ALONE = _count_references()


Prepared: TypeAlias = "Callable[[Sequence[Array]], list[Array] | None]"
"""See `CpuExecutor.prepared`."""

Failed: TypeAlias = "Callable[[Sequence[Any], int], None]"
"""Raises the first error of a run on these inputs at a step."""


@final
class CpuExecutor:
    """Runs a graph on arrays. Results are arrays that the caller owns; their memory is reused once they are released.

    A call only fills in the addresses of inputs and results in Python. `plan` is None for a graph of fractions, which
    have no machine representation; it is replayed op by op. While `seconds` is a list, each step of the plan runs by
    itself and adds its time to its entry. `hosted` is the program of several ranks, whose inputs and outputs are then
    those of the ranks; if it meets an index out of range, `failed` raises the error.

    Results may overwrite inputs at the positions `donated`; see `start`. `scratch` is the memory shared by all programs
    of an interpreter. `nbytes` estimates what the program itself keeps: graph, plan and constants.
    """

    def __init__(
        self,
        graph: Graph,
        options: Options,
        donated: Collection[int] = (),
        scratch: CpuScratch | None = None,
        hosted: Hosted | None = None,
        failed: Failed | None = None,
    ):
        self.graph = graph
        self._failed = failed  # not a method of its own, since a reference cycle would live until a collection
        self._eager = NumpyOps(options)
        self._begun = 0  # the number of runs
        self.plan: CpuPlan | None = None
        self.nbytes = kept_bytes(graph.body, 0)
        self.seconds: list[float] | None = None
        if graph.is_exact:
            return
        body = hosted or optimise(graph)[0].body
        with Compilation() as compilation:
            self.plan = plan = CpuPlan(body, donated=donated, compilation=compilation)
            plan.compile(compilation)
        self.nbytes = kept_bytes(graph.body, plan.equations, plan.constants) + plan.table_bytes
        self._scratch = CpuScratch() if scratch is None else scratch
        self._scratch.expect(plan.result_bytes)
        self._idle: list[Linked] = [linked := self._linked()]  # at most one; concurrent runs link their own
        self._results = [
            (_kind(plan, slot), -1 if (over := plan.aliased.get(slot)) is None else linked.moving[over])
            for slot in plan.results
        ]
        self._outputs = [_place(plan, linked, slot) for slot in plan.lowered.outputs]
        self._filled = [i for i, (at, _) in enumerate(self._outputs) if at < 0]

    def _linked(self) -> Linked:
        assert self.plan is not None
        return Linked(self.plan, np.zeros(1, np.int64), self._eager, self.graph.body.lines)

    def prepared(self, inputs: Sequence[Array], varying: Sequence[int]) -> Prepared | None:
        """Return a call of this graph that binds `inputs` except at the positions `varying`, or None if that is not
        possible.

        The call accepts packed arrays of the same types at these positions and returns arrays that the caller owns. It
        returns None when `run` must be used instead: while another run is active, and where the run raises an error.
        """
        if self.plan is None or any(packed(x) is not x for x in inputs):
            return None
        found = prepare(self.plan, self._linked(), inputs, varying)
        if found is None:
            return None
        call, outputs = found
        if outputs == list(range(len(self.plan.results))):
            return call

        def in_order(arrays: Sequence[Array]) -> list[Array] | None:
            results = call(arrays)
            return None if results is None else [results[i] for i in outputs]

        return in_order

    def run(self, inputs: Sequence[Array], step: int = 0) -> tuple[Array, ...]:
        """Return the outputs for `inputs` at training step `step`. Inputs are not overwritten."""
        outputs, finish = self.start(inputs, step)
        finish(())
        return outputs

    def start(
        self, inputs: Sequence[Array], step: int = 0, free: Collection[int] = ()
    ) -> tuple[tuple[Array, ...], Finish]:
        """Return the outputs and a function that completes them. The outputs are undefined until it is called, and it
        cannot fail.

        The function overwrites inputs at the positions `free` if the plan aliases results to them. Before it is called,
        and also if `start` raises, they are unchanged. Other aliased inputs are copied first.
        """
        plan = self.plan
        if plan is None:
            return replay(self._eager, self.graph, inputs, step), at_once
        moving = all_packed(inputs)
        if len(moving) < len(plan.lowered.body.inputs):
            moving.append(np.asarray(step, np.int64))
        try:
            linked = self._idle.pop()
        except IndexError:  # the linked plan is in use by a run that is inside an op computed by Python
            linked = self._linked()
        block = self._scratch.take(plan.arena_bytes)
        self._take_results(moving, {at for at in free if moving[at] is inputs[at]})
        self._begun += 1
        linked.error[0] = 0  # may be left from an interrupted call
        outputs: list[Array] = []
        raised, begun = None, False
        try:
            linked.stand(*block)
            linked.begin(moving, self.seconds)
            if not linked.error[0]:
                outputs = [
                    np.empty(*kind) if at < 0 else moving[at] if kind is None else moving[at].reshape(kind[0])
                    for at, kind in self._outputs
                ]
                if not plan.aliased:  # then it is complete
                    at_once(self._fills(plan, linked, outputs, moving))
                begun = True
        except (RankError, OutOfMemoryError):  # not of the program: a second run would meet it again, or not
            raise
        except LocatedError as error:
            raised = error
        finally:
            linked.leave()
            self._idle[:] = [linked]
            if begun and not plan.aliased:  # what a failed run has begun to send may be under way still
                self._scratch.give_back(block)
        if not begun:
            (self._failed or self._replayed)(inputs, step)
            raise AssertionError(
                "the compiled program reports an index out of range, and the program itself does not"
            ) from raised
        if not plan.aliased:
            return tuple(outputs), at_once
        number, kept = self._begun, [block]

        def finish(then: Sequence[Action]) -> None:
            if number != self._begun:
                raise UsageError(
                    "another run of this program has started and overwritten the results of this one; finish each run "
                    "before the next one starts"
                )
            self._idle.clear()  # as `linked` is at work
            linked.stand(*kept[0])
            try:
                linked.end(moving, [*self._fills(plan, linked, outputs, moving), *then], self.seconds)
            finally:
                linked.leave()
                self._idle[:] = [linked]
                self._scratch.give_back(kept.pop())

        return tuple(outputs), finish

    def _replayed(self, inputs: Sequence[Array], step: int) -> None:
        replay(self._eager, self.graph, inputs, step)  # raises the first error of the program with its location

    def _take_results(self, moving: list[Array], free: Collection[int]) -> None:
        """Append an array for each result to `moving`: a new one, or a donated input."""
        owners = [id(x) if x.base is None else id(x.base) for x in moving]  # equal for arrays that may share memory
        shared = Counter(owners) if len(set(owners)) < len(owners) else {}
        fresh = self._scratch.results()
        for kind, at in self._results:
            if at < 0:
                moving.append(fresh(kind))
                continue
            x = moving[at]
            if at not in free or (shared and shared[owners[at]] > 1) or not x.flags.writeable:
                moving[at] = fresh(kind)
                np.copyto(moving[at], x)
                x = moving[at]
            moving.append(x)

    def _fills(self, plan: CpuPlan, linked: Linked, outputs: Sequence[Array], moving: Sequence[Array]) -> list[Action]:
        """Return the copies into outputs that the plan does not write itself: of constants, and of parts of others."""
        slots = plan.lowered.outputs
        return [partial(setitem, outputs[i], ..., linked.value(slots[i], moving)) for i in self._filled]


def _place(plan: CpuPlan, linked: Linked, slot: int) -> tuple[int, Any]:
    """Return where the array of an output stands among those that a call passes, or -1, and its `Kind`.

    That is None for the array itself: a result that is written over an input is that input.
    """
    lowered, kind = plan.lowered, _kind(plan, slot)
    root = -1 if slot in lowered.literals else lowered.views[slot].root
    at = linked.moving.get(root, -1)
    return at, None if root in plan.aliased and kind == _kind(plan, root) else kind


def _kind(plan: CpuPlan, slot: int) -> Kind:
    type_ = plan.lowered.types[slot]
    shape: Any = type_.shape
    return tuple(shape), type_.dtype
