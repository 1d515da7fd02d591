"""`MemoryOps`: an interpreter whose tensors are allocations without content.

A program runs on it as on the eager interpreter, with the same tape and optimizers on top, which keep the same
references as there. The kernels themselves run on such tensors, at a few sizes of the named dims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
from typing_extensions import override

from ...ops.body import Body, ScanParameters, WhileParameters
from ...ops.collective import SHARD
from ...ops.dims import Dim, DimScope, evaluate
from ...ops.dispatch import Region
from ...ops.mesh import ALONE, Mesh
from ...ops.primitive import NO_STATIC, Kind, Primitive, Static
from ...ops.spec import as_specs
from ...ops.trees import no_ref
from ...ops.types import DType, TensorType, as_dtype
from ...options import Options
from ...transforms.cond import SWITCH, get_branches
from ...transforms.interpreter import BaseInterpreter, Typed
from ...transforms.remat import REMAT
from ...transforms.scan import SCAN
from ...transforms.tracer import Composite, constants
from ...transforms.tracer import evaluate as evaluate_body
from ...transforms.while_loop import WHILE
from ..eager_cpu.interpreter import expand_body, kernel_of, loop_parts, pays_fused
from ..eager_cpu.kernels import kernel_table
from ..eager_cpu.tally import KernelMemory, Sizes, kernel_memory
from .peak_memory import AllocationTrace, Buffer, MemoryKind, Timeline, fitted

_TURNS = 3
"""Iterations of a loop that are run; all later ones use the memory of the third."""

Layout: TypeAlias = tuple[Sizes | None, ...]
"""Strides in bytes for one or several tensors at each of the samples; None for row-major ones."""


@final
class Tensor(Typed):
    """A type, and its allocation."""

    __slots__ = ("type", "ops", "buffer", "layout")

    def __init__(self, type: TensorType, ops: MemoryOps, buffer: Buffer, layout: Layout):
        self.type = type
        self.ops = ops
        self.buffer = buffer
        self.layout = layout


class KernelRun(NamedTuple):
    """A kernel that the eager interpreter would run: operands and results, and the number of consecutive runs.

    Choices, and loops of unknown length, are reported without results, before the kernels of their bodies.

    backward    whether it is part of a backward pass
    looped      whether it is in the body of a loop
    part_of     the composite that it is part of, if the interpreter has no kernel for that
    """

    primitive: Primitive
    static: Static
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    region: Region
    backward: bool
    times: int
    looped: bool
    part_of: Primitive | None


class _Result(NamedTuple):
    """A result of an op: in the memory `of` an operand or of an earlier result (numbered after the operands), or in its
    own."""

    type: TensorType
    layout: Layout
    of: int | None
    nbytes: Dim


class _OpFootprint(NamedTuple):
    """The memory of an op on operands of some types and layouts; `kept` at other sizes."""

    results: tuple[_Result, ...]
    workspace: Dim


def _at(
    types: tuple[TensorType, ...], static: Static, sizes: Mapping[str, int]
) -> tuple[tuple[TensorType, ...], Static]:
    """Return operands and static parameters with numeric sizes."""
    numbers = tuple([TensorType(evaluate(type_.shape, sizes), type_.dtype) for type_ in types])
    return numbers, {name: evaluate(value, sizes) for name, value in static.items()}


def _sized(primitive: Primitive, sizes: Mapping[str, int]) -> Primitive:
    """Return the op with numeric sizes in its parts."""
    return primitive.at(sizes) if type(primitive) is Composite else primitive


def _form(call: KernelMemory) -> tuple[Any, ...]:
    """Return the part of a call that is equal for calls that differ only in sizes."""
    return tuple([result.of for result in call.results]), len(call.temporary)


def _numbers(call: KernelMemory) -> list[int]:
    """Return the bytes of each result, then of other allocations."""
    return [*[result.nbytes for result in call.results], *call.temporary]


@final
class MemoryOps(BaseInterpreter[Tensor]):
    """The memory of the eager interpreter on the CPU.

    timeline    the events so far
    kind        the kind of memory allocated outside of backward passes and updates
    samples     for every named dim a size that decides choices without a formula: views, blocks, the kernel; then
                others near those, to fit polynomials
    regions     the kind of memory allocated in regions with these names
    mesh        the mesh whose rank runs the program: the memory is that of a rank in a process of its own
    watch       called with every kernel that would run; it must not keep its argument, which would keep the memory
                alive
    """

    def __init__(
        self,
        options: Options,
        scope: DimScope,
        samples: Sequence[Mapping[str, int]],
        regions: Mapping[str, MemoryKind] | None = None,
        mesh: Mesh = ALONE,
    ):
        super().__init__(as_dtype(options.dtype), options.seed)
        self.scope = scope
        self.timeline = Timeline()
        self.kind = MemoryKind.ACTIVATIONS
        self.samples = samples
        self.regions = regions or {}
        self._mesh = mesh
        self._options = options
        self._known: dict[Any, _OpFootprint] = {}
        self._keeping: list[Callable[[Mapping[str, int]], int]] = []
        self.watch: Callable[[KernelRun], None] | None = None
        self._times = 1
        self._loops = 0
        self._whole: Primitive | None = None

    @property
    @override
    def executes(self) -> bool:
        return False

    @property
    @override
    def mesh(self) -> Mesh:
        return self._mesh

    @override
    def put(self, value: Any, /) -> Tensor:
        return self.new(as_specs(value).bind(self.scope, self.dtype))

    @override
    def get(self, ref: Tensor, /) -> TensorType:
        return ref.type

    @override
    def has_kernel(self, primitive: Primitive) -> bool:
        return primitive in kernel_table(self._options.dtype, self._options.fast_kernels)

    @property
    @override
    def fuses(self) -> bool:
        return self._options.fast_kernels

    @override
    def has_fused(self, primitive: Primitive, types: tuple[TensorType, ...]) -> bool:
        sizes = self.samples[0]
        return pays_fused(_sized(primitive, sizes), _at(types, NO_STATIC, sizes)[0])

    def new(self, type: TensorType, kind: MemoryKind | None = None) -> Tensor:
        """Return a tensor with memory of its own."""
        return Tensor(type, self, self.timeline.take(type.nbytes, self.kind if kind is None else kind), self._rows)

    @property
    def _rows(self) -> Layout:
        return (None,) * len(self.samples)

    @override
    def adopt(self, ref: Any, /) -> Tensor:
        if type(ref) is Tensor and ref.ops is self:
            return ref
        raise no_ref(ref)

    @override
    def const(self, value: Any, /, *, dtype: str | DType | None = None) -> Tensor:
        type_ = as_specs(np.asarray(value)).bind(self.scope, self.dtype)
        return self.new(type_ if dtype is None else TensorType(type_.shape, as_dtype(dtype)))

    @override
    def region(self, name: str, f: Callable[..., Any], /, *args: Any) -> Any:
        outside, self.kind = self.kind, self.regions.get(name, self.kind)
        try:
            return super().region(name, f, *args)
        finally:
            self.kind = outside

    def history(self) -> AllocationTrace:
        """Return the allocations and releases so far."""
        keeping = tuple(self._keeping)

        def kept(sizes: Mapping[str, int]) -> int:
            return max([at(sizes) for at in keeping], default=0)

        return self.timeline.close(kept)

    # Interpreter methods --------------------------------------------------------------------------------------------

    @override
    def bind(self, primitive: Primitive, refs: tuple[Tensor, ...], static: Static, /) -> tuple[Tensor, ...]:
        refs = tuple([self.adopt(ref) for ref in refs])
        if primitive is SCAN:
            return self._loop(refs, ScanParameters(**static))
        if primitive in (REMAT, SWITCH, WHILE):
            self._watched(primitive, static, refs, ())
        if primitive is WHILE:
            return self._while(refs, WhileParameters(**static))
        if primitive is SWITCH:
            return self._choice(refs[1:], get_branches(static))
        if primitive is REMAT:
            return self._choice(refs, (static["body"],))
        if primitive.kind is Kind.COLLECTIVE:
            result = self._collective(primitive, refs, static)
            self._watched(primitive, static, refs, (result,))
            return (result,)
        key = (primitive, *[ref.type for ref in refs], *[ref.layout for ref in refs], *static.values())
        known = self._known.get(key)
        if known is None:
            types = primitive.infer(tuple([ref.type for ref in refs]), static, self.cursor.region.name)
            found = self._asked(primitive, refs, types, static)
            if found is None:
                if primitive.decomposition is None:
                    raise self.unsupported(primitive)
                return self._in_parts(primitive, refs, static)
            known = self._known[key] = found
        kind = MemoryKind.GRADIENTS if self.cursor.backward and self.kind is MemoryKind.ACTIVATIONS else self.kind
        buffers = [ref.buffer for ref in refs]
        for _, _, of, nbytes in known.results:
            buffers.append(self.timeline.take(nbytes, kind) if of is None else buffers[of])
        self.timeline.work_in(known.workspace)
        results = tuple(
            [
                Tensor(type_, self, buffer, layout)
                for (type_, layout, _, _), buffer in zip(known.results, buffers[len(refs) :])
            ]
        )
        self._watched(primitive, static, refs, results)
        return results

    def _in_parts(self, primitive: Primitive, refs: tuple[Tensor, ...], static: Static) -> tuple[Tensor, ...]:
        outermost = self._whole is None
        self._whole = self._whole or primitive
        results = self.decompose(primitive, refs, static)
        if outermost:
            self._whole = None
        return results

    def _watched(
        self, primitive: Primitive, static: Static, refs: tuple[Tensor, ...], results: tuple[Tensor, ...]
    ) -> None:
        if self.watch is not None:
            cursor = self.cursor
            place = cursor.region, bool(cursor.backward), self._times, self._loops > 0, self._whole
            self.watch(KernelRun(primitive, static, refs, results, *place))

    def _asked(
        self, primitive: Primitive, refs: tuple[Tensor, ...], types: tuple[TensorType, ...], static: Static
    ) -> _OpFootprint | None:
        """Return the memory of the op's kernel, fitted to the samples; None without a kernel."""
        types_in = tuple([ref.type for ref in refs])
        found: list[KernelMemory] = []
        call: Any = None
        for i, sizes in enumerate(self.samples):
            before, call = call, (*_at(types_in, static, sizes), tuple([ref.layout[i] for ref in refs]))
            here = found[-1] if call == before else self._taken(_sized(primitive, sizes), *call)
            if here is None:
                return None
            found.append(here)
        first = found[0]
        if first.kept:
            self._keeping.append(partial(self._kept, primitive, types_in, static))
        alike = [i for i, each in enumerate(found) if _form(each) == _form(first)]
        samples = [self.samples[i] for i in alike]
        parts = [type_.nbytes for type_ in (*types_in, *types)]
        numbers = [fitted(n, samples, parts, self.scope) for n in zip(*[_numbers(found[i]) for i in alike])]
        results = [
            _Result(type_, tuple([each.results[k].strides for each in found]), first.results[k].of, numbers[k])
            for k, type_ in enumerate(types)
        ]
        workspace: Dim = 0
        for nbytes in numbers[len(types) :]:
            workspace = workspace + nbytes
        return _OpFootprint(tuple(results), workspace)

    def _taken(
        self, primitive: Primitive, types: tuple[TensorType, ...], static: Static, layout: Layout
    ) -> KernelMemory | None:
        """Return the memory of the op's kernel for numeric operand types; None without a kernel."""
        kernel = kernel_of(primitive, types, static, self._options)
        return None if kernel is None else kernel_memory(kernel, types, layout, static)

    def _stays(self, primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> bool:
        """Whether eager_cpu has a kernel for an op, at the first sample of sizes."""
        return kernel_of(primitive, *_at(types, static, self.samples[0]), self._options) is not None

    def _kept(
        self, primitive: Primitive, types: tuple[TensorType, ...], static: Static, sizes: Mapping[str, int]
    ) -> int:
        """Return the bytes of workspace kept at other sizes; operand layouts do not affect it."""
        found = self._taken(_sized(primitive, sizes), *_at(types, static, sizes), (None,) * len(types))
        return 0 if found is None else found.kept

    def _collective(self, primitive: Primitive, refs: tuple[Tensor, ...], static: Static) -> Tensor:
        """Return the result: `shard` is a slice, `vary` its operand, any other collective a new tensor."""
        (type_,) = self.infer(primitive, tuple([ref.type for ref in refs]), static)
        if primitive is SHARD:
            axis = static["dim"] % len(type_.shape)
            return self.slice(refs[0], axis=axis, start=0, length=type_.shape[axis])
        kind = MemoryKind.GRADIENTS if self.cursor.backward and self.kind is MemoryKind.ACTIVATIONS else self.kind
        return Tensor(type_, self, refs[0].buffer, refs[0].layout) if primitive.view else self.new(type_, kind)

    def _row(self, x: Tensor) -> Tensor:
        """Return a view of one entry along the leading axis."""
        layout = tuple([None if strides is None else strides[1:] for strides in x.layout])
        return Tensor(TensorType(x.shape[1:], x.dtype), self, x.buffer, layout)

    def _choice(self, operands: tuple[Tensor, ...], branches: tuple[Body, ...]) -> tuple[Tensor, ...]:
        """Run every branch and free it, so that the peak is that of the largest; then allocate the results."""
        for body in branches:
            evaluate_body(self, body, operands, constants(self, body))
        return tuple([self.new(type_) for type_ in branches[0].output_types])

    def _while(self, operands: tuple[Tensor, ...], loop: WhileParameters) -> tuple[Tensor, ...]:
        """Run the first iterations of a while loop."""
        carries = len(loop.body.outputs)
        state, captured = operands[:carries], operands[carries:]
        test, body = (expand_body(part, self._stays) for part in (loop.test, loop.body))
        held = constants(self, test), constants(self, body)
        limit = None if loop.limit is None else evaluate(loop.limit, self.samples[0])
        for _ in range(_TURNS if limit is None else min(_TURNS, limit)):
            evaluate_body(self, test, (*state, *captured), held[0])
            state = evaluate_body(self, body, (*state, *captured), held[1])
        return tuple(state)

    def _loop(self, operands: tuple[Tensor, ...], loop: ScanParameters) -> tuple[Tensor, ...]:
        """Run the first iterations of a loop; stacked outputs are allocated at the start, as in eager_cpu."""
        body, carries, split = loop.body, loop.carries, loop.carries + loop.entries
        state, xs, captured = operands[:carries], operands[carries:split], operands[split:]
        length = evaluate(loop.length, self.samples[0])
        before, body = loop_parts(body, split, length, self._stays)
        if before is not None:
            found = evaluate_body(self, before, captured, constants(self, before))
            captured = (*captured, *[ref if ref.layout == self._rows else self.new(ref.type) for ref in found])
        held = constants(self, body)
        stacked = [
            self.new(TensorType((loop.length, *type_.shape), type_.dtype)) for type_ in body.output_types[carries:]
        ]
        times, turns = self._times, min(_TURNS, length)
        self._loops += 1
        for turn in range(turns):
            self._times = times * (length - turns + 1 if turn == turns - 1 else 1)
            outs = evaluate_body(self, body, (*state, *map(self._row, xs), *captured), held)
            state = outs[:carries]
        self._times, self._loops = times, self._loops - 1
        return (*state, *stacked)
