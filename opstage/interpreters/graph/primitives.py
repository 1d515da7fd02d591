"""Primitives that only passes write: a graph holds them, a program never calls them."""

from __future__ import annotations

from ...ops.catalogue.linalg import BMM, MATMUL
from ...ops.dims import Dim, require_equal
from ...ops.errors import ShapeError
from ...ops.kinds import Kind
from ...ops.primitive import NO_STATIC, Primitive, R
from ...ops.protocol import Ops
from ...ops.types import Shape, TensorType, require_float, require_same_dtype, show_shape


def _turned(shape: Shape, transpose: bool) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2]) if transpose else shape


def _product_shape(x: TensorType, y: TensorType, *, transpose_x: bool, transpose_y: bool) -> tuple[TensorType, ...]:
    require_float(x, "x")
    require_same_dtype(x, y, "x", "y")
    if len(x.shape) != len(y.shape) or len(x.shape) < 2:
        raise ShapeError(
            f"x is {show_shape(x.shape)} and y is {show_shape(y.shape)}: matrices and stacks of them have one rank, "
            "at least 2"
        )
    left, right = _turned(x.shape, transpose_x), _turned(y.shape, transpose_y)
    for a, b in zip((*left[:-2], left[-1]), (*right[:-2], right[-2])):
        require_equal(
            a,
            b,
            lambda: (
                f"x is {show_shape(x.shape)} and y is {show_shape(y.shape)}, which make {show_shape(left)} times "
                f"{show_shape(right)}: the leading axes must agree, and columns of the first be rows of the second"
            ),
        )
    return (TensorType((*left[:-1], right[-1]), x.dtype),)


def _product_decomposition(ops: Ops[R], x: R, y: R, /, *, transpose_x: bool, transpose_y: bool) -> tuple[R, ...]:
    rank = len(x.shape)
    turned = (*range(rank - 2), rank - 1, rank - 2)
    left = ops.permute(x, axes=turned) if transpose_x else x
    right = ops.permute(y, axes=turned) if transpose_y else y
    return ops.bind(MATMUL if rank == 2 else BMM, (left, right), NO_STATIC)


def _product_flops(
    inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...], /, *, transpose_x: bool, transpose_y: bool
) -> Dim:
    """A multiplication and an addition for each element of the result and each term of its sum."""
    return 2 * outputs[0].size * inputs[0].shape[-2 if transpose_x else -1]


PRODUCT = Primitive(
    "product",
    "`product(x, y, transpose_x=, transpose_y=)`: the product of two matrices, or of two stacks with the same leading "
    "axes; an operand is read with its last two axes exchanged where its flag is set. BLAS: gemm.",
    operands=("x", "y"),
    shape=_product_shape,
    decomposition=_product_decomposition,
    kind=Kind.CONTRACTION,
    flops=_product_flops,
)

GRAPH_PRIMITIVES: dict[str, Primitive] = {PRODUCT.name: PRODUCT}
"""By name, beside those of the catalogue."""
