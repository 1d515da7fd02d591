# mypy: disable-error-code=empty-body
"""Determinants of the last two axes, for each matrix of a stack, and the cofactors, which are their derivatives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..calls import Calls
from ..dims import Dim
from ..primitive import Context, Primitive, R, Row, Some, Types
from ..types import TensorType
from .linalg import transposed
from .solving import on_diagonal, require_square

if TYPE_CHECKING:
    from ..protocol import Ops


def _of_matrix(x: TensorType) -> Types:
    require_square(x, "x")
    return (x,)


def _number_each(x: TensorType) -> Types:
    require_square(x, "x")
    return (TensorType(x.shape[:-2], x.dtype),)


def _two_each(x: TensorType) -> Types:
    return _number_each(x) * 2


def _cubic_flops(inputs: Types, outputs: Types, /) -> Dim:
    return inputs[0].size * inputs[0].shape[-1]


def over_matrices(ops: Ops[R], number: R, x: R) -> R:
    """Broadcast one number per matrix to its entries."""
    return ops.broadcast_to(ops.reshape(number, shape=(*number.shape, 1, 1)), shape=x.shape)


def inner(ops: Ops[R], x: R, y: R) -> R:
    """Return the inner product of two matrices, for each of a stack."""
    return ops.reduce_sum(ops.mul(x, y), axis=(-2, -1))


def inverse_of(ops: Ops[R], x: R) -> R:
    """Return x⁻¹, by solving with the identity matrix."""
    return ops.solve(x, ops.cast(on_diagonal(ops, x), dtype=x.dtype))


# The determinant ----------------------------------------------------------------------------------------------------


def _det_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /) -> Some[R]:
    (g,), (x,) = cotangents, ctx.saved
    return (ops.mul(over_matrices(ops, g, x), ops.cofactor(x)),)


def _det_jvp(ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Row[R], /) -> tuple[R | None]:
    (x,), (t,) = primals, tangents
    return (inner(ops, ops.cofactor(x), t),)


DET = Primitive(shape=_number_each, vjp=_det_vjp, jvp=_det_jvp, saves=("x",), flops=_cubic_flops)

# Cofactors: C = det(x)·x⁻ᵀ, so dC = <x⁻ᵀ, dx>·C - x⁻ᵀ·dxᵀ·C --------------------------------------------------------


def _cofactor_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /) -> Some[R]:
    """<g, C>·x⁻ᵀ - C·gᵀ·x⁻ᵀ."""
    (g,), (x, out) = cotangents, ctx.saved
    inverse = transposed(ops, inverse_of(ops, x))
    whole = ops.mul(over_matrices(ops, inner(ops, g, out), x), inverse)
    return (ops.sub(whole, ops.bmm(ops.bmm(out, transposed(ops, g)), inverse)),)


def _cofactor_jvp(ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Row[R], /) -> tuple[R | None]:
    (x,), (out,), (t,) = primals, outputs, tangents
    inverse = transposed(ops, inverse_of(ops, x))
    whole = ops.mul(over_matrices(ops, inner(ops, inverse, t), x), out)
    return (ops.sub(whole, ops.bmm(ops.bmm(inverse, transposed(ops, t)), out)),)


COFACTOR = Primitive(shape=_of_matrix, vjp=_cofactor_vjp, jvp=_cofactor_jvp, saves=("x", "out"), flops=_cubic_flops)

# Sign and logarithm of the determinant ------------------------------------------------------------------------------


def _slogdet_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /) -> Some[R]:
    (_, g), (x,) = cotangents, ctx.saved
    return (ops.mul(over_matrices(ops, g, x), transposed(ops, inverse_of(ops, x))),)


def _slogdet_jvp(ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Row[R], /) -> Some[R]:
    (x,), (t,) = primals, tangents
    return None, inner(ops, transposed(ops, inverse_of(ops, x)), t)


SLOGDET = Primitive(
    outputs=("sign", "logabsdet"), shape=_two_each, vjp=_slogdet_vjp, jvp=_slogdet_jvp, saves=("x",), flops=_cubic_flops
)


# The methods of Ops ------------------------------------------------------------------------------------------


class DeterminantsOps(Calls[R]):
    __slots__ = ()

    @DET.method
    def det(self, x: R, /) -> R:
        """The determinant: x (..., n, n) -> (...); 1 for n = 0. PyTorch: torch.linalg.det. ONNX: Det.

        Its gradient is `cofactor(x)`, also for singular x; the second derivative requires invertible x, and is nan
        where x is singular. nan where x has nan or inf.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: x of another shape.
        """

    @COFACTOR.method
    def cofactor(self, x: R, /) -> R:
        """The cofactor matrix, the transpose of the adjugate: x (..., n, n) -> (..., n, n), det(x)·x⁻ᵀ.

        Also for singular x: 0 where its rank is less than n - 1. Its derivatives require invertible x, and are nan
        where x is singular. nan where x has nan or inf. Not in PyTorch.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: x of another shape.
        """

    @SLOGDET.method
    def slogdet(self, x: R, /) -> tuple[R, R]:
        """The sign of the determinant and the logarithm of its absolute value: x (..., n, n) -> (...), (...).

        They do not overflow where the determinant would. 0 and -inf where x is singular (a pivot is exactly 0), and nan
        where it has nan or inf. The gradient of the logarithm is x⁻ᵀ, nan where x is singular; the sign has none.
        PyTorch: torch.linalg.slogdet.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: x of another shape.
        """
