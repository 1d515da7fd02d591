"""A plan bound to memory: the arguments of every loop as addresses, with patches for those that vary between runs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt

from ....compiler.codegen.arena import ALIGNMENT
from ....compiler.codegen.cpu.arguments import ArgumentTable
from ....compiler.codegen.cpu.kernels import NativeStep
from ....compiler.codegen.views import View
from ....compiler.native.compiler import Kernel
from ....compiler.native.thread_pool import KernelCall, KernelSequence
from ....distributed.compiled_collectives import MEET_BEGIN, MEET_END, MEETINGS, meet
from ....ops.body import Equation, ScanParameters, WhileParameters
from ....ops.errors import LocatedError, SourceLine
from ....ops.host_arrays import Array, address_of, addresses_of, packed
from ....ops.types import DType
from ....transforms.base_program import Action, at_once
from ....transforms.cond import SWITCH, chosen
from ....transforms.scan import SCAN
from ....transforms.while_loop import passed
from ...eager_cpu.interpreter import NumpyOps
from .plan import ControlStep, CpuPlan, HostStep, inner_plans

Addresses = npt.NDArray[np.int64]


class _Place(NamedTuple):
    """The memory of a tensor.

    root    the constant that it views; None if it is in the arena
    at      the position of the moving array that it views, or -1
    offset  in bytes, as are strides
    """

    root: int | None
    at: int
    shape: tuple[int, ...]
    dtype: DType
    offset: int
    strides: tuple[int, ...]


Segment: TypeAlias = "KernelSequence | HostStep | ControlStep"


@final
class Linked:
    """A plan bound to memory: each call passes its inputs and results, everything else is in the arena.

    Between `stand` and `leave` it holds the arena.

    moving      slots that each call passes: inputs in order, then the plan's results
    words       the arguments of all kernels
    error       a word that loops set to nonzero at an index out of range
    """

    def __init__(self, plan: CpuPlan, error: Array, eager: NumpyOps, lines: Mapping[int, SourceLine | None]):
        self.plan = plan
        self.error = error
        self._arena: Array | None = None
        self._at = 0  # the arena's address in the current arguments
        self._eager = eager
        self._lines = lines
        self._constants: dict[int, Array] = {slot: packed(value) for slot, value in plan.lowered.constants.items()}
        self.moving = {slot: i for i, slot in enumerate([*plan.lowered.body.inputs, *plan.results])}
        self._inner: dict[int, tuple[Linked, ...]] = {}
        self._places: dict[int, _Place] = {}
        self._ends: dict[int, tuple[int, ...]] = {}  # by pending exchange, the results of its end, if all are stored
        for step in plan.steps:
            if isinstance(step, HostStep) and step.equation.primitive is MEET_END:
                (pending, *_), outputs = step.equation.inputs, step.equation.outputs
                if all(map(self._is_stored, outputs)):
                    self._ends[pending] = outputs
        self._link()

    # Addresses ------------------------------------------------------------------------------------------------------

    def _link(self) -> None:
        plan = self.plan
        for step in plan.steps:
            inner = inner_plans(step)
            if inner:
                self._inner[step.group] = tuple(
                    [Linked(plan, self.error, self._eager, plan.lowered.body.lines) for plan in inner]
                )
        native = [(step.group, step.loop.words if isinstance(step, NativeStep) else ()) for step in plan.steps]
        arguments = ArgumentTable(native, self.moving, self._constants)
        self.words = np.array(arguments.words, np.int64)
        self.words[arguments.flags] = address_of(self.error)
        table = np.array(arguments.patches, np.int64).reshape(-1, 3)
        self._patches, self._sources, self._offsets = table[:, 0], table[:, 1], table[:, 2]
        inside = [(word, plan.offsets[key] + offset) for word, key, offset in arguments.scratch]
        places = np.array(inside, np.int64).reshape(-1, 2)
        self._inside = places[:, 0], places[:, 1]
        self._starts = arguments.starts
        self._segments, self._split = self._scheduled()
        rest = self._segments[self._split :]
        ending = [segment.action for segment in rest if isinstance(segment, KernelSequence)]
        self._ending = ending if len(ending) == len(rest) else None

    def _scheduled(self, *, alone: bool = False) -> tuple[list[Segment], int]:
        """Return the steps as segments, consecutive machine code combined unless `alone`, and the segment at which the
        plan's second part begins."""
        split = None
        segments: list[Segment] = []
        native: list[KernelCall] = []
        arguments = self.words.view(np.uint64)
        for i, (start, step) in enumerate(zip(self._starts, self.plan.steps)):
            if native and (alone or not isinstance(step, NativeStep) or i == self.plan.split):
                segments.append(KernelSequence(native))
                native = []
            if i == self.plan.split:
                split = len(segments)
            if isinstance(step, NativeStep):
                assert isinstance(step.loop.kernel, Kernel)
                mine = arguments[start : start + len(step.loop.words)]
                native.append(KernelCall(step.loop.kernel, step.loop.tasks, mine, step.parallel))
            else:
                segments.append(step)
        if native:
            segments.append(KernelSequence(native))
        return segments, len(segments) if split is None else split

    # The arena ------------------------------------------------------------------------------------------------------

    def stand(self, arena: Array, at: int) -> None:
        """Use this memory, at address `at`, as the arena from now on."""
        self._arena = arena
        if self._at != at:
            self._at = 0  # if this is interrupted, the arguments are not valid for any address
            words, offsets = self._inside
            self.words[words] = at + offsets
            self._at = at
        for group, bodies in self._inner.items():
            offset = self.plan.offsets[group, "loop"]
            for inner in bodies:
                inner.stand(arena[offset : offset + max(1, inner.plan.arena_bytes)], at + offset)

    def leave(self) -> None:
        """Release the arena."""
        self._arena = None
        for bodies in self._inner.values():
            for inner in bodies:
                inner.leave()

    def _part(self, key: Hashable, nbytes: int) -> Array:
        """Return `nbytes` of the arena at the offset of `key`."""
        assert self._arena is not None
        return self._arena[self.plan.offsets[key] :][:nbytes]

    # Running --------------------------------------------------------------------------------------------------------

    def run(self, moving: Sequence[Array]) -> None:
        """Run everything with these packed arrays as inputs and results."""
        self.begin(moving)
        self.end(moving, ())

    def call(self, moving: Sequence[Array]) -> Callable[[], None]:
        """Return `run` bound to these arrays, callable any number of times."""
        if not self.is_native:
            return lambda: self.run(moving)
        addresses = addresses_of(moving)
        segments = [segment for segment in self._segments if isinstance(segment, KernelSequence)]

        def again() -> None:
            self._put(addresses)
            for segment in segments:
                segment.run()

        return again

    def begin(self, moving: Sequence[Array], seconds: list[float] | None = None) -> None:
        """Run everything before the first step that overwrites an input.

        With `seconds`, each step of the plan runs by itself, and its time is added to its entry.
        """
        if len(self._patches):
            self._put(addresses_of(moving))
        self._do_part(moving, seconds, second=False)

    def end(self, moving: Sequence[Array], then: Sequence[Action], seconds: list[float] | None = None) -> None:
        """Run the rest, which cannot fail, on the same arrays, then `then`; atomically unless there are `seconds`."""
        if seconds is None and self._ending is not None:
            at_once([*self._ending, *then])
        else:
            self._do_part(moving, seconds, second=True)
            at_once(then)

    def _do_part(self, moving: Sequence[Array], seconds: list[float] | None, *, second: bool) -> None:
        segments, split = (self._segments, self._split) if seconds is None else self._scheduled(alone=True)
        for i in range(split, len(segments)) if second else range(split):
            if self.error[0] and isinstance(segments[i], HostStep):
                return  # external effects must not see invalid results
            if seconds is None:
                self._do(segments[i], moving)
                continue
            since = perf_counter()
            self._do(segments[i], moving)
            seconds[i] += perf_counter() - since

    def _do(self, segment: Segment, moving: Sequence[Array]) -> None:
        if isinstance(segment, KernelSequence):
            segment.run()
            return
        e = segment.equation
        try:
            if isinstance(segment, ControlStep):
                self._control(segment, moving)
            elif e.primitive in MEETINGS:
                self._meet(e, moving)
            else:
                self._host(e, moving)
        except LocatedError as error:
            if isinstance(segment, HostStep):
                error.place(e.primitive.name, e.region.name)
            error.relocate(self._lines.get(e.ordinal), e.region.name)
            raise

    def _put(self, addresses: Addresses) -> None:
        self.words[self._patches] = addresses[self._sources] + self._offsets

    def put_all(self, moving: Sequence[Array]) -> dict[int, list[tuple[int, int]]]:
        """Patch in the addresses of these arrays. Return, by array, the argument words that hold its address, each with
        an offset in bytes."""
        if len(self._patches):
            self._put(addresses_of(moving))
        places: dict[int, list[tuple[int, int]]] = {}
        for word, source, offset in zip(self._patches.tolist(), self._sources.tolist(), self._offsets.tolist()):
            places.setdefault(source, []).append((word, offset))
        return places

    @property
    def actions(self) -> list[Action]:
        """The actions of a plan that `is_native`, in order."""
        return [segment.action for segment in self._segments if isinstance(segment, KernelSequence)]

    @property
    def is_native(self) -> bool:
        """Whether the whole plan is machine code."""
        return all(isinstance(segment, KernelSequence) for segment in self._segments)

    def value(self, slot: int, moving: Sequence[Array]) -> Array:
        """Return the value of a slot, as a view of its memory."""
        lowered = self.plan.lowered
        type_ = lowered.types[slot]
        shape: Any = type_.shape
        if slot in lowered.literals:
            return np.full(shape, lowered.literals[slot], type_.dtype)
        place = self._places.get(slot)
        if place is None:
            view = lowered.views[slot]
            if not view.size:
                return np.empty(view.shape, type_.dtype)
            place = self._places[slot] = self._place(lowered.in_memory(view))
        root, at, shape, dtype, offset, strides = place
        memory = moving[at] if at >= 0 else self._arena if root is None else self._constants[root]
        return np.ndarray(shape, dtype, memory, offset, strides)

    def _place(self, view: View) -> _Place:
        """Return the memory of a view, which is the same in every run."""
        dtype = self.plan.lowered.types[view.root].dtype
        at = self.moving.get(view.root, -1)
        inside = at < 0 and view.root not in self._constants
        first = int(self.plan.offsets[view.root]) if inside else 0
        strides = tuple([s * dtype.itemsize for s in view.strides])
        return _Place(
            None if inside else view.root, at, view.shape, dtype, first + view.offset * dtype.itemsize, strides
        )

    def _host(self, e: Equation, moving: Sequence[Array]) -> None:
        """Compute an op on this memory by the eager interpreter."""
        operands = tuple([self.value(slot, moving) for slot in e.inputs])

        def program(ops: NumpyOps, *refs: Array) -> tuple[Array, ...]:
            ops.cursor.region, ops.cursor.ordinal, ops.cursor.quiet = e.region, e.ordinal, True
            return ops.bind(e.primitive, refs, e.static)

        for slot, result in zip(e.outputs, self._eager.execute_each(program, operands)):
            if result.size and self._is_stored(slot):
                np.copyto(self.value(slot, moving), result)

    def _meet(self, e: Equation, moving: Sequence[Array]) -> None:
        """Run a collective of several processes, or its begin or end, on this memory."""
        read = e.inputs[:1] if e.primitive is MEET_END else e.inputs
        operands = tuple([self.value(slot, moving) for slot in read])
        places = [self._result(slot, moving) for slot in e.outputs]
        later = self._ends.get(e.outputs[0]) if e.primitive is MEET_BEGIN else None
        into = places if later is None else [self.value(slot, moving) for slot in later]
        meet(e.primitive, operands, places, e.static, into)

    def _is_stored(self, slot: int) -> bool:
        """Return whether a slot is stored; unused results are not."""
        plan = self.plan
        return slot in plan.results or slot in plan.offsets or slot in plan.lowered.parts

    def _result(self, slot: int, moving: Sequence[Array]) -> Array:
        """Return the packed array for a result."""
        if self._is_stored(slot):
            return self.value(slot, moving)
        type_ = self.plan.lowered.types[slot]
        return np.empty(self.plan.lowered.shape(slot), type_.dtype)

    # Control flow
    # ---------------------------------------------------------------------------------------------------------

    def _control(self, step: ControlStep, moving: Sequence[Array]) -> None:
        """Run a scan, while_loop or switch."""
        e = step.equation
        operands = [self.value(slot, moving) for slot in e.inputs]
        results = [self.value(slot, moving) for slot in e.outputs]
        if e.primitive is SCAN:
            self._iterate(step, operands, results)
        elif e.primitive is SWITCH:
            index, *rest = operands
            self._inner[step.group][chosen(int(index), len(step.plans))].run([*rest, *results])
        else:
            self._repeat(step, operands, results)

    def _repeat(self, step: ControlStep, operands: Sequence[Array], results: Sequence[Array]) -> None:
        """Run iterations while the test holds, alternating between two buffers per carry."""
        loop = WhileParameters(**step.equation.static)
        limit = None if loop.limit is None else int(loop.limit)
        test, body = self._inner[step.group]
        carries = len(results)
        state, captured = operands[:carries], operands[carries:]
        places = list(zip(*[self._carry_buffers(step, i, like) for i, like in enumerate(state)]))
        goes_on = np.empty((), np.bool_)
        # Calls for iterations 0, 1 and 2; later iterations reuse the arrays of 1 and 2 in turn.
        turns = [(state, places[0]), (places[0], places[1]), (places[1], places[0])]
        tests = [test.call([*before, *captured, goes_on]) for before, _ in turns]
        bodies = [body.call([*before, *captured, *after]) for before, after in turns]
        done = turn = 0
        while True:
            tests[turn]()
            if not goes_on or self.error.any():  # the executor reports an index out of range
                break
            if done == limit:
                raise passed(limit)
            bodies[turn]()
            done += 1
            turn = 2 - done % 2
        for result, value in zip(results, turns[turn][0]):
            np.copyto(result, value)

    def _iterate(self, step: ControlStep, operands: Sequence[Array], results: Sequence[Array]) -> None:
        """Run the iterations in order. Their inputs and outputs are rows of the stacked tensors."""
        (inner,), loop = self._inner[step.group], ScanParameters(**step.equation.static)
        length, carries = int(loop.length), loop.carries
        incoming = loop.incoming()
        finals, stacked = (
            results[:carries],
            [results[i] for i in range(carries, len(results)) if i not in incoming.values()],
        )
        order = range(length)[::-1] if loop.reverse else range(length)
        reads: list[list[Array]] = []  # by input of the body, then by iteration
        writes: list[list[Array]] = []
        for c in range(carries):
            if c in incoming:
                rows = results[incoming[c]]
                coming = [rows[i, ...] for i in order]
                np.copyto(coming[0], operands[c])
            else:
                buffers = self._carry_buffers(step, c, operands[c])
                coming = [operands[c], *[buffers[k % 2] for k in range(1, length)]]
            reads.append(coming)
            writes.append([*coming[1:], finals[c]])
        for x in operands[carries : carries + loop.entries]:
            reads.append([x[i, ...] for i in order])
        for x in operands[carries + loop.entries :]:
            reads.append([x] * length)
        for y in stacked:
            writes.append([y[i, ...] for i in order])
        if not inner.is_native:
            for iteration in zip(*reads, *writes):
                inner.run(iteration)
            return
        table = np.array([[address_of(x) for x in each] for each in (*reads, *writes)], np.int64).T
        for addresses in table:
            inner._put(addresses)
            for segment in inner._segments:
                segment.run()  # type: ignore[union-attr]

    def _carry_buffers(self, step: ControlStep, carry: int, like: Array) -> tuple[Array, Array]:
        """Return the two buffers between which a carry alternates."""
        first, second = (self._part((step.group, f"carry {carry} {i}"), like.nbytes).view(like.dtype) for i in range(2))
        return first.reshape(like.shape), second.reshape(like.shape)


# Prepared calls -------------------------------------------------------------------------------------------------------

# `PreparedCall`: a program on the CPU with most of its inputs bound.


_MOST = 1 << 20
"""The largest arena in bytes: with more computation, looking up addresses takes no noticeable time."""


@final
class PreparedCall:
    """Machine code with all addresses bound except those of some inputs and of the results. For small programs, looking
    up addresses would dominate the time.

    It has its own arena. One call runs at a time; a concurrent call returns None.
    """

    __slots__ = ("_kept", "_patches", "_kinds", "_actions", "_idle")

    def __init__(self, plan: CpuPlan, linked: Linked, inputs: Sequence[Array], varying: Sequence[int]):
        """See `prepare`. `inputs` are packed; those at `varying` only provide shapes and dtypes."""
        memory = np.empty(plan.arena_bytes + ALIGNMENT, np.uint8)
        at = address_of(memory)
        start = -at % ALIGNMENT
        self._kinds = [(tuple(plan.lowered.types[slot].shape), plan.lowered.types[slot].dtype) for slot in plan.results]
        results = [np.empty(*kind) for kind in self._kinds]
        linked.stand(memory[start : start + plan.arena_bytes], at + start)
        patches = linked.put_all([*inputs, *results])
        first = len(inputs)
        moving = [*varying, *range(first, first + len(results))]
        # by varying input, then by result: the argument words with its address, each with an offset in bytes
        self._patches = [patches.get(source, ()) for source in moving]
        self._kept = (memory, tuple(inputs))  # keeps the memory alive, since only addresses are stored below
        self._actions = linked.actions
        self._idle = [linked]

    def __call__(self, inputs: Sequence[Array]) -> list[Array] | None:
        """Return the results as new arrays, given packed arrays for the varying inputs.

        Returns None if another call is running, or if an index was out of range.
        """
        try:
            linked = self._idle.pop()
        except IndexError:
            return None
        results = [np.empty(shape, dtype) for shape, dtype in self._kinds]
        words = linked.words
        for array, patches in zip((*inputs, *results), self._patches):
            at = address_of(array)
            for word, offset in patches:
                words[word] = at + offset
        linked.error[0] = 0
        for action in self._actions:
            action()
        failed = linked.error[0]
        self._idle.append(linked)
        return None if failed else results


def prepare(
    plan: CpuPlan, linked: Linked, inputs: Sequence[Array], varying: Sequence[int]
) -> tuple[PreparedCall, list[int]] | None:
    """Return the prepared call of a plan, and the result at each output; None unless the plan is all machine code.

    inputs    packed arrays: bound ones, and at the positions `varying` examples of shape and dtype
    """
    lowered = plan.lowered
    if plan.aliased or len(inputs) != len(lowered.body.inputs) or not linked.is_native:
        return None
    if plan.arena_bytes > _MOST:
        return None
    numbers = {slot: i for i, slot in enumerate(plan.results)}
    outputs = []
    for slot in lowered.outputs:
        root = None if slot in lowered.literals else lowered.views[slot].root
        if root not in numbers or lowered.views[slot].shape != tuple(lowered.types[root].shape):
            return None
        outputs.append(numbers[root])
    if len(set(outputs)) < len(outputs):
        return None  # two outputs must not share an array
    return PreparedCall(plan, linked, inputs, varying), outputs
