"""Memory: shapes, axes and the order of elements. Most results are views."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....ops.catalogue.layout import (
    BROADCAST_TO,
    CONCAT,
    FLATTEN,
    PAD,
    PERMUTE,
    RESHAPE,
    SLICE,
    SQUEEZE,
    STACK,
    SWAP_ADJACENT_AT_DEPTH,
    TRANSPOSE2D,
    TRANSPOSE3D_FIRST_TO_LAST,
    TRANSPOSE3D_LAST_TO_FIRST,
    TRANSPOSE3D_LAST_TWO,
    UNSQUEEZE,
)
from ....ops.primitive import Primitive
from .allocation import Allocation, Call, Result, Rule, fresh, view
from .strides import Sizes, broadcast, full, in_order_of, permuted, reshaped, sliced


def _broadcast_to(call: Call) -> Allocation:
    (x,) = call.operands
    return view(call, broadcast(x.shape, x.strides, call.outputs[0].shape))


def _reshape(call: Call) -> Allocation:
    """A view, or a copy where the axes do not lie in memory as they would have to."""
    (x,) = call.operands
    shared, strides = reshaped(x.shape, x.strides, call.outputs[0].shape)
    return view(call, strides) if shared else fresh(call)


def _permuted(axes: Callable[[Call], Sequence[int]]) -> Rule:
    def rule(call: Call) -> Allocation:
        (x,) = call.operands
        return view(call, permuted(x.shape, x.strides, axes(call)))

    return rule


def _swapped(call: Call) -> Sequence[int]:
    axes, depth = list(range(len(call.operands[0].shape))), call.static["depth"]
    axes[depth], axes[depth + 1] = axes[depth + 1], axes[depth]
    return axes


def _slice(call: Call) -> Allocation:
    (x,) = call.operands
    axis, step = call.static["axis"], call.number(call.static["step"])
    return view(call, sliced(x.shape, x.strides, axis, call.outputs[0].shape[axis], step))


def _concat(call: Call) -> Allocation:
    """The axes in memory as those of the parts."""
    return _joined(call, [(x.shape, full(x.shape, x.strides)) for x in call.operands])


def _stack(call: Call) -> Allocation:
    """A concatenation of views with an axis of size 1 more."""
    axis = call.static["axis"]
    parts = []
    for x in call.operands:
        strides = full(x.shape, x.strides)
        parts.append(((*x.shape[:axis], 1, *x.shape[axis:]), (*strides[:axis], 0, *strides[axis:])))
    return _joined(call, parts)


def _joined(call: Call, parts: Sequence[tuple[Sizes, Sizes]]) -> Allocation:
    telling = [tuple([0 if n == 1 else s for n, s in zip(shape, strides)]) for shape, strides in parts]
    return Allocation((Result(in_order_of(call.outputs[0].shape, telling, slowest_first=True)),))


ALLOCATIONS: dict[Primitive, Rule] = {
    BROADCAST_TO: _broadcast_to,
    **dict.fromkeys((RESHAPE, FLATTEN, SQUEEZE, UNSQUEEZE), _reshape),
    PERMUTE: _permuted(lambda call: call.static["axes"]),
    TRANSPOSE2D: _permuted(lambda call: (1, 0)),
    TRANSPOSE3D_FIRST_TO_LAST: _permuted(lambda call: (1, 2, 0)),
    TRANSPOSE3D_LAST_TO_FIRST: _permuted(lambda call: (2, 0, 1)),
    TRANSPOSE3D_LAST_TWO: _permuted(lambda call: (0, 2, 1)),
    SWAP_ADJACENT_AT_DEPTH: _permuted(_swapped),
    CONCAT: _concat,
    STACK: _stack,
    SLICE: _slice,
    PAD: fresh,
}
