"""The plan of a graph on the CPU: the passes before it, its loops, their order, and their memory."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, final

import numpy as np

from ....compiler.codegen.arena import Item, arrange
from ....compiler.codegen.clusters import FusionGroup, Level, read_by
from ....compiler.codegen.cpu.arguments import Address, ErrorFlag, LoopSource, LoweredLoop, Scratch, Word, view_address
from ....compiler.codegen.cpu.kernels import AlikeClusters, Compilation, NativeStep, Overwritable, cluster_steps
from ....compiler.codegen.formulas import ASSEMBLE, FORMULAS, PRODUCTS
from ....compiler.codegen.fusion import fuse
from ....compiler.codegen.lowering import Lowered
from ....compiler.codegen.views import batch_axes, leading_dimension
from ....compiler.native import find_blas
from ....compiler.native.avx512_matmul import blocked_kernel, blocked_words, cut_blocked, serves
from ....compiler.native.blas_matmul import cut_product, gemm_kernel, gemm_words
from ....distributed.compiled_collectives import MEET_END
from ....ops.body import Body, Equation, ScanParameters
from ....ops.catalogue import has_kernel
from ....ops.convolution import CONV_KERNEL_GRAD
from ....ops.host_arrays import Array
from ....ops.matmul import GROUPED_MATMUL, GROUPED_OUTER
from ....ops.pooling import AVG_POOL, AVG_POOL_GRAD, MAX_POOL, MAX_POOL_GATHER, MAX_POOL_SCATTER
from ....ops.primitive import Primitive, Static
from ....ops.types import TensorType, dtype_name
from ....transforms.cond import SWITCH, get_branches
from ....transforms.control_flow import CONTROL, get_bodies
from ....transforms.scan import SCAN
from ....transforms.while_loop import WHILE
from ..graph import Graph
from ..passes.pipeline import Notes, run_passes, standard
from .kernel_library import CPU, library_loops

if TYPE_CHECKING:
    from ..rank_lowering import Hosted


# Passes before the plan -----------------------------------------------------------------------------------------------


_KERNEL_IS_FASTER = frozenset({MAX_POOL, MAX_POOL_SCATTER, MAX_POOL_GATHER, AVG_POOL, AVG_POOL_GRAD, CONV_KERNEL_GRAD})
"""Composites whose eager_cpu kernel is faster than their decomposition."""

_GROUPED = frozenset({GROUPED_MATMUL, GROUPED_OUTER})
"""Those too, where there is a BLAS to call."""


def _has_kernel(primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> bool:
    floats = all(t.dtype.kind in "fib" for t in types)
    whole = primitive in _KERNEL_IS_FASTER or (primitive in _GROUPED and find_blas() is not None)
    return floats and (whole or primitive in FORMULAS or has_kernel("cpu", primitive))


PASSES = standard(_has_kernel)


def optimise(graph: Graph, *, checked: bool = False) -> tuple[Graph, Notes]:
    """Optimise the program and the bodies of its loops; return notes about each pass.

    With `checked`, the graph's invariants are checked after every pass.
    """
    return run_passes(graph, PASSES, checked=checked)


# Plan -----------------------------------------------------------------------------------------------------------------


class HostStep(NamedTuple):
    """An op that eager_cpu computes on views of the program's memory."""

    equation: Equation
    group: int


class ControlStep(NamedTuple):
    """A scan, with the plan of its body; a while_loop, with plans of its test and body; or a switch, with a plan of
    each branch, one of which runs."""

    equation: Equation
    plans: tuple[CpuPlan, ...]
    group: int


Step: TypeAlias = "NativeStep | HostStep | ControlStep"


def inner_plans(step: Step) -> tuple[CpuPlan, ...]:
    """Return the plans of a step's bodies."""
    return step.plans if isinstance(step, ControlStep) else ()


def carried(step: ControlStep) -> dict[int, TensorType]:
    """Return the types of the carries that alternate between two buffers, by position; the others of a scan are written
    into a stacked result."""
    primitive, static = step.equation.primitive, step.equation.static
    if primitive is SCAN:
        loop = ScanParameters(**static)
        return {i: loop.body.input_types[i] for i in set(range(loop.carries)).difference(loop.incoming())}
    return dict(enumerate(static["body"].output_types)) if primitive is WHILE else {}


@final
class CpuPlan:
    """The schedule of a graph on the CPU and its memory; kernels of clusters are source until they are compiled.

    offsets     of slots and scratch in the arena, which has `arena_bytes`
    results     roots that are results, each with its own buffer except aliased ones
    aliased     results that overwrite a donated input, with that input
    split       the first step that overwrites an input; from there on no step can fail
    """

    def __init__(
        self,
        program: Body | Hosted,
        *,
        own_outputs: bool = False,
        donated: Collection[int] = (),
        compilation: Compilation | None = None,
    ):
        """With `own_outputs`, every output is a result of its own: not an input, a constant, or a part of another.

        `donated` are the positions of inputs that results may overwrite. A `compilation` begins as soon as the kernel
        sources exist.
        """
        if isinstance(program, Body):
            self.lowered = Lowered(program, CPU, own_outputs=own_outputs)
            self.groups = fuse(self.lowered)
        else:
            self.lowered, self.groups = program.lowered, program.groups
        lowered = self.lowered
        self.results = dict.fromkeys(
            lowered.views[slot].root
            for slot in lowered.outputs
            if slot not in lowered.literals and slot in lowered.views
        )
        written = {slot for group in self.groups for e in group.equations for slot in e.outputs}
        self.results = {root: None for root in self.results if root in written}
        read = read_by(lowered, self.groups)
        alike = AlikeClusters()
        loops = {
            number: cluster_steps(lowered, group, number, read, self.results, alike)
            for number, group in enumerate(self.groups)
            if group.cluster is not None
        }
        if compilation is not None:
            compilation.begin(_texts([step for steps in loops.values() for step in steps]))
        steps_of = [
            [*loops[number]] if number in loops else self._lower(group, number)
            for number, group in enumerate(self.groups)
        ]
        fallible = [number for number, steps in enumerate(steps_of) if any(map(_may_fail, steps))]
        inputs = {lowered.body.inputs[position] for position in donated}
        self.aliased, order = alias_results(lowered, self.groups, read, self.results, inputs, fallible)
        self.groups = [self.groups[number] for number in order]
        self.steps: list[Step] = [
            step._replace(group=number) for number, before in enumerate(order) for step in steps_of[before]
        ]
        made = {slot: i for i, group in enumerate(self.groups) for e in group.equations for slot in e.outputs}
        writing = {made[slot] for slot in self.aliased}
        self.split = next((i for i, step in enumerate(self.steps) if step.group in writing), len(self.steps))
        moved = {before: number for number, before in enumerate(order)}
        read = {root: {moved[reader] for reader in readers} for root, readers in read.items()}
        items: list[Item] = []
        for step in self.steps:
            if isinstance(step, ControlStep):
                items += _memory_of_control(step)
            elif isinstance(step, NativeStep):
                number = step.group
                scratch = {word.key: word for word in step.loop.words if isinstance(word, Scratch)}
                items += [Item((number, own.key), own.room, number, number) for own in scratch.values()]
        begun: dict[int, list[int]] = {}  # by whole: the steps that write its parts
        for slot, part in lowered.parts.items():
            begun.setdefault(part.whole, []).append(made[slot])
        for slot, first in made.items():
            if slot in self.results or slot in lowered.parts:
                continue
            readers = read.get(slot, set())
            if self._kept_in_registers(slot, self.groups[first], readers, first):
                continue
            nbytes = int(lowered.types[slot].nbytes)
            start = min([first, *begun.get(slot, ())])
            (e, *_) = self.groups[first].equations
            if e.primitive is MEET_END:  # what comes is received there
                start = min(start, made.get(e.inputs[0], start))
            items.append(Item(slot, max(1, nbytes), start, max([first, *readers])))
        items = self._in_place(items)
        seen: dict[Hashable, Item] = {item.key: item for item in items}
        self.offsets, self.arena_bytes = arrange(list(seen.values()))

    def _in_place(self, items: list[Item]) -> list[Item]:
        """Return the items, with the operand that each can overwrite."""
        lives = {item.key: item for item in items}
        wholes = {part.whole for part in self.lowered.parts.values()}
        taken: set[Hashable] = set(wholes)
        placed: list[Item] = []
        overwritable = [None if u.cluster is None else Overwritable(u.cluster, u.equations) for u in self.groups]
        for item in items:
            over = overwritable[item.first]
            if isinstance(item.key, int) and over is not None and item.key not in wholes:
                for root in over.by(item.key):
                    other = lives.get(root)
                    if other is None or root in taken or other.nbytes != item.nbytes:
                        continue
                    if other.first < item.first == other.last:
                        taken.add(root)
                        item = item._replace(into=root)
                        break
            placed.append(item)
        return placed

    @property
    def result_bytes(self) -> int:
        """Bytes of the results that do not overwrite an input."""
        own = [self.lowered.types[slot] for slot in self.results if slot not in self.aliased]
        return sum(int(type_.nbytes) for type_ in own)

    @property
    def table_bytes(self) -> int:
        """Bytes of the tables of kernel arguments: a word each, plus three words for arguments that vary between calls,
        two for those in the arena."""
        moving = {*self.lowered.body.inputs, *self.results}
        total = 0
        for step in self.steps:
            total += 24
            total += sum(plan.table_bytes for plan in inner_plans(step))
            if isinstance(step, NativeStep):
                for word in step.loop.words:
                    slot = word[0] if isinstance(word, Address) else None
                    total += 32 if slot in moving else 24 if slot in self.offsets or isinstance(word, Scratch) else 8
        return total

    @property
    def constants(self) -> list[Array]:
        """The constants of the plan and of its inner plans."""
        inner = [plan.constants for step in self.steps for plan in inner_plans(step)]
        return [*map(np.asarray, self.lowered.constants.values()), *itertools.chain(*inner)]

    @property
    def equations(self) -> int:
        """The number of planned equations, including those of inner plans."""
        inner = [plan.equations for step in self.steps for plan in inner_plans(step)]
        return len(self.lowered.body.equations) + sum(inner)

    def compile(self, compilation: Compilation) -> None:
        """Compile all kernel sources, also in inner plans."""
        plans = [self]
        for plan in plans:
            plans += [inner for step in plan.steps for inner in inner_plans(step)]
        kernels = compilation.end([text for plan in plans for text in _texts(plan.steps)])
        for plan in plans:
            for i, step in enumerate(plan.steps):
                if isinstance(step, NativeStep) and isinstance(step.loop.kernel, LoopSource):
                    plan.steps[i] = step._replace(loop=step.loop._replace(kernel=kernels[step.loop.kernel]))

    def _kept_in_registers(self, slot: int, group: FusionGroup, readers: set[int], number: int) -> bool:
        if group.cluster is None:
            return False
        if group.cluster.levels[slot] is Level.COLUMN:
            return False
        return not readers - {number}

    def _lower(self, group: FusionGroup, number: int) -> list[Step]:
        """Return the steps of a single equation outside of clusters."""
        lowered = self.lowered
        (e,) = group.equations
        if e.primitive is ASSEMBLE:
            return []
        by_hand = library_loops(lowered, e)
        if by_hand is None and _is_product(lowered, e):
            product = product_loop(lowered, e)
            by_hand = None if product is None else [(product, product.tasks > 1)]
        if by_hand is None and e.primitive in CONTROL and _can_be_planned(lowered, e):
            return [ControlStep(e, tuple([CpuPlan(body, own_outputs=True) for body in _run_bodies(e)]), number)]
        if by_hand is None:
            return [HostStep(e, number)]
        return [NativeStep(loop, parallel, number) for loop, parallel in by_hand]


def _texts(steps: Sequence[Step]) -> list[LoopSource]:
    """Return the kernel sources that are still to be compiled."""
    return [s.loop.kernel for s in steps if isinstance(s, NativeStep) and isinstance(s.loop.kernel, LoopSource)]


def _may_fail(step: Step) -> bool:
    """Return whether a step can fail: it checks indices, or runs Python."""
    return not isinstance(step, NativeStep) or any(isinstance(word, ErrorFlag) for word in step.loop.words)


def _can_be_planned(lowered: Lowered, e: Equation) -> bool:
    """Return whether a plan of the bodies is possible: loops run at least once, and no tensor is empty or has
    fractions."""
    types = [type_ for _, body in get_bodies(e.static) for type_ in body.types]
    whole = all(int(lowered.types[slot].size) > 0 for slot in (*e.inputs, *e.outputs))
    return whole and int(e.static.get("length", 1)) > 0 and all(t.dtype.kind != "O" for t in types)


def _run_bodies(e: Equation) -> Sequence[Body]:
    """Return the bodies of a control op; that of a scan without outputs that equal outgoing carries, which are written
    directly into the stacked result."""
    if e.primitive is SWITCH:
        return get_branches(e.static)
    if e.primitive is WHILE:
        return e.static["test"], e.static["body"]
    loop = ScanParameters(**e.static)
    incoming = loop.incoming().values()
    return (loop.body.replace(outputs=[slot for i, slot in enumerate(loop.body.outputs) if i not in incoming]),)


def _memory_of_control(step: ControlStep) -> list[Item]:
    """Return the memory of the largest plan, since one runs at a time, and two buffers for each carry."""
    number = step.group
    items = [Item((number, "loop"), max([1, *[plan.arena_bytes for plan in step.plans]]), number, number)]
    for carry, type_ in carried(step).items():
        items += [Item((number, f"carry {carry} {i}"), int(type_.nbytes), number, number) for i in range(2)]
    return items


def _is_product(lowered: Lowered, e: Equation) -> bool:
    return (
        e.primitive in PRODUCTS
        and lowered.types[e.outputs[0]].dtype.kind == "f"
        and all(lowered.views[slot].size > 0 for slot in (*e.inputs, *e.outputs))
    )


# Aliasing -------------------------------------------------------------------------------------------------------------


def alias_results(
    lowered: Lowered,
    groups: Sequence[FusionGroup],
    read: Mapping[int, Collection[int]],
    results: Collection[int],
    donated: Collection[int],
    fallible: Collection[int],
) -> tuple[dict[int, int], list[int]]:
    """Return the donated input that each result aliases, and the new order of the groups.

    read        the groups that read a root, by number
    fallible    the groups that can fail

    A group that overwrites inputs is scheduled after all fallible groups and after all other readers of those inputs.
    Until the first such group begins the inputs are intact, and afterwards nothing can fail. Other groups do not read
    its results.
    """
    given_out = {
        lowered.views[slot].root for slot in lowered.outputs if slot not in lowered.literals and slot in lowered.views
    }
    free = set(donated) - given_out
    last = max(fallible, default=-1)
    candidates = {
        number: [slot for slot in slots if slot in results and slot not in lowered.parts]
        for number, group in enumerate(groups)
        if group.cluster is not None and number not in fallible
        for slots in [[slot for e in group.equations for slot in e.outputs]]
        if not any(set(read.get(slot, ())) - {number} for slot in slots)
    }
    aliased: dict[int, int] = {}
    after: dict[int, int] = {}
    for number, slots in candidates.items():
        group = groups[number]
        assert group.cluster is not None
        overwritable = Overwritable(group.cluster, group.equations)
        for slot in slots:
            for root in overwritable.by(slot):
                others = set(read.get(root, ())) - {number}
                # Two groups that read each other's inputs could not each come last.
                if root in free and lowered.types[root] == lowered.types[slot] and not others & candidates.keys():
                    aliased[slot] = root
                    free.remove(root)
                    after[number] = max([after.get(number, last), number, *others])
                    break
    order: list[int] = []
    waiting = sorted(after, key=lambda number: (after[number], number))
    for number in range(len(groups)):
        if number not in after:
            order.append(number)
        while waiting and after[waiting[0]] <= number:
            order.append(waiting.pop(0))
    return aliased, order


# Matrix products ------------------------------------------------------------------------------------------------------

# Matrix products, divided among the workers: by a kernel of our own where it is faster, else as BLAS calls.


def product_loop(lowered: Lowered, e: Equation) -> LoweredLoop | None:
    """Return the loop of matmul or bmm; None if it is the BLAS's and that cannot be called."""
    a, b = (lowered.views[slot] for slot in e.inputs)
    dtype = dtype_name(lowered.types[e.outputs[0]].dtype)
    left, right, axes = leading_dimension(a), leading_dimension(b), batch_axes(a, b)
    assert left is not None and right is not None
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    axes = [(1, 0, 0)] * (2 - len(axes)) + axes
    (outer, a_outer, b_outer), (inner, a_inner, b_inner) = axes
    batch = outer * inner
    size = lowered.types[e.outputs[0]].dtype.itemsize
    at: tuple[Word, Word, Word] = (
        view_address(lowered, a),
        view_address(lowered, b),
        view_address(lowered, lowered.views[e.outputs[0]]),
    )
    transposed, leading = (left.transposed, right.transposed), (left.dimension, right.dimension)
    steps = a_outer * size, a_inner * size, b_outer * size, b_inner * size
    if serves(dtype, m, n, k, right.transposed):
        blocks = cut_blocked(dtype, m, n, k, batch, *left)
        room = blocks.workspace(dtype)
        workspace: tuple[Word, int] = Scratch("product", room), room
        words = blocked_words(at, workspace, (m, n, k), transposed, leading, blocks, inner=inner, steps=steps)
        return LoweredLoop(blocked_kernel(dtype), batch * blocks.tasks(m, n), words, ())
    kernel = gemm_kernel(dtype)
    if kernel is None:
        return None
    cut = cut_product(dtype, m, n, k, batch)
    words = gemm_words(dtype, at, (m, n, k), transposed, leading, cut, inner=inner, steps=steps)
    return LoweredLoop(kernel, batch * cut.parts, words, ())
