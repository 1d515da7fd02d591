"""Tensors joined, cut and padded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .dims import Dim, DimExpr, is_zero, require_at_most, require_equal
from .errors import ShapeError
from .method import Calls
from .primitive import Context, Ints, Kind, Linearity, Primitive, R, Row, Some, Types, no_flops
from .rule_helpers import same_type
from .static_arguments import InvalidStatic, Number, as_dim, as_int, as_number, as_sequence, normalize_axis
from .types import Shape, TensorType, require_same_dtype, require_value, show_shape

if TYPE_CHECKING:
    from .protocol import Ops


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


def _require_sum(lengths: tuple[Any, ...], shape: Shape, axis: int) -> InvalidStatic | None:
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


class SlicingOps(Calls[R]):
    __slots__ = ()

    def concat(self, xs: Sequence[R], /, *, axis: int = 0) -> R:
        """Join tensors of one dtype along an existing axis; all other axes agree. PyTorch: torch.cat.

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
        """Join tensors of one shape and dtype along a new axis of the result. PyTorch: torch.stack.

        Raises:
            DtypeError: dtypes differ.
            ShapeError: no tensors; shapes differ; no such axis.
        """
        refs = tuple(xs)
        rank = len(refs[0].shape) + 1 if refs else 0
        return self._call(STACK, refs, {"axis": normalize_axis("stack", axis, rank) if refs else _no_tensors("stack")})

    def slice(self, x: R, /, *, axis: int, start: Dim, length: Dim, step: int = 1) -> R:
        """Return `length` entries from `start` in steps of `step` along an axis; all must exist. PyTorch: torch.narrow.

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
        """Split x into consecutive slices along an axis, with sizes that add up to it. PyTorch: torch.split.

        Raises:
            ShapeError: entries outside x; sizes that do not add up; no such axis; an invalid argument.
        """
        invalid = axis = normalize_axis("split", axis, len(x.shape))
        given = as_sequence("split", "sizes", sizes)
        if isinstance(given, InvalidStatic):  # the number of parts is unknown
            return (self._call(SLICE, (x,), {"axis": given, "start": 0, "step": 1, "length": 0}),)
        lengths = tuple(as_dim("split", "a size", size) for size in given)
        if not isinstance(axis, InvalidStatic):
            invalid = _require_sum(lengths, x.shape, axis)
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
        """Pad x with a constant before, after and between the entries of each axis. PyTorch: torch.nn.functional.pad.

        `padding` has for each axis the numbers (before, after) of cells of `value` to add, and `interior` the number
        between adjacent entries: n becomes before + n + (n - 1)·interior + after. As jax.lax.pad.

        Raises:
            DtypeError: a number that the dtype does not hold.
            ShapeError: not an entry for each axis of x; an invalid argument.
        """
        value = as_number("pad", "value", value)
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
