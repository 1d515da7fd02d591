"""Pointwise kernels: each element depends on the operands' elements at the same index and on scalars; one source for
all shapes.

Scalars are operands with one element, such as a learning rate; values that only depend on them are computed before the
loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from ....ops.body import Body, Equation
from ....ops.layout import BROADCAST_TO
from ....ops.logic import FULL
from ....ops.primitive import Kind, Primitive, Static
from ....ops.types import DType, TensorType
from ..decomposition import Expander
from ..formulas import FORMULAS, has_formula
from ..lowered import Lowered
from ..schedule import from_memory, indented, to_memory
from .source import CUDA, Numbers, Text

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

    return _made(primitive, [TensorType((_SIZE,), dtype) for dtype in dtypes], static, written)


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

    return _made(primitive, types, static, written)


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


def _made(
    primitive: Primitive, types: Sequence[TensorType], static: Static, written: Callable[[_Parts], list[str]]
) -> Pointwise:
    lowered = Lowered(Expander(has_formula, loops=False).body(primitive, tuple(types), static), CUDA, own_outputs=True)
    size = max([type_.size for type_ in types])
    given: list[Any] = []

    def argument(value: Any) -> str:
        given.append(value)
        return f"n{len(given) - 1}"

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
    parts.arguments.extend(f"n{i}" for i in range(len(given)))
    text = Text(primitive.name, "\n".join(constants.definitions), "\n".join(written(parts)))
    return Pointwise(text.function(), tuple(given))
