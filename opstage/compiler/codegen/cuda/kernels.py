"""Generated kernels of single ops on a GPU: composites, from a decomposition, and pointwise ops, from their formulas.

`fused` does for one composite what the compiled interpreter does for a program. The composite then needs no kernel in
the table, and its intermediate values are not written to memory. Sources have no sizes, so all shapes share kernels.

An element of a pointwise op depends on the operands' elements at the same index and on scalars: operands with one
element, such as a learning rate. Values that only depend on scalars are computed before the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any, NamedTuple, final

import numpy as np

from ....ops.body import Body, Equation
from ....ops.layout import BROADCAST_TO
from ....ops.logic import FULL
from ....ops.primitive import Kind, Primitive, Static
from ....ops.types import DType, TensorType
from ...gpu.buffer import DeviceBuffer
from ...gpu.device import Device
from ..clusters import FusionGroup, left_in_memory, read_by, roots_read
from ..composites import Expander
from ..formulas import ASSEMBLE, CONTIGUOUS, FORMULAS, has_formula
from ..fusion import fuse
from ..lowering import Lowered
from ..schedule import from_memory, indented, to_memory
from .source import CUDA, Form, Generated, Numbers, Partial, Pointer, Text, Watching, cluster_kernel

# Composites -----------------------------------------------------------------------------------------------------------

Total = Callable[[Device, DeviceBuffer], DeviceBuffer]
"""Sums the columns of a matrix: the second stage of sums over rows that were split into parts."""


def fused(primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> Fused | None:
    """Return the kernels of a composite for operand types; None if kernels cannot compute all of it, or nothing is
    computed.

    Pure data movement is left to the decomposition, some of whose parts move nothing.
    """
    lowered = Lowered(Expander(has_formula, loops=False).body(primitive, types, static), CUDA, own_outputs=True)
    groups = fuse(lowered)
    if not _all_generated(lowered, groups):
        return None
    read, results = read_by(lowered, groups), {lowered.views[slot].root for slot in lowered.outputs}
    made = []
    for place, group in enumerate(groups):
        kept = left_in_memory(lowered, group, place, read, results)
        if group.cluster is not None and kept:
            made.append(cluster_kernel(group.cluster, group.equations, kept))
    return Fused(lowered, made)


def _all_generated(lowered: Lowered, groups: Sequence[FusionGroup]) -> bool:
    """Return whether kernels are generated for all groups, none reads a constant array, and at least one computes."""
    every = [e for group in groups for e in group.equations]
    return (
        all(group.cluster is not None or group.equations[0].primitive is ASSEMBLE for group in groups)
        and roots_read(lowered, every).isdisjoint(lowered.constants.keys() - lowered.counted)
        and any(e.primitive not in (ASSEMBLE, CONTIGUOUS) for e in every)
    )


class _Launch(NamedTuple):
    """A kernel, and the roots that are read for the last time by it."""

    made: Generated
    done: tuple[int, ...]


@final
class Fused:
    """A composite's kernels for operands of some shapes, on any device.

    checks      whether they check indices
    """

    __slots__ = ("checks", "_lowered", "_launches")

    def __init__(self, lowered: Lowered, made: Sequence[Generated]):
        self._lowered = lowered
        self.checks = any(each.checks for each in made)
        last = {root: place for place, each in enumerate(made) for root in each.roots}
        kept = {*lowered.body.inputs, *(lowered.views[slot].root for slot in lowered.outputs)}
        self._launches = [
            _Launch(each, tuple([root for root, at in last.items() if at == place and root not in kept]))
            for place, each in enumerate(made)
        ]

    def __call__(
        self, device: Device, operands: Iterable[DeviceBuffer], total: Total, watched: int = 0
    ) -> tuple[DeviceBuffer, ...]:
        """Return new results for `operands`, buffers of the types that this was made for.

        The device's flag is set to `watched` if an index is out of range.
        """
        lowered = self._lowered
        held = dict(zip(lowered.body.inputs, operands))

        def own(root: int) -> DeviceBuffer:
            found = held.get(root)
            if found is None:
                found = held[root] = device.empty(lowered.types[root])
            return found

        for made, done in self._launches:
            held.update(launch(device, lowered, made, own, total, watched))
            for root in done:
                held.pop(root, None)
        return tuple([own(lowered.views[slot].root).reshaped(_shape(lowered, slot)) for slot in lowered.outputs])


def launch(
    device: Device, lowered: Lowered, made: Generated, own: Callable[[int], DeviceBuffer], total: Total, watched: int
) -> dict[int, DeviceBuffer]:
    """Launch a generated kernel on each root's memory, `own`; return its sums over rows, by slot."""
    sums: dict[int, DeviceBuffer] = {}

    def launch_argument(argument: Any) -> Any:
        if type(argument) is Pointer:
            return own(argument.root)
        if type(argument) is Partial:
            dtype = lowered.types[argument.slot].dtype
            sums[argument.slot] = device.empty(TensorType((made.parts, made.extent), dtype))
            return sums[argument.slot]
        if type(argument) is Watching:
            return device.flag if argument is Watching.FLAG else np.int32(watched)
        return argument

    kernel, arguments = made.text.function(), [launch_argument(argument) for argument in made.arguments]
    if made.form is Form.ROWS:
        device.each_row(kernel, made.rows, made.extent if made.neighbours else 1, *arguments)
    else:
        device.each(kernel, made.extent * made.parts, *arguments)
    return {
        slot: (total(device, parts) if made.parts > 1 else parts).reshaped(_shape(lowered, slot))
        for slot, parts in sums.items()
    }


def _shape(lowered: Lowered, slot: int) -> tuple[int, ...]:
    shape: Any = lowered.types[slot].shape
    return tuple(shape)


# Pointwise ops --------------------------------------------------------------------------------------------------------

_SIZE = 2
"""The size of a representative tensor; the source only depends on it being more than 1."""


class Pointwise(NamedTuple):
    """A kernel, and its scalar arguments after the operands."""

    kernel: FunctionType
    numbers: tuple[Any, ...]


def of_one(primitive: Primitive, dtypes: Sequence[DType], static: Static) -> Pointwise:
    """Return `kernel(count, *results, *operands, *numbers)`, for tensors of `count` elements."""

    def written(parts: _Parts) -> list[str]:
        every = [*parts.operands, *parts.each, *parts.results]
        loop = ["for i in steps(cuda.grid(1), count, cuda.gridsize(1)):", *indented(every)]
        return [f"def kernel({', '.join(['count', *parts.pointers, *parts.arguments])}):", *indented(loop)]

    return _write_pointwise(primitive, [TensorType((_SIZE,), dtype) for dtype in dtypes], static, written)


def of_many(primitive: Primitive, types: Sequence[TensorType], static: Static) -> Pointwise:
    """Return a multi-tensor kernel for `device.defer`, with results of the operands' size; operands with one element
    are scalars."""

    def written(parts: _Parts) -> list[str]:
        buffers = [name for name in parts.pointers if name not in parts.scalars]
        head = ["rows", "lanes", "part", "table", "buffers", "stop", *parts.scalars, *parts.arguments]
        begin = [
            "tensor, begin, end = part_of(row, part, table)",
            f"at = {len(buffers)} * tensor",
            *(f"{name} = buffers[at + {place}]" for place, name in enumerate(buffers)),
            "for i in steps(begin + lane, end, lanes):",
        ]
        turns = "steps(quotient(cuda.grid(1), lanes), going(rows, stop), quotient(cuda.gridsize(1), lanes))"
        return [
            f"def kernel({', '.join(head)}):",
            *indented([*parts.once, "lane = remainder(cuda.threadIdx.x, lanes)", f"for row in {turns}:"]),
            *indented([*begin, *indented([*parts.operands, *parts.each, *parts.results])], 2),
        ]

    return _write_pointwise(primitive, types, static, written)


def some_of_many(dtypes: Sequence[DType], tensors: int) -> list[TensorType]:
    """Return types for `of_many`, for an op that is independent of sizes; the operands after `tensors` are scalars."""
    return [TensorType((_SIZE,) if i < tensors else (), dtype) for i, dtype in enumerate(dtypes)]


def is_pointwise(body: Body) -> bool:
    """Return whether `of_many` supports a body: elementwise ops on tensors of one shape and scalars."""
    shape = body.output_types[0].shape
    return (
        body.output_types[0].size > 1
        and all(type_.shape == shape for type_ in body.output_types)
        and all(type_.shape in (shape, ()) for type_ in body.types)
        and all(_spreads(e) or (e.primitive.kind is Kind.POINTWISE and e.primitive in FORMULAS) for e in body.equations)
    )


def _spreads(e: Equation) -> bool:
    """Return whether an op repeats one number."""
    return e.primitive is FULL or e.primitive is BROADCAST_TO


class _Parts(NamedTuple):
    """Lines of a kernel.

    pointers            names of the pointers to results, then to operands
    scalars             those of scalar operands
    arguments           names of the numbers
    once                computations on scalars only
    operands, each      loads of each operand's element, and computations on elements
    results             stores of each result's element
    """

    pointers: list[str]
    scalars: list[str]
    arguments: list[str]
    once: list[str]
    operands: list[str]
    each: list[str]
    results: list[str]


def _write_pointwise(
    primitive: Primitive, types: Sequence[TensorType], static: Static, written: Callable[[_Parts], list[str]]
) -> Pointwise:
    lowered = Lowered(Expander(has_formula, loops=False).body(primitive, tuple(types), static), CUDA, own_outputs=True)
    size = max([type_.size for type_ in types])
    numbers: list[Any] = []

    def argument(value: Any) -> str:
        numbers.append(value)
        return f"n{len(numbers) - 1}"

    constants = Numbers(argument)

    def value(slot: int) -> str:
        if slot in lowered.literals:
            return constants(lowered.literals[slot], lowered.types[slot].dtype)
        view = lowered.views[slot]
        if lowered.types[view.root].size != 1 and not (view.size == size and view.contiguous and view.offset == 0):
            raise AssertionError(f"{primitive} is not elementwise")
        return f"v{view.root}"

    parts = _Parts([], [], [], [], [], [], [])
    for i, slot in enumerate(lowered.outputs):
        type_ = lowered.types[slot]
        parts.results.append(f"y{i}[i] = {to_memory(f'v{lowered.views[slot].root}', mask=type_.dtype.kind == 'b')}")
        parts.pointers.append(f"y{i}")
    for i, slot in enumerate(lowered.body.inputs):
        type_ = lowered.types[slot]
        number = type_.size == 1
        (parts.once if number else parts.operands).append(
            f"v{slot} = {from_memory(f'x{i}[0]' if number else f'x{i}[i]', mask=type_.dtype.kind == 'b')}"
        )
        parts.pointers.append(f"x{i}")
        if number:
            parts.scalars.append(f"x{i}")
    for e in lowered.equations:
        (out,), ins = e.outputs, tuple([lowered.types[slot] for slot in e.inputs])
        made = FORMULAS[e.primitive](constants, lowered.types[out], ins, tuple(map(value, e.inputs)), e.static)
        (parts.once if lowered.types[out].size == 1 else parts.each).append(f"v{out} = {made}")
    parts.arguments.extend(f"n{i}" for i in range(len(numbers)))
    text = Text(primitive.name, "\n".join(constants.definitions), "\n".join(written(parts)))
    return Pointwise(text.function(), tuple(numbers))
