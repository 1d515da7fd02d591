# mypy: disable-error-code=empty-body
"""Matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..calls import Calls
from ..dims import Dim, Verdict, equal, prod, require_equal
from ..errors import ShapeError
from ..kinds import Kind
from ..primitive import Context, Linearity, Primitive, R, Row, Some, Types
from ..rules import add_all, require_rank
from ..types import TensorType, require_float, require_same_dtype, show_shape

if TYPE_CHECKING:
    from ..protocol import Ops


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


# The methods of Ops ------------------------------------------------------------------------------------------


class LinalgOps(Calls[R]):
    __slots__ = ()

    @MATMUL.method
    def matmul(self, x: R, y: R, /) -> R:
        """Matrix product (m, k)·(k, n) -> (m, n). PyTorch: torch.mm.

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: x's columns are not y's rows; x, y of another shape.
        """

    @BMM.method
    def bmm(self, x: R, y: R, /) -> R:
        """Batched matrix product (..., m, k)·(..., k, n), with any number of equal leading axes. PyTorch: torch.bmm.

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: x's columns are not y's rows; x and y are stacks of other sizes.
        """

    @LINEAR.method
    def linear(self, weight: R, bias: R | None, x: R, /) -> R:
        """x · weightᵀ + bias, weight (out, in), bias (out), x (..., in). PyTorch: torch.nn.functional.linear.

        Raises:
            DtypeError: weight not a float tensor; dtypes differ.
            ShapeError: x has other features than the weight; the bias has another size than the weight's rows; weight,
                bias of another shape.
        """
