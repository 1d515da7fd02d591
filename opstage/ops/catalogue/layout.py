"""Shapes, axes and the order of elements: ops that move values without computing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..dims import Dim, DimExpr, exact_div, is_one, is_zero, prod, require_at_most, require_equal
from ..errors import ShapeError
from ..kinds import Kind
from ..primitive import Context, Linearity, Primitive, R, no_flops
from ..rules import require_rank, same_type
from ..types import Shape, TensorType, require_same_dtype, require_value, show_shape

if TYPE_CHECKING:
    from ..protocol import Ops

# Shape --------------------------------------------------------------------------------------------------------------


def _broadcast_to_shape(x: TensorType, *, shape: Shape) -> tuple[TensorType, ...]:
    added = len(shape) - len(x.shape)
    if added < 0:
        raise ShapeError(
            f"x is {show_shape(x.shape)} of rank {len(x.shape)}, which cannot become {show_shape(shape)} of rank "
            f"{len(shape)}: broadcasting adds axes in front and removes none"
        )
    for axis, (d, target) in enumerate(zip(x.shape, shape[added:])):
        if not is_one(d):
            require_equal(
                d,
                target,
                lambda: (
                    f"x is {show_shape(x.shape)}, which cannot become {show_shape(shape)}: axis {axis} has {d} where "
                    f"{target} is wanted; only an axis of size 1 is repeated, and axes are aligned from the last"
                ),
            )
    return (TensorType(shape, x.dtype),)


def _broadcast_to_vjp(
    ops: Ops[R], ctx: Context[R], cotangents: tuple[R, ...], /, *, shape: Shape
) -> tuple[R | None, ...]:
    (g,), before = cotangents, ctx.inputs[0].shape
    added = len(shape) - len(before)
    stretched = [i for i, d in enumerate(shape) if i < added or (is_one(before[i - added]) and not is_one(d))]
    if stretched:
        g = ops.reduce_sum(g, axis=stretched, keepdims=True)
    return (ops.reshape(g, shape=before) if added else g,)


BROADCAST_TO = Primitive(
    "broadcast_to",
    operands=("x",),
    shape=_broadcast_to_shape,
    vjp=_broadcast_to_vjp,
    jvp=Linearity.JOINT,
    kind=Kind.LAYOUT,
    view=True,
)


def _reshape_shape(x: TensorType, *, shape: Shape) -> tuple[TensorType, ...]:
    open_axes = [axis for axis, d in enumerate(shape) if type(d) is int and d == -1]
    if not open_axes:
        require_equal(
            x.size,
            prod(shape),
            lambda: (
                f"x is {show_shape(x.shape)} with {x.size} elements but {show_shape(shape)} has {prod(shape)}; "
                "a reshape keeps their number"
            ),
        )
        return (TensorType(shape, x.dtype),)
    if len(open_axes) > 1:
        raise ShapeError(f"{show_shape(shape)} leaves {len(open_axes)} sizes open; only one entry may be -1")
    given = prod(d for axis, d in enumerate(shape) if axis != open_axes[0])
    if is_zero(given):
        raise ShapeError(f"{show_shape(shape)} has a size of 0, so -1 could be anything; write the size instead of -1")
    inferred = exact_div(
        x.size,
        given,
        lambda: (
            f"x is {show_shape(x.shape)} with {x.size} elements, which {given} does not divide; "
            f"no size instead of -1 makes it {show_shape(shape)}"
        ),
    )
    return (TensorType(tuple(inferred if axis == open_axes[0] else d for axis, d in enumerate(shape)), x.dtype),)


def _reshape_vjp(ops: Ops[R], ctx: Context[R], cotangents: tuple[R, ...], /, *, shape: Shape) -> tuple[R | None, ...]:
    return (ops.reshape(cotangents[0], shape=ctx.inputs[0].shape),)


RESHAPE = Primitive(
    "reshape",
    operands=("x",),
    shape=_reshape_shape,
    vjp=_reshape_vjp,
    jvp=Linearity.JOINT,
    kind=Kind.LAYOUT,
    view=True,
)


def _anything(x: TensorType, **static: Any) -> None:
    """Accept everything: the check of an op without requirements of its own."""


def _reshaping(name: str, shape: Callable[..., Shape], require: Callable[..., None] = _anything) -> Primitive:
    """Make a named reshape to `shape(x, **static)`; `require(x, **static)` checks its operand."""

    def rule(x: TensorType, **static: Any) -> tuple[TensorType, ...]:
        require(x, **static)
        return (TensorType(shape(x, **static), x.dtype),)

    def decomposition(ops: Ops[R], x: R, /, **static: Any) -> tuple[R, ...]:
        return (ops.reshape(x, shape=shape(TensorType(x.shape, x.dtype), **static)),)

    return Primitive(name, operands=("x",), shape=rule, decomposition=decomposition, kind=Kind.LAYOUT, view=True)


def _flattened(x: TensorType, *, start: int, end: int) -> Shape:
    if start > end:
        raise ShapeError(f"start={start} lies behind end={end}; axes start … end are merged, both included")
    return (*x.shape[:start], prod(x.shape[start : end + 1]), *x.shape[end + 1 :])


def _require_ones(x: TensorType, *, axes: tuple[int, ...]) -> None:
    for axis in axes:
        require_equal(
            x.shape[axis],
            1,
            lambda: (
                f"x is {show_shape(x.shape)}: axis {axis} has {x.shape[axis]}; only an axis of size 1 can be dropped"
            ),
        )


def _squeezed(x: TensorType, *, axes: tuple[int, ...]) -> Shape:
    return tuple(d for axis, d in enumerate(x.shape) if axis not in axes)


FLATTEN = _reshaping("flatten", _flattened)
SQUEEZE = _reshaping("squeeze", _squeezed, _require_ones)
UNSQUEEZE = _reshaping("unsqueeze", lambda x, *, axis: (*x.shape[:axis], 1, *x.shape[axis:]))

# Order of axes ------------------------------------------------------------------------------------------------------


def _permute_shape(x: TensorType, *, axes: tuple[int, ...]) -> tuple[TensorType, ...]:
    rank = len(x.shape)
    if sorted(axes) != list(range(rank)):
        raise ShapeError(
            f"axes {axes} must name each of the {rank} axes of x, which is {show_shape(x.shape)}, exactly once"
        )
    return (TensorType(tuple(x.shape[axis] for axis in axes), x.dtype),)


def _permute_vjp(
    ops: Ops[R], ctx: Context[R], cotangents: tuple[R, ...], /, *, axes: tuple[int, ...]
) -> tuple[R | None, ...]:
    return (ops.permute(cotangents[0], axes=sorted(range(len(axes)), key=axes.__getitem__)),)  # the inverse


PERMUTE = Primitive(
    "permute",
    operands=("x",),
    shape=_permute_shape,
    vjp=_permute_vjp,
    jvp=Linearity.JOINT,
    kind=Kind.LAYOUT,
    view=True,
)


def _permuting(name: str, axes: Callable[..., tuple[int, ...]], require: Callable[..., None]) -> Primitive:
    """Make a named permutation by `axes(x, **static)`; `require(x, **static)` checks its operand."""

    def rule(x: TensorType, **static: Any) -> tuple[TensorType, ...]:
        require(x, **static)
        return _permute_shape(x, axes=axes(x, **static))

    def decomposition(ops: Ops[R], x: R, /, **static: Any) -> tuple[R, ...]:
        return (ops.permute(x, axes=axes(TensorType(x.shape, x.dtype), **static)),)

    return Primitive(name, operands=("x",), shape=rule, decomposition=decomposition, kind=Kind.LAYOUT, view=True)


def _transpose(name: str, *axes: int) -> Primitive:
    """Make a permutation by fixed axes."""

    return _permuting(name, lambda x: axes, lambda x: require_rank(x, len(axes), "x"))


def _require_adjacent(x: TensorType, *, depth: int) -> None:
    rank = len(x.shape)
    if not 0 <= depth < rank - 1:
        raise ShapeError(
            f"depth is {depth} but x is {show_shape(x.shape)} of rank {rank}: it must have axes depth and depth + 1"
        )


def _swapped(x: TensorType, *, depth: int) -> tuple[int, ...]:
    return (*range(depth), depth + 1, depth, *range(depth + 2, len(x.shape)))


TRANSPOSE2D = _transpose("transpose2d", 1, 0)
TRANSPOSE3D_FIRST_TO_LAST = _transpose("transpose3d_first_to_last", 1, 2, 0)
TRANSPOSE3D_LAST_TO_FIRST = _transpose("transpose3d_last_to_first", 2, 0, 1)
TRANSPOSE3D_LAST_TWO = _transpose("transpose3d_last_two", 0, 2, 1)
SWAP_ADJACENT_AT_DEPTH = _permuting("swap_adjacent_at_depth", _swapped, _require_adjacent)

# Joining ------------------------------------------------------------------------------------------------------------


def _concat_shape(*xs: TensorType, axis: int) -> tuple[TensorType, ...]:
    first = xs[0]
    length: Dim = 0
    for i, x in enumerate(xs):
        if len(x.shape) != len(first.shape):
            raise ShapeError(
                f"xs[0] is {show_shape(first.shape)} but xs[{i}] is {show_shape(x.shape)}: ranks {len(first.shape)} "
                f"and {len(x.shape)} differ"
            )
        for other, (a, b) in enumerate(zip(first.shape, x.shape)):
            if other != axis:
                require_equal(a, b, _concat_message(i, first.shape, x.shape, axis, other))
        require_same_dtype(first, x, "xs[0]", f"xs[{i}]")
        length = length + x.shape[axis]
    return (TensorType((*first.shape[:axis], length, *first.shape[axis + 1 :]), first.dtype),)


def _concat_message(i: int, first: Shape, x: Shape, axis: int, other: int) -> Callable[[], str]:
    return lambda: (
        f"xs[0] is {show_shape(first)} but xs[{i}] is {show_shape(x)}: axis {other} has {first[other]} and {x[other]}; "
        f"all axes but axis {axis} must agree"
    )


def _concat_vjp(ops: Ops[R], ctx: Context[R], cotangents: tuple[R, ...], /, *, axis: int) -> tuple[R | None, ...]:
    start: Dim = 0
    parts: list[R | None] = []
    for x, needed in zip(ctx.inputs, ctx.needs):
        length = x.shape[axis]
        parts.append(ops.slice(cotangents[0], axis=axis, start=start, length=length) if needed else None)
        start = start + length
    return tuple(parts)


CONCAT = Primitive(
    "concat",
    operands=("*xs",),
    shape=_concat_shape,
    vjp=_concat_vjp,
    jvp=Linearity.JOINT,
    kind=Kind.LAYOUT,
)


def _stack_shape(*xs: TensorType, axis: int) -> tuple[TensorType, ...]:
    first = xs[0]
    for i, x in enumerate(xs):
        same_type(first, x, "xs[0]", f"xs[{i}]")
    return (TensorType((*first.shape[:axis], len(xs), *first.shape[axis:]), first.dtype),)


def _stack_decomposition(ops: Ops[R], /, *xs: R, axis: int) -> tuple[R, ...]:
    return (ops.concat([ops.unsqueeze(x, axis=axis) for x in xs], axis=axis),)


STACK = Primitive(
    "stack",
    operands=("*xs",),
    shape=_stack_shape,
    decomposition=_stack_decomposition,
    kind=Kind.LAYOUT,
)

# Slicing and padding ------------------------------------------------------------------------------------------------


def _extent(count: Dim, step: int) -> Dim:
    """Return the cells covered by `count` entries in steps of `step`; a symbolic count is assumed to be >= 1."""
    return 0 if is_zero(count) else (count - 1) * step + 1


def _slice_shape(x: TensorType, *, axis: int, start: Dim, length: Dim, step: int) -> tuple[TensorType, ...]:
    size = x.shape[axis]

    def place() -> str:
        return f"start={start}, length={length}, step={step} on axis {axis} of x, which is {show_shape(x.shape)}"

    if step < 1:
        raise ShapeError(f"{place()}: step must be at least 1")
    require_at_most(0, start, lambda: f"{place()}: start must be at least 0")
    require_at_most(0, length, lambda: f"{place()}: length must be at least 0")
    end = start + _extent(length, step)
    require_at_most(end, size, lambda: f"{place()}: it needs {end} entries but there are {size}")
    if step > 1:  # a symbolic length may be 0, where `end` is below `start`
        require_at_most(start, size, lambda: f"{place()}: start lies behind the {size} entries")
    return (TensorType((*x.shape[:axis], length, *x.shape[axis + 1 :]), x.dtype),)


def _slice_vjp(
    ops: Ops[R],
    ctx: Context[R],
    cotangents: tuple[R, ...],
    /,
    *,
    axis: int,
    start: Dim,
    length: Dim,
    step: int,
) -> tuple[R | None, ...]:
    shape = ctx.inputs[0].shape
    after = shape[axis] - start - _extent(length, step)
    padding = [(start, after) if i == axis else (0, 0) for i in range(len(shape))]
    interior = [step - 1 if i == axis else 0 for i in range(len(shape))]
    return (ops.pad(cotangents[0], padding=padding, interior=interior),)


SLICE = Primitive(
    "slice",
    operands=("x",),
    shape=_slice_shape,
    vjp=_slice_vjp,
    jvp=Linearity.JOINT,
    kind=Kind.LAYOUT,
    view=True,
)


def _pad_shape(
    x: TensorType, *, padding: tuple[tuple[Dim, Dim], ...], value: Any, interior: tuple[int, ...]
) -> tuple[TensorType, ...]:
    rank = len(x.shape)
    for name, entries in (("padding", padding), ("interior", interior)):
        if len(entries) != rank:
            raise ShapeError(
                f"{name} has {len(entries)} entries but x is {show_shape(x.shape)} of rank {rank}: {entries}"
            )
    require_value(value, x.dtype)
    sizes: list[Dim] = []
    for axis, (size, (before, after), between) in enumerate(zip(x.shape, padding, interior)):
        if between < 0:
            raise ShapeError(f"interior must be at least 0 but is {interior}")
        for amount in (before, after):
            require_at_most(
                0, amount, lambda: f"padding {padding} has {amount} on axis {axis}; to take cells away use ops.slice"
            )
        # an empty axis has extent 0, which `_extent` cannot express for symbolic sizes
        if between and isinstance(size, DimExpr):
            require_at_most(
                1, size, lambda: f"x is {show_shape(x.shape)}: axis {axis} must have entries to pad between them"
            )
        sizes.append(before + _extent(size, between + 1) + after)
    return (TensorType(tuple(sizes), x.dtype),)


def _pad_vjp(
    ops: Ops[R],
    ctx: Context[R],
    cotangents: tuple[R, ...],
    /,
    *,
    padding: tuple[tuple[Dim, Dim], ...],
    value: Any,
    interior: tuple[int, ...],
) -> tuple[R | None, ...]:
    g = cotangents[0]
    for axis, (size, (before, after), between) in enumerate(zip(ctx.inputs[0].shape, padding, interior)):
        if not (is_zero(before) and is_zero(after) and between == 0):
            g = ops.slice(g, axis=axis, start=before, length=size, step=between + 1)
    return (g,)


def _pad_jvp(
    ops: Ops[R],
    primals: tuple[R, ...],
    outputs: tuple[R, ...],
    tangents: tuple[R, ...],
    /,
    *,
    padding: tuple[tuple[Dim, Dim], ...],
    value: Any,
    interior: tuple[int, ...],
) -> tuple[R | None]:
    return (ops.pad(tangents[0], padding=padding, interior=interior),)


PAD = Primitive(
    "pad",
    operands=("x",),
    shape=_pad_shape,
    vjp=_pad_vjp,
    jvp=_pad_jvp,
    flops=no_flops,
)
