# mypy: disable-error-code=empty-body
"""Gathering entries at indices, and scatter-adding to them: two linear maps, each the other's adjoint.

In mode "raise" an index out of range is an error (RangeError when the values are known, ShapeError when the index is
static); in mode "zero" it reads zeros and adds nothing. Negative indices are out of range. Repeated indices are summed
in the order of the index tensor, so results are reproducible bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .dims import Dim, DimExpr, ratio, require_at_most, require_equal
from .errors import ShapeError, nearest
from .method import Calls
from .primitive import Context, Effect, Linearity, Primitive, R, Row, Some, Types, no_flops
from .rule_helpers import require_rank, zeros_like
from .static_arguments import plain_index
from .types import Shape, TensorType, require_integer, require_number, require_same_dtype, show_shape

if TYPE_CHECKING:
    from .protocol import Ops


MODES = ("raise", "zero")


def _require_mode(mode: str) -> None:
    if mode not in MODES:
        raise ShapeError(f"mode must be one of {MODES} but is {mode!r}{nearest(mode, MODES)}")


def _require_rows(x: TensorType) -> None:
    if not x.shape:
        raise ShapeError("x must have a first axis to index but is a scalar, of shape ()")


def _require_shape(v: Shape, expected: Shape, purpose: Callable[[], str]) -> None:
    """Require that the updates have the shape determined by the indices and x."""

    def message() -> str:
        return f"v is {show_shape(v)} but {purpose()} takes v of shape {show_shape(expected)}"

    if len(v) != len(expected):
        raise ShapeError(message())
    for a, b in zip(v, expected):
        require_equal(a, b, message)


# At indices that are data --------------------------------------------------------------------------------------------


def _gather_rows_shape(x: TensorType, idx: TensorType, *, mode: str) -> Types:
    _require_mode(mode)
    _require_rows(x)
    require_integer(idx, "idx")
    return (TensorType((*idx.shape, *x.shape[1:]), x.dtype),)


def _gather_rows_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, mode: str) -> Some[R]:
    (g,), (idx,), x = cotangents, ctx.saved, ctx.inputs[0]
    return ops.scatter_add_row(zeros_like(ops, x), g, idx, mode=mode), None


GATHER_ROWS = Primitive(
    effects={Effect.RAISES},
    shape=_gather_rows_shape,
    vjp=_gather_rows_vjp,
    jvp=Linearity.JOINT,
    saves={"idx": ("x",)},
    flops=no_flops,
)


def _scatter_add_rows_shape(x: TensorType, v: TensorType, idx: TensorType, *, mode: str) -> Types:
    _require_mode(mode)
    _require_rows(x)
    require_number(x, "x")
    require_same_dtype(x, v, "x", "v")
    require_integer(idx, "index")
    _require_shape(
        v.shape,
        (*idx.shape, *x.shape[1:]),
        lambda: f"an index of shape {show_shape(idx.shape)} into x of shape {show_shape(x.shape)}",
    )
    return (x,)


def _scatter_add_rows_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, mode: str) -> Some[R]:
    (g,), (idx,) = cotangents, ctx.saved
    return g, ops.gather_rows(g, idx, mode=mode) if ctx.needs[1] else None, None


def _one_flop_per_update(inputs: Types, outputs: Types, /, **static: Any) -> Dim:
    return inputs[1].size


SCATTER_ADD_ROWS = Primitive(
    "scatter_add_rows",
    operands=("x", "v", "idx"),
    effects={Effect.RAISES},
    shape=_scatter_add_rows_shape,
    vjp=_scatter_add_rows_vjp,
    jvp=Linearity.JOINT,
    saves={"idx": ("v",)},
    flops=_one_flop_per_update,
)


def _of_vectors(rule: Callable[..., Types]) -> Callable[..., Types]:
    """Restrict a shape rule to vectors x."""

    def shape(x: TensorType, *others: TensorType, **static: Any) -> Types:
        require_rank(x, 1, "x")
        return rule(x, *others, **static)

    return shape


GATHER_VEC = Primitive(
    effects={Effect.RAISES},
    shape=_of_vectors(_gather_rows_shape),
    vjp=_gather_rows_vjp,
    jvp=Linearity.JOINT,
    saves={"idx": ("x",)},
    decomposition=lambda ops, x, idx, /, *, mode: (ops.gather_rows(x, idx, mode=mode),),
    expandable=True,
    flops=no_flops,
)


SCATTER_ADD_VEC = Primitive(
    "scatter_add_vec",
    operands=("x", "v", "idx"),
    effects={Effect.RAISES},
    shape=_of_vectors(_scatter_add_rows_shape),
    vjp=_scatter_add_rows_vjp,
    jvp=Linearity.JOINT,
    saves={"idx": ("v",)},
    decomposition=lambda ops, x, v, idx, /, *, mode: (ops.scatter_add_row(x, v, idx, mode=mode),),
    expandable=True,
    flops=_one_flop_per_update,
)


# At a static index ---------------------------------------------------------------------------------------------------


def _require_index(x: TensorType, index: Dim, mode: str) -> None:
    """Require that the index is an int or a dim, and in mode "raise" in range."""
    _require_mode(mode)
    _require_rows(x)
    if not isinstance(index, (int, DimExpr)) or isinstance(index, bool):
        raise ShapeError(f"index must be an int but is {index!r}")
    if mode == "raise":
        count = x.shape[0]

        def message() -> str:
            return (
                f"index {index} is out of range: x is {show_shape(x.shape)}, so indices are 0 … {count - 1}, and "
                "negative ones are out of range; "
                'pass mode="zero" if an index out of range means zeros'
            )

        require_at_most(0, index, message)
        require_at_most(index + 1, count, message)


def _index_tensor(ops: Ops[R], index: Dim) -> R:
    """Return the static index as an integer scalar, for mode "zero", where it may be out of range."""
    return ops.full(shape=(), value=index if isinstance(index, int) else ratio(index, 1), dtype="int64")


def _gather_row_shape(x: TensorType, *, index: Dim, mode: str) -> Types:
    _require_index(x, index, mode)
    return (TensorType(x.shape[1:], x.dtype),)


def _gather_row_decomposition(ops: Ops[R], x: R, /, *, index: Any, mode: str) -> Row[R]:
    if mode == "zero":
        return (ops.gather_rows(x, _index_tensor(ops, index), mode=mode),)
    return (ops.reshape(ops.slice(x, axis=0, start=index, length=1), shape=x.shape[1:]),)


GATHER_ROW = Primitive(
    "gather_row", operands=("x",), shape=_gather_row_shape, decomposition=_gather_row_decomposition, flops=no_flops
)


GATHER_SCALAR = Primitive(
    "gather_scalar",
    operands=("x",),
    shape=_of_vectors(_gather_row_shape),
    decomposition=_gather_row_decomposition,
    flops=no_flops,
)


def _scatter_add_row_shape(x: TensorType, v: TensorType, *, index: Dim, mode: str) -> Types:
    _require_index(x, index, mode)
    require_number(x, "x")
    require_same_dtype(x, v, "x", "v")
    _require_shape(v.shape, x.shape[1:], lambda: f"index {index} into x of shape {show_shape(x.shape)}")
    return (x,)


def _scatter_add_row_decomposition(ops: Ops[R], x: R, v: R, /, *, index: Any, mode: str) -> Row[R]:
    if mode == "zero":
        return (ops.scatter_add_row(x, v, _index_tensor(ops, index), mode=mode),)
    row = ops.reshape(v, shape=(1, *x.shape[1:]))
    around = [(index, x.shape[0] - index - 1), *[(0, 0)] * (len(x.shape) - 1)]
    return (ops.add(x, ops.pad(row, padding=around, value=0)),)


SCATTER_ADD_ROW = Primitive(
    "scatter_add_row",
    operands=("x", "v"),
    shape=_scatter_add_row_shape,
    decomposition=_scatter_add_row_decomposition,
    flops=_one_flop_per_update,
)


SCATTER_ADD_SCALAR = Primitive(
    "scatter_add_scalar",
    operands=("x", "v"),
    shape=_of_vectors(_scatter_add_row_shape),
    decomposition=_scatter_add_row_decomposition,
    flops=_one_flop_per_update,
)


# The methods of Ops ------------------------------------------------------------------------------------------


class IndexingOps(Calls[R]):
    __slots__ = ()

    def gather_scalar(self, x: R, /, *, index: Dim, mode: str = "raise") -> R:
        """Return x[index] of a vector (n), for a static index. PyTorch: x[index].

        Raises:
            ShapeError: an index out of range; an invalid argument; x of another shape.
        """
        return self._call(GATHER_SCALAR, (x,), {"index": plain_index(index), "mode": mode})

    def gather_row(self, x: R, /, *, index: Dim, mode: str = "raise") -> R:
        """Return x[index], a row, for a static index; x (n, *rest). PyTorch: x[index], torch.select.

        Raises:
            ShapeError: an index out of range; x has no first axis; an invalid argument.
        """
        return self._call(GATHER_ROW, (x,), {"index": plain_index(index), "mode": mode})

    @GATHER_VEC.method
    def gather_vec(self, x: R, idx: R, /, *, mode: str = "raise") -> R:
        """Return x[idx] of a vector (n), for integer indices of any shape. PyTorch: x[idx], torch.take.

        Raises:
            DtypeError: idx not an integer tensor.
            RangeError: an index out of range, when it runs.
            ShapeError: an invalid argument; x of another shape.
        """

    @GATHER_ROWS.method
    def gather_rows(self, x: R, idx: R, /, *, mode: str = "raise") -> R:
        """Return the rows x[idx], for integer indices of any shape. PyTorch: torch.nn.functional.embedding(idx, x),
        x[idx].

        x (n, *rest) gives (*idx, *rest). Gradients of repeated rows are summed.

        Raises:
            DtypeError: idx not an integer tensor.
            RangeError: an index out of range, when it runs.
            ShapeError: x has no first axis; an invalid argument.
        """

    def scatter_add_vec(self, x: R, v: R, index: R | Dim, /, *, mode: str = "raise") -> R:
        """Return the vector x (n) with v added at entries `index`. PyTorch: torch.index_add(x, 0, index, v).

        For a static index, v is a scalar. For integers of any shape, v has that shape and is added in row-major order.

        Raises:
            DtypeError: x a mask; index not an integer tensor; dtypes differ.
            RangeError: an index out of range, when it runs.
            ShapeError: an index out of range; v does not fit x and the index; an invalid argument; x of another shape.
        """
        index = plain_index(index)
        if isinstance(index, (int, DimExpr)):
            return self._call(SCATTER_ADD_SCALAR, (x, v), {"index": index, "mode": mode})
        return self._call(SCATTER_ADD_VEC, (x, v, index), {"mode": mode})

    def scatter_add_row(self, x: R, v: R, index: R | Dim, /, *, mode: str = "raise") -> R:
        """Return x (n, *rest) with v added at rows `index`. PyTorch: torch.index_add(x, 0, index, v).

        For a static index, v is (*rest). For integers of any shape, v is (*index, *rest), added in row-major order; the
        adjoint of gather_rows.

        Raises:
            DtypeError: x a mask; index not an integer tensor; dtypes differ.
            RangeError: an index out of range, when it runs.
            ShapeError: an index out of range; x has no first axis; v does not fit x and the index; an invalid argument.
        """
        index = plain_index(index)
        if isinstance(index, (int, DimExpr)):
            return self._call(SCATTER_ADD_ROW, (x, v), {"index": index, "mode": mode})
        return self._call(SCATTER_ADD_ROWS, (x, v, index), {"mode": mode})
