"""`MemoryOps`: an interpreter whose tensors are memory that is taken and given back, with nothing in it.

A program runs on it as on the eager interpreter, the same tape and the same optimizers on top: what they hold on to is
what they would hold there. The kernels' own memory is told by the rules beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, final

import numpy as np
from typing_extensions import override

from ....ops.closed import Loop
from ....ops.dims import DimScope, evaluate
from ....ops.lists import no_ref
from ....ops.primitive import Primitive, Static
from ....ops.spec import as_specs
from ....ops.types import DType, TensorType, as_dtype
from ....options import Options
from ...eager_cpu.allocations import Allocation, Call, Operand, Rule, allocation_table
from ...eager_cpu.allocations.strides import canonical, full
from ...interpreter import BaseInterpreter, Typed
from ...structural import SCAN
from ...tracer import constants
from ...tracer import evaluate as evaluate_body
from .timeline import Buffer, History, Kind, Timeline

_TURNS = 3
"""Of a loop that are gone through: the memory of all later ones is that of the third."""


@final
class Tensor(Typed):
    """A type, and the memory in which it lies."""

    __slots__ = ("type", "ops", "buffer", "strides")

    def __init__(self, type: TensorType, ops: MemoryOps, buffer: Buffer, strides: tuple[int, ...] | None = None):
        self.type = type
        self.ops = ops
        self.buffer = buffer
        self.strides = strides


class _Known(NamedTuple):
    """What an op does on operands of some types and strides."""

    types: tuple[TensorType, ...]
    allocation: Allocation


@final
class MemoryOps(BaseInterpreter[Tensor]):
    """The memory of the eager interpreter on the CPU.

    timeline    what has happened
    kind        of the memory that is taken while neither a backward pass nor an update runs
    sizes       for every named dim a size at which it is decided what is no formula: views, blocks, the fitting kernel
    regions     the kind of what is made in regions of some names
    """

    __slots__ = ("scope", "timeline", "kind", "sizes", "regions", "_rules", "_known", "_keeping")

    def __init__(
        self, options: Options, scope: DimScope, sizes: Mapping[str, int], regions: Mapping[str, Kind] | None = None
    ):
        super().__init__(as_dtype(options.dtype), options.seed)
        self.scope = scope
        self.timeline = Timeline()
        self.kind = Kind.ACTIVATIONS
        self.sizes = sizes
        self.regions = regions or {}
        self._rules = allocation_table(options.fast_kernels)
        self._known: dict[Any, _Known] = {}
        self._keeping: list[tuple[Rule, Call]] = []

    @property
    @override
    def executes(self) -> bool:
        return False

    @override
    def put(self, value: Any, /) -> Tensor:
        return self.new(as_specs(value).bind(self.scope, self.dtype))

    @override
    def get(self, ref: Tensor, /) -> TensorType:
        return ref.type

    @override
    def has_kernel(self, primitive: Primitive) -> bool:
        return primitive in self._rules

    def new(self, type: TensorType, kind: Kind | None = None) -> Tensor:
        """A tensor with memory of its own."""
        return Tensor(type, self, self.timeline.take(type.nbytes, self.kind if kind is None else kind))

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

    def history(self) -> History:
        """What has been taken and given back until now."""
        keeping = tuple(self._keeping)

        def kept(sizes: Mapping[str, int]) -> int:
            return max((rule(call.at(sizes)).kept for rule, call in keeping), default=0)

        return self.timeline.close(kept)

    # The seam -------------------------------------------------------------------------------------------------------

    @override
    def bind(self, primitive: Primitive, refs: tuple[Tensor, ...], static: Static, /) -> tuple[Tensor, ...]:
        refs = tuple([self.adopt(ref) for ref in refs])
        if primitive is SCAN:
            return self._loop(refs, Loop(**static))
        key = (primitive, *[ref.type for ref in refs], *[ref.strides for ref in refs], *static.values())
        known = self._known.get(key)
        if known is None:
            types = primitive.infer(tuple([ref.type for ref in refs]), static, self.cursor.region.name)
            rule = self._rules.get(primitive)
            if rule is None:
                if primitive.decomposition is None:
                    raise self.unsupported(primitive)
                return self.decompose(primitive, refs, static)
            operands = tuple([Operand(ref.type, self._shape(ref.type), ref.strides) for ref in refs])
            outputs = tuple([Operand(type_, self._shape(type_)) for type_ in types])
            call = Call(operands, outputs, static, self.sizes)
            known = self._known[key] = _Known(types, rule(call))
            if known.allocation.kept:
                self._keeping.append((rule, call))
        results, workspace, _ = known.allocation
        kind = Kind.GRADIENTS if self.cursor.backward and self.kind is Kind.ACTIVATIONS else self.kind
        outs = []
        for type_, (strides, of, nbytes) in zip(known.types, results):
            if of is not None:
                buffer = refs[of].buffer
            else:
                buffer = self.timeline.take(type_.nbytes if nbytes is None else nbytes, kind)
            outs.append(Tensor(type_, self, buffer, strides))
        self.timeline.work_in(workspace)
        return tuple(outs)

    def _shape(self, type: TensorType) -> tuple[int, ...]:
        shape: tuple[int, ...] = evaluate(type.shape, self.sizes)
        return shape

    def _row(self, x: Tensor) -> Tensor:
        """A view of one entry along the leading axis."""
        shape = self._shape(x.type)
        strides = canonical(shape[1:], full(shape, x.strides)[1:])
        return Tensor(TensorType(x.shape[1:], x.dtype), self, x.buffer, strides)

    def _loop(self, operands: tuple[Tensor, ...], loop: Loop) -> tuple[Tensor, ...]:
        """The first turns of a loop; what it stacks is there from the start, as eager_cpu has it."""
        body, carries, split = loop.body, loop.carries, loop.carries + loop.entries
        state, xs, captured = operands[:carries], operands[carries:split], operands[split:]
        held = constants(self, body)
        stacked = [
            self.new(TensorType((loop.length, *type_.shape), type_.dtype))
            for type_ in (*body.output_types[carries:], *(body.input_types[:carries] if loop.history else ()))
        ]
        for _ in range(min(_TURNS, evaluate(loop.length, self.sizes))):
            outs = evaluate_body(self, body, (*state, *map(self._row, xs), *captured), held)
            state = outs[:carries]
        return (*state, *stacked)
