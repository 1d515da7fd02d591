# mypy: disable-error-code=empty-body
"""Products of rows with the matrix of their group, as mixtures of experts have them, and the gradient of the matrices.

Row i belongs to the first group g with i < ends[g], and to none if there is no such group. So ends that never fall
divide the rows into runs, one for each group; and any others mean something too, the same on every interpreter.

The decompositions multiply all rows in each group and keep those of the group: rows of others take no part, so that a
nan or an infinity in one does not reach another. They are not `expandable`: derivatives of derivatives stay with these
two ops too, and so with their own rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..calls import Calls
from ..dims import Dim, require_equal
from ..kinds import Kind
from ..primitive import Context, Linearity, Primitive, R, Row, Some, Types
from ..rules import require_rank
from ..types import INT64, TensorType, require_float, require_integer, require_same_dtype, show_shape
from .linalg import transposed

if TYPE_CHECKING:
    from ..protocol import Ops


def _require_operands(x: TensorType, other: TensorType, ends: TensorType, rank: int, name: str) -> None:
    for operand, axes, called in ((x, 2, "x"), (other, rank, name), (ends, 1, "ends")):
        require_rank(operand, axes, called)
    require_float(x, "x")
    require_integer(ends, "ends")
    require_same_dtype(x, other, "x", name)


def _grouped_matmul_shape(x: TensorType, w: TensorType, ends: TensorType) -> Types:
    _require_operands(x, w, ends, 3, "w")
    shapes = f"x is {show_shape(x.shape)}, w is {show_shape(w.shape)} and ends are {show_shape(ends.shape)}"
    require_equal(x.shape[1], w.shape[1], lambda: f"{shapes}: a matrix has a row for each column of x")
    require_equal(w.shape[0], ends.shape[0], lambda: f"{shapes}: every group has an end")
    return (TensorType((x.shape[0], w.shape[2]), x.dtype),)


def _grouped_outer_shape(x: TensorType, g: TensorType, ends: TensorType) -> Types:
    _require_operands(x, g, ends, 2, "g")
    shapes = f"x is {show_shape(x.shape)} and g is {show_shape(g.shape)}"
    require_equal(x.shape[0], g.shape[0], lambda: f"{shapes}: they must have the same rows")
    return (TensorType((ends.shape[0], x.shape[1], g.shape[1]), x.dtype),)


def _groups_of_rows(ops: Ops[R], ends: R, count: Dim) -> R:
    """The group of each row: how many groups stand before the first one that ends behind it."""
    shape = (count, ends.shape[0])
    rows = ops.broadcast_to(ops.unsqueeze(ops.iota(shape=(count,)), axis=1), shape=shape)
    behind = ops.less(rows, ops.broadcast_to(ops.cast(ends, dtype=INT64), shape=shape))
    found = ops.cumsum(ops.cast(behind, dtype=INT64), axis=1)
    before = ops.equal(found, ops.full(shape=shape, value=0, dtype=INT64))
    return ops.reduce_sum(ops.cast(before, dtype=INT64), axis=1)


def _of_group(ops: Ops[R], x: R, groups: R, group: R, otherwise: R) -> R:
    """x in the rows of a group, and `otherwise` in the others."""
    mine = ops.equal(groups, ops.broadcast_to(group, shape=groups.shape))
    return ops.select(ops.broadcast_to(ops.unsqueeze(mine, axis=1), shape=x.shape), x, otherwise)


def _grouped_matmul_decomposition(ops: Ops[R], x: R, w: R, ends: R, /) -> Row[R]:
    groups = _groups_of_rows(ops, ends, x.shape[0])

    def step(inner: Any, y: R, at: Any) -> tuple[R, tuple[()]]:
        matrix, group = at
        return _of_group(inner, inner.matmul(x, matrix), groups, group, y), ()

    start = ops.full(shape=(x.shape[0], w.shape[2]), value=0, dtype=x.dtype)
    y: R
    y, _ = ops.scan(step, start, (w, ops.iota(shape=(w.shape[0],))))
    return (y,)


def _grouped_outer_decomposition(ops: Ops[R], x: R, g: R, ends: R, /) -> Row[R]:
    groups = _groups_of_rows(ops, ends, x.shape[0])

    def step(inner: Any, carry: Any, group: R) -> tuple[tuple[()], R]:
        own_x, own_g = (
            _of_group(inner, rows, groups, group, inner.full(shape=rows.shape, value=0, dtype=rows.dtype))
            for rows in (x, g)
        )
        return (), inner.matmul(inner.transpose2d(own_x), own_g)

    sums: R
    _, sums = ops.scan(step, (), ops.iota(shape=(ends.shape[0],)))
    return (sums,)


def _grouped_matmul_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /) -> Some[R]:
    (g,), (x, w, ends) = cotangents, ctx.saved
    return (
        ops.grouped_matmul(g, transposed(ops, w), ends) if ctx.needs[0] else None,
        ops.grouped_outer(x, g, ends) if ctx.needs[1] else None,
        None,
    )


def _grouped_outer_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /) -> Some[R]:
    (sums,), (x, g, ends) = cotangents, ctx.saved
    return (
        ops.grouped_matmul(g, transposed(ops, sums), ends) if ctx.needs[0] else None,
        ops.grouped_matmul(x, sums, ends) if ctx.needs[1] else None,
        None,
    )


def _grouped_matmul_flops(inputs: Types, outputs: Types, /) -> Dim:
    """A multiplication and an addition for each element of the result and each term of its sum."""
    return 2 * outputs[0].size * inputs[0].shape[1]


def _grouped_outer_flops(inputs: Types, outputs: Types, /) -> Dim:
    """Those of the product whose adjoint it is."""
    return 2 * inputs[0].size * inputs[1].shape[1]


GROUPED_MATMUL = Primitive(
    kind=Kind.CONTRACTION,
    shape=_grouped_matmul_shape,
    vjp=_grouped_matmul_vjp,
    jvp=Linearity.EACH,
    saves={"x": ("w",), "w": ("x",), "ends": ("x", "w")},
    decomposition=_grouped_matmul_decomposition,
    flops=_grouped_matmul_flops,
)


GROUPED_OUTER = Primitive(
    kind=Kind.CONTRACTION,
    shape=_grouped_outer_shape,
    vjp=_grouped_outer_vjp,
    jvp=Linearity.EACH,
    saves={"x": ("g",), "g": ("x",), "ends": ("x", "g")},
    decomposition=_grouped_outer_decomposition,
    flops=_grouped_outer_flops,
)


# The methods of Ops ------------------------------------------------------------------------------------------


class GroupedOps(Calls[R]):
    __slots__ = ()

    @GROUPED_MATMUL.method
    def grouped_matmul(self, x: R, w: R, ends: R, /) -> R:
        """y[i] = x[i] · w[g] for the group g of row i, the first with i < ends[g]; 0 if there is none.

        x (n, k), w (groups, k, m), ends (groups) integers: the running sum of how many rows each group has, so that the
        rows of a group stand together; (n, m). Rows of other groups do not take part, whatever they hold. PyTorch:
        torch.nn.functional.grouped_mm, where rows of no group are not written. JAX: jax.lax.ragged_dot.

        Raises:
            DtypeError: x not a float tensor; ends not an integer tensor; dtypes differ.
            ShapeError: x, w, ends of another shape; operands that do not fit each other.
        """

    @GROUPED_OUTER.method
    def grouped_outer(self, x: R, g: R, ends: R, /) -> R:
        """Σ x[i]ᵀ · g[i] over the rows i of each group, for x (n, k) and g (n, m); the gradient of grouped_matmul in w.

        Row i belongs to the first group with i < ends[group], ends (groups) integers; rows of none are left out.
        (groups, k, m), of zeros where a group has no rows. PyTorch: torch.nn.functional.grouped_mm of a transposed
        matrix. JAX: jax.lax.ragged_dot_general.

        Raises:
            DtypeError: x not a float tensor; ends not an integer tensor; dtypes differ.
            ShapeError: x, g, ends of another shape; operands that do not fit each other.
        """
