# mypy: disable-error-code=empty-body
"""Matrix products, of one pair, of stacks, and of rows with the matrix of their group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .dims import Dim, Verdict, equal, prod, require_equal
from .errors import ShapeError
from .method import Calls
from .primitive import Context, Kind, Linearity, Primitive, R, Row, Some, Types
from .rule_helpers import add_all, require_rank
from .types import INT64, TensorType, require_float, require_integer, require_same_dtype, show_shape

if TYPE_CHECKING:
    from .protocol import Ops


# Matrix products ------------------------------------------------------------------------------------------------------


def _product_shape(x: TensorType, y: TensorType) -> Types:
    """(..., m, k) and (..., k, n) with the same leading axes -> (..., m, n)."""
    require_float(x, "x")
    require_same_dtype(x, y, "x", "y")
    require_equal(
        x.shape[-1],
        y.shape[-2],
        lambda: (
            f"x is {show_shape(x.shape)} and y is {show_shape(y.shape)}: x has {x.shape[-1]} columns but y has "
            f"{y.shape[-2]} rows; they must be equal"
        ),
    )
    return (TensorType((*x.shape[:-1], y.shape[-1]), x.dtype),)


def _product_flops(inputs: Types, outputs: Types, /) -> Dim:
    """Count a multiplication and an addition for each element of the result and each term of its sum."""
    return 2 * outputs[0].size * inputs[0].shape[-1]


def _matmul_shape(x: TensorType, y: TensorType) -> Types:
    for operand, name in ((x, "x"), (y, "y")):
        if len(operand.shape) != 2:
            raise ShapeError(
                f"{name} must be a matrix but is {show_shape(operand.shape)} of rank {len(operand.shape)}; "
                "bmm multiplies stacks of matrices, and linear takes any leading axes"
            )
    return _product_shape(x, y)


def _matmul_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /) -> Some[R]:
    (g,), (x, y) = cotangents, ctx.saved
    return (
        ops.matmul(g, ops.transpose2d(y)) if ctx.needs[0] else None,
        ops.matmul(ops.transpose2d(x), g) if ctx.needs[1] else None,
    )


MATMUL = Primitive(
    kind=Kind.CONTRACTION,
    shape=_matmul_shape,
    vjp=_matmul_vjp,
    jvp=Linearity.EACH,
    saves={"x": ("y",), "y": ("x",)},
    flops=_product_flops,
)


def _bmm_shape(x: TensorType, y: TensorType) -> Types:
    if len(x.shape) != len(y.shape) or len(x.shape) < 2:
        raise ShapeError(
            f"x is {show_shape(x.shape)} and y is {show_shape(y.shape)}: stacks of matrices have one rank, at least 2; "
            "bmm never broadcasts, use infix (x @ y) or ops.broadcast_to"
        )
    for axis, (a, b) in enumerate(zip(x.shape[:-2], y.shape[:-2])):
        require_equal(
            a,
            b,
            lambda: (
                f"x is {show_shape(x.shape)} and y is {show_shape(y.shape)}: batch axis {axis} has {a} and {b}; "
                "bmm never broadcasts, use infix (x @ y) or ops.broadcast_to"
            ),
        )
    return _product_shape(x, y)


def transposed(ops: Ops[R], x: R) -> R:
    """Transpose each matrix of a stack."""
    rank = len(x.shape)
    return ops.permute(x, axes=(*range(rank - 2), rank - 1, rank - 2))


def _bmm_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /) -> Some[R]:
    (g,), (x, y) = cotangents, ctx.saved
    return (
        ops.bmm(g, transposed(ops, y)) if ctx.needs[0] else None,
        ops.bmm(transposed(ops, x), g) if ctx.needs[1] else None,
    )


BMM = Primitive(
    kind=Kind.CONTRACTION,
    shape=_bmm_shape,
    vjp=_bmm_vjp,
    jvp=Linearity.EACH,
    saves={"x": ("y",), "y": ("x",)},
    flops=_product_flops,
)


def _linear_shape(*operands: TensorType, has_bias: bool) -> Types:
    weight, *bias, x = operands
    require_float(weight, "weight")
    require_rank(weight, 2, "weight")
    for b in bias:
        require_rank(b, 1, "bias")
    require_same_dtype(weight, x, "weight", "x")
    features_out, features_in = weight.shape
    if not x.shape:
        raise ShapeError(f"x must be (..., in) with in={features_in} but is a scalar")
    require_equal(
        x.shape[-1],
        features_in,
        lambda: (
            f"weight is (out={features_out}, in={features_in}) but x is {show_shape(x.shape)}: in={features_in} "
            f"differs from {x.shape[-1]}{_hint(weight, bool(bias), x)}"
        ),
    )
    for b in bias:
        require_same_dtype(weight, b, "weight", "bias")
        require_equal(
            b.shape[0],
            features_out,
            lambda: (
                f"weight is (out={features_out}, in={features_in}) but bias is {show_shape(b.shape)}; "
                f"it must be {show_shape((features_out,))}"
            ),
        )
    return (TensorType((*x.shape[:-1], features_out), x.dtype),)


def _hint(weight: TensorType, has_bias: bool, x: TensorType) -> str:
    """Return a likely fix where weight and x do not fit: flatten x, transpose weight, or use another weight."""
    (features_out, features_in), last = weight.shape, x.shape[-1]
    for start in range(1, len(x.shape) - 1):
        if equal(prod(x.shape[start:]), features_in) is Verdict.proved:
            return f"; did you mean ops.flatten(x, start={start})?"
    if equal(last, features_out) is Verdict.proved:
        # With a bias the output size is confirmed, so equal sizes may be a coincidence.
        return "; the axes of a weight are (out, in)" if has_bias else "; did you mean ops.transpose2d(weight)?"
    if isinstance(last, int) and isinstance(features_out, int):
        return f"; did you mean weight of shape {show_shape((features_out, last))}?"
    return ""


def _rows(ops: Ops[R], x: R) -> R:
    """Return (..., n) as a matrix with the leading axes merged."""
    if len(x.shape) == 2:
        return x
    return ops.reshape(x, shape=(prod(x.shape[:-1]), x.shape[-1]))


def _linear_decomposition(ops: Ops[R], /, *operands: R, has_bias: bool) -> Row[R]:
    weight, *bias, x = operands
    out = ops.matmul(_rows(ops, x), ops.transpose2d(weight))
    if len(x.shape) != 2:
        out = ops.reshape(out, shape=(*x.shape[:-1], weight.shape[0]))
    for b in bias:
        out = ops.add(out, ops.broadcast_to(b, shape=out.shape))
    return (out,)


def _linear_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, has_bias: bool) -> Some[R]:
    x, weight = ctx.saved
    needs_weight, *needs_bias, needs_x = ctx.needs
    shape = ctx.inputs[-1].shape
    g = _rows(ops, cotangents[0])
    dx: R | None = None
    if needs_x:
        dx = ops.matmul(g, weight)
        if len(shape) != 2:
            dx = ops.reshape(dx, shape=shape)
    return (
        ops.matmul(ops.transpose2d(g), _rows(ops, x)) if needs_weight else None,
        *(ops.reduce_sum(g, axis=0) if needed else None for needed in needs_bias),
        dx,
    )


def _linear_jvp(
    ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Some[R], /, *, has_bias: bool
) -> tuple[R | None]:
    weight, *_, x = primals
    t_weight, *t_bias, t_x = tangents
    return (
        add_all(
            ops,
            ops.linear(t_weight, None, x) if t_weight is not None else None,
            ops.linear(weight, None, t_x) if t_x is not None else None,
            *(ops.broadcast_to(t, shape=outputs[0].shape) for t in t_bias if t is not None),
        ),
    )


def _linear_flops(inputs: Types, outputs: Types, /, **static: Any) -> Dim:
    size = outputs[0].size
    return 2 * size * inputs[-1].shape[-1] + (size if static["has_bias"] else 0)


LINEAR = Primitive(
    kind=Kind.CONTRACTION,
    shape=_linear_shape,
    vjp=_linear_vjp,
    jvp=_linear_jvp,
    saves={"x": ("weight",), "weight": ("x",)},
    decomposition=_linear_decomposition,
    expandable=True,
    flops=_linear_flops,
)


# Products of rows with the matrix of their group, as mixtures of experts have them, and the gradient of the matrices --

# Row i belongs to the first group g with i < ends[g], and to none if there is no such group. So ends that never fall
# divide the rows into runs, one for each group; and any others mean something too, the same on every interpreter.
#
# The decompositions multiply all rows in each group and keep those of the group: rows of others take no part, so that
# a nan or an infinity in one does not reach another. They are not `expandable`: derivatives of derivatives stay with
# these two ops too, and so with their own rows.


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
    """Return the group of each row: how many groups stand before the first one that ends behind it."""
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
    """Count a multiplication and an addition for each element of the result and each term of its sum."""
    return 2 * outputs[0].size * inputs[0].shape[1]


def _grouped_outer_flops(inputs: Types, outputs: Types, /) -> Dim:
    """Count those of the product whose adjoint it is."""
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


class MatmulOps(Calls[R]):
    __slots__ = ()

    @MATMUL.method
    def matmul(self, x: R, y: R, /) -> R:
        """Return the matrix product (m, k)·(k, n) -> (m, n). PyTorch: torch.mm.

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: x's columns are not y's rows; x, y of another shape.
        """

    @BMM.method
    def bmm(self, x: R, y: R, /) -> R:
        """Return matrix products (..., m, k)·(..., k, n), with any number of equal leading axes. PyTorch: torch.bmm.

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: x's columns are not y's rows; x and y are stacks of other sizes.
        """

    @LINEAR.method
    def linear(self, weight: R, bias: R | None, x: R, /) -> R:
        """Return x · weightᵀ + bias, weight (out, in), bias (out), x (..., in). PyTorch: torch.nn.functional.linear.

        Raises:
            DtypeError: weight not a float tensor; dtypes differ.
            ShapeError: x has other features than the weight; the bias has another size than the weight's rows; weight,
                bias of another shape.
        """

    @GROUPED_MATMUL.method
    def grouped_matmul(self, x: R, w: R, ends: R, /) -> R:
        """Return y[i] = x[i] · w[g] for the group g of row i, the first with i < ends[g]; 0 if there is none.

        x (n, k), w (groups, k, m), ends (groups) integers: the running sum of how many rows each group has, so that the
        rows of a group stand together; (n, m). Rows of other groups do not take part, whatever they hold. PyTorch:
        torch.nn.functional.grouped_mm, where rows of no group are not written. JAX: jax.lax.ragged_dot.

        Raises:
            DtypeError: x not a float tensor; ends not an integer tensor; dtypes differ.
            ShapeError: x, w, ends of another shape; operands that do not fit each other.
        """

    @GROUPED_OUTER.method
    def grouped_outer(self, x: R, g: R, ends: R, /) -> R:
        """Return Σ x[i]ᵀ · g[i] over the rows i of each group, for x (n, k) and g (n, m); the gradient of
        grouped_matmul in w.

        Row i belongs to the first group with i < ends[group], ends (groups) integers; rows of none are left out.
        (groups, k, m), of zeros where a group has no rows. PyTorch: torch.nn.functional.grouped_mm of a transposed
        matrix. JAX: jax.lax.ragged_dot_general.

        Raises:
            DtypeError: x not a float tensor; ends not an integer tensor; dtypes differ.
            ShapeError: x, g, ends of another shape; operands that do not fit each other.
        """


# Functions ------------------------------------------------------------------------------------------------------------


def grouped_matmul(ops: Ops[R], x: R, w: R, ends: R, /) -> R:
    """Return y[i] = x[i] · w[g] for the group g of row i: rows of one group stand together, those of group g before
    ends[g].

    The op `ops.grouped_matmul`: x (n, k), w (groups, k, m), ends (groups) integers, the running sum of how many rows
    each group has; (n, m). Rows at ends[-1] and behind are of no group and 0.

    Raises:
        DtypeError: x not a float tensor; ends not an integer tensor; dtypes differ.
        ShapeError: ends, w, x of another shape; operands that do not fit each other.
    """
    return ops.grouped_matmul(x, w, ends)
