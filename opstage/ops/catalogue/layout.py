# mypy: disable-error-code=empty-body
"""Shapes, axes and the order of elements: ops that move values without computing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..arguments import Axes, Number, ShapeLike, as_dim, as_int, as_sequence, as_shape, normalize_axes, normalize_axis
from ..calls import Calls
from ..dims import Dim, DimExpr, exact_div, is_one, is_zero, prod, require_at_most, require_equal
from ..errors import ShapeError
from ..invalid_static import InvalidStatic
from ..kinds import Kind
from ..primitive import Context, Ints, Linearity, Primitive, R, Row, Some, Types, no_flops
from ..rules import require_rank, same_type
from ..types import Shape, TensorType, require_same_dtype, require_value, show_shape

if TYPE_CHECKING:
    from ..protocol import Ops

# Shape --------------------------------------------------------------------------------------------------------------


def _broadcast_to_shape(x: TensorType, *, shape: Shape) -> Types:
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


def _broadcast_to_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, shape: Shape) -> Some[R]:
    (g,), before = cotangents, ctx.inputs[0].shape
    added = len(shape) - len(before)
    stretched = [i for i, d in enumerate(shape) if i < added or (is_one(before[i - added]) and not is_one(d))]
    if stretched:
        g = ops.reduce_sum(g, axis=stretched, keepdims=True)
    return (ops.reshape(g, shape=before) if added else g,)


BROADCAST_TO = Primitive(
    shape=_broadcast_to_shape, vjp=_broadcast_to_vjp, jvp=Linearity.JOINT, kind=Kind.LAYOUT, view=True
)


def _reshape_shape(x: TensorType, *, shape: Shape) -> Types:
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


def _reshape_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, shape: Shape) -> Some[R]:
    return (ops.reshape(cotangents[0], shape=ctx.inputs[0].shape),)


RESHAPE = Primitive(
    "reshape", operands=("x",), shape=_reshape_shape, vjp=_reshape_vjp, jvp=Linearity.JOINT, kind=Kind.LAYOUT, view=True
)


def _anything(x: TensorType, **static: Any) -> None:
    """Accept everything: the check of an op without requirements of its own."""


def _reshaping(name: str, shape: Callable[..., Shape], require: Callable[..., None] = _anything) -> Primitive:
    """Make a named reshape to `shape(x, **static)`; `require(x, **static)` checks its operand."""

    def rule(x: TensorType, **static: Any) -> Types:
        require(x, **static)
        return (TensorType(shape(x, **static), x.dtype),)

    def decomposition(ops: Ops[R], x: R, /, **static: Any) -> Row[R]:
        return (ops.reshape(x, shape=shape(TensorType(x.shape, x.dtype), **static)),)

    return Primitive(name, operands=("x",), shape=rule, decomposition=decomposition, kind=Kind.LAYOUT, view=True)


def _flattened(x: TensorType, *, start: int, end: int) -> Shape:
    if start > end:
        raise ShapeError(f"start={start} lies behind end={end}; axes start … end are merged, both included")
    return (*x.shape[:start], prod(x.shape[start : end + 1]), *x.shape[end + 1 :])


def _require_ones(x: TensorType, *, axes: Ints) -> None:
    for axis in axes:
        require_equal(
            x.shape[axis],
            1,
            lambda: (
                f"x is {show_shape(x.shape)}: axis {axis} has {x.shape[axis]}; only an axis of size 1 can be dropped"
            ),
        )


def _squeezed(x: TensorType, *, axes: Ints) -> Shape:
    return tuple(d for axis, d in enumerate(x.shape) if axis not in axes)


FLATTEN = _reshaping("flatten", _flattened)
SQUEEZE = _reshaping("squeeze", _squeezed, _require_ones)
UNSQUEEZE = _reshaping("unsqueeze", lambda x, *, axis: (*x.shape[:axis], 1, *x.shape[axis:]))

# Order of axes ------------------------------------------------------------------------------------------------------


def _permute_shape(x: TensorType, *, axes: Ints) -> Types:
    rank = len(x.shape)
    if sorted(axes) != list(range(rank)):
        raise ShapeError(
            f"axes {axes} must name each of the {rank} axes of x, which is {show_shape(x.shape)}, exactly once"
        )
    return (TensorType(tuple(x.shape[axis] for axis in axes), x.dtype),)


def _permute_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, axes: Ints) -> Some[R]:
    return (ops.permute(cotangents[0], axes=sorted(range(len(axes)), key=axes.__getitem__)),)  # the inverse


PERMUTE = Primitive(
    "permute", operands=("x",), shape=_permute_shape, vjp=_permute_vjp, jvp=Linearity.JOINT, kind=Kind.LAYOUT, view=True
)


def _permuting(axes: Callable[..., Ints], require: Callable[..., None], name: str = "") -> Primitive:
    """Make a named permutation by `axes(x, **static)`; `require(x, **static)` checks its operand."""

    def rule(x: TensorType, **static: Any) -> Types:
        require(x, **static)
        return _permute_shape(x, axes=axes(x, **static))

    def decomposition(ops: Ops[R], x: R, /, **static: Any) -> Row[R]:
        return (ops.permute(x, axes=axes(TensorType(x.shape, x.dtype), **static)),)

    operands = ("x",) if name else ()
    return Primitive(name, operands=operands, shape=rule, decomposition=decomposition, kind=Kind.LAYOUT, view=True)


def _transpose(*axes: int) -> Primitive:
    """Make a permutation by fixed axes."""
    return _permuting(lambda x: axes, lambda x: require_rank(x, len(axes), "x"))


def _require_adjacent(x: TensorType, *, depth: int) -> None:
    rank = len(x.shape)
    if not 0 <= depth < rank - 1:
        raise ShapeError(
            f"depth is {depth} but x is {show_shape(x.shape)} of rank {rank}: it must have axes depth and depth + 1"
        )


def _swapped(x: TensorType, *, depth: int) -> Ints:
    return (*range(depth), depth + 1, depth, *range(depth + 2, len(x.shape)))


TRANSPOSE2D = _transpose(1, 0)
TRANSPOSE3D_FIRST_TO_LAST = _transpose(1, 2, 0)
TRANSPOSE3D_LAST_TO_FIRST = _transpose(2, 0, 1)
TRANSPOSE3D_LAST_TWO = _transpose(0, 2, 1)
SWAP_ADJACENT_AT_DEPTH = _permuting(_swapped, _require_adjacent, "swap_adjacent_at_depth")

# Joining ------------------------------------------------------------------------------------------------------------


def _concat_shape(*xs: TensorType, axis: int) -> Types:
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


def _concat_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, axis: int) -> Some[R]:
    start: Dim = 0
    parts: list[R | None] = []
    for x, needed in zip(ctx.inputs, ctx.needs):
        length = x.shape[axis]
        parts.append(ops.slice(cotangents[0], axis=axis, start=start, length=length) if needed else None)
        start = start + length
    return tuple(parts)


CONCAT = Primitive(
    "concat", operands=("*xs",), shape=_concat_shape, vjp=_concat_vjp, jvp=Linearity.JOINT, kind=Kind.LAYOUT
)


def _stack_shape(*xs: TensorType, axis: int) -> Types:
    first = xs[0]
    for i, x in enumerate(xs):
        same_type(first, x, "xs[0]", f"xs[{i}]")
    return (TensorType((*first.shape[:axis], len(xs), *first.shape[axis:]), first.dtype),)


def _stack_decomposition(ops: Ops[R], /, *xs: R, axis: int) -> Row[R]:
    return (ops.concat([ops.unsqueeze(x, axis=axis) for x in xs], axis=axis),)


STACK = Primitive("stack", operands=("*xs",), shape=_stack_shape, decomposition=_stack_decomposition, kind=Kind.LAYOUT)

# Slicing and padding ------------------------------------------------------------------------------------------------


def _extent(count: Dim, step: int) -> Dim:
    """Return the cells covered by `count` entries in steps of `step`; a symbolic count is assumed to be >= 1."""
    return 0 if is_zero(count) else (count - 1) * step + 1


def _slice_shape(x: TensorType, *, axis: int, start: Dim, length: Dim, step: int) -> Types:
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
    ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, axis: int, start: Dim, length: Dim, step: int
) -> Some[R]:
    shape = ctx.inputs[0].shape
    after = shape[axis] - start - _extent(length, step)
    padding = [(start, after) if i == axis else (0, 0) for i in range(len(shape))]
    interior = [step - 1 if i == axis else 0 for i in range(len(shape))]
    return (ops.pad(cotangents[0], padding=padding, interior=interior),)


SLICE = Primitive(
    "slice", operands=("x",), shape=_slice_shape, vjp=_slice_vjp, jvp=Linearity.JOINT, kind=Kind.LAYOUT, view=True
)


def _pad_shape(x: TensorType, *, padding: tuple[tuple[Dim, Dim], ...], value: Any, interior: Ints) -> Types:
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
    cotangents: Row[R],
    /,
    *,
    padding: tuple[tuple[Dim, Dim], ...],
    value: Any,
    interior: Ints,
) -> Some[R]:
    g = cotangents[0]
    for axis, (size, (before, after), between) in enumerate(zip(ctx.inputs[0].shape, padding, interior)):
        if not (is_zero(before) and is_zero(after) and between == 0):
            g = ops.slice(g, axis=axis, start=before, length=size, step=between + 1)
    return (g,)


def _pad_jvp(
    ops: Ops[R],
    primals: Row[R],
    outputs: Row[R],
    tangents: Row[R],
    /,
    *,
    padding: tuple[tuple[Dim, Dim], ...],
    value: Any,
    interior: Ints,
) -> tuple[R | None]:
    return (ops.pad(tangents[0], padding=padding, interior=interior),)


PAD = Primitive("pad", operands=("x",), shape=_pad_shape, vjp=_pad_vjp, jvp=_pad_jvp, flops=no_flops)


# The methods of Ops ------------------------------------------------------------------------------------------


def _no_tensors(op: str) -> InvalidStatic:
    return InvalidStatic("at least one tensor is needed", op)


def _adds_up(lengths: tuple[Any, ...], shape: Shape, axis: int) -> InvalidStatic | None:
    """Return an `InvalidStatic` if sizes of a split are invalid or do not add up to the axis."""
    for length in lengths:
        if isinstance(length, InvalidStatic):
            return length
    total = sum(lengths)
    try:
        require_equal(
            total,
            shape[axis],
            lambda: f"sizes {show_shape(lengths)} add up to {total} but axis {axis} of x has {shape[axis]}",
        )
    except ShapeError as error:
        return InvalidStatic(error.reason, "split")
    return None


class LayoutOps(Calls[R]):
    __slots__ = ()

    @BROADCAST_TO.method
    def broadcast_to(self, x: R, /, *, shape: ShapeLike) -> R:
        """x broadcast to `shape` by NumPy's rules. PyTorch: torch.broadcast_to.

        Axes are aligned at the last one, axes of size 1 repeated, leading axes added; gradients are summed over the
        copies.

        Raises:
            ShapeError: x does not broadcast to the shape; no such shape.
        """

    def reshape(self, x: R, /, *, shape: ShapeLike) -> R:
        """The same elements in row-major order in another shape; one size of -1 is inferred. PyTorch: torch.reshape.

        Raises:
            ShapeError: another number of elements; no such shape.
        """
        return self._call(RESHAPE, (x,), {"shape": as_shape("reshape", shape, inferred=True)})

    def flatten(self, x: R, /, *, start: int = 0, end: int = -1) -> R:
        """Axes start..end merged into one; a scalar becomes a vector of 1. PyTorch: torch.flatten.

        Raises:
            ShapeError: start behind end; no such axis.
        """
        rank = max(len(x.shape), 1)
        start, end = normalize_axis("flatten", start, rank), normalize_axis("flatten", end, rank)
        return self._call(FLATTEN, (x,), {"start": start, "end": end})

    def permute(self, x: R, /, *, axes: Sequence[int]) -> R:
        """Axes reordered: result axis i is axis axes[i] of x. PyTorch: torch.permute.

        Raises:
            ShapeError: no such axis; an invalid argument.
        """
        order = as_sequence("permute", "axes", axes)
        if not isinstance(order, InvalidStatic):
            order = tuple(normalize_axis("permute", axis, len(x.shape)) for axis in order)
        return self._call(PERMUTE, (x,), {"axes": order})

    @TRANSPOSE2D.method
    def transpose2d(self, x: R, /) -> R:
        """(a, b) -> (b, a). PyTorch: torch.t.

        Raises:
            ShapeError: x of another shape.
        """

    @TRANSPOSE3D_FIRST_TO_LAST.method
    def transpose3d_first_to_last(self, x: R, /) -> R:
        """(a, b, c) -> (b, c, a). PyTorch: x.permute(1, 2, 0).

        Raises:
            ShapeError: x of another shape.
        """

    @TRANSPOSE3D_LAST_TO_FIRST.method
    def transpose3d_last_to_first(self, x: R, /) -> R:
        """(a, b, c) -> (c, a, b). PyTorch: x.permute(2, 0, 1).

        Raises:
            ShapeError: x of another shape.
        """

    @TRANSPOSE3D_LAST_TWO.method
    def transpose3d_last_two(self, x: R, /) -> R:
        """(a, b, c) -> (a, c, b). PyTorch: x.transpose(1, 2).

        Raises:
            ShapeError: x of another shape.
        """

    def swap_adjacent_at_depth(self, x: R, /, *, depth: int) -> R:
        """Axes depth and depth + 1 exchanged. PyTorch: x.transpose(depth, depth + 1).

        Raises:
            ShapeError: no axes depth and depth + 1; an invalid argument.
        """
        return self._call(SWAP_ADJACENT_AT_DEPTH, (x,), {"depth": as_int("swap_adjacent_at_depth", "depth", depth)})

    def concat(self, xs: Sequence[R], /, *, axis: int = 0) -> R:
        """Tensors of one dtype joined along an existing axis; all other axes agree. PyTorch: torch.cat.

        Raises:
            DtypeError: dtypes differ.
            ShapeError: no tensors; axes besides the joined one differ; shapes differ; no such axis.
        """
        refs = tuple(xs)
        rank = len(refs[0].shape) if refs else 0
        return self._call(
            CONCAT, refs, {"axis": normalize_axis("concat", axis, rank) if refs else _no_tensors("concat")}
        )

    def stack(self, xs: Sequence[R], /, *, axis: int = 0) -> R:
        """Tensors of one shape and dtype joined along a new axis of the result. PyTorch: torch.stack.

        Raises:
            DtypeError: dtypes differ.
            ShapeError: no tensors; shapes differ; no such axis.
        """
        refs = tuple(xs)
        rank = len(refs[0].shape) + 1 if refs else 0
        return self._call(STACK, refs, {"axis": normalize_axis("stack", axis, rank) if refs else _no_tensors("stack")})

    def slice(self, x: R, /, *, axis: int, start: Dim, length: Dim, step: int = 1) -> R:
        """`length` entries from `start` in steps of `step` along an axis; all must exist. PyTorch: torch.narrow.

        The entries start, start + step, …, x[start:end:step]: 0 <= start and start + (length - 1)·step < n.

        Raises:
            ShapeError: entries outside x; no such axis; an invalid argument.
        """
        static = {
            "axis": normalize_axis("slice", axis, len(x.shape)),
            "start": as_dim("slice", "start", start),
            "length": as_dim("slice", "length", length),
            "step": as_int("slice", "step", step),
        }
        return self._call(SLICE, (x,), static)

    def split(self, x: R, /, *, sizes: Sequence[Dim], axis: int = 0) -> tuple[R, ...]:
        """Consecutive slices along an axis, with sizes that add up to it. PyTorch: torch.split.

        Raises:
            ShapeError: entries outside x; sizes that do not add up; no such axis; an invalid argument.
        """
        invalid = axis = normalize_axis("split", axis, len(x.shape))
        given = as_sequence("split", "sizes", sizes)
        if isinstance(given, InvalidStatic):  # the number of parts is unknown
            return (self._call(SLICE, (x,), {"axis": given, "start": 0, "step": 1, "length": 0}),)
        lengths = tuple(as_dim("split", "a size", size) for size in given)
        if not isinstance(axis, InvalidStatic):
            invalid = _adds_up(lengths, x.shape, axis)
        if isinstance(invalid, InvalidStatic):
            static = {"axis": invalid, "start": 0, "step": 1}
            return tuple(self._call(SLICE, (x,), static | {"length": length}) for length in lengths)
        parts: list[R] = []
        start: Dim = 0
        for length in lengths:
            parts.append(self.slice(x, axis=axis, start=start, length=length))
            start = start + length
        return tuple(parts)

    def pad(
        self, x: R, /, *, padding: Sequence[tuple[Dim, Dim]], value: Number = 0.0, interior: Sequence[int] | None = None
    ) -> R:
        """Constant padding before, after and between the entries of each axis. PyTorch: torch.nn.functional.pad.

        `padding` has for each axis the numbers (before, after) of cells of `value` to add, and `interior` the number
        between adjacent entries: n becomes before + n + (n - 1)·interior + after. As jax.lax.pad.

        Raises:
            DtypeError: a number that the dtype does not hold.
            ShapeError: not an entry for each axis of x; an invalid argument.
        """
        try:
            pairs = tuple((before, after) for before, after in padding)
        except (TypeError, ValueError):
            why = f"padding must be a sequence with a pair (before, after) for each axis but is {padding!r}"
            return self._call(PAD, (x,), {"padding": InvalidStatic(why, "pad"), "value": value, "interior": ()})
        between = (0,) * len(pairs) if interior is None else as_sequence("pad", "interior", interior)
        if not isinstance(between, InvalidStatic):
            between = tuple(as_int("pad", "interior", cells) for cells in between)
        static = {
            "padding": tuple((as_dim("pad", "padding", b), as_dim("pad", "padding", a)) for b, a in pairs),
            "value": value,
            "interior": between,
        }
        return self._call(PAD, (x,), static)

    def squeeze(self, x: R, /, *, axis: Axes = None) -> R:
        """x without the given axes of size 1, or all such axes; other sizes are an error. PyTorch: torch.squeeze.

        Raises:
            ShapeError: an axis of another size than 1; no such axis.
        """
        if axis is None:
            axes = tuple(i for i, d in enumerate(x.shape) if is_one(d))
        else:
            axes = normalize_axes("squeeze", axis, len(x.shape))
        return self._call(SQUEEZE, (x,), {"axes": axes})

    def unsqueeze(self, x: R, /, *, axis: int) -> R:
        """x with a new axis of size 1, at `axis` of the result. PyTorch: torch.unsqueeze.

        Raises:
            ShapeError: no such axis.
        """
        return self._call(UNSQUEEZE, (x,), {"axis": normalize_axis("unsqueeze", axis, len(x.shape) + 1)})
