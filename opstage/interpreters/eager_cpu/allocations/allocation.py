"""`Allocation`: which memory a kernel takes, and the rules from which the tables of the families are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ....ops.dims import Dim, evaluate
from ....ops.primitive import Static
from ....ops.types import TensorType
from .strides import Sizes, Strides, elements, kept_order, without_axes


class Operand(NamedTuple):
    """An operand or a result of a kernel.

    type      its shape may be symbolic
    shape     in numbers, at the sizes at which decisions are taken
    strides   in elements
    """

    type: TensorType
    shape: Sizes
    strides: Strides = None

    @property
    def nbytes(self) -> Dim:
        return self.type.nbytes

    @property
    def sampled_nbytes(self) -> int:
        """Bytes at the sizes at which decisions are taken."""
        return elements(self.shape) * self.type.dtype.itemsize


class Result(NamedTuple):
    """A result of a kernel.

    of       the operand whose memory it shares; None for memory of its own
    nbytes   of that memory, where it is not what the result's type takes
    """

    strides: Strides = None
    of: int | None = None
    nbytes: Dim | None = None


class Allocation(NamedTuple):
    """What one call of a kernel takes.

    results     outputs, then residuals
    workspace   bytes that are taken besides the operands and all results, at the moment when these are most, and given
                back before the call returns
    kept        bytes of the workspace that stays from call to call, and grows to the most that any call wants
    """

    results: tuple[Result, ...]
    workspace: Dim = 0
    kept: int = 0


class Call(NamedTuple):
    """One call of a kernel. `sizes` has a size for every named dim, at which what is not a formula is decided."""

    operands: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    static: Static
    sizes: Mapping[str, int]

    def at(self, sizes: Mapping[str, int]) -> Call:
        """The same call with decisions taken at other sizes."""

        def moved(operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
            return tuple([o._replace(shape=evaluate(o.type.shape, sizes)) for o in operands])

        return Call(moved(self.operands), moved(self.outputs), self.static, sizes)

    def number(self, dim: Any) -> Any:
        """A static parameter in numbers: a dim, or a tuple of dims."""
        return evaluate(dim, self.sizes)

    def most(self, *choices: Dim) -> Dim:
        """The greatest of sizes, as the sizes at which decisions are taken say."""
        return max(choices, key=self.number)


Rule: TypeAlias = Callable[[Call], Allocation]


def total(operands: Sequence[Operand]) -> Dim:
    """Bytes of all of them."""
    result: Dim = 0
    for operand in operands:
        result = result + operand.nbytes
    return result


def packing_bytes(*operands: Operand) -> Dim:
    """Bytes of the row-major copies of those operands that are not row-major."""
    return total([operand for operand in operands if operand.strides is not None])


def fresh(call: Call, workspace: Dim = 0) -> Allocation:
    """New row-major results."""
    return Allocation(tuple([Result() for _ in call.outputs]), workspace)


def packing(call: Call) -> Allocation:
    """New row-major results, by a loop that reads all operands row-major."""
    return fresh(call, packing_bytes(*call.operands))


def like_operands(call: Call, workspace: Dim = 0) -> Allocation:
    """New results, their axes in memory as those of the operands."""
    layouts = [(operand.shape, operand.strides) for operand in call.operands]
    return Allocation(tuple([Result(kept_order(out.shape, layouts)) for out in call.outputs]), workspace)


def like(x: Operand) -> Result:
    """A new tensor of the shape of `x`, its axes in memory as those of `x`."""
    return Result(kept_order(x.shape, [(x.shape, x.strides)]))


def reduced(x: Operand, out: Operand, axes: Sequence[int], *, keepdims: bool = False) -> Result:
    """What is left of `x` when `axes` are reduced, the others in memory as those of `x`."""
    return Result(kept_order(out.shape, [without_axes(x.shape, x.strides, axes, keepdims)]))


def temporaries(count: int) -> Rule:
    """Like the operands, with `count` tensors of the first result's size in between."""
    return lambda call: like_operands(call, count * call.outputs[0].nbytes)


def view(call: Call, strides: Strides) -> Allocation:
    """A view of the first operand."""
    return Allocation((Result(strides, 0),))
